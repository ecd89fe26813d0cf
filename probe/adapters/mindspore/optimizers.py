"""MindSpore's optimizers: watching their steps, their settings by parameter, their state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore.experimental.optim import Optimizer as GroupedOptimizer

from probe.adapters.base import Group, Removal
from probe.adapters.mindspore import calls
from probe.adapters.mindspore.statistics import array_of, tensor_of
from probe.errors import RecordingError

Before = Callable[[nn.Cell, tuple[Any, ...]], None]
After = Callable[[nn.Cell], None]

CLASSES = (nn.Optimizer, GroupedOptimizer)
_NO_STATE = ("parameters", "_parameters", "params", "group_params", "lrs", "learning_rate", "group_lr", "weight_decay")
"""attributes of optimizers that hold tensors, one for each parameter, and are no state"""
_COUNTERS = ("state_step", "beta2_power", "global_step")
"""attributes of optimizers that tell how many steps they have made: first those that its updates are made with"""
_SETTINGS = {
    "momentum": "momentum", "dampening": "dampening", "nesterov": "nesterov", "eps": "eps", "rho": "rho",
    "centered": "centered", "lambd": "lambd", "alpha": "alpha", "l1": "l1", "l2": "l2", "lr_power": "lr_power",
    "loss_scale": "loss_scale", "decay": "alpha", "epsilon": "eps", "use_nesterov": "nesterov", "use_amsgrad": "amsgrad",
}  # fmt: skip
"""attributes of optimizers, and what PyTorch calls them; what has no value does not count"""


def watch(optimizer: nn.Cell, before: Before, after: After) -> Removal:
    """Call ``before(optimizer, gradients)`` and ``after(optimizer)`` around the steps of one optimizer."""
    return calls.watch(
        optimizer,
        lambda args, kwargs: before(optimizer, _given(args, kwargs)),
        lambda output, raised: None if raised else after(optimizer),
    )


def watch_all(before: Before, after: After) -> Removal:
    """Do the same for every optimizer of the process; one inside another one is part of its step."""
    mine = (before, after)

    def remove() -> None:
        if mine in _watchers:
            _watchers.remove(mine)
        if not _watchers:
            _restore()

    if not _watchers:
        _replace()
    _watchers.append(mine)
    return remove


_watchers: list[tuple[Before, After]] = []
"""who is told of the steps of all optimizers"""
_running: list[nn.Cell] = []
"""the optimizer whose step is being made"""


def _replace() -> None:
    for kind in CLASSES:
        if "__call__" in vars(kind):
            _restore()
            raise RecordingError(f"{kind.__qualname__}.__call__ is replaced already; give probe.start() optimizer=")
        kind.__call__ = _call


def _restore() -> None:
    for kind in CLASSES:
        if vars(kind).get("__call__") is _call:
            del kind.__call__


def _call(optimizer: nn.Cell, *args: Any, **kwargs: Any) -> Any:
    if _running:
        return nn.Cell.__call__(optimizer, *args, **kwargs)
    told = list(_watchers)
    _running.append(optimizer)
    try:
        for before, _ in told:
            before(optimizer, _given(args, kwargs))
        result = nn.Cell.__call__(optimizer, *args, **kwargs)
        for _, after in told:
            after(optimizer)
        return result
    finally:
        _running.clear()


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
    """Return the parameters of an optimizer by what they are trained with; without that, if it cannot be found out."""
    try:
        return _groups(optimizer)
    except Exception:  # noqa: BLE001  a user's optimizer, which may keep things in another way
        return [Group(optimizer, type(optimizer).__name__, 0, {}, list(optimizer.parameters))]


def _groups(optimizer: nn.Cell) -> list[Group]:
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
    return {**found, **_counter_of(optimizer)}


def _counter_of(optimizer: nn.Cell) -> dict[str, Tensor]:
    """Return what tells how many steps an optimizer has made, of which one counts for all of its parameters."""
    for name in _COUNTERS:
        value = getattr(optimizer, name, None)
        if isinstance(value, Tensor) and value.size == 1:
            return {name: value}
    return {}


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
    table = getattr(rate, "learning_rate", None)
    if isinstance(table, Tensor):  # a list of rates, one for each step; or one that is the same in all steps
        values = table.asnumpy().reshape(-1)
        return _shortest(values[min(int(optimizer.global_step.asnumpy()[0]), values.size - 1)])
    return _of_schedule(rate, optimizer)


def _of_schedule(schedule: nn.Cell, optimizer: nn.Optimizer) -> object:
    """Return what a schedule says of the step that begins; it is a function of the step's number alone."""
    try:
        return _plain(schedule.construct(optimizer.global_step))
    except Exception:  # noqa: BLE001  a user's schedule
        return f"{type(schedule).__name__}, which could not be asked"


def _decays(optimizer: nn.Optimizer) -> list[object]:
    """Return the weight decay that each parameter really has: none for gamma and beta, unless they are in groups."""
    flags = list(optimizer.decay_flags)
    decays = optimizer.weight_decay if optimizer.is_group else [optimizer.weight_decay] * len(flags)
    return [_decay(decay, optimizer) if flag else 0.0 for decay, flag in zip(decays, flags, strict=True)]


def _decay(decay: Any, optimizer: nn.Optimizer) -> object:
    value = _of_schedule(decay, optimizer) if isinstance(decay, nn.Cell) else _plain(decay)
    return value / optimizer.loss_scale if isinstance(value, float) and optimizer.loss_scale != 1.0 else value


def _settings(optimizer: nn.Optimizer) -> dict[str, object]:
    """Return what else an optimizer is set to, under the names that other frameworks have for it."""
    kept = [(name, _plain(getattr(optimizer, own, None))) for own, name in _SETTINGS.items()]
    settings = {name: value for name, value in kept if value is not None}
    betas = [_plain(getattr(optimizer, own, None)) for own in ("beta1", "beta2")]
    return settings if None in betas else {**settings, "betas": betas}


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
