"""PyTorch: the learning rates that a scheduler will give, from a copy of it. transformers' schedules are such schedulers."""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Iterator
from typing import Any

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from probe.errors import ConfigError


def rates(schedule: object, steps: int) -> list[tuple[float, ...]] | None:
    """Return the rate of every parameter group in the next steps, or None of what is no scheduler.

    Raises ConfigError where its rates depend on more than the step, or it cannot be copied.
    """
    if not isinstance(schedule, LRScheduler):
        return None
    if isinstance(schedule, ReduceLROnPlateau):
        raise ConfigError("ReduceLROnPlateau depends on a metric, not on the step alone: its rates cannot be simulated")
    found = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the optimizer makes no step here
        try:
            copied = copy.deepcopy(schedule, _shared(schedule))
        except Exception as error:
            raise ConfigError(
                f"{type(schedule).__name__} cannot be copied ({error}): give a function of the step"
            ) from error
        for step in range(steps):
            try:
                if step:
                    copied.step()
            except ValueError as error:
                raise ConfigError(f"{type(schedule).__name__} has no more than {step} steps ({error})") from error
            found.append(tuple(float(group["lr"]) for group in copied.optimizer.param_groups))
    return found


def _shared(schedule: LRScheduler) -> dict[int, Any]:
    """Return what a copy shares, by id: parameters, which no scheduler writes to, and functions; the optimizer's state is left out."""
    shared: dict[int, Any] = {}
    for each in _with_inner(schedule):
        for function in getattr(each, "lr_lambdas", ()):
            if isinstance(function, (types.FunctionType, types.MethodType)):
                shared[id(function)] = function
        optimizer = each.optimizer
        shared[id(optimizer.state)] = type(optimizer.state)(getattr(optimizer.state, "default_factory", None))
        shared |= {id(p): p for group in optimizer.param_groups for p in group["params"]}
    return shared


def _with_inner(schedule: Any) -> Iterator[Any]:
    yield schedule
    for inner in getattr(schedule, "_schedulers", ()):
        yield from _with_inner(inner)
