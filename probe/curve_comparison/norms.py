"""Local norms: which parameter's gradient norm leaves the band first, and whether it does so alone."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from probe.curve_comparison.band import first_sustained, history_of
from probe.curve_comparison.pairing import PairedSeries
from probe.curve_comparison.reading.series import Series
from probe.curve_comparison.signs import judge_signs
from probe.curve_comparison.tolerance import GAIN, HISTORY, LOCAL_NORM, OUTLYING, SEEN, VANISHING, WARM_UP, WIDENED

FEWEST = 4
"""parameters; among fewer, none can stand out"""
_MOST_ALONE = 0.5
"""share of the parameters; where more leave in the same step, it is about all of them"""


@dataclass(frozen=True, slots=True)
class NormResult:
    """The norms of one parameter's gradient in both runs."""

    name_a: str
    name_b: str
    steps: int
    first_out: int | None
    """number of the first step out of the band, in A"""
    worst: float
    """the largest relative difference"""
    worst_at: int | None
    mean: float
    """mean relative difference"""
    a: float
    b: float
    """norms in the first step out of the band, else where they differ most"""
    limit: float
    """relative difference that would have been noise there"""
    pair: PairedSeries = field(repr=False, compare=False)
    is_unsure: bool = False
    """it differs much from the first steps on, and as much later, without an offset"""

    @property
    def is_out(self) -> bool:
        """Whether it left the band."""
        return self.first_out is not None


@dataclass(frozen=True, slots=True)
class LocalNorms:
    """All parameters' norms."""

    results: tuple[NormResult, ...]
    only_a: tuple[str, ...]
    only_b: tuple[str, ...]

    @property
    def first(self) -> tuple[NormResult, ...]:
        """Those that leave first, in one step; the one that is farthest out leads."""
        steps = [each.first_out for each in self.results if each.first_out is not None]
        if not steps:
            return ()
        found = [each for each in self.results if each.first_out == min(steps)]
        return tuple(sorted(found, key=_excess, reverse=True))

    @property
    def is_about_all(self) -> bool:
        """Whether more than half of the parameters leave in the same step."""
        return len(self.first) > _MOST_ALONE * len(self.results)


def combined(norms: Mapping[str, Series], names: Sequence[str]) -> Series:
    """Return the norm of several gradients together, at the steps that all of them have."""
    if len(names) == 1:
        return norms[names[0]]
    steps = functools.reduce(np.intersect1d, [norms[name].steps for name in names])
    rows = [norms[name].values[np.isin(norms[name].steps, steps)] for name in names]
    name = " + ".join(names)
    return Series(name, steps, np.sqrt(np.sum(np.square(rows), axis=0)), name)


def judge_norms(
    pairs: list[tuple[str, str, PairedSeries]],
    only_a: tuple[str, ...],
    only_b: tuple[str, ...],
    least: float = LOCAL_NORM.least,
) -> LocalNorms:
    """Judge the norms of all paired parameters together.

    A parameter leaves the band when its norms differ by `GAIN` times more than they did in the steps before, and more
    than those of the parameters in the middle do; in the first steps the latter decides alone. What is so small that
    it is rounding in part (a key's bias) is held against the norms of its kind.

    Parameters
    ----------
    pairs
        names in A and B, and the two series
    only_a, only_b
        parameters without a counterpart
    least
        relative differences below this are noise
    """
    if not pairs:
        return LocalNorms((), only_a, only_b)
    steps = np.unique(np.concatenate([pair.steps for _, _, pair in pairs]))
    a, b = (_grid(pairs, steps, side) for side in ("a", "b"))
    scale = np.fmax(np.fmax(np.abs(a), np.abs(b)), _least_of_kind([name for name, _, _ in pairs], a, b))
    errors = _relative(np.abs(b - a), scale)
    limits = _limits(errors, _baseline(pairs, steps, scale), least)
    relative = np.where(b < a, -errors, errors)
    usual = GAIN * float(np.median(np.median(errors, axis=1)))
    wider = np.array([_limits_of_noise(*row, usual) for row in zip(errors, relative, limits, strict=True)])
    one_sided = np.isfinite(a) != np.isfinite(b)
    for row, (_, _, pair) in enumerate(pairs):
        one_sided[row] &= np.isin(steps, pair.steps)
    return LocalNorms(
        tuple(_result(pairs[row], steps, errors[row], (limits[row], wider[row]), one_sided[row], a[row], b[row]) for row in range(len(pairs))),
        only_a, only_b,
    )  # fmt: skip


