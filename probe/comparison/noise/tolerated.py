"""The error of a pair of tensors by the metric of a tolerance: from values, else what statistics say of it."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from dataclasses import dataclass

from probe.commands.defaults import ALLCLOSE
from probe.comparison.distance.metrics import Metrics, Side
from probe.mapping.judging import Tolerance

_MEAN_OF_NORMAL = math.sqrt(2 / math.pi)
"""mean size of normally distributed errors, as a multiple of their root mean square"""
_OF_SKETCHES = 1.5
"""an error that sketches estimate is less than this many times as large: five standard deviations"""


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
        """Tell whether it is known if the error is within the tolerance."""
        return not math.isnan(self.figure)


UNKNOWN = Measure(math.nan)


def bound_of(wanted: Tolerance) -> float:
    """Return what the figure of a tolerance is held against."""
    return 1.0 if wanted.metric == ALLCLOSE else wanted.atol or wanted.rtol


def largest_of(a: Side, row: int) -> float:
    """Return the largest magnitude among the finite elements of a record."""
    return float(max(abs(a.columns["min"][row]), abs(a.columns["max"][row])))


def measured(wanted: Tolerance, metrics: Metrics, a: Side, row: int, worst_share: Callable[[], float]) -> Measure:
    """Return the error of a pair of tensors by the metric of a tolerance.

    Parameters
    ----------
    wanted
        the tolerance
    metrics
        what is known of the pair: a finite error
    a, row
        A's record
    worst_share
        gives the largest |a − b| / (atol + rtol·|a|) from the stored values of both
    """
    if not metrics.rel_l2:
        return Measure(0.0)
    about = Relation.AT_LEAST if metrics.is_lower_bound else Relation.ESTIMATE if metrics.estimated else Relation.EXACT
    if wanted.metric == "rel_l2":
        return Measure(metrics.rel_l2, about)
    if wanted.metric == "cosine":
        return Measure(1 - metrics.cosine, about)
    if metrics.estimated or math.isnan(metrics.max_abs):
        return _bounded(wanted, metrics, a, row)
    if wanted.metric != ALLCLOSE:
        found = {"max_abs": metrics.max_abs, "mean_abs": metrics.mean_abs, "max_rel": metrics.max_rel}
        return Measure(found[wanted.metric])
    if wanted.rtol:
        return Measure(worst_share())
    return Measure(metrics.max_abs / wanted.atol if wanted.atol else math.inf)


def _bounded(wanted: Tolerance, metrics: Metrics, a: Side, row: int) -> Measure:
    """Return what statistics say: the mean, or what the largest error is at least, or at most, if that tells.

    No element is off by more than all of them together.
    """
    size = max(1, math.prod(a.shapes[row]))
    rms = metrics.rel_l2 * max(metrics.norm_a, metrics.norm_b) / math.sqrt(size)
    largest, limit = largest_of(a, row), bound_of(wanted)
    if wanted.metric == "mean_abs":
        mean = _MEAN_OF_NORMAL * rms  # that of other distributions is less
        is_open = limit / _OF_SKETCHES < mean < limit * _OF_SKETCHES or (metrics.is_lower_bound and mean <= limit)
        return UNKNOWN if is_open else Measure(mean, Relation.ESTIMATE)
    allowed = wanted.atol + wanted.rtol * largest
    least = {"max_abs": rms, "max_rel": rms / largest if largest else math.inf}.get(
        wanted.metric, rms / allowed if allowed else math.inf
    )
    if least > limit:
        return Measure(least, Relation.AT_LEAST)
    most = rms * math.sqrt(size) * (_OF_SKETCHES if metrics.estimated else 1.0)
    is_within = not metrics.is_lower_bound and wanted.metric != "max_rel" and most <= wanted.atol
    return (
        Measure(most / (wanted.atol if wanted.metric == ALLCLOSE else 1.0), Relation.AT_MOST) if is_within else UNKNOWN
    )


def lets_zeros_pass(wanted: Tolerance, largest: float, rms: float) -> bool:
    """Tell whether zeros would pass in the place of a tensor of a largest magnitude and root mean square."""
    if wanted.metric == ALLCLOSE:
        return wanted.atol + wanted.rtol * largest >= largest
    return bound_of(wanted) >= {"max_abs": largest, "mean_abs": rms}.get(wanted.metric, 1.0)
