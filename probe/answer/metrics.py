"""What is known of a pair of tensors: their error, how it was found, and what it is by the metric of a tolerance."""

from __future__ import annotations

import enum
import functools
import math
from dataclasses import dataclass

from probe.defaults import ALLCLOSE
from probe.mapping.judging import Tolerance
from probe.notes import Note, named
from probe.numbers.statistics import dtype_of, is_float
from probe.records import Role

BUILT_IN = "built-in model"
TIMES = "times the tolerance"
FIXED_NAMES = {
    "max_abs": "max |Δ|", "mean_abs": "mean |Δ|", "max_rel": "max relative |Δ|", "rel_l2": "", "cosine": "1 − cosine",
    ALLCLOSE: TIMES,
}  # fmt: skip
"""by the metric of a tolerance, the measure that a report names"""
FIXED_MEASURES = frozenset(filter(None, FIXED_NAMES.values()))
"""of what a limit is that people chose, where it is not the relative error"""
TOLERANCE = "tolerance"
"""how what a finding says of such a limit begins"""
SIXTEEN_BIT = 2.0**-20
"""unit roundoffs above this are those of 16-bit (or narrower) dtypes"""
PARAMETER_ROLES = (Role.PARAM, Role.BUFFER, Role.PARAM_GRAD, Role.STATE, Role.DELTA)
"""roles of what belongs to a parameter or buffer, not to a call"""


class Status(enum.StrEnum):
    """What is known of a pair of tensors."""

    EQUAL = "equal"
    """bit for bit, or every number the same"""
    COMPARED = "compared"
    """the error is known, or estimated"""
    NONFINITE = "nonfinite"
    """NaN or Inf on one side where the other has none, or elsewhere"""
    PERMUTED = "looks permuted"
    """axes of the same size, equal norms, other values: not decided"""
    NOT_COMPARABLE = "not comparable"
    """shapes or kinds differ, or nothing was measured"""


_KNOWN = Status.EQUAL, Status.COMPARED, Status.NONFINITE


@dataclass(frozen=True, slots=True)
class Metrics:
    """The error of B against A for one pair of tensors."""

    status: Status
    rel_l2: float = math.nan
    """‖A−B‖ / max(‖A‖, ‖B‖); for integers the share of elements that differ"""
    cosine: float = math.nan
    coherence: float = math.nan
    """cosine between A and B−A: ±1 when the error is a uniform scale of the value"""
    norm_a: float = math.nan
    norm_b: float = math.nan
    max_abs: float = math.nan
    max_abs_at: tuple[int, ...] | None = None
    max_rel: float = math.nan
    mean_abs: float = math.nan
    estimated: bool = False
    """from sketches or statistics, not from values"""
    is_lower_bound: bool = False
    """the error is not smaller, which is all that is known: there are no two sketches that can be compared"""
    why: Note | None = None
    """why it is not comparable, or how it was compared"""
    of_integers: bool = False
    """of integers, of which the error is the share that differs"""
    other_zeros: bool = False
    """every number is the same, and some zeros have another sign: equal, and not bit for bit"""

    @property
    def reason(self) -> str:
        """Why, in words; empty where there is nothing to say."""
        return "" if self.why is None else str(self.why)

    @property
    def norm_ratio(self) -> float:
        """‖B‖ / ‖A‖."""
        return self.norm_b / self.norm_a if self.norm_a else math.nan

    @property
    def is_known(self) -> bool:
        """Whether the error is a number."""
        return self.status in _KNOWN

    def as_json(self) -> dict[str, object]:
        """Return them by their names in JSON; what is not a finite number becomes null."""
        of_both = "rel_l2", "cosine", "coherence", "norm_a", "norm_b", "norm_ratio"
        return named(self, "status", *of_both, "max_abs", "max_abs_at", "max_rel", "mean_abs", "reason")


@functools.cache
def kind_of(dtype: str) -> str:
    """Return ``float``, ``complex``, ``integer`` (bools too)."""
    resolved = dtype_of(dtype)
    if resolved.kind == "c":
        return "complex"
    return "float" if is_float(resolved) else "integer"


# By the metric of a tolerance


class Relation(enum.StrEnum):
    """What a figure is to the error that it stands for."""

    EXACT = ""
    ESTIMATE = "≈"
    AT_LEAST = "≥"
    AT_MOST = "≤"


@dataclass(frozen=True, slots=True)
class Measure:
    """An error by the metric of a tolerance."""

    figure: float
    """NaN where it is not known whether the error is within the tolerance; allclose: times the tolerance"""
    relation: Relation = Relation.EXACT

    @property
    def is_known(self) -> bool:
        """Whether it is known if the error is within the tolerance."""
        return not math.isnan(self.figure)


UNKNOWN = Measure(math.nan)


def bound_of(wanted: Tolerance) -> float:
    """Return what the figure of a tolerance is held against."""
    return 1.0 if wanted.metric == ALLCLOSE else wanted.atol or wanted.rtol


def lets_zeros_pass(wanted: Tolerance, largest: float, rms: float) -> bool:
    """Return True if zeros would pass in the place of a tensor of a largest magnitude and root mean square."""
    if wanted.metric == ALLCLOSE:
        return wanted.atol + wanted.rtol * largest >= largest
    return bound_of(wanted) >= {"max_abs": largest, "mean_abs": rms}.get(wanted.metric, 1.0)
