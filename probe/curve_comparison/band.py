"""The noise band of a pair of curves, and the first step that leaves it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from probe.curve_comparison.pairing import PairedSeries
from probe.curve_comparison.signs import SignJudgement
from probe.curve_comparison.tolerance import (
    AHEAD,
    CHANCE,
    GAIN,
    HISTORY,
    LOOK_AHEAD,
    OUTLYING,
    SEEN,
    SUSTAINED,
    WARM_UP,
    WIDENED,
    MetricLimit,
    Tolerance,
)  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Where B may lie at every paired step, and where it left."""

    low: np.ndarray
    high: np.ndarray
    """bounds of B, NaN where A is not finite"""
    first: int | None
    """index of the first step out of the band, if what is out there is no noise"""
    out: np.ndarray
    """bool: beyond the bounds, single steps too"""
    unsure: int | None = None
    """index of a step that is out as the noise of this pair of runs alone would have it"""


def band_of(pair: PairedSeries, tolerance: Tolerance, offset: SignJudgement | None = None) -> Band:
    """Return the band of a pair of series.

    Without further runs of A, |B − A| may be as large as the tolerance allows; once `WARM_UP` steps have shown
    how large the noise is, no more than `GAIN` times the largest of the last `HISTORY` steps. With further runs
    of A, B may lie where they lie, and beyond them by a multiple of their largest spread so far, but always
    within what `Tolerance.offset` calls no offset.

    How noisy A is, one pair of runs does not tell. Where B leaves a built-in limit by no more than in other steps, that is
    `unsure`, unless an ``offset`` lasts there that is no noise.
    """
    scale = pair.scale
    least = np.maximum(tolerance.least * scale, pair.resolution)
    spread = _spread(pair)
    one_sided = np.isfinite(pair.a) != np.isfinite(pair.b)
    if spread is None:
        widest = np.maximum(np.maximum(tolerance.absolute, tolerance.relative * scale), pair.resolution)
        narrow = np.minimum(widest, np.maximum(least, _history(pair, tolerance)))
        apart = np.nan_to_num(np.abs(pair.difference))
        gross = one_sided | ((apart > widest) & tolerance.spikes_count)
        errors = _over(apart, pair, tolerance)
        first = unsure = first_sustained(errors, _over(narrow, pair, tolerance), gross)
        if first is not None and tolerance.is_noisy:
            unlike = _UnlikeNoise(apart, scale, _unit(pair, tolerance))
            known = one_sided | _lasts(offset, len(pair))
            limits = np.where(known, 0.0, unlike.steps_before_or_later())
            gross &= known | (apart > unlike.single_step())
            first = first_sustained(errors, np.maximum(_over(narrow, pair, tolerance), limits), gross)
        if first is not None:  # what is wrong must not make the band wider
            frozen = _over(narrow, pair, tolerance)[first] * _unit(pair, tolerance)
            narrow[first:] = np.minimum(narrow, np.maximum(frozen, least))[first:]
        out = one_sided | (apart > narrow)
        return Band(pair.a - narrow, pair.a + narrow, first, out, unsure if first is None else None)
    allowed = np.maximum(np.minimum(tolerance.offset or np.inf, tolerance.offset_relative * scale), least)
    runs = np.vstack([pair.a[None], pair.others])
    low = np.minimum(np.nanmin(runs, axis=0) - spread, pair.a - allowed)
    high = np.maximum(np.nanmax(runs, axis=0) + spread, pair.a + allowed)
    with np.errstate(invalid="ignore"):
        out = one_sided | (pair.finite & ((pair.b < low) | (pair.b > high)))
    gross = one_sided | (out & tolerance.spikes_count)
    return Band(low, high, first_sustained(out.astype(float), np.full(len(pair), 0.5), gross), out)


