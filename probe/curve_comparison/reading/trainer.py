"""JSON: the ``trainer_state.json`` (or ``log_history``) of transformers, and one JSON object per line."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.curve_comparison.reading.series import Collector, RunCurves
from probe.errors import FormatError

TRAINER, LINES = "Trainer state", "JSON lines"
STEP_NAMES = ("step", "steps", "global_step", "iteration", "iter", "current_steps", "_step")
SUMMARY = {"train_runtime", "train_loss", "total_flos", "train_samples_per_second", "train_steps_per_second"}
"""what a Trainer says of the whole run at its end"""


def read_json(path: Path, text: str) -> RunCurves:
    """Return the curves of a ``trainer_state.json``, of a list of its ``log_history``, or of JSON lines.

    Raises
    ------
    FormatError
        it is no such JSON; with the line
    """
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        first = text.lstrip().splitlines()[0]
        if _is_object(first):
            return _lines(path, text)
        raise FormatError(f"{path}, line {error.lineno}: not valid JSON ({error.msg})") from None
    if isinstance(document, Mapping) and "log_history" not in document and _step_of(document) is not None:
        return _lines(path, text)
    history = document.get("log_history") if isinstance(document, Mapping) else document
    if not isinstance(history, Sequence) or isinstance(history, str):
        raise FormatError(
            f"{path}: expected a log_history (of transformers' trainer_state.json): a list of entries like "
            '{"step": 1, "loss": 10.8}'
        )
    found = Collector()
    for number, entry in enumerate(history):
        _take(found, entry, f"{path}, log_history[{number}]")
    return _checked(path, TRAINER, found)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), Mapping)
    except json.JSONDecodeError:
        return False


def _lines(path: Path, text: str) -> RunCurves:
    found, notes = Collector(), []
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            if number == len(lines) and not text.endswith("\n"):
                notes.append(
                    f"line {number} is not complete and is left out: the file is still written, or was cut off"
                )
                break
            raise FormatError(f"{path}, line {number}: not valid JSON ({error.msg})") from None
        _take(found, entry, f"{path}, line {number}")
    run = _checked(path, LINES, found)
    return replace(run, notes=(*run.notes, *notes))


def _checked(path: Path, kind: str, found: Collector) -> RunCurves:
    if not found:
        raise FormatError(
            f"{path}: its entries hold no number beside the step; expected loss, grad_norm, learning_rate …"
        )
    return found.curves(path, kind)


def _take(found: Collector, entry: Any, where: str) -> None:
    step = _step_of(entry)
    if step is None:
        raise FormatError(f"{where}: expected an object with a step ({', '.join(STEP_NAMES)}), got {str(entry)[:80]}")
    summary = SUMMARY & entry.keys()
    for name, value in entry.items():
        if name in STEP_NAMES or name in summary or isinstance(value, bool) or not isinstance(value, (int, float)):
            continue
        found.add(step, name, float(value), repr(value) if isinstance(value, float) else "")


def _step_of(entry: Any) -> int | None:
    if not isinstance(entry, Mapping):
        return None
    steps = [entry[name] for name in STEP_NAMES if name in entry]
    return int(steps[0]) if steps and isinstance(steps[0], (int, float)) and steps[0] == int(steps[0]) else None
