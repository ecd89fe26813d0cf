"""The migration standard of the MindFormers guide: is a migrated training as precise as the one it came from?

First loss: absolute difference < 0.005 or relative < 0.5 %. Loss on average: < 0.01 or < 1 %. Global gradient norm:
on average ≤ 10 %. Observed over 5,000 steps by default, never fewer than 1,000. Where the baseline, repeated, is itself
noisier, the limits are what it shows. Relative differences are relative to A, the benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from probe.answer.result import Verdict
from probe.curve_comparison.pairing import PairedSeries
from probe.notes import Note, note

FIRST_ABSOLUTE, FIRST_RELATIVE = 0.005, 0.005
MEAN_ABSOLUTE, MEAN_RELATIVE = 0.01, 0.01
NORM_RELATIVE = 0.10
DEFAULT_STEPS, FEWEST_STEPS = 5000, 1000
FEWEST_POINTS = 100
"""logged steps; fewer are no continuous observation"""
ACCEPTABLE = 0.01
"""a relative difference at convergence below this may be accepted by evaluating downstream tasks"""
_SAME = 1e-4
"""relative difference of norms that were clipped to the same"""
_FEWEST_CLIPPED = 3
REPEATS = 2
"""runs of the baseline, itself included, that show how noisy it is"""


@dataclass(frozen=True, slots=True)
class Criterion:
    """One line of the standard."""

    quantity: str
    value: float
    """NaN where it could not be computed"""
    limit: float
    baseline: float
    """the same between runs of A, the largest; NaN when there is one run only"""
    is_relative: bool
    inclusive: bool = False

    @property
    def passes(self) -> bool:
        """Whether the value is within the limit, or within what the baseline itself shows."""
        within = self.value <= self.limit if self.inclusive else self.value < self.limit
        return within or self.value <= self.baseline

    @property
    def fails(self) -> bool:
        """Return True if there is a value, and it does not pass."""
        return self.is_known and not self.passes

    @property
    def name(self) -> str:
        """What is held against the limit."""
        return f"{self.quantity}, {'relative' if self.is_relative else 'absolute'}"

    @property
    def failure(self) -> Note:
        """The note of a value beyond the limit."""
        return note("standard-criterion", **asdict(self))

    @property
    def is_known(self) -> bool:
        """Whether there is a value."""
        return not math.isnan(self.value)


@dataclass(frozen=True, slots=True)
class StandardVerdict:
    """The verdict, and what it rests on."""

    verdict: Verdict
    criteria: tuple[Criterion, ...]
    """of the loss in pairs, absolute and relative, of which one suffices; then the global norm"""
    steps: int
    """training steps that were observed"""
    repeats: int
    """runs of the baseline, A included"""
    convergence: float
    """relative difference of the mean loss over the last tenth"""
    failed: tuple[Note, ...]
    rests_on: tuple[Note, ...]
    missing: tuple[Note, ...]
    """what keeps it from being decided"""


def judge_standard(loss: PairedSeries | None, norm: PairedSeries | None, found: Sequence[Note] = ()) -> StandardVerdict:
    """Apply the standard.

    Parameters
    ----------
    loss, norm
        losses and global gradient norms of the two runs, with those of further runs of A
    found
        what else fails it: a steady offset of the loss, a loss that is not finite on one side
    """
    missing: list[Note] = []
    criteria = _loss_criteria(loss, missing) + _norm_criteria(norm, missing)
    failed = [
        note("standard-criteria", absolute=absolute.failure, relative=relative.failure)
        for absolute, relative in (criteria[0:2], criteria[2:4])
        if absolute.fails and relative.fails
    ]
    failed += [each.failure for each in criteria[4:] if each.fails]
    failed += found
    steps = observed(loss) if loss is not None else 0
    repeats = 1 + (0 if loss is None else sum(bool(np.isfinite(row).any()) for row in loss.others))
    if loss is not None and len(loss) and not failed:
        missing += _too_short(loss, steps)
    verdict = Verdict.DIVERGED if failed else Verdict.UNDECIDED if missing else Verdict.ALIGNED
    return StandardVerdict(
        verdict, tuple(criteria), steps, repeats, _convergence(loss), tuple(failed), (*_rests_on(steps, repeats), *_after_clipping(norm)),
        tuple(missing),
    )  # fmt: skip


def observed(pair: PairedSeries) -> int:
    """Return how many training steps a series that was logged at intervals spans."""
    if len(pair) < 2:
        return len(pair)
    gaps = np.diff(pair.steps)
    return int(pair.steps[-1] - pair.steps[0] + np.median(gaps))


def _loss_criteria(loss: PairedSeries | None, missing: list[Note]) -> list[Criterion]:
    values = [math.nan] * 4
    floors = [math.nan] * 4
    if loss is None or not len(loss):
        missing.append(note("standard-without", what="loss"))
    elif not loss.finite.all():
        missing.append(note("standard-never-finite", what="loss"))
    else:
        values = _differences(loss.a, loss.b)
        floors = _largest([_differences(x, y) for x, y in _pairs(loss)], 4)
    names = ("first loss", "first loss", "mean loss", "mean loss")
    limits = (FIRST_ABSOLUTE, FIRST_RELATIVE, MEAN_ABSOLUTE, MEAN_RELATIVE)
    return [
        Criterion(name, value, limit, floor, is_relative=bool(index % 2))
        for index, (name, value, limit, floor) in enumerate(zip(names, values, limits, floors, strict=True))
    ]


def _norm_criteria(norm: PairedSeries | None, missing: list[Note]) -> list[Criterion]:
    value, floor = math.nan, math.nan
    if norm is None or not len(norm):
        missing.append(note("standard-without", what="global gradient norm"))
    elif not norm.finite.all():
        missing.append(note("standard-never-finite", what="global gradient norm"))
    else:
        value = _differences(norm.a, norm.b)[3]
        floor = _largest([[_differences(x, y)[3]] for x, y in _pairs(norm)], 1)[0]
    return [Criterion("mean global norm", value, NORM_RELATIVE, floor, is_relative=True, inclusive=True)]


def _differences(a: np.ndarray, b: np.ndarray) -> list[float]:
    """Return |B − A| of the first step, the same relative to |A|, and the means of both over all steps."""
    apart = np.abs(b - a)
    with np.errstate(divide="ignore", invalid="ignore"):
        relative = np.where(apart == 0, 0.0, apart / np.abs(a))
    return [float(apart[0]), float(relative[0]), math.fsum(apart) / len(a), math.fsum(relative) / len(a)]


def _pairs(pair: PairedSeries) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return every two runs of A, at the steps that both have."""
    runs = [pair.a, *pair.others]
    found = []
    for index, first in enumerate(runs):
        for second in runs[index + 1 :]:
            both = np.isfinite(first) & np.isfinite(second)
            if both.any():
                found.append((first[both], second[both]))
    return found


