"""MindSpore: putting back what a training step changes beside the weights."""

from __future__ import annotations

from collections.abc import Callable

import mindspore
from mindspore import Parameter, nn
from mindspore.common.seed import _KERNEL_SEED

from probe.adapters.mindspore.statistics import array_of, tensor_of
from probe.adapters.shared.keeping import refilled


def kept() -> Callable[[], None]:
    """Return what puts random numbers back; gradients are values that functions return.

    That is the default generator, and the seeds that each kind of random function counts for itself. What kernels keep to
    themselves (``nn.Dropout`` on the CPU) nothing can put back.
    """
    state, counted = array_of(mindspore.get_rng_state()).copy(), dict(_KERNEL_SEED)

    def undo() -> None:
        mindspore.set_rng_state(tensor_of(state))
        refilled(_KERNEL_SEED, counted)

    return undo


def kept_optimizer(optimizer: nn.Cell) -> Callable[[], None]:
    """Return what puts an optimizer's parameters back: moments, counts of steps, learning rates, and plain settings of groups."""
    states = [(parameter, array_of(parameter).copy()) for parameter in _own(optimizer)]
    groups = [(group, dict(group)) for group in getattr(optimizer, "param_groups", ())]

    def undo() -> None:
        for parameter, values in states:
            parameter.copy_(tensor_of(values))  # compiled steps go on in the old memory after assign_value
        for group, before in groups:
            refilled(group, before)

    return undo


def _own(optimizer: nn.Cell) -> list[Parameter]:
    """Return the parameters of an optimizer that are not those of the model."""
    trained = {id(parameter) for parameter in optimizer.parameters}
    return [parameter for parameter in optimizer.get_parameters() if id(parameter) not in trained]
