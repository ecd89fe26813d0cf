"""MindSpore: the learning rates that a schedule gives. Tested against 2.10.0."""

from __future__ import annotations

import mindspore
from mindspore.experimental.optim.lr_scheduler import LRScheduler
from mindspore.nn.learning_rate_schedule import LearningRateSchedule

from probe.errors import ConfigError


def rates(schedule: object, steps: int) -> list[tuple[float, ...]] | None:
    """Return the rate of the first steps, or None of what is no schedule.

    A schedule is a cell that is given the step, and has no state. Raises ConfigError where it is one of
    mindspore.experimental.
    """
    if isinstance(schedule, LRScheduler):
        raise ConfigError(
            f"{type(schedule).__name__} of mindspore.experimental cannot be copied: give a function of the step"
        )
    if not isinstance(schedule, LearningRateSchedule):
        return None
    return [(float(schedule(mindspore.Tensor(step, mindspore.int32)).asnumpy()),) for step in range(steps)]
