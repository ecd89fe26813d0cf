"""The noise band of a pair of curves, and the first step that leaves it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from probe.curve_comparison.pairing import PairedSeries
from probe.curve_comparison.tolerance import AHEAD, GAIN, HISTORY, LOOK_AHEAD, SUSTAINED, WARM_UP, WIDENED, Tolerance


@dataclass(frozen=True, slots=True, eq=False)
class Band:
    """Where B may lie at every paired step, and where it left."""

    low: np.ndarray
    high: np.ndarray
    """bounds of B, NaN where A is not finite"""
    first: int | None
    """index of the first step out of the band"""
    out: np.ndarray
    """bool: beyond the bounds, single steps too"""


def band_of(pair: PairedSeries, tolerance: Tolerance) -> Band:
    """Return the band of a pair of series.

    Without further runs of A, |B − A| may be as large as the tolerance allows; once `WARM_UP` steps have shown
    how large the noise is, no more than `GAIN` times the largest of the last `HISTORY` steps. With further runs
    of A, B may lie where they lie, and beyond them by a multiple of their largest spread so far, but always
    within what `Tolerance.offset` calls no offset.
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
        first = first_sustained(_over(apart, pair, tolerance), _over(narrow, pair, tolerance), gross)
        if first is not None:  # what is wrong must not make the band wider
            frozen = _over(narrow, pair, tolerance)[first] * _unit(pair, tolerance)
            narrow[first:] = np.minimum(narrow, np.maximum(frozen, least))[first:]
        return Band(pair.a - narrow, pair.a + narrow, first, one_sided | (apart > narrow))
    allowed = np.maximum(np.minimum(tolerance.offset or np.inf, tolerance.offset_relative * scale), least)
    runs = np.vstack([pair.a[None], pair.others])
    low = np.minimum(np.nanmin(runs, axis=0) - spread, pair.a - allowed)
    high = np.maximum(np.nanmax(runs, axis=0) + spread, pair.a + allowed)
    with np.errstate(invalid="ignore"):
        out = one_sided | (pair.finite & ((pair.b < low) | (pair.b > high)))
    gross = one_sided | (out & tolerance.spikes_count)
    return Band(low, high, first_sustained(out.astype(float), np.full(len(pair), 0.5), gross), out)


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


def _over(values: np.ndarray, pair: PairedSeries, tolerance: Tolerance) -> np.ndarray:
    """Return values in the unit of the tolerance, so that they can be held against those of other steps."""
    unit = _unit(pair, tolerance)
    return np.divide(values, unit, out=np.zeros(len(pair)), where=unit > 0)


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
    padding = [(0, 0)] * (errors.ndim - 1) + [(HISTORY, 0)]
    padded = np.pad(errors, padding)[..., :-1]
    largest = sliding_window_view(padded, HISTORY, axis=-1).max(axis=-1) if errors.shape[-1] else errors
    limits = GAIN * largest
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
