"""MindSpore's optimizers: watching their steps, their settings by parameter, their state."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.experimental.optim import Optimizer as GroupedOptimizer

from probe.adapters.base import Group
from probe.adapters.mindspore_statistics import array_of, tensor_of

Removal = Callable[[], None]
Before = Callable[[nn.Cell, tuple[Any, ...]], None]
After = Callable[[nn.Cell], None]

CLASSES = (nn.Optimizer, GroupedOptimizer)
_NO_STATE = ("parameters", "_parameters", "params", "group_params", "lrs", "learning_rate", "group_lr", "weight_decay")
"""attributes of optimizers that hold tensors, one for each parameter, and are no state"""


def watch(optimizer: nn.Cell, before: Before, after: After) -> Removal:
    """Call ``before(optimizer, gradients)`` and ``after(optimizer)`` around the steps of one optimizer."""
    first = optimizer.register_forward_pre_hook(lambda cell, args, kwargs: before(cell, _given(args, kwargs)),
                                                with_kwargs=True)  # fmt: skip
    try:
        second = optimizer.register_forward_hook(lambda cell, args, output: after(cell))
    except BaseException:
        first.remove()
        raise

    def remove() -> None:
        first.remove()
        second.remove()

    return remove


def watch_all(before: Before, after: After) -> Removal:
    """Do the same for every optimizer of the process; one inside another one is part of its step."""
    running: list[nn.Cell] = []

    def watched(optimizer: nn.Cell, *args: Any, **kwargs: Any) -> Any:
        if running:
            return nn.Cell.__call__(optimizer, *args, **kwargs)
        running.append(optimizer)
        try:
            before(optimizer, _given(args, kwargs))
            result = nn.Cell.__call__(optimizer, *args, **kwargs)
            after(optimizer)
            return result
        finally:
            running.clear()

    def remove() -> None:
        for kind in CLASSES:
            if kind.__dict__.get("__call__") is watched:
                del kind.__call__

    try:
        for kind in CLASSES:
            kind.__call__ = watched
    except BaseException:
        remove()
        raise
    return remove


def _given(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the gradients that an optimizer is called with."""
    given = args[0] if args else next(iter(kwargs.values()), ())
    return tuple(given) if isinstance(given, (tuple, list)) else (given,)


def gradients_used(optimizer: nn.Cell, given: tuple[Any, ...]) -> tuple[dict[int, Tensor], str]:
    """Return the gradients by their parameters' ids as they will be used, or why they are not known."""
    parameters = list(optimizer.parameters)
    if len(given) != len(parameters):
        return {}, f"the optimizer has {len(parameters)} parameters, and was given {len(given)} gradients"
    if getattr(optimizer, "need_scale", False):
        factor = optimizer.reciprocal_scale.asnumpy()
        given = tuple(_scaled(gradient, factor) for gradient in given)
    return {id(parameter): gradient for parameter, gradient in zip(parameters, given, strict=True)}, ""


def _scaled(gradient: Any, factor: np.ndarray) -> Any:
    """Return a gradient divided by the loss scale, as the optimizer does it first of all."""
    if not isinstance(gradient, Tensor):
        return gradient
    array = array_of(gradient)
    return tensor_of(array * factor.astype(array.dtype))


def groups_of(optimizer: nn.Cell) -> list[Group]:
    """Return the parameters of an optimizer by what they are trained with."""
    if isinstance(optimizer, GroupedOptimizer):
        return [
            Group(optimizer, type(optimizer).__name__, index, _plain_settings(group), list(group["params"]))
            for index, group in enumerate(optimizer.param_groups)
        ]
    common = _settings(optimizer)
    members: dict[tuple[object, object], list[Parameter]] = {}
    for parameter, lr, decay in zip(optimizer.parameters, _rates(optimizer), _decays(optimizer), strict=True):
        members.setdefault((lr, decay), []).append(parameter)
    return [
        Group(optimizer, type(optimizer).__name__, index, {"lr": lr, "weight_decay": decay, **common}, parameters)
        for index, ((lr, decay), parameters) in enumerate(members.items())
    ]


