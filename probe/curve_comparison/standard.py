"""The migration standard of the MindFormers guide: is a migrated training as precise as the one it came from?

First loss: absolute difference < 0.005 or relative < 0.5 %. Loss on average: < 0.01 or < 1 %. Global gradient norm:
on average ≤ 10 %. Observed over 5,000 steps by default, never fewer than 1,000. Where the baseline, repeated, is itself
noisier, the limits are what it shows. Relative differences are relative to A, the benchmark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.comparison.result import Verdict
from probe.curve_comparison.pairing import PairedSeries

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

    name: str
    value: float
    """NaN where it could not be computed"""
    limit: float
    baseline: float
    """the same between runs of A, the largest; NaN when there is one run only"""
    is_relative: bool
    inclusive: bool = False

    @property
    def passes(self) -> bool:
        """Tell whether the value is within the limit, or within what the baseline itself shows."""
        within = self.value <= self.limit if self.inclusive else self.value < self.limit
        return within or self.value <= self.baseline

    @property
    def shown(self) -> str:
        """The value, as the standard wants it written."""
        return percent(self.value, self.limit) if self.is_relative else decimal(self.value, self.limit)

    @property
    def wanted(self) -> str:
        """What the standard asks for, and what the baseline itself shows."""
        limit = percent(self.limit) if self.is_relative else f"{self.limit:g}"
        own = percent(self.baseline) if self.is_relative else decimal(self.baseline)
        between = "" if math.isnan(self.baseline) else f", or {own} as between runs of A"
        return f"{'≤' if self.inclusive else '<'} {limit}{between}"

    @property
    def is_known(self) -> bool:
        """Tell whether there is a value."""
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
    failed: tuple[str, ...]
    rests_on: tuple[str, ...]
    missing: tuple[str, ...]
    """what keeps it from being decided"""


def judge_standard(loss: PairedSeries | None, norm: PairedSeries | None, found: Sequence[str] = ()) -> StandardVerdict:
    """Apply the standard.

    Parameters
    ----------
    loss, norm
        losses and global gradient norms of the two runs, with those of further runs of A
    found
        in words, what else fails it: a steady offset of the loss, a loss that is not finite on one side
    """
    missing: list[str] = []
    criteria = _loss_criteria(loss, missing) + _norm_criteria(norm, missing)
    failed = [_both(*pair) for pair in (criteria[0:2], criteria[2:4]) if _fail(pair)]
    failed += [_said(each) for each in criteria[4:] if each.is_known and not each.passes]
    failed += found
    rests_on = _after_clipping(norm)
    steps = observed(loss) if loss is not None else 0
    repeats = 1 + (0 if loss is None else sum(bool(np.isfinite(row).any()) for row in loss.others))
    if loss is not None and len(loss) and not failed:
        missing += _too_short(loss, steps)
    verdict = Verdict.DIVERGED if failed else Verdict.UNDECIDED if missing else Verdict.ALIGNED
    return StandardVerdict(
        verdict, tuple(criteria), steps, repeats, _convergence(loss), tuple(failed), (*_rests_on(steps, repeats), *rests_on),
        tuple(missing),
    )  # fmt: skip


def observed(pair: PairedSeries) -> int:
    """Return how many training steps a series that was logged at intervals spans."""
    if len(pair) < 2:
        return len(pair)
    gaps = np.diff(pair.steps)
    return int(pair.steps[-1] - pair.steps[0] + np.median(gaps))


def percent(value: float, limit: float = math.nan) -> str:
    """Return a relative difference as ``x.x %``, with as many digits as tell it from its limit."""
    return _told_apart(value, limit, 1, 100.0, " %")


def decimal(value: float, limit: float = math.nan) -> str:
    """Return an absolute difference as ``0.xx``, with as many digits as tell it from its limit."""
    return _told_apart(value, limit, 2, 1.0, "")


def _told_apart(value: float, limit: float, digits: int, factor: float, unit: str) -> str:
    if not math.isfinite(value):
        return "unknown" if math.isnan(value) else "infinite"
    for more in range(digits, 12):
        text = f"{value * factor:.{more}f}"
        rounded_away = value != 0 and float(text) == 0 and more < digits + 3
        if not rounded_away and (math.isclose(value, limit, rel_tol=1e-9) or text != f"{limit * factor:.{more}f}"):
            break
    return (text if value == 0 or float(text) else f"<{10.0**-more:.{more}f}") + unit


def _loss_criteria(loss: PairedSeries | None, missing: list[str]) -> list[Criterion]:
    values = [math.nan] * 4
    floors = [math.nan] * 4
    if loss is None or not len(loss):
        missing.append("no loss on both sides")
    elif not loss.finite.all():
        missing.append("the loss is not finite at every step")
    else:
        values = _differences(loss.a, loss.b)
        floors = _largest([_differences(x, y) for x, y in _pairs(loss)], 4)
    names = ("first loss, absolute", "first loss, relative", "mean loss, absolute", "mean loss, relative")
    limits = (FIRST_ABSOLUTE, FIRST_RELATIVE, MEAN_ABSOLUTE, MEAN_RELATIVE)
    return [
        Criterion(name, value, limit, floor, is_relative=bool(index % 2))
        for index, (name, value, limit, floor) in enumerate(zip(names, values, limits, floors, strict=True))
    ]


def _norm_criteria(norm: PairedSeries | None, missing: list[str]) -> list[Criterion]:
    value, floor = math.nan, math.nan
    if norm is None or not len(norm):
        missing.append("no global gradient norm on both sides")
    elif not norm.finite.all():
        missing.append("the global gradient norm is not finite at every step")
    else:
        value = _differences(norm.a, norm.b)[3]
        floor = _largest([[_differences(x, y)[3]] for x, y in _pairs(norm)], 1)[0]
    return [Criterion("mean global norm, relative", value, NORM_RELATIVE, floor, is_relative=True, inclusive=True)]


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


def _fail(pair: list[Criterion]) -> bool:
    return all(each.is_known and not each.passes for each in pair)


def _both(absolute: Criterion, relative: Criterion) -> str:
    name = absolute.name.partition(",")[0]
    return f"{name} {absolute.shown} and {relative.shown}, expected {absolute.wanted} or {relative.wanted}"


def _said(each: Criterion) -> str:
    return f"{each.name} {each.shown}, expected {each.wanted}"


def _too_short(loss: PairedSeries, steps: int) -> list[str]:
    if steps < FEWEST_STEPS:
        were = "step was" if steps == 1 else "steps were"
        return [f"{steps} {were} observed, expected {DEFAULT_STEPS}, and never fewer than {FEWEST_STEPS}"]
    if len(loss) < FEWEST_POINTS:
        return [f"only {len(loss)} of {steps} steps were logged on both sides, expected at least {FEWEST_POINTS}"]
    return []


def _after_clipping(norm: PairedSeries | None) -> list[str]:
    """Say so where the norm is one number on both sides: that of clipped gradients."""
    if norm is None or len(norm) < _FEWEST_CLIPPED or not norm.finite.all():
        return []
    most = float(norm.a.max())
    clipped = (np.abs(norm.a - most) <= _SAME * most) & (np.abs(norm.b - most) <= _SAME * most)
    if not most or 2 * int(clipped.sum()) < len(norm):
        return []
    return [
        f"the global norm was taken after clipping ({most:.4g} on both sides): it does not tell how large gradients were"
    ]


def _rests_on(steps: int, repeats: int) -> list[str]:
    found = [
        f"{steps} step{'' if steps == 1 else 's'}"
        + ("" if steps >= DEFAULT_STEPS else f" (by default {DEFAULT_STEPS}, or 12 hours)")
    ]
    if repeats < REPEATS:
        found.append("one run of the baseline: how noisy it is by itself is not known (--noise a2 …)")
    else:
        found.append(f"{repeats} runs of the baseline")
    found.append("not checked: same weights and hyper-parameters, all randomness off")
    return found


def _convergence(loss: PairedSeries | None) -> float:
    if loss is None or not len(loss) or not loss.finite.all():
        return math.nan
    tail = max(1, len(loss) // 10)
    a, b = float(loss.a[-tail:].mean()), float(loss.b[-tail:].mean())
    return abs(b - a) / abs(a) if a else math.nan