def _largest(found: list[list[float]], count: int) -> list[float]:
    return [max(values) for values in zip(*found, strict=True)] if found else [math.nan] * count


def _too_short(loss: PairedSeries, steps: int) -> list[Note]:
    if steps < FEWEST_STEPS:
        return [note("standard-few-steps", steps=steps, default=DEFAULT_STEPS, fewest=FEWEST_STEPS)]
    if len(loss) < FEWEST_POINTS:
        return [note("standard-few-points", points=len(loss), steps=steps, fewest=FEWEST_POINTS)]
    return []


def _after_clipping(norm: PairedSeries | None) -> list[Note]:
    """Say so where the norm is one number on both sides: that of clipped gradients."""
    if norm is None or len(norm) < _FEWEST_CLIPPED or not norm.finite.all():
        return []
    most = float(norm.a.max())
    clipped = (np.abs(norm.a - most) <= _SAME * most) & (np.abs(norm.b - most) <= _SAME * most)
    is_clipped = most and 2 * int(clipped.sum()) >= len(norm)
    return [note("standard-after-clipping", norm=most)] if is_clipped else []


def _rests_on(steps: int, repeats: int) -> list[Note]:
    return [
        note("standard-steps", steps=steps, default=DEFAULT_STEPS),
        note("standard-one-baseline") if repeats < REPEATS else note("standard-baselines", repeats=repeats),
        note("standard-not-checked"),
    ]


def _convergence(loss: PairedSeries | None) -> float:
    if loss is None or not len(loss) or not loss.finite.all():
        return math.nan
    tail = max(1, len(loss) // 10)
    a, b = float(loss.a[-tail:].mean()), float(loss.b[-tail:].mean())
    return abs(b - a) / abs(a) if a else math.nan
