"""Does a signed difference fluctuate about 0, or is it a steady offset?

Two tests that assume nothing about how differences are distributed:

- the sign test (W. J. Dixon and A. M. Mood, "The statistical sign test", Journal of the American Statistical
  Association 41 (1946) 557–566): were signs tossed by a fair coin, how likely would one of them be this common?
- the runs test (A. Wald and J. Wolfowitz, "On a test whether two samples are from the same population", Annals of
  Mathematical Statistics 11 (1940) 147–162): does the sign change as often as a fair coin's would?

Differences of neighbouring steps of a training are not independent. The sign test is therefore made on the means of
blocks of steps, and the runs test only says whether a difference wanders slowly. Noise that stays on one side for
longer than a block passes the sign test: a mean is an offset only if it is also several times larger than noise of
this size and correlation would have it (`fluctuations`).
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

from probe.curve_comparison.pairing import PairedSeries
from probe.curve_comparison.tolerance import CHANCE, WIDENED, Tolerance

BLOCKS = 16
"""blocks of the sign test, of at least two steps"""
FEWEST = 16
"""steps below which nothing is said: 8 blocks"""
SIGNIFICANT = 0.01
"""the sign test rejects below this: 8 of 8 or 14 of 16 blocks have one sign"""
ONE_SIDED = 2 / 3
"""share of the steps that have the commoner sign, from which on a difference does not fluctuate about 0"""
RUNS_LIMIT = -3.0
"""standard deviations; below this the sign changes too rarely"""
CLEAR = 5.0
"""standard errors; a mean below this may be noise that stays on one side for a while (benchmarks/curve_power.py)"""
_APART = 1.5
"""ranges of the differences by which 0 lies away from the nearest of them, so that no noise is meant"""
_UNKNOWN = 16
"""steps of which the correlation is as good as unknown: `CLEAR` is twice as large"""
_FEWEST_BLOCKS = 16
"""of which a correlation is estimated"""
_CUBIC = 3
_WITHIN_ONE = 0.683
"""share within one standard deviation; where something begins, a single large step does not count"""
_DOUBT = 2.0
"""standard errors by which a correlation may be larger than it shows"""
_STRETCHES = (1, 2, 4)
"""the whole run, its later half, its last quarter: what drifts apart does so late"""
_SHOWS_NOISE = 128
"""steps that tell how noise is correlated; a stretch of fewer has the noise of the longer one that it is a part of"""


class Sign(enum.StrEnum):
    """How a signed difference behaves."""

    NONE = "no offset"
    """it is too small to be one"""
    FLUCTUATES = "fluctuates"
    WANDERS = "wanders"
    """about 0, slowly"""
    BIASED = "biased"
    UNCLEAR = "an offset or slow noise"
    """one sign is commoner, as in noise that changes slowly"""
    SHORT = "too few steps"


@dataclass(frozen=True, slots=True)
class SignJudgement:
    """What the tests say of one stretch of steps."""

    sign: Sign
    steps: int
    """steps in which there is a difference"""
    offset: float
    """mean of B − A"""
    share: float
    """of the steps with the commoner sign"""
    p_value: float
    """of the sign test on blocks, two-sided"""
    runs_z: float
    """of the runs test: negative when the sign changes too rarely"""
    first: int = 0
    """index at which the stretch begins"""
    is_apart: bool = False
    """0 lies far from all differences: in few steps too, that is no noise"""

    @property
    def is_steady(self) -> bool:
        """Whether the difference has one sign and size, other than noise has."""
        return self.sign is Sign.BIASED or self.is_apart


def judge_signs(
    difference: np.ndarray,
    allowed: float,
    first: int = 0,
    in_units: np.ndarray | None = None,
    noise: tuple[Fluctuation, ...] | None = None,
) -> SignJudgement:
    """Judge the signed difference of a stretch of steps.

    Parameters
    ----------
    difference
        B − A, finite
    allowed
        the largest mean that is no offset
    first
        where the stretch begins, kept in the result
    in_units
        the difference in the unit in which the noise of all steps is of one size; as it is by default
    noise
        what the noise is like in that unit; by default as this stretch shows it
    """
    values = difference if in_units is None else in_units
    signs = np.sign(difference[difference != 0])
    n = len(signs)
    offset = float(difference.mean()) if len(difference) else 0.0
    positive = int((signs > 0).sum())
    share = max(positive, n - positive) / n if n else 0.0
    p_value, runs_z = _block_sign_test(difference), _runs_z(signs)
    if abs(offset) <= allowed:
        sign = Sign.NONE
    elif n < FEWEST:
        sign = Sign.SHORT
    elif share >= ONE_SIDED and p_value < SIGNIFICANT:
        sign = Sign.BIASED if _is_clear(values, fluctuations(values) if noise is None else noise) else Sign.UNCLEAR
    else:
        sign = Sign.WANDERS if runs_z < RUNS_LIMIT else Sign.FLUCTUATES
    return SignJudgement(sign, n, offset, share, p_value, runs_z, first, _is_apart(values))


def _is_clear(values: np.ndarray, noise: tuple[Fluctuation, ...]) -> bool:
    """Return True if a mean is larger than noise makes it, or 0 far from all that was seen."""
    if _is_apart(values):
        return True
    error = max((each.error_of_mean(len(values)) for each in noise), default=0.0)
    return abs(float(values.mean())) > CLEAR * (1 + _UNKNOWN / len(values)) * error


def _is_apart(values: np.ndarray) -> bool:
    """Return True if 0 lies several times farther from all of some numbers than these do from one another; the fewer, the farther."""
    if len(values) < 2:
        return False
    ranges = max(_APART, CHANCE ** (-1 / (len(values) - 1)))
    return float(np.abs(values).min()) > ranges * float(np.ptp(values))


def _block_sign_test(difference: np.ndarray) -> float:
    """Return the two-sided probability of the sign test on the means of blocks."""
    count = min(BLOCKS, len(difference) // 2)
    if not count:
        return 1.0
    means = np.array([block.mean() for block in np.array_split(difference, count)])
    means = means[means != 0]
    return sign_test(int((means > 0).sum()), len(means))


def sign_test(positive: int, n: int) -> float:
    """Return the probability that one sign is at least this common among ``n`` tosses of a fair coin."""
    commoner = max(positive, n - positive)
    tail = sum(math.comb(n, k) for k in range(commoner, n + 1)) / 2**n
    return min(1.0, 2 * tail)


@dataclass(frozen=True, slots=True)
class Fluctuation:
    """Noise as an autoregressive series of order 1: of the means of blocks of some steps."""

    size: int
    """steps of a block"""
    correlation: float
    """of neighbouring blocks, from above"""
    innovation: float
    """standard deviation of what a block adds"""

    def error_of_mean(self, steps: int) -> float:
        """Return the standard error of the mean of this many steps."""
        n = max(1, steps // self.size)
        weights = np.cumsum(self.correlation ** np.arange(n))
        start = weights[-1] ** 2 * min(1 / max(1 - self.correlation**2, 1e-9), n / 4 + 1)
        return self.innovation * math.sqrt(float((weights[:-1] ** 2).sum()) + start) / n


def fluctuations(difference: np.ndarray) -> tuple[Fluctuation, ...]:
    """Return the noise in a difference at several time scales, blocks of 1, 2, 4 … steps: what a cubic leaves.

    Slow noise below fast noise shows in long blocks only. What drifts is smooth, and no noise.
    """
    if len(difference) <= _CUBIC + 1:
        return ()
    time = np.linspace(-1, 1, len(difference))
    rest = difference - np.polyval(np.polyfit(time, difference, _CUBIC), time)
    sizes = [1]
    while len(rest) // (2 * sizes[-1]) >= _FEWEST_BLOCKS:
        sizes.append(2 * sizes[-1])
    return tuple(_fluctuation(rest, size) for size in sizes)


def _fluctuation(rest: np.ndarray, size: int) -> Fluctuation:
    n = len(rest) // size
    means = rest[len(rest) - n * size :].reshape(n, size).mean(axis=1)
    power = float((means**2).sum())
    shown = min(float((means[1:] * means[:-1]).sum()) / power, 1.0) if power else 0.0
    unfit = (_CUBIC + 1) / n  # a curve that was fitted takes away what changes slowly
    correlation = shown + unfit * (1 + max(shown, 0.0)) + _DOUBT * math.sqrt(max(1 - shown**2, 0.0) / n)
    added = np.abs(means[1:] - shown * means[:-1])
    innovation = float(np.quantile(added, _WITHIN_ONE)) * math.sqrt(n / max(n - _CUBIC - 1, 1))
    return Fluctuation(size, min(1.0, max(0.0, correlation)), innovation)


def _runs_z(signs: np.ndarray) -> float:
    """Return how many standard deviations the number of runs lies above its expectation."""
    positive, negative = int((signs > 0).sum()), int((signs < 0).sum())
    n = positive + negative
    if not positive or not negative:
        return 0.0
    runs = 1 + int((signs[1:] != signs[:-1]).sum())
    expected = 2 * positive * negative / n + 1
    variance = (expected - 1) * (expected - 2) / (n - 1)
    return (runs - expected) / math.sqrt(variance) if variance > 0 else 0.0


# Whether a curve has a steady offset from the other, over the whole run or its later part


def judge_offset(pair: PairedSeries, tolerance: Tolerance) -> SignJudgement:
    """Judge the signed difference of a pair of curves.

    The offset is that from the nearest run of A, and may be the multiple `WIDENED` of the largest between these: B that
    lies between two of them has none.

    Returns
    -------
    SignJudgement
        of the first stretch that is biased, or may be, else of the whole run
    """
    known = np.flatnonzero(pair.finite)
    judged: list[SignJudgement] = []
    noise: tuple[Fluctuation, ...] = ()
    for part in _STRETCHES:
        rows = known[len(known) - len(known) // part :]
        if part > 1 and len(rows) < FEWEST:
            break
        own = fluctuations(_in_units(pair, rows, pair.difference[rows], tolerance))
        judged.append(_of_stretch(pair, rows, tolerance, own if len(rows) >= _SHOWS_NOISE else (*own, *noise)))
        if part == 1 or len(rows) >= _SHOWS_NOISE:
            noise = own
    return next((each for sign in (Sign.BIASED, Sign.UNCLEAR) for each in judged if each.sign is sign), judged[0])


def _of_stretch(
    pair: PairedSeries, rows: np.ndarray, tolerance: Tolerance, noise: tuple[Fluctuation, ...]
) -> SignJudgement:
    first = int(rows[0]) if len(rows) else 0
    runs = [pair.a[rows]]
    runs += [other[rows] for other in pair.others if np.isfinite(other[rows]).all()]
    offsets = [float((pair.b[rows] - run).mean()) if len(rows) else 0.0 for run in runs]
    level = float(pair.scale[rows].mean()) if len(rows) else 0.0
    allowed = tolerance.offset_relative * level
    allowed = min(allowed, tolerance.offset) if tolerance.offset else allowed
    if len(rows):
        allowed = max(allowed, float(pair.resolution[rows].mean()))
    if len(runs) > 1:
        allowed = max(allowed, WIDENED.get(len(runs), 1.0) * (max(offsets) - min(offsets)))
    nearest = runs[int(np.abs(offsets).argmin())]
    difference = pair.b[rows] - nearest
    return judge_signs(difference, allowed, first, _in_units(pair, rows, difference, tolerance), noise)


def _in_units(pair: PairedSeries, rows: np.ndarray, difference: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    """Return differences as the kind of curve has them: relative where its noise is."""
    if not tolerance.is_relative:
        return difference
    return np.divide(difference, pair.scale[rows], out=np.zeros(len(rows)), where=pair.scale[rows] > 0)
