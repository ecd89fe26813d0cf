"""The error of B against A."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass


class View(enum.StrEnum):
    """How two tensors were laid on each other, or why they could not be."""

    EQUAL = "equal"
    SAME = "same"
    PERMUTED = "permuted"
    FLAT = "flat"
    SKETCH = "sketch"
    STATISTICS = "statistics"
    INTEGERS = "integers"
    MASK = "mask"
    PADDED = "padded"
    NON_FINITE = "non-finite"


@dataclass(frozen=True, slots=True)
class Error:
    """How far B is from A."""

    size: float
    """‖A−B‖ / max(‖A‖, ‖B‖); of integers and masks the share of the elements that differs"""
    norm_a: float = 0.0
    norm_b: float = 0.0
    along: float = 0.0
    """cosine between A and B−A: ±1 if B is a multiple of A"""
    view: View = View.SAME
    is_bound: bool = False
    """a lower bound: all that statistics tell"""
    max_abs: float = math.nan
    """largest difference of two elements; NaN without values"""
    max_at: int = -1
    """where that is, flat in the order of A"""
    max_rel: float = math.nan
    """largest |a − b| / max(|a|, |b|)"""
    mean_abs: float = math.nan

    @property
    def apart(self) -> float:
        """‖A−B‖."""
        return self.size * max(self.norm_a, self.norm_b) if math.isfinite(self.size) else math.inf

    @property
    def is_of_values(self) -> bool:
        """Whether element stood against element."""
        return self.view in (View.EQUAL, View.SAME, View.PERMUTED, View.FLAT, View.PADDED) and not self.is_bound

    @property
    def off(self) -> float:
        """Relative difference of the norms."""
        larger = max(self.norm_a, self.norm_b)
        return abs(self.norm_a - self.norm_b) / larger if larger else 0.0
