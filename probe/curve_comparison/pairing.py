"""Which steps of two series are one step, and what lies between their values there."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from probe.answer.shift import Shift
from probe.curve_comparison.reading.series import Series

_HALF = 0.5001
"""of the last digit on either side, and what subtracting rounds"""


@dataclass(frozen=True)
class PairedSeries:
    """Two series at the steps that both have."""

    name: str
    steps: np.ndarray
    """numbers of A"""
    a: np.ndarray
    b: np.ndarray
    others: np.ndarray
    """float64, shape (runs, steps): the same in further runs of A, NaN where they lack a step"""
    resolution: np.ndarray
    """how much of a difference printing explains"""
    only_a: int = 0
    """steps that only A has"""
    only_b: int = 0

    def __len__(self) -> int:
        return len(self.steps)

    @functools.cached_property
    def difference(self) -> np.ndarray:
        """B − A; NaN where either is not finite."""
        with np.errstate(invalid="ignore"):
            return np.where(self.finite, self.b - self.a, np.nan)

    @functools.cached_property
    def finite(self) -> np.ndarray:
        """Where both are finite."""
        return np.isfinite(self.a) & np.isfinite(self.b)

    @functools.cached_property
    def scale(self) -> np.ndarray:
        """The larger of |A| and |B|; 0 where either is not finite."""
        return np.where(self.finite, np.maximum(np.abs(self.a), np.abs(self.b)), 0.0)


def pair(a: Series, b: Series, others: list[Series], shift: Shift) -> PairedSeries:
    """Return two series at the steps that both have.

    Parameters
    ----------
    a, b
        of the two runs
    others
        of further runs of A, which count their steps as A does
    shift
        which step of B is a step of A
    """
    steps, in_a, in_b = np.intersect1d(a.steps, b.steps - shift.to_b, assume_unique=True, return_indices=True)
    further = np.full((len(others), len(steps)), np.nan)
    for row, other in zip(further, others, strict=True):
        _, here, there = np.intersect1d(steps, other.steps, assume_unique=True, return_indices=True)
        row[here] = other.values[there]
    values_a, values_b = a.values[in_a], b.values[in_b]
    resolution = (a.resolution(values_a) + b.resolution(values_b)) * _HALF
    return PairedSeries(
        a.name, steps, values_a, values_b, further, resolution, len(a.steps) - len(steps), len(b.steps) - len(steps)
    )
