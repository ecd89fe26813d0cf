"""Tests of whether two samples come from one distribution: mean, standard deviation, largest magnitude, Kolmogorov–Smirnov.

Each gives the probability p of a difference as large by chance. Elements are taken to be independent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

NORMAL_KURTOSIS = 3.0
MOST_VALUES = 1 << 20
"""values of a tensor that are looked at; of a larger one every n-th"""
_TERMS = 100


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is known of a sample."""

    count: int
    mean: float
    std: float
    """of the elements around their mean"""
    largest: float
    """largest magnitude"""
    values: np.ndarray | None = None
    """float64, flat, at most `MOST_VALUES`; None where statistics alone are known"""

    @property
    def is_constant(self) -> bool:
        """Whether all elements are one number, up to rounding."""
        return self.std <= 1e-6 * max(abs(self.mean), self.largest)

    @property
    def peak(self) -> float:
        """The largest magnitude in standard deviations: √3 of a uniform distribution, 4 and more of a large normal sample."""
        return self.largest / self.std if self.std else math.inf


def drawn_from(values: np.ndarray) -> Drawn:
    """Return what is known of an array."""
    flat = np.asarray(values).reshape(-1)
    flat = flat[:: max(1, -(-flat.size // MOST_VALUES))].astype(np.float64)
    if not flat.size:
        return Drawn(0, math.nan, math.nan, math.nan)
    return Drawn(np.asarray(values).size, float(flat.mean()), float(flat.std()), float(np.abs(flat).max()), flat)


def kurtosis(a: Drawn, b: Drawn) -> float:
    """Return the fourth standardized moment of both samples: from values the larger one, else that of a normal distribution."""
    found = []
    for each in (a, b):
        if each.values is not None and each.std:
            found.append(float((((each.values - each.mean) / each.std) ** 4).mean()))
    return max(found, default=NORMAL_KURTOSIS)


def p_of_means(a: Drawn, b: Drawn) -> float:
    """Return p of the difference of two means: by the normal distribution, with both variances (Welch)."""
    error = math.sqrt(a.std**2 / a.count + b.std**2 / b.count)
    return _two_sided((a.mean - b.mean) / error) if error else float(a.mean == b.mean)


def p_of_stds(a: Drawn, b: Drawn) -> float:
    """Return p of the ratio of two standard deviations.

    The variance of n elements with kurtosis κ has the relative variance (κ − 1)/n, and so ln s that of (κ − 1)/4n (delta method).
    """
    if not a.std or not b.std:
        return float(a.std == b.std)
    error = math.sqrt((max(kurtosis(a, b), 1.0 + 1e-9) - 1) / 4 * (1 / a.count + 1 / b.count))
    return _two_sided(math.log(a.std / b.std) / error)


def p_of_peaks(a: Drawn, b: Drawn) -> float:
    """Return p of the difference of two largest magnitudes in standard deviations, were both samples normal.

    The largest of m = 2n normal elements (magnitudes of n) has Gumbel's distribution, of scale 1/b with b = √(2 ln m) −
    (ln ln m + ln 4π) / 2√(2 ln m) (Cramér 1946, 28.6); the difference of two has the logistic distribution of that scale. It tells
    a uniform from a normal distribution without values.
    """
    root = math.sqrt(2 * math.log(2 * min(a.count, b.count)))
    inverse = root - (math.log(root**2 / 2) + math.log(4 * math.pi)) / (2 * root)
    return 2 / (1 + math.exp(min(abs(a.peak - b.peak) * inverse, 700.0)))


def combined(p: Sequence[float]) -> float:
    """Return p of several independent tests of one hypothesis (Fisher's method).

    −2 Σ ln p has the χ² distribution of 2k degrees of freedom, whose tail is exp(−x) Σ xⁱ/i! over i < k with x = −Σ ln p.
    """
    x = -sum(math.log(max(each, 1e-300)) for each in p)
    logs = [i * math.log(x) - math.lgamma(i + 1) if x else (0.0 if not i else -math.inf) for i in range(len(p))]
    top = max(logs)
    return min(math.exp(min(top - x, 0.0)) * sum(math.exp(each - top) for each in logs), 1.0)


def kolmogorov_smirnov(a: np.ndarray, b: np.ndarray) -> tuple[float, float]:
    """Return the two-sample Kolmogorov–Smirnov statistic D = sup |F_a − F_b|, and p.

    p is the asymptotic distribution (Smirnov 1948), Q(λ) = 2 Σ (−1)^(j−1) exp(−2 j² λ²), with Stephens' λ = (√n + 0.12 + 0.11/√n) D
    for samples of finite size, where n is the product of both sizes by their sum (Press et al., Numerical Recipes, 14.3).
    """
    x, y = np.sort(a), np.sort(b)
    every = np.concatenate([x, y])
    gap = np.abs(np.searchsorted(x, every, side="right") / x.size - np.searchsorted(y, every, side="right") / y.size)
    statistic = float(gap.max())
    root = math.sqrt(x.size * y.size / (x.size + y.size))
    return statistic, _smirnov((root + 0.12 + 0.11 / root) * statistic)


def _smirnov(value: float) -> float:
    """Return Q(λ)."""
    if value < 0.2:
        return 1.0
    terms = np.arange(1, _TERMS)
    found = 2 * float(((-1.0) ** (terms - 1) * np.exp(-2.0 * terms**2 * value**2)).sum())
    return min(max(found, 0.0), 1.0)


def _two_sided(z: float) -> float:
    return math.erfc(abs(z) / math.sqrt(2))
