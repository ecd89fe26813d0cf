"""Judge the recordings with the probe that is imported, grade its answers, and count them by phase and by kind."""

from __future__ import annotations

import fnmatch
import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import yaml

from ..blind.record import TASKS, recorded
from ..blind.spec import Fault, Pair
from . import catalogue
from .confirm import confirmed

GRADES = ("exact", "parent", "wrong name", "other phase", "missed", "undecided", "aligned", "false alarm", "error")


def judge_all(folder: Path, name: str, files: tuple[str, ...]) -> None:
    """Judge every confirmed pair that is recorded; write FOLDER/NAME.json, print the counts."""
    sure = confirmed()
    answers = judge_pairs(folder, [pair for pair in catalogue.pairs(files) if pair.name in sure])
    (folder / f"{name}.json").write_text(json.dumps(answers, indent=0) + "\n")
    print(table(answers))


def judge_pairs(folder: Path, pairs: list[Pair]) -> list[dict[str, Any]]:
    """The graded answers for these pairs, from values and from statistics."""
    import probe

    result = []
    for pair in pairs:
        mapping = _written(folder, pair)
        for task in TASKS:
            files = recorded(folder, pair, task)
            if files is None:
                continue
            try:
                answer = _answer(probe.compare(*map(str, files), mapping=mapping))
            except Exception as error:  # noqa: BLE001 - one pair must not stop the others
                answer = {"verdict": "error", "named": [], "error": f"{type(error).__name__}: {error}"[:300]}
            fault = pair.fault
            labels = {"phase": fault.phases[0], "kind": fault.way} if fault else {"phase": "clean", "kind": _kind(pair)}
            result.append({"pair": pair.name, "task": task, "grade": grade(pair, answer), **labels, **answer})
    return result


def table(answers: list[dict[str, Any]]) -> str:
    """Counts of grades: in all, by phase, by kind."""
    lines = []
    for label in ("", "phase", "kind"):
        for task in TASKS:
            counts: dict[str, Counter] = defaultdict(Counter)
            for answer in (one for one in answers if one["task"] == task):
                clean = answer["phase"] == "clean"
                row = answer[label] if label else ("clean pairs" if clean else "faults")
                counts[("clean: " if clean and label == "kind" else "") + row][answer["grade"]] += 1
            lines.append(f"\n{f'by {label}' if label else 'in all'}, from {task}")
            for row in sorted(counts):
                found = ", ".join(f"{counts[row][one]} {one}" for one in GRADES if counts[row][one])
                lines.append(f"  {row:<24} {sum(counts[row].values()):>4}  {found}")
    return "\n".join(lines)


def grade(pair: Pair, answer: dict[str, Any]) -> str:
    """One of `GRADES`: only the first place that is named counts."""
    verdict, fault = answer["verdict"], pair.fault
    if verdict in ("error", "undecided"):
        return verdict
    if fault is None:
        return "aligned" if verdict == "aligned" else "false alarm"
    if verdict == "aligned":
        return "missed"
    if not answer["named"]:
        return "wrong name"
    first = answer["named"][0]
    on_time = first["step"] == fault.step and first["phase"] in fault.phases
    if _at(fault, first):
        return "exact" if on_time else "other phase"
    return "parent" if fault.path and on_time and first["paths"] == [fault.path.rpartition(".")[0]] else "wrong name"


def _at(fault: Fault, place: dict[str, Any]) -> bool:
    """By A's names; a place that only B has, by the name on B where the fault was planted."""
    alone = place.get("side") == "b" and fault.planted is not None
    right = (fault.planted,) if alone else (fault.path, *fault.also)
    return bool(place["paths"]) and all(any(fnmatch.fnmatchcase(p, one) for one in right) for p in place["paths"])


def _kind(pair: Pair) -> str:
    return ("port: " if pair.model.port else "same code: ") + (
        pair.a.dtype if pair.a.dtype == pair.b.dtype else f"{pair.a.dtype} against {pair.b.dtype}"
    )


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
            "side": "a" if place.a else "b",
            "paths": sorted({node.path for node in (place.a or place.b)}),
        }
        for place in comparison.divergences[:3]
    ]
    return {"verdict": str(getattr(comparison.verdict, "value", comparison.verdict)).lower(), "named": named}
