"""Does a signed difference fluctuate about 0, or is it a steady offset?

Two tests that assume nothing about how differences are distributed:

- the sign test (W. J. Dixon and A. M. Mood, "The statistical sign test", Journal of the American Statistical
  Association 41 (1946) 557–566): were signs tossed by a fair coin, how likely would one of them be this common?
- the runs test (A. Wald and J. Wolfowitz, "On a test whether two samples are from the same population", Annals of
  Mathematical Statistics 11 (1940) 147–162): does the sign change as often as a fair coin's would?

Differences of neighbouring steps of a training are not independent. The sign test is therefore made on the means of
blocks of steps, and the runs test only says whether a difference wanders slowly.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import numpy as np

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


class Sign(enum.StrEnum):
    """How a signed difference behaves."""

    NONE = "no offset"
    """it is too small to be one"""
    FLUCTUATES = "fluctuates"
    WANDERS = "wanders"
    """about 0, slowly"""
    BIASED = "biased"
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


def judge_signs(difference: np.ndarray, allowed: float, first: int = 0) -> SignJudgement:
    """Judge the signed difference of a stretch of steps.

    Parameters
    ----------
    difference
        B − A, finite
    allowed
        the largest mean that is no offset
    first
        where the stretch begins, kept in the result
    """
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
        sign = Sign.BIASED
    else:
        sign = Sign.WANDERS if runs_z < RUNS_LIMIT else Sign.FLUCTUATES
    return SignJudgement(sign, n, offset, share, p_value, runs_z, first)


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