def state_of(optimizer: nn.Cell, parameter: Parameter) -> dict[str, Tensor]:
    """Return the tensors that an optimizer keeps for a parameter, by the names of its attributes."""
    parameters = list(optimizer.parameters)
    places = [place for place, each in enumerate(parameters) if each is parameter]
    if not places:
        return {}
    found = {}
    for name, value in vars(optimizer).items():
        if name not in _NO_STATE and isinstance(value, (tuple, list)) and len(value) == len(parameters):
            state = value[places[0]]
            if isinstance(state, Tensor) and state is not parameter and tuple(state.shape) == tuple(parameter.shape):
                found[name.lstrip("_")] = state
    return {name: state for name, state in found.items() if state.ndim > 0}


def _rates(optimizer: nn.Optimizer) -> list[object]:
    """Return the learning rate of every parameter in the step that begins."""
    rates = optimizer.learning_rate
    count = len(optimizer.parameters)
    if not optimizer.is_group_lr:
        return [_rate(rates, optimizer)] * count
    return [_rate(rate, optimizer) for rate in rates]


def _rate(rate: Any, optimizer: nn.Optimizer) -> object:
    if not isinstance(rate, nn.Cell):
        return _plain(rate)
    step = int(optimizer.global_step.asnumpy()[0])
    table = getattr(rate, "learning_rate", None)
    if isinstance(table, Tensor):  # a list of rates, one for each step; or one that is the same in all steps
        values = table.asnumpy().reshape(-1)
        return _shortest(values[min(step, values.size - 1)])
    return f"{type(rate).__name__} at step {step}"


def _decays(optimizer: nn.Optimizer) -> list[object]:
    """Return the weight decay that each parameter really has: none for gamma and beta, unless they are in groups."""
    flags = list(optimizer.decay_flags)
    decays = optimizer.weight_decay if optimizer.is_group else [optimizer.weight_decay] * len(flags)
    return [_decay(decay, optimizer) if flag else 0.0 for decay, flag in zip(decays, flags, strict=True)]


def _decay(decay: Any, optimizer: nn.Optimizer) -> object:
    if isinstance(decay, nn.Cell):
        return f"{type(decay).__name__} at step {int(optimizer.global_step.asnumpy()[0])}"
    value = _plain(decay)
    return value / optimizer.loss_scale if isinstance(value, float) and optimizer.loss_scale != 1.0 else value


def _settings(optimizer: nn.Optimizer) -> dict[str, object]:
    """Return the other arguments that an optimizer was made with, where it keeps them as numbers."""
    names = [*inspect.signature(type(optimizer).__init__).parameters]
    kept = {name: _plain(getattr(optimizer, name, None)) for name in names if name not in _ARGUMENTS}
    settings = {name: value for name, value in kept.items() if value is not None}
    if "beta1" in settings and "beta2" in settings:
        settings["betas"] = [settings["beta1"], settings["beta2"]]
    return settings


_ARGUMENTS = ("self", "params", "learning_rate", "weight_decay", "args", "kwargs")


def _plain_settings(group: dict[str, Any]) -> dict[str, object]:
    found = {str(name): _plain(value) for name, value in group.items() if name != "params"}
    return {name: value for name, value in found.items() if value is not None}


def _plain(value: Any) -> Any:
    """Return a number as Python has it, None when it is none."""
    if isinstance(value, Tensor):
        return _shortest(value.asnumpy().reshape(-1)[0]) if value.size == 1 else None
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if isinstance(value, (str, int, float, bool)) else None


def _shortest(value: np.generic) -> Any:
    """Return the number that was meant: 0.05, not the float32 next to it."""
    return float(str(value)) if isinstance(value, np.floating) else value.item()
