"""PyTorch: putting back what a training step changes beside the weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.optim import Optimizer

from probe.adapters.shared.keeping import kept as value_kept


def kept(parameters: Sequence[torch.Tensor]) -> Callable[[], None]:
    """Return what puts gradients and the states of all random generators back as they are now."""
    gradients = [(parameter, _kept(parameter.grad)) for parameter in parameters if parameter.requires_grad]
    cpu = torch.get_rng_state()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []

    def undo() -> None:
        for parameter, restored in gradients:
            parameter.grad = restored()
        torch.set_rng_state(cpu)
        if cuda:
            torch.cuda.set_rng_state_all(cuda)

    return undo


def kept_optimizer(optimizer: Optimizer) -> Callable[[], None]:
    """Return what puts an optimizer's state and groups back: the same tensors, with the values that they have now."""
    state = _kept(optimizer.state)
    groups = [
        {name: _kept(value) for name, value in group.items() if name != "params"} for group in optimizer.param_groups
    ]

    def undo() -> None:
        state()
        for group, each in zip(optimizer.param_groups, groups, strict=True):
            for name in group.keys() - each.keys() - {"params"}:
                del group[name]
            group.update({name: restored() for name, restored in each.items()})

    return undo


def _kept(value: Any) -> Callable[[], Any]:
    return value_kept(value, torch.Tensor, _tensor_kept)


def _tensor_kept(value: torch.Tensor) -> Callable[[], torch.Tensor]:
    now = value.detach().clone()

    def restored() -> torch.Tensor:
        with torch.no_grad():
            value.copy_(now)
        return value

    return restored
