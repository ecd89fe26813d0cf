"""Follow trainings of any framework: the totals of a training, and forward calls of paddle and mindspore models."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


def summary(training: Any, steps: int) -> list[float]:
    """Loss, gradients' norm and parameters' norm after each step."""
    from_other = getattr(training, "norms", None)
    result: list[float] = []
    left: list[float] = []
    if from_other is None:
        parameters = [p for p in training.model.parameters() if p.requires_grad]
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
        if from_other is None:
            result += [left[-1], math.hypot(*(p.detach().double().norm().item() for p in parameters))]
        else:
            result += from_other()
    return result


class Seen:
    """What one step of a training in another framework showed."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, list[np.ndarray], list[np.ndarray]]] = []
        self.fed: list[np.ndarray] = []
        self.before: dict[str, np.ndarray] = {}
        self.left: dict[str, np.ndarray] = {}
        self.after: dict[str, np.ndarray] = {}
        self.loss = 0.0


def watched(training: Any, steps: int) -> list[Seen]:
    """Train and keep what passes through every module (forward), and the parameters' gradients."""
    result: list[Seen] = []
    training.follow(lambda path, inputs, outputs: result[-1].calls.append((path, inputs, outputs)))
    for number in range(steps):
        result.append(Seen())
        seen = result[-1]
        seen.before, seen.fed = training.state(), list(training.batches[number].values())
        seen.loss = float(training.step(number))
        seen.left, seen.after = training.gradients(), training.state()
    return result


def compare(right: list[Seen], wrong: list[Seen]) -> Any:
    """The first difference, in causal order. Backward is only seen by its result, the parameters' gradients."""
    from .confirm import Finding

    for number, (a, b) in enumerate(zip(right, wrong, strict=True)):
        if number == 0 and (names := _unlike(a.before, b.before)):
            return _of(Finding, number, "init", names, a.before, b.before)
        if not _same(a.fed, b.fed):
            return Finding(number, "forward", "", _distance(a.fed, b.fed))
        for x, y in zip(a.calls, b.calls, strict=False):
            if x[0] == y[0] and _same(x[1], y[1]) and not _same(x[2], y[2]):
                return Finding(number, "forward", x[0], _distance(x[2], y[2]))
        if a.loss != b.loss:
            return Finding(number, "loss", "", abs(a.loss - b.loss) / abs(a.loss))
        if names := _unlike(a.left, b.left):
            return _of(Finding, number, "gradient", names, a.left, b.left)
        if names := _unlike(a.after, b.after):
            moves = [{n: s.after[n].astype("f8") - s.before[n] for n in names} for s in (a, b)]
            return _of(Finding, number, "update", names, *moves)
    return None


def _of(make: Any, number: int, phase: str, names: list[str], a: dict, b: dict) -> Any:
    paths = list(dict.fromkeys(name.rpartition(".")[0] for name in names))
    size = max(_distance([a[n]], [b[n]]) if n in a and n in b else 1.0 for n in names)
    return make(number, phase, paths[0] if len(paths) == 1 else "", size, others=tuple(paths[:8]))


def _unlike(a: dict, b: dict) -> list[str]:
    return [n for n in dict.fromkeys([*a, *b]) if n not in a or n not in b or not np.array_equal(a[n], b[n])]


def _same(a: list, b: list) -> bool:
    return len(a) == len(b) and all(np.array_equal(x, y, equal_nan=x.dtype.kind == "f") for x, y in zip(a, b, strict=True))


def _distance(a: list, b: list) -> float:
    worst = 0.0
    for x, y in zip(a, b, strict=False):
        if x.shape != y.shape:
            return 1.0
        error, norm = (float(np.linalg.norm(v.astype("f8").ravel())) for v in (x.astype("f8") - y, x))
        worst = max(worst, error / norm if norm else float(error > 0))
    return worst
