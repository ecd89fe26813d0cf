"""Show without probe that every fault lies where its truth says, how large it is there, and that clean pairs are clean.

    python -m benchmarks.blind.confirm [--only MODEL ...]

Each faulty program runs beside the right one in the same process, with plain hooks of the framework: the first place that
differs bit by bit given the same inputs must be the one that the fault's truth names, and the relative error there must be
3 times the noise or more. The answers go to confirmed.json; `judge` takes only pairs that agree.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import subprocess
import sys
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import catalogue
from .run import training_of
from .spec import Fault, Pair, pairs_of

FILE = Path(__file__).with_name("confirmed.json")
LEAST = 3.0
"""times the noise: how large a fault must be"""


@dataclass
class Finding:
    """The first place that differs given the same inputs."""

    step: int
    phase: str
    path: str
    size: float | None
    others: tuple[str, ...] = ()


def confirmed() -> set[str]:
    """The names of the pairs whose truth is confirmed."""
    return {name for name, answer in json.loads(FILE.read_text()).items() if answer["agrees"]}


def confirm(pair: Pair) -> dict[str, Any]:
    """The answer for one pair, ready for JSON."""
    if pair.fault is None:
        return _clean(pair)
    from .noise import shaken, size_and_noise
    from .watch import compare, watched

    fault = pair.fault
    faulty = pair.a if fault.swapped else pair.b
    right = replace(faulty, changes=(fault.changes,) if fault.changes else ())
    traces = [watched(training_of(side), fault.steps) for side in (right, faulty)]
    found = compare(*traces)
    if found is None:
        return {"agrees": False, "found": None}
    place = _agrees(fault, found, port=bool(pair.model.port) and not fault.swapped)
    other = training_of(right)
    shaken(other)
    size, noise = size_and_noise(found, *traces, watched(other, fault.steps))
    kept = {key: getattr(found, key) for key in ("step", "phase", "path")}
    return {"agrees": place and size >= LEAST * noise and size > 0, **kept, "size": size, "noise": noise}


def _agrees(fault: Fault, found: Finding, port: bool) -> bool:
    if found.step != fault.step:
        return False
    phases = {*fault.phases, *(("forward",) if "inputs" in fault.phases else ())}
    if found.phase not in phases:
        return False
    path = fault.planted if port and fault.planted is not None else fault.path
    right = [path] if port else [path, *fault.also]

    def fits(place: str) -> bool:
        return any(place == one or fnmatch.fnmatchcase(place, one) for one in right)

    return fits(found.path) or (len(found.others) > 1 and path == "" and all(map(fits, found.others)))


def _clean(pair: Pair) -> dict[str, Any]:
    from .totals import summary

    a, b = (summary(training_of(side), side.steps) for side in (pair.a, pair.b))
    rough = pair.a.dtype != "float32" or pair.b.dtype not in ("float32", "float64")
    worst = max(abs(x - y) / (abs(x) + abs(y) + 1e-12) for x, y in zip(a, b, strict=True))
    return {"agrees": worst < (6e-2 if rough else 2e-4), "worst": worst}


def main() -> None:
    """Confirm the pairs of some or all models, each model in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", help="names of models")
    parser.add_argument("--new", action="store_true", help="only pairs that are not in confirmed.json")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        _one(options.one, options.new)
        return
    for name in catalogue.names():
        if not options.only or name in options.only:
            command = [sys.executable, "-m", "benchmarks.blind.confirm", "--one", name]
            subprocess.run(command + (["--new"] if options.new else []), check=False)
    known = json.loads(FILE.read_text())
    wrong = sorted(name for name, answer in known.items() if not answer["agrees"])
    print(f"{len(known)} pairs, {len(known) - len(wrong)} as their truth says", *wrong, sep="\n  ")


def _one(name: str, new: bool) -> None:
    model = catalogue.model(name)
    before = json.loads(FILE.read_text()) if FILE.exists() else {}
    answers = {}
    for pair in pairs_of(model):
        if new and before.get(pair.name, {}).get("agrees"):
            answers[pair.name] = before[pair.name]
            continue
        try:
            answers[pair.name] = confirm(pair)
        except Exception as error:  # noqa: BLE001 - one pair must not stop the others
            traceback.print_exc(limit=-3)
            answers[pair.name] = {"agrees": False, "error": f"{type(error).__name__}: {error}"[:200]}
        answer = answers[pair.name]
        truth = pair.fault and f"{pair.fault.path or '(all)'} {pair.fault.phases} step {pair.fault.step}"
        print(
            "ok   " if answer["agrees"] else "WRONG",
            pair.name,
            _short(answer),
            "" if answer["agrees"] else f"truth: {truth}",
        )
    sys.stdout.flush()
    known = json.loads(FILE.read_text()) if FILE.exists() else {}
    known = {key: value for key, value in known.items() if key.split("/")[0] != name} | answers
    lines = (f" {json.dumps(key)}: {json.dumps(answer)}" for key, answer in sorted(known.items()))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def _short(answer: dict[str, Any]) -> str:
    return " ".join(
        f"{key}={value:.2g}" if isinstance(value, float) else f"{key}={value}"
        for key, value in answer.items()
        if key != "agrees"
    )


if __name__ == "__main__":
    main()