def _excess(result: NormResult) -> float:
    return abs(result.b - result.a) / max(abs(result.a), abs(result.b), 1e-300) if math.isfinite(result.b) else math.inf


def _grid(pairs: list[tuple[str, str, PairedSeries]], steps: np.ndarray, side: str) -> np.ndarray:
    grid = np.full((len(pairs), len(steps)), np.nan)
    for row, (_, _, pair) in zip(grid, pairs, strict=True):
        row[np.searchsorted(steps, pair.steps)] = getattr(pair, side)
    return grid


def _least_of_kind(names: list[str], a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return `VANISHING` times the median norm of each parameter's kind (weights, biases …) in each step."""
    kinds = np.array([name.rpartition(".")[2] for name in names])
    least = np.zeros(a.shape)
    for kind in np.unique(kinds):
        rows = kinds == kind
        least[rows] = VANISHING * _median(np.fmax(a[rows], b[rows]))
    return least


def _median(rows: np.ndarray) -> np.ndarray:
    """Return the median over rows, 0 where nothing is finite."""
    finite = np.where(np.isfinite(rows), rows, np.nan)
    known = np.isfinite(finite).any(axis=0)
    result = np.zeros(rows.shape[1])
    result[known] = np.nanmedian(finite[:, known], axis=0)
    return result


def _relative(apart: np.ndarray, scale: np.ndarray) -> np.ndarray:
    known = np.isfinite(apart) & (scale > 0)
    return np.divide(apart, scale, out=np.zeros(apart.shape), where=known)


def _baseline(pairs: list[tuple[str, str, PairedSeries]], steps: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Return how far the runs of A are apart, the most so far, widened; 0 where there is one run."""
    widest = np.zeros((len(pairs), len(steps)))
    for row, (_, _, pair) in zip(widest, pairs, strict=True):
        if not np.isfinite(pair.others).any():
            continue
        runs = np.vstack([pair.a[None], pair.others])
        present = runs[np.isfinite(runs).any(axis=1)]
        with np.errstate(invalid="ignore"):
            row[np.searchsorted(steps, pair.steps)] = np.nan_to_num(
                np.nanmax(present, axis=0) - np.nanmin(present, axis=0)
            )
        row *= WIDENED.get(len(present), 1.0)
    return np.maximum.accumulate(_relative(widest, scale), axis=1)


def _limits(errors: np.ndarray, baseline: np.ndarray, least: float) -> np.ndarray:
    """Return what is noise, of every parameter and step."""
    middle = _median(errors) if len(errors) >= FEWEST else np.zeros(errors.shape[1])
    before = history_of(middle)  # infinite in the first steps
    before = np.where(np.arange(len(middle)) < WARM_UP, GAIN * middle, before)
    own = history_of(errors)
    own[:, :WARM_UP] = 0.0
    narrow = np.maximum(np.maximum(own, before[None]), least)
    narrow[:, :WARM_UP] = np.minimum(narrow[:, :WARM_UP], LOCAL_NORM.relative)
    return np.maximum(narrow, baseline)


def _limits_of_noise(errors: np.ndarray, relative: np.ndarray, limits: np.ndarray, usual: float) -> np.ndarray:
    """Return the limits, in the first steps no less than what later steps show.

    Not where the difference is steady, or larger than is usual among the parameters.
    """
    is_within = not (errors[:WARM_UP] > limits[:WARM_UP]).any()
    if is_within or float(np.median(errors)) > usual or judge_signs(relative[errors > 0], 0.0).is_steady:
        return limits
    later = errors[WARM_UP : WARM_UP + HISTORY]
    level = OUTLYING * float(later.max()) if len(later) >= SEEN else GAIN * float(np.median(errors))
    wider = limits.copy()
    wider[:WARM_UP] = np.maximum(limits[:WARM_UP], level)
    return wider


def _result(
    names: tuple[str, str, PairedSeries], steps: np.ndarray, errors: np.ndarray, both: tuple[np.ndarray, np.ndarray],
    gross: np.ndarray, a: np.ndarray, b: np.ndarray,
) -> NormResult:  # fmt: skip
    name_a, name_b, pair = names
    limits = both[1]
    first = first_sustained(errors, limits, gross)
    is_unsure = first is None and first_sustained(errors, both[0], gross) is not None
    worst = int(errors.argmax())
    shown = worst if first is None else first
    return NormResult(
        name_a, name_b, len(pair), None if first is None else int(steps[first]), float(errors[worst]), int(steps[worst]),
        float(errors.mean()), float(a[shown]), float(b[shown]), float(limits[shown]), pair, is_unsure,
    )  # fmt: skip
