"""numpy: putting back what a training step changes beside the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

from tests.toy import nn as numpy_nn
from tests.toy.tensor import Tensor


def kept(parameters: Sequence[Tensor]) -> Callable[[], None]:
    """Return what puts gradients and random numbers back as they are now."""
    gradients = [(parameter, _kept(parameter.grad)) for parameter in parameters]
    state = numpy_nn.random_state()

    def undo() -> None:
        for parameter, restored in gradients:
            parameter.grad = restored()
        numpy_nn.set_random_state(state)

    return undo


def kept_optimizer(optimizer: numpy_nn.Optimizer) -> Callable[[], None]:
    """Return what puts an optimizer's state and groups back as they are now."""
    state = {key: {name: _kept(value) for name, value in each.items()} for key, each in optimizer.state.items()}
    groups = [
        {name: copy.deepcopy(value) for name, value in group.items() if name != "params"}
        for group in optimizer.param_groups
    ]

    def undo() -> None:
        optimizer.state.clear()
        for key, each in state.items():
            optimizer.state[key] = {name: restored() for name, restored in each.items()}
        for group, each in zip(optimizer.param_groups, groups, strict=True):
            group.update(each)

    return undo


def _kept(value: Any) -> Callable[[], Any]:
    if not isinstance(value, Tensor):
        return lambda: value
    now = value.data.copy()

    def restored() -> Tensor:
        value.data[...] = now
        return value

    return restored
