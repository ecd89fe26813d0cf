"""When to record the next step in full: something was not finite, or the loss jumped."""

from __future__ import annotations

import math
import statistics
from collections import deque

WINDOW = 32
"""losses in the running median, and steps for which a trigger rests when it has fired"""
LEAST = 8
"""losses that a median needs"""


class Triggers:
    """Looks at every step of a run for NaN and Inf, and for a loss that exceeds the median of those before by a factor.

    ``on_loss_jump`` is the factor; None looks for none.
    """

    def __init__(self, on_nonfinite: bool = False, on_loss_jump: float | None = None) -> None:
        self._nonfinite = _Once() if on_nonfinite else None
        self._jump = _Once() if on_loss_jump is not None else None
        self._factor = on_loss_jump or math.inf
        self._losses: deque[float] = deque(maxlen=WINDOW)
        self._seen = ""

    @property
    def look_at_values(self) -> bool:
        """Whether `saw_nonfinite` is of any use in the open step."""
        return self._nonfinite is not None and not self._seen

    @property
    def needs_loss(self) -> bool:
        """Whether a step without a loss is one that cannot be judged."""
        return self._jump is not None

    def saw_nonfinite(self, what: str) -> None:
        """Take note that something in the open step is NaN or Inf; ``what`` names it."""
        self._seen = self._seen or what

    def ended(self, step: int, scalars: dict[str, float]) -> str:
        """Judge a step that has ended; return why the next one is to be recorded in full, or an empty text."""
        seen, self._seen = self._seen, ""
        reasons = []
        if self._nonfinite is not None:
            found = next((f"{name} is {value}" for name, value in scalars.items() if not math.isfinite(value)), seen)
            if self._nonfinite.fires(step, bool(found)):
                reasons.append(found)
        if self._jump is not None and "loss" in scalars:
            found = self._loss_jump(scalars["loss"])
            if self._jump.fires(step, bool(found)):
                reasons.append(found)
        return " and ".join(reasons)

    def _loss_jump(self, loss: float) -> str:
        """Say how far a loss exceeds the median of those before; a negative median is exceeded by the same distance."""
        count = len(self._losses)
        middle = statistics.median(self._losses) if count >= LEAST else math.nan
        if math.isfinite(loss):
            self._losses.append(loss)
        if not middle or not loss > middle + (self._factor - 1) * abs(middle):
            return ""
        return f"loss is {loss:.6g}, the median of the {count} before {middle:.6g}"


class _Once:
    """Fires when something is bad; then rests until it has been good again, and for `WINDOW` steps at least."""

    def __init__(self) -> None:
        self._armed = True
        self._until = 0

    def fires(self, step: int, bad: bool) -> bool:
        if not bad:
            self._armed = self._armed or step >= self._until
            return False
        fires, self._armed = self._armed, False
        if fires:
            self._until = step + WINDOW
        return fires
