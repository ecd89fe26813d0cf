"""Show without probe that every fault lies where its truth says, how large it is there, and that clean pairs are clean.

Each faulty program runs beside the right one in the same process, with plain hooks of the framework: the first place that
differs bit by bit given the same inputs must be the one that the fault's truth names, and the relative error there must be
3 times the noise or more. The answers go to confirmed.json of the set; only pairs that agree are judged.
"""

from __future__ import annotations

import fnmatch
import json
import math
import sys
import traceback
from dataclasses import dataclass, replace
from typing import Any

from . import catalogue
from .spec import Fault, Pair, Side
from .training import Training, training_of

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


def confirmed(which: str = "blind", sure: bool = True) -> dict[str, dict[str, Any]]:
    """What was found of the pairs of a set; only of those that agree with their truth when `sure`."""
    path = catalogue.folder(which) / "confirmed.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    return {name: answer for name, answer in known.items() if answer["agrees"] or not sure}


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
    worst = _apart(pair.a, pair.b)
    return {"agrees": worst < _allowed(pair), "worst": worst}


def _otherwise_clean(pair: Pair) -> dict[str, float]:
    """How far a port's two sides are apart without the fault, if they do something unusual."""
    fault = pair.fault
    if fault is None or not pair.model.port or not (fault.changes or fault.steps > 1 or _is_rough(pair)):
        return {}
    changes = (fault.changes,) if fault.changes else ()
    return {"rest": _apart(*(replace(side, changes=changes) for side in (pair.a, pair.b)))}


def _is_rough(pair: Pair) -> bool:
    """Whether a side computes in 16 bits."""
    return not {pair.a.dtype, pair.b.dtype} <= {"float32", "float64"}


def _allowed(pair: Pair) -> float:
    return 6e-2 if _is_rough(pair) else 2e-4


def _apart(*sides: Side) -> float:
    """How far the totals of two trainings are apart."""
    a, b = (_totals(training_of(side), side.steps) for side in sides)
    return max(abs(x - y) / (abs(x) + abs(y) + 1e-12) for x, y in zip(a, b, strict=True))


def _totals(training: Training, steps: int) -> list[float]:
    """Loss, gradients' norm and norm of the parameters that the optimizer holds, after each step."""
    result: list[float] = []
    left: list[float] = []
    watch = training.watch

    def event(name: str) -> None:
        watch(name)
        if name == "gradient":
            scale = training.scaler.get_scale() if training.scaler else 1.0
            grads = [p.grad.double().norm().item() for p in training.model.parameters() if p.grad is not None]
            left.append(math.hypot(*grads) / scale)

    training.watch = event
    for number in range(steps):
        result.append(float(training.step(number)))
        held = [p for group in training.optimizer.param_groups for p in group["params"]]
        result += [left[-1], math.hypot(*(p.detach().double().norm().item() for p in held))]
    return result


def confirm_file(which: str, file: str, again: bool) -> None:
    """Confirm the pairs of one file of models, those that are confirmed already only `again`."""
    path = catalogue.folder(which) / "confirmed.json"
    before, models = confirmed(which, sure=False), catalogue.models(which, file)
    places = {model.name: {path for path, _ in model.build().model.named_modules()} for model in models}
    answers = {}
    for pair in catalogue.pairs(which, (file,)):
        is_known = pair.fault is None or pair.fault.path in places[pair.model.name]
        if is_known and not again and before.get(pair.name, {}).get("agrees"):
            answers[pair.name] = before[pair.name]
            continue
        try:
            answer = confirm(pair) | _otherwise_clean(pair)
            if not is_known:
                raise LookupError(f"A has no {pair.fault.path}")
            answer["agrees"] = answer["agrees"] and answer.get("rest", 0.0) < _allowed(pair)
        except Exception as error:  # noqa: BLE001 - one pair must not stop the others
            traceback.print_exc(limit=-3)
            answer = {"agrees": False, "error": f"{type(error).__name__}: {error}"[:200]}
        answers[pair.name] = answer
        truth = pair.fault and f"{pair.fault.path or '(all)'} {pair.fault.phases} step {pair.fault.step}"
        shown = {key: value for key, value in answer.items() if key != "agrees"}
        print(*("ok   ", pair.name, shown) if answer["agrees"] else ("WRONG", pair.name, shown, f"truth: {truth}"))
    sys.stdout.flush()
    names = {model.name for model in models}
    known = {name: one for name, one in confirmed(which, sure=False).items() if name.split("/")[0] not in names}
    lines = (f" {json.dumps(key)}: {json.dumps(answer)}" for key, answer in sorted((known | answers).items()))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")
