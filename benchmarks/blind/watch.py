"""Follow a torch training with plain hooks, and find the first place where two of them differ given the same inputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from .confirm import Finding
from .training import Training

Tensors = list[torch.Tensor | None]


@dataclass
class Call:
    """One call of a module."""

    path: str
    inputs: Tensors
    outputs: Tensors
    noise: float | None = None


@dataclass
class Flow:
    """What one call of a module got and passed on in the backward pass."""

    path: str
    got: Tensors
    passed: Tensors


@dataclass
class Step:
    """What happened in one step."""

    before: dict[str, torch.Tensor] = field(default_factory=dict)
    fed: Tensors = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)
    flows: list[Flow] = field(default_factory=list)
    loss: torch.Tensor | None = None
    left: dict[str, torch.Tensor] = field(default_factory=dict)
    after: dict[str, torch.Tensor] = field(default_factory=dict)


def tensors(value: Any) -> Tensors:
    """All tensors in nested containers, copied."""
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()]
    if isinstance(value, dict):
        return [t for v in value.values() for t in tensors(v)]
    if isinstance(value, (list, tuple)):
        return [t for v in value for t in tensors(v)]
    return []


def gradients(value: Any) -> Tensors:
    """The gradients that a backward hook is given."""
    if isinstance(value, torch.Tensor):
        return [value.detach().clone()]
    return [None if v is None else v.detach().clone() for v in value or ()]


def state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Copies of parameters and buffers."""
    held = [*model.named_parameters(), *model.named_buffers()]
    return {name: tensor.detach().clone() for name, tensor in held}


def held(training: Training) -> dict[str, torch.Tensor]:
    """The optimizer's state, by parameter."""
    names = {p: name for name, p in training.model.named_parameters()}
    return {
        f"{names[p]}|{key}": value.detach().clone()
        for p, entry in getattr(training.optimizer, "state", {}).items()
        if p in names
        for key, value in entry.items()
        if isinstance(value, torch.Tensor)
    }


def watched(training: Training, steps: int, backward: bool = True) -> list[Step]:
    """Train and keep what passes through every module."""
    result: list[Step] = []
    model, handles = training.model, []
    for path, module in model.named_modules():

        def seen(module: nn.Module, args: tuple, kwargs: dict, output: Any, path: str = path) -> None:
            inputs = module.__dict__.pop("_fed", None)
            result[-1].calls.append(Call(path, inputs if inputs is not None else [], tensors(output), None))

        def fed(module: nn.Module, args: tuple, kwargs: dict) -> None:
            module.__dict__["_fed"] = tensors((args, kwargs))

        handles.append(module.register_forward_pre_hook(fed, with_kwargs=True))
        handles.append(module.register_forward_hook(seen, with_kwargs=True))
        if backward:

            def passed(module: nn.Module, into: Any, out: Any, path: str = path) -> None:
                result[-1].flows.append(Flow(path, gradients(out), gradients(into)))

            handles.append(module.register_full_backward_hook(passed))
    for module in model.modules():
        if getattr(module, "inplace", False) is True:
            module.inplace = False

    def event(name: str) -> None:
        if name == "gradient":
            result[-1].left = {n: p.grad.detach().clone() for n, p in model.named_parameters() if p.grad is not None}

    training.watch = event
    for number in range(steps):
        result.append(Step(before=state(model)))
        result[-1].fed = tensors(training.batches[number])
        result[-1].loss = training.step(number).detach().clone()
        result[-1].after = state(model) | held(training)
    for handle in handles:
        handle.remove()
    return result


