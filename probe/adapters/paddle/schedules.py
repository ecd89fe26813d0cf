"""PaddlePaddle: the learning rates that a scheduler will give, from a copy of it."""

from __future__ import annotations

import copy

from paddle.optimizer.lr import LRScheduler, ReduceOnPlateau

from probe.errors import ConfigError


def rates(schedule: object, steps: int) -> list[tuple[float, ...]] | None:
    """Return the rate of the next steps, or None of what is no scheduler.

    Raises ConfigError where its rates depend on more than the step, or it cannot be copied.
    """
    if not isinstance(schedule, LRScheduler):
        return None
    if isinstance(schedule, ReduceOnPlateau):
        raise ConfigError("ReduceOnPlateau depends on a metric, not on the step alone: its rates cannot be simulated")
    name = type(schedule).__name__
    try:
        copied = copy.deepcopy(schedule)
    except Exception as error:
        raise ConfigError(f"{name} cannot be copied ({error}): give a function of the step") from error
    copied.verbose = False
    found = []
    for step in range(steps):
        if step:
            copied.step()
        found.append((float(copied()),))
    return found
