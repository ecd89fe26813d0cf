"""What noise as large as in other steps of the same pair of runs does not explain."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from probe.curve_comparison.tolerance import AHEAD, CHANCE, GAIN, HISTORY, OUTLYING, SEEN


@dataclass(frozen=True, slots=True, eq=False)
class UnlikeNoise:
    """How large a difference must be so that it is not one among others."""

    apart: np.ndarray
    """|B − A|"""
    scale: np.ndarray
    """the larger of |A| and |B|: noise may be as large as the value, or the same all the time"""
    unit: np.ndarray
    """in which differences of one step are held against those of another"""

    def steps_before_or_later(self) -> np.ndarray:
        """Return what several differences in a row must exceed, in the unit: those before them, or those of the later half."""
        return np.minimum(self._before(), self._later())

    def single_step(self) -> np.ndarray:
        """Return what the difference of a single step must exceed: those around it."""
        with np.errstate(invalid="ignore"):  # infinite times 0
            return OUTLYING * np.fmax(_around(self.apart), _around(self._relative()) * self.scale)

    def _before(self) -> np.ndarray:
        errors = _over(self.apart, self.unit)
        known = np.arange(1, len(errors))
        factor = np.maximum(np.where(known < SEEN, GAIN, OUTLYING), CHANCE ** (-1.0 / known))
        return np.append(np.inf, factor * largest_before(errors)[1:])[: len(errors)]

    def _later(self) -> np.ndarray:
        half = len(self.apart) // 2
        if half < SEEN:
            return np.full(len(self.apart), np.inf)
        level = np.maximum(self.apart[half:].max(), self._relative()[half:].max() * self.scale)
        limits = np.where(np.arange(len(self.apart)) < half, OUTLYING * level, np.inf)
        return np.divide(limits, self.unit, out=np.full(len(limits), np.inf), where=self.unit > 0)

    def _relative(self) -> np.ndarray:
        return _over(self.apart, self.scale)


def largest_before(errors: np.ndarray) -> np.ndarray:
    """Return the largest of the last `HISTORY` numbers before each, 0 before the first.

    Parameters
    ----------
    errors
        shape (…, steps), not negative
    """
    padding = [(0, 0)] * (errors.ndim - 1) + [(HISTORY, 0)]
    padded = np.pad(errors, padding)[..., :-1]
    return sliding_window_view(padded, HISTORY, axis=-1).max(axis=-1) if errors.shape[-1] else errors


def _around(errors: np.ndarray) -> np.ndarray:
    """Return the largest of the numbers within `HISTORY` steps of each, without its neighbours; infinite where few are known."""
    count = len(errors)
    largest = np.full(count, np.inf)
    for index in range(count):
        before = errors[max(0, index - HISTORY) : max(0, index - AHEAD)]
        behind = errors[index + AHEAD + 1 : index + HISTORY]
        if len(before) + len(behind) >= SEEN:
            largest[index] = max(before.max(initial=0.0), behind.max(initial=0.0))
    return largest


def _over(apart: np.ndarray, unit: np.ndarray) -> np.ndarray:
    return np.divide(apart, unit, out=np.zeros(len(apart)), where=unit > 0)
