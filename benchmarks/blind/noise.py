"""How large a fault is at its own place, and how large rounding is there.

The noise of a place is what changes there when the output of every module of the right program is moved by at most half a
unit in the last place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .training import Training
from .watch import Finding, Step, Tensors, all_same, distance, same


def shaken(training: Training) -> None:
    """Round the output of every module in another way."""
    numbers = torch.Generator().manual_seed(11)

    def moved(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            shift = (torch.rand(value.shape, generator=numbers, dtype=torch.float64) - 0.5) * torch.finfo(
                value.dtype
            ).eps
            return (value.double() * (1 + shift)).to(value.dtype)
        return tuple(moved(v) for v in value) if type(value) is tuple else value

    for module in training.model.modules():
        if not getattr(module, "parametrizations", None):
            module.register_forward_hook(lambda module, args, output: moved(output))


def size_and_noise(found: Finding, right: list[Step], wrong: list[Step], other: list[Step]) -> tuple[float, float]:
    """The fault's relative error and the noise, where the fault stands out most from the noise."""
    steps = [trace[found.step] for trace in (right, wrong, other)]
    places = [(distance(a, b) or 0.0, distance(a, c) or 0.0) for a, b, c in _places(found, *steps)]
    return max(places, key=lambda place: place[0] / (place[1] + 1e-30), default=(0.0, 0.0))


def _places(found: Finding, a: Step, b: Step, c: Step) -> Iterator[tuple[Tensors, Tensors, Tensors]]:
    if found.phase == "init":
        return iter([([a.before[n]], [b.before.get(n)], [a.before[n]]) for n in a.before if n in b.before])
    if found.phase == "loss":
        return iter([([a.loss], [b.loss], [c.loss])])
    if found.phase == "forward":
        if not all_same(a.fed, b.fed):
            return iter([(a.fed, b.fed, a.fed)])
        calls = [[call for call in step.calls if call.path == found.path] for step in (a, b, c)]
        return (
            (x.outputs, y.outputs, z.outputs) for x, y, z in zip(*calls, strict=False) if all_same(x.inputs, y.inputs)
        )
    if found.phase == "backward":
        flows = [[flow for flow in step.flows if flow.path == found.path] for step in (a, b, c)]
        passed = [(x.passed, y.passed, z.passed) for x, y, z in zip(*flows, strict=False) if all_same(x.got, y.got)]
        if any(not all_same(x, y) for x, y, _ in passed):
            return iter(passed)
    if found.phase in ("backward", "gradient"):
        names = [n for n in {*a.left, *b.left} if not same(a.left.get(n), b.left.get(n))]
        return iter([([a.left.get(n)], [b.left.get(n)], [c.left.get(n)]) for n in names])
    names = [n for n in a.after if n in b.after and n in c.after and not same(a.after[n], b.after[n])]
    return iter([tuple([_move(s, n)] for s in (a, b, c)) for n in names])


def _move(step: Step, name: str) -> torch.Tensor:
    after = step.after[name].double()
    return after - step.before[name].double() if name in step.before else after
