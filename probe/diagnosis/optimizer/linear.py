"""Least squares that says how sure each coefficient is."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

_PARALLEL = 1e-3
"""columns that are a combination of the others up to this share cannot be told from them"""


@dataclass(frozen=True, slots=True)
class Solution:
    """target = Σ coefficient · column, up to a residual."""

    coefficients: tuple[float, ...]
    errors: tuple[float, ...]
    """standard errors of the coefficients"""
    residual: float
    """relative to the target"""

    def is_there(self, k: int, share: float = 1e-6) -> bool:
        """Return True if a coefficient is surely not zero."""
        return abs(self.coefficients[k]) > max(4 * self.errors[k], share)


def solved(target: np.ndarray, columns: Sequence[np.ndarray], rounding: float) -> Solution | None:
    """Solve for the coefficients of columns of the target's shape, (n,); None where they cannot be told apart.

    The target may be off by ``rounding``, a length: the errors of the coefficients are no smaller than that makes
    them.
    """
    target, columns = np.asarray(target, np.float64), [np.asarray(column, np.float64) for column in columns]
    length = float(np.linalg.norm(target))
    sizes = [float(np.linalg.norm(column)) for column in columns]
    if not length or not all(sizes) or not all(map(math.isfinite, (length, *sizes))):
        return None
    matrix = np.stack([column / size for column, size in zip(columns, sizes, strict=True)], axis=1)
    left, singular, right = np.linalg.svd(matrix, full_matrices=False)
    if singular[-1] < _PARALLEL * singular[0]:
        return None
    scaled = right.T @ ((left.T @ target) / singular)
    rest = float(np.linalg.norm(target - matrix @ scaled))
    spread = max(rest, rounding) / math.sqrt(max(1, len(target) - len(columns)))
    errors = spread * np.sqrt(((right / singular[:, None]) ** 2).sum(axis=0))
    return Solution(
        tuple(float(x) / size for x, size in zip(scaled, sizes, strict=True)),
        tuple(float(x) / size for x, size in zip(errors, sizes, strict=True)),
        rest / length,
    )


def simplest(
    target: np.ndarray, columns: Mapping[str, np.ndarray | None], choices: Iterable[str], rounding: float, within: float
) -> tuple[dict[str, float], float] | None:
    """Return what explains the target: the coefficients by the names of their columns, and what is left over.

    ``choices`` are names of columns, the simplest first; one that has a column that is not known is passed over.
    """
    for names in map(str.split, choices):
        chosen = [column for column in map(columns.get, names) if column is not None]
        found = solved(target, chosen, rounding) if len(chosen) == len(names) else None
        if found is not None and found.residual <= max(within, 4 * rounding / float(np.linalg.norm(target))):
            return dict(zip(names, found.coefficients, strict=True)), found.residual
    return None
