"""Record the sides of pairs with values and with statistics, judge them with the probe that is imported, grade its answers."""

from __future__ import annotations

import functools
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

from ..grading import counted, grade, places
from . import catalogue
from .confirm import confirmed
from .spec import Pair, Side
from .training import training_of

TASKS = {"values": "tensor", "statistics": "statistics"}


def recordings(folder: Path, pair: Pair, task: str) -> list[Path]:
    """Where the two recordings of a pair lie."""
    return [file_of(folder, side, task) for side in (pair.a, pair.b)]


def file_of(folder: Path, side: Side, task: str) -> Path:
    """Where a side's recording lies."""
    return folder / task / f"{side.key}.{side.dtype}.{side.steps}.h5"


def record_file(which: str, folder: Path, file: str) -> None:
    """Record the confirmed pairs of one file of models, in this process; what exists stays."""
    from ..recording import recorded

    sure = confirmed(which)
    for pair in (pair for pair in catalogue.pairs(which, (file,)) if pair.name in sure):
        for side in (pair.a, pair.b):
            for task, how in TASKS.items():
                recorded(file_of(folder, side, task), functools.partial(training_of, side), side.steps, how)


def judge_all(which: str, folder: Path, name: str, files: tuple[str, ...]) -> None:
    """Judge every confirmed pair that is recorded; write FOLDER/NAME.json, print the counts."""
    sure = confirmed(which)
    answers = judge_pairs(folder, [pair for pair in catalogue.pairs(which, files) if pair.name in sure])
    (folder / f"{name}.json").write_text(json.dumps(answers, indent=0) + "\n")
    print(table(answers))


def judge_pairs(folder: Path, pairs: list[Pair]) -> list[dict[str, Any]]:
    """The graded answers for these pairs, from values and from statistics."""
    import probe

    result = []
    for pair in pairs:
        fault = pair.fault
        labels = {"phase": fault.phases[0], "kind": fault.way} if fault else {"phase": "clean", "kind": _kind(pair)}
        for task in TASKS:
            files = recordings(folder, pair, task)
            if not all(file.exists() for file in files):
                continue
            try:
                found = probe.compare(*files, mapping=pair.mapping)
                answer = {"grade": grade(fault and fault.truth, found), "verdict": found.verdict.value}
                answer["named"] = [one._asdict() for one in places(found)[:3]]
            except Exception as error:  # noqa: BLE001 - one pair must not stop the others
                answer = {"grade": "error", "verdict": "error", "named": [], "error": repr(error)[:300]}
            result.append({"pair": pair.name, "task": task, **labels, **answer})
    return result


def table(answers: list[dict[str, Any]]) -> str:
    """Counts of grades: in all, by phase, by kind."""
    lines = []
    for label in ("", "phase", "kind"):
        for task in TASKS:
            grades: dict[str, list[str]] = defaultdict(list)
            for answer in (one for one in answers if one["task"] == task):
                clean = answer["phase"] == "clean"
                row = answer[label] if label else ("clean pairs" if clean else "faults")
                grades[("clean: " if clean and label == "kind" else "") + row].append(answer["grade"])
            lines.append(f"\n{f'by {label}' if label else 'in all'}, from {task}")
            lines += [f"  {row:<24} {len(found):>4}  {counted(found)}" for row, found in sorted(grades.items())]
    return "\n".join(lines)


def _kind(pair: Pair) -> str:
    return ("port: " if pair.model.port else "same code: ") + (
        pair.a.dtype if pair.a.dtype == pair.b.dtype else f"{pair.a.dtype} against {pair.b.dtype}"
    )
