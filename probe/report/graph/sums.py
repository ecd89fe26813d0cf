"""How a tensor was made from others, as far as their sketches tell: a sum, a difference, a multiple, the same in another form.

The sketch of a sum is the sum of the sketches, and axes in another order leave it as it is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

_ROUNDINGS = 32.0
"""roundings by which a tensor and what it was made from may differ"""
_MOST_TERMS = 3
_MOST_TRIED = 10
"""of the tensors that may be terms, the last ones"""
_WHOLE = 1e-3
"""how near to a whole number a factor is taken for it"""


@dataclass(frozen=True, slots=True)
class Sum:
    """Which tensors were added, by their places among those that were tried, and what each was multiplied by."""

    terms: tuple[int, ...]
    factors: tuple[float, ...]

    @property
    def label(self) -> str:
        """What was done, in a sign: ``+``, ``−``, ``× 0.125``; empty where it is the same tensor."""
        if len(self.terms) == 1:
            factor = self.factors[0]
            return "" if factor == 1.0 else f"× {factor:.4g}"
        if all(factor == 1.0 for factor in self.factors):
            return "+"
        return "−" if sorted(self.factors) == [-1.0, 1.0] else "+ ×"


def as_sum(target: np.ndarray, tried: Sequence[np.ndarray], unit: float) -> Sum | None:
    """Return the fewest tensors of which a tensor is the sum, with factors; None if there are none such.

    Parameters
    ----------
    target
        sketch of the tensor, shape (61,)
    tried
        sketches of tensors of the same shape that were there before it, in the order in which they were made
    unit
        unit roundoff of the tensor's dtype
    """
    length = float(np.linalg.norm(target))
    if not math.isfinite(length) or not length:
        return None
    last = [at for at, sketch in enumerate(tried) if np.isfinite(sketch).all() and sketch.any()][-_MOST_TRIED:]
    for count in range(1, _MOST_TERMS + 1):
        found: list[tuple[float, Sum]] = []
        for terms in itertools.combinations(last, count):
            basis = np.stack([tried[at] for at in terms], axis=1)
            factors, _, rank, _ = np.linalg.lstsq(basis, target, rcond=None)
            rest = float(np.linalg.norm(target - basis @ factors))
            if rank == count and rest <= _ROUNDINGS * unit * length:
                found.append((rest, Sum(terms, tuple(_rounded(each) for each in factors.tolist()))))
        if found:
            return min(found, key=lambda each: (each[1].label not in ("", "+"), each[0]))[1]
    return None


def _rounded(factor: float) -> float:
    whole = round(factor)
    return float(whole) if whole and abs(factor - whole) <= _WHOLE else factor
