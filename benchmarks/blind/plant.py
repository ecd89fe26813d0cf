"""The tools with which faults and clean changes are planted into a training.

Most mistakes are written out as the wrong code itself, in place of a module's forward; these are the frames for that.
"""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from .training import Batch, Training

Plant = Callable[[Training], None]


def several(*plants: Plant) -> Plant:
    """All of these."""

    def plant(training: Training) -> None:
        for one in plants:
            one(training)

    return plant


def setting(path: str, **values: Any) -> Plant:
    """Another value of attributes of a module."""

    def plant(training: Training) -> None:
        module = training.at(path)
        for name, value in values.items():
            assert hasattr(module, name), f"{path} has no {name}"
            setattr(module, name, value)

    return plant


def rewritten(path: str, forward: Callable[..., Any]) -> Plant:
    """Another forward of a module: `forward(self, ...)`."""

    def plant(training: Training) -> None:
        module = training.at(path)
        module.forward = types.MethodType(forward, module)

    return plant


def around(path: str, call: Callable[..., Any]) -> Plant:
    """Code around a module's forward: `call(forward, *args, **kwargs)`."""

    def plant(training: Training) -> None:
        module = training.at(path)
        module.forward = functools.partial(call, module.forward)

    return plant


def method(path: str, name: str, function: Callable[..., Any]) -> Plant:
    """Another method of a module."""

    def plant(training: Training) -> None:
        module = training.at(path)
        assert hasattr(module, name), f"{path} has no {name}"
        setattr(module, name, types.MethodType(function, module))

    return plant


def inside(path: str, where: str, name: str, make: Callable[[Any], Any]) -> Plant:
    """While this module computes, `name` of the Python module `where` is `make(original)`."""

    def plant(training: Training) -> None:
        module, space = training.at(path), importlib.import_module(where)
        forward = module.forward

        @functools.wraps(forward)
        def replaced(*args: Any, **kwargs: Any) -> Any:
            original = getattr(space, name)
            setattr(space, name, make(original))
            try:
                return forward(*args, **kwargs)
            finally:
                setattr(space, name, original)

        module.forward = replaced

    return plant


def exchanged(path: str, make: Callable[[nn.Module], nn.Module]) -> Plant:
    """Another module in this place, made from the one that is there."""

    def plant(training: Training) -> None:
        parent, _, name = path.rpartition(".")
        owner = training.at(parent)
        setattr(owner, name, make(getattr(owner, name)))

    return plant


def values(path: str, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    """Other values in a parameter or buffer before the first step."""

    def plant(training: Training) -> None:
        tensor = getattr(training.at(path), name)
        with torch.no_grad():
            tensor.copy_(change(tensor.clone()))

    return plant


class _Passed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
        ctx.change = change
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.change(gradient), None


def wrong_gradient(value: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The same value, with a backward that a custom autograd function gets wrong."""
    return _Passed.apply(value, change)


def parameter_gradient(path: str, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Plant:
    """A parameter's gradient comes out otherwise, as of a hand-written backward of that layer."""
    return lambda training: getattr(training.at(path), name).register_hook(change) and None


def criterion(function: Callable[[Any, Batch], torch.Tensor]) -> Plant:
    """Another loss."""
    return lambda training: setattr(training, "criterion", function)


def each_batch(change: Callable[[Batch], Batch], step: int | None = None) -> Plant:
    """Other data in all steps or in one."""

    def plant(training: Training) -> None:
        training.batches = [
            [change(dict(batch)) for batch in micros] if step in (None, number) else micros
            for number, micros in enumerate(training.batches)
        ]

    return plant


def groups(**options: Any) -> Plant:
    """Other options in all groups of the optimizer."""

    def plant(training: Training) -> None:
        for group in training.optimizer.param_groups:
            for name, value in options.items():
                assert name in group, name
                group[name] = value

    return plant


def optimizer(make: Callable[[nn.Module], Any]) -> Plant:
    """Another optimizer."""
    return lambda training: setattr(training, "optimize", make)


def scheduled(make: Callable[[Any], Any]) -> Plant:
    """Another learning-rate schedule."""
    return lambda training: setattr(training, "schedule", make)


def after_backward(act: Callable[[Training, int], None]) -> Plant:
    """Something done with the gradients between backward and optimizer."""
    return lambda training: training.after_backward.append(functools.partial(act, training))


def after_step(act: Callable[[Training, int], None]) -> Plant:
    """Something done after the optimizer's step."""
    return lambda training: training.after_step.append(functools.partial(act, training))


def before_step(act: Callable[[Training, int], None]) -> Plant:
    """Something done before a step."""
    return lambda training: training.before_step.append(functools.partial(act, training))


def clipped(norm: float | None) -> Plant:
    """Clip the gradients' norm here."""
    return lambda training: setattr(training, "clip", norm)


def frozen(*paths: str) -> Plant:
    """These modules' parameters never reach the optimizer."""

    def plant(training: Training) -> None:
        left = {id(p) for path in paths for p in training.at(path).parameters()}
        held = training.optimizer
        for group in held.param_groups:
            group["params"] = [p for p in group["params"] if id(p) not in left]

    return plant


def split_decay(training: Training, decays: Callable[[str, nn.Parameter], bool]) -> Callable[[nn.Module], Any]:
    """AdamW with two groups, with and without decay."""
    usual = training.optimize

    def make(model: nn.Module) -> Any:
        held = usual(model)
        options = {k: v for k, v in held.param_groups[0].items() if k in ("lr", "betas", "eps", "weight_decay")}
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        with_decay = [p for n, p in named if decays(n, p)]
        without = [p for n, p in named if not decays(n, p)]
        return torch.optim.AdamW([{"params": with_decay}, {"params": without, "weight_decay": 0.0}], **options)

    return make


def decaying(decays: Callable[[str, nn.Parameter], bool]) -> Plant:
    """Only these parameters decay."""
    return lambda training: setattr(training, "optimize", split_decay(training, decays))


def in_two(training: Training) -> None:
    """Every batch as two micro-batches."""
    training.batches = [[half for batch in micros for half in _halves(batch)] for micros in training.batches]


def _halves(batch: Batch) -> list[Batch]:
    def cut(value: Any, number: int) -> Any:
        half = len(value) // 2
        return value[half * number : half * (number + 1)]

    return [{key: cut(value, number) for key, value in batch.items()} for number in (0, 1)]
