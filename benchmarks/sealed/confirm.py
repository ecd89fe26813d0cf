"""Show without probe that faults lie where their truth says and are above rounding, and that clean pairs are clean."""

from __future__ import annotations

import json
import subprocess
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..blind.confirm import confirm
from ..blind.run import training_of
from ..blind.spec import Pair
from ..blind.totals import summary
from . import catalogue

FILE = Path(__file__).with_name("confirmed.json")


def confirmed() -> dict[str, dict[str, Any]]:
    """The answers of all pairs that agree with their truth."""
    return {name: answer for name, answer in json.loads(FILE.read_text()).items() if answer["agrees"]}


def confirm_all(files: tuple[str, ...], again: bool) -> None:
    """Confirm each file in a process of its own."""
    for file in files:
        command = [sys.executable, "-W", "ignore", "-m", __package__, "--confirm-one", file]
        subprocess.run(command + (["--again"] if again else []), check=False)
    known = json.loads(FILE.read_text())
    wrong = sorted(name for name, answer in known.items() if not answer["agrees"])
    print(f"{len(known)} pairs, {len(known) - len(wrong)} as their truth says", *wrong, sep="\n  ")


def rough(pair: Pair) -> bool:
    """Whether a side computes in 16 bits."""
    return not {pair.a.dtype, pair.b.dtype} <= {"float32", "float64"}


def _otherwise_clean(pair: Pair) -> dict[str, float]:
    """How far a port's two sides are apart without the fault, if they do something unusual."""
    fault = pair.fault
    if fault is None or not pair.model.port or not (fault.changes or fault.steps > 1 or rough(pair)):
        return {}
    sides = [replace(side, changes=(fault.changes,) if fault.changes else ()) for side in (pair.a, pair.b)]
    a, b = (summary(training_of(side), side.steps) for side in sides)
    return {"rest": max(abs(x - y) / (abs(x) + abs(y) + 1e-12) for x, y in zip(a, b, strict=True))}


def confirm_file(file: str, again: bool) -> None:
    """Confirm the pairs of one file."""
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    pairs = catalogue.pairs((file,))
    models = {model.name for model in catalogue.of(file)}
    answers = {}
    places = {model.name: {path for path, _ in model.build().model.named_modules()} for model in catalogue.of(file)}
    for pair in pairs:
        old = known.get(pair.name)
        if old and old["agrees"] and not again and not (pair.fault and pair.fault.path not in places[pair.model.name]):
            answers[pair.name] = old
            continue
        try:
            answers[pair.name] = answer = confirm(pair) | _otherwise_clean(pair)
            if pair.fault and pair.fault.path not in places[pair.model.name]:
                raise LookupError(f"A has no {pair.fault.path}")
            answer["agrees"] = answer["agrees"] and answer.get("rest", 0.0) < (6e-2 if rough(pair) else 2e-4)
        except Exception as error:  # noqa: BLE001 - one pair must not stop the others
            if not pair.fault:
                traceback.print_exc(limit=-3)
            answers[pair.name] = answer = {"agrees": False, "error": f"{type(error).__name__}: {error}"[:200]}
        truth = pair.fault and f"{pair.fault.path or '(all)'} {pair.fault.phases} step {pair.fault.step}"
        print(
            "ok   " if answer["agrees"] else "WRONG",
            pair.name,
            {k: v for k, v in answer.items() if k != "agrees"},
            "" if answer["agrees"] else f"truth: {truth}",
            flush=True,
        )
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    known = {name: answer for name, answer in known.items() if name.split("/")[0] not in models} | answers
    rows: dict[str, list[str]] = {}
    for key, answer in sorted(known.items()):
        rows.setdefault(key.split("/")[0], []).append(f"{json.dumps(key)}: {json.dumps(answer)}")
    FILE.write_text("{\n " + ",\n ".join(", ".join(row) for row in rows.values()) + "\n}\n")