def band_of_metric(pair: PairedSeries, metric: MetricLimit) -> Band:
    """Return the band that a user's limit makes; only the last step, which is accepted or not, is a first one out."""
    allowed = np.maximum(metric.allowed(pair.a), pair.resolution)
    with np.errstate(invalid="ignore"):
        out = (np.isfinite(pair.a) != np.isfinite(pair.b)) | (np.nan_to_num(np.abs(pair.difference)) > allowed)
    last = len(pair) - 1
    return Band(pair.a - allowed, pair.a + allowed, last if len(pair) and out[last] else None, out)


def first_sustained(errors: np.ndarray, limits: np.ndarray, gross: np.ndarray) -> int | None:
    """Return the first index that is out by itself, or with which `SUSTAINED` of `AHEAD` steps begin that are out.

    Parameters
    ----------
    errors, limits
        a step is out beyond its limit; those that follow are held against that same limit
    gross
        bool: out by itself
    """
    for index in np.flatnonzero(gross | (errors > limits)).tolist():
        if gross[index] or (errors[index : index + AHEAD] > limits[index]).sum() >= SUSTAINED:
            return index
    return None


def _lasts(offset: SignJudgement | None, count: int) -> np.ndarray:
    """Return where a steady offset lasts."""
    return np.arange(count) >= offset.first if offset is not None and offset.is_steady else np.zeros(count, bool)


def _over(values: np.ndarray, pair: PairedSeries, tolerance: Tolerance) -> np.ndarray:
    """Return values in the unit of the tolerance, so that they can be held against those of other steps."""
    return _divided(values, _unit(pair, tolerance))


def _divided(values: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return values as multiples of a unit, 0 where that is 0."""
    return np.divide(values, unit, out=np.zeros(len(values)), where=unit > 0)


def _unit(pair: PairedSeries, tolerance: Tolerance) -> np.ndarray:
    return pair.scale if tolerance.is_relative else np.ones(len(pair))


def _history(pair: PairedSeries, tolerance: Tolerance) -> np.ndarray:
    """Return how far B may lie from A after what the last `HISTORY` steps showed; infinite in the first `WARM_UP`."""
    limits = history_of(_over(np.nan_to_num(np.abs(pair.difference)), pair, tolerance))
    return np.multiply(limits, _unit(pair, tolerance), out=np.full(len(pair), np.inf), where=np.isfinite(limits))


def history_of(errors: np.ndarray) -> np.ndarray:
    """Return `GAIN` times the largest of the last `HISTORY` numbers before each; infinite in the first `WARM_UP`.

    Parameters
    ----------
    errors
        shape (…, steps), not negative
    """
    limits = GAIN * largest_before(errors)
    limits[..., :WARM_UP] = math.inf
    return limits


def _spread(pair: PairedSeries) -> np.ndarray | None:
    """Return how far B may lie beyond the runs of A, or None where there is only one.

    That is a multiple of the largest spread so far, and a little ahead: two runs that happen to meet have not become
    less noisy, and the first steps alone say little.
    """
    present = [row for row in pair.others if np.isfinite(row).any()]
    if not present:
        return None
    runs = np.vstack([pair.a[None], *(row[None] for row in present)])
    with np.errstate(invalid="ignore"):
        ranges = np.nan_to_num(np.nanmax(runs, axis=0) - np.nanmin(runs, axis=0))
    return WIDENED.get(len(runs), 1.0) * np.maximum(np.maximum.accumulate(ranges), _next_largest(ranges))


def _next_largest(values: np.ndarray) -> np.ndarray:
    """Return the largest of each number and the `LOOK_AHEAD` behind it."""
    return sliding_window_view(np.pad(values, (0, LOOK_AHEAD)), LOOK_AHEAD + 1).max(axis=-1)


# What noise as large as in other steps of the same pair of runs does not explain


@dataclass(frozen=True, slots=True, eq=False)
class _UnlikeNoise:
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
        errors = _divided(self.apart, self.unit)
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
        return _divided(self.apart, self.scale)


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
