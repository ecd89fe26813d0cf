"""Judge the recordings with the probe that is imported, and grade its answers."""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from . import catalogue
from .confirm import confirmed
from .record import TASKS, recorded
from .spec import Fault, Pair

FAULTY = ("exact", "parent", "top-3", "other phase", "wrong name", "undecided", "missed", "error")
CLEAN = ("aligned", "undecided", "false alarm", "error")


def judge_all(folder: Path, answers: Path) -> None:
    """Judge every confirmed pair that is recorded, from values and from statistics; write the answers as JSON."""
    import probe

    sure, result = confirmed(), []
    for pair in (pair for pair in catalogue.pairs() if pair.name in sure):
        mapping = _written(folder, pair)
        for kind in TASKS:
            files = recorded(folder, pair, kind)
            if files is None:
                continue
            try:
                answer = _answer(probe.compare(*map(str, files), mapping=mapping))
            except Exception as error:  # noqa: BLE001 - one pair must not stop the others
                answer = {"verdict": "error", "named": [], "error": f"{type(error).__name__}: {error}"[:300]}
            result.append({"pair": pair.name, "kind": kind, "grade": grade(pair, answer), **answer})
    answers.write_text(json.dumps(result, indent=0) + "\n")
    for kind in TASKS:
        for grades in (FAULTY, CLEAN):
            print(kind, counts(result, kind, clean=grades is CLEAN))


def counts(answers: list[dict[str, Any]], kind: str, clean: bool) -> dict[str, int]:
    """How often each grade was given."""
    cleans = {pair.name for pair in catalogue.pairs() if pair.fault is None}
    found = Counter(a["grade"] for a in answers if a["kind"] == kind and (a["pair"] in cleans) == clean)
    return {name: found[name] for name in (CLEAN if clean else FAULTY)}


def _written(folder: Path, pair: Pair) -> str | None:
    if pair.mapping is None:
        return None
    path = folder / f"{pair.model.name}.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(pair.mapping)), sort_keys=False))
    return str(path)


def _answer(comparison: Any) -> dict[str, Any]:
    named = [
        {
            "step": place.step,
            "phase": place.phase.name.lower(),
            "paths": sorted({node.path for node in (place.a or place.b)}),
            "confidence": round(float(place.confidence), 3),
        }
        for place in comparison.divergences[:3]
    ]
    return {"verdict": str(getattr(comparison.verdict, "value", comparison.verdict)), "named": named}


def grade(pair: Pair, answer: dict[str, Any]) -> str:
    """The grade of an answer; the words are those of `FAULTY` and `CLEAN`."""
    verdict, named, fault = answer["verdict"], answer["named"], pair.fault
    if verdict in ("error", "undecided"):
        return verdict
    if fault is None:
        return "aligned" if verdict == "aligned" else "false alarm"
    if verdict == "aligned":
        return "missed"
    first = named[0]
    if _at(fault, first) and _when(fault, first):
        return "exact"
    if fault.path and first["paths"] == [fault.path.rpartition(".")[0]] and _when(fault, first):
        return "parent"
    if any(_at(fault, place) and _when(fault, place) for place in named):
        return "top-3"
    return "other phase" if _at(fault, first) else "wrong name"


def _at(fault: Fault, place: dict[str, Any]) -> bool:
    right = (fault.path, *fault.also)
    return all(any(fnmatch.fnmatchcase(path, one) for one in right) for path in place["paths"])


def _when(fault: Fault, place: dict[str, Any]) -> bool:
    return place["step"] == fault.step and place["phase"] in fault.phases