def same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Bitwise, with NaN equal to NaN."""
    if one is None or other is None:
        return one is other
    return (
        one.shape == other.shape
        and one.dtype == other.dtype
        and torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    )


def all_same(one: Tensors, other: Tensors) -> bool:
    """Of two lists of tensors."""
    return len(one) == len(other) and all(same(a, b) for a, b in zip(one, other, strict=True))


def distance(one: Tensors, other: Tensors) -> float | None:
    """The largest relative error of any tensor."""
    worst = 0.0
    for a, b in zip(one, other, strict=False):
        if a is None and b is None:
            continue
        if a is None or b is None or a.shape != b.shape:
            return 1.0
        if not a.is_floating_point() and not a.is_complex():
            worst = max(worst, 0.0 if torch.equal(a, b) else 1.0)
            continue
        a, b = (t.to(torch.complex128 if t.is_complex() else torch.float64) for t in (a, b))
        if not torch.equal(a.isfinite(), b.isfinite()):
            return 1.0
        a, b = a.nan_to_num(0.0, 0.0, 0.0), b.nan_to_num(0.0, 0.0, 0.0)
        error, norm = (a - b).norm().item(), a.norm().item()
        worst = max(worst, error / norm if norm else float(error > 0))
    return worst


def owner(name: str) -> str:
    """The path of the module that holds a parameter."""
    return name.split("|")[0].rpartition(".")[0]


def compare(right: list[Step], wrong: list[Step]) -> Finding | None:
    """The first difference, in causal order."""
    for number, (a, b) in enumerate(zip(right, wrong, strict=True)):
        for find in (_initial if number == 0 else None, _fed, _forward, _loss, _backward, _gradient, _update):
            found = find(number, a, b) if find else None
            if found is not None:
                return found
    return None


def _initial(number: int, a: Step, b: Step) -> Finding | None:
    wrong = [n for n in a.before if n in b.before and not same(a.before[n], b.before[n])]
    return _of_parameters(number, "init", wrong, a.before, b.before) if wrong else None


def _of_parameters(number: int, phase: str, wrong: list[str], a: dict, b: dict, every: Any = ()) -> Finding:
    paths = list(dict.fromkeys(owner(n) for n in wrong))
    size = max(distance([a.get(n)], [b.get(n)]) or 0.0 for n in wrong)
    everything = {owner(n) for n in every}
    return Finding(
        number, phase, "" if everything and everything <= set(paths) else common(paths), size, others=tuple(paths[:8])
    )


def common(paths: list[str]) -> str:
    """The innermost module that holds all of these."""
    shared: list[str] = []
    for names in zip(*(path.split(".") for path in paths), strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)


def _fed(number: int, a: Step, b: Step) -> Finding | None:
    if all_same(a.fed, b.fed):
        return None
    roots = [next((c for c in s.calls if c.path == ""), None) for s in (a, b)]
    if None not in roots and all_same(roots[0].inputs, roots[1].inputs):
        return Finding(number, "loss", "", distance([a.loss], [b.loss]))
    return Finding(number, "forward", "", distance(a.fed, b.fed))


def _pairs(a: list, b: list) -> list[tuple]:
    counted: dict[str, list] = {}
    for item in b:
        counted.setdefault(item.path, []).append(item)
    result = []
    for item in a:
        left = counted.get(item.path)
        if left:
            result.append((item, left.pop(0)))
    return result


def _forward(number: int, a: Step, b: Step) -> Finding | None:
    for x, y in _pairs(a.calls, b.calls):
        if all_same(x.inputs, y.inputs) and not all_same(x.outputs, y.outputs):
            return Finding(number, "forward", x.path, distance(x.outputs, y.outputs))
    return None


def _loss(number: int, a: Step, b: Step) -> Finding | None:
    return None if same(a.loss, b.loss) else Finding(number, "loss", "", distance([a.loss], [b.loss]))


def _backward(number: int, a: Step, b: Step) -> Finding | None:
    wrong = {n for n in {*a.left, *b.left} if not same(a.left.get(n), b.left.get(n))}
    if a.flows and b.flows and not all_same(a.flows[0].got, b.flows[0].got) and wrong:
        return Finding(number, "backward", "", distance(a.flows[0].got, b.flows[0].got))
    for x, y in _pairs(a.flows, b.flows):
        if all_same(x.got, y.got) and not all_same(x.passed, y.passed):
            return Finding(number, "backward", x.path, distance(x.passed, y.passed))
    if wrong and not all(all_same(x.got, y.got) for x, y in _pairs(a.flows, b.flows)):
        missing = [x.path for x, y in _pairs(a.flows, b.flows) if not all_same(x.got, y.got)]
        return Finding(number, "backward", missing[0], None, others=tuple(missing[:8]))
    return None


def _gradient(number: int, a: Step, b: Step) -> Finding | None:
    wrong = [n for n in a.before if not same(a.left.get(n), b.left.get(n))]
    return _of_parameters(number, "gradient", wrong, a.left, b.left, a.left) if wrong else None


def _update(number: int, a: Step, b: Step) -> Finding | None:
    wrong = [n for n in a.after if n in b.after and not same(a.after[n], b.after[n])]
    if not wrong:
        return None
    moves = [
        {n: s.after[n].double() - s.before[n].double() if n in s.before else s.after[n] for n in wrong} for s in (a, b)
    ]
    return _of_parameters(number, "update", wrong, *moves, a.left)
