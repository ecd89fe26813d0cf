"""How faults are planted in B: functions that return what changes its `training.Training`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from benchmarks.localisation.tools import surgery

Plant = Callable[[Any], None]


def attribute(path: str, **values: Any) -> Plant:
    """Set attributes of a module; what can be called is given the old value."""

    def plant(training: Any) -> None:
        module = training.module(path)
        for name, value in values.items():
            setattr(module, name, value(getattr(module, name)) if callable(value) else value)

    return plant


def replaced(path: str, make: Callable[[Any], Any]) -> Plant:
    """Put another module in the place of one; ``make`` is given the old one."""

    def plant(training: Any) -> None:
        parent, _, name = path.rpartition(".")
        setattr(training.module(parent), name, make(training.module(path)))

    return plant


def weight(path: str, change: Callable[[Tensor], Tensor], name: str = "weight") -> Plant:
    """Change a parameter or buffer of a module before training begins."""

    @torch.no_grad()
    def plant(training: Any) -> None:
        tensor = getattr(training.module(path), name)
        tensor.copy_(change(tensor.clone()))

    return plant


def weights_of(path: str, other: str) -> Plant:
    """Give a module the weights of another one."""

    def plant(training: Any) -> None:
        training.module(path).load_state_dict(training.module(other).state_dict())

    return plant


def forward(path: str, function: Callable[..., Any]) -> Plant:
    """Put ``function(forward, *args, **kwargs)`` in the place of what a module computes."""
    return lambda training: surgery.around(training.module(path), function)


def output(path: str, change: Callable[[Tensor], Tensor]) -> Plant:
    """Change what a module returns, or the first of several."""
    return lambda training: surgery.on_output(training.module(path), change)


def first_input(path: str, change: Callable[[Tensor], Tensor]) -> Plant:
    """Change the first argument of a module before it uses it."""
    return lambda training: surgery.around(
        training.module(path), lambda forward, x, *args, **kwargs: forward(change(x), *args, **kwargs)
    )


def detached(path: str) -> Plant:
    """Cut what a module returns off the graph."""
    return output(path, lambda x: x.detach())


def gradient_scaled(path: str, factor: float) -> Plant:
    """Scale the gradient of what a module returns, not its value."""
    return output(path, lambda x: surgery.ScaledGradient.apply(x, factor))


def weight_gradient(path: str, change: Callable[[Tensor], Tensor], name: str = "weight") -> Plant:
    """Change the gradient of a parameter as backward leaves it."""

    def plant(training: Any) -> None:
        getattr(training.module(path), name).register_hook(change)

    return plant


def calls(path: str, method: str, function: Callable[..., Any]) -> Plant:
    """Put ``function(method, *args, **kwargs)`` in the place of a method of a module: a mistake in its own code."""

    def plant(training: Any) -> None:
        module = training.module(path)
        old = getattr(module, method)
        setattr(module, method, lambda *args, **kwargs: function(old, *args, **kwargs))

    return plant


def with_global(path: str, space: Any, name: str, value: Callable[[Any], Any]) -> Plant:
    """Let a module's forward find something else under a name of a Python module; ``value`` is given the old one."""
    return lambda training: surgery.with_global(training.module(path), name, value(getattr(space, name)), space)


def loss_scaled(factor: float) -> Plant:
    """Multiply the loss."""

    def plant(training: Any) -> None:
        training.loss_factor = factor

    return plant


def batches(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Plant:
    """Change what the model is given."""

    def plant(training: Any) -> None:
        old = training.batch
        training.batch = lambda index: change(dict(old(index)))

    return plant


def loss_by(change: Callable[..., Any]) -> Plant:
    """Put ``change(loss, model, batch)`` in the place of the loss."""

    def plant(training: Any) -> None:
        old = training.loss
        training.loss = lambda model, batch: change(old, model, batch)

    return plant


def optimizer(glob: str = "", **options: Any) -> Plant:
    """Set options of the optimizer, for all parameters or those whose names match; what can be called is given the old value."""

    def plant(training: Any) -> None:
        if glob:
            training.regroup(glob, **options)
            return
        for group in training.optimizer.param_groups:
            group.update({name: value(group[name]) if callable(value) else value for name, value in options.items()})

    return plant


def clipped(norm: float) -> Plant:
    """Clip the norm of all gradients."""
    return lambda training: training.before_update.append(
        lambda: torch.nn.utils.clip_grad_norm_(training.model.parameters(), norm)
    )
