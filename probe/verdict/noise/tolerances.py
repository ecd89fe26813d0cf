"""The error of a pair of tensors by the metric of a tolerance: from values, else what statistics say of it."""

from __future__ import annotations

import math

import numpy as np

from probe.answer.metrics import UNKNOWN, Measure, Relation, bound_of
from probe.defaults import ALLCLOSE
from probe.mapping.judging import Tolerance
from probe.verdict.distance.error import Error
from probe.verdict.distance.values import laid
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

_OF_SKETCHES = 1.5
"""an error that sketches estimate is less than this many times as large: five standard deviations"""


def measured(wanted: Tolerance, step: Step, event: Event, error: Error) -> Measure:
    """Return a finite error by the metric of a tolerance; of ``allclose`` as a multiple of the tolerance."""
    assert event.a is not None and event.b is not None
    if not error.size and not error.is_bound:
        return Measure(0.0)
    is_exact = error.is_of_values
    about = Relation.EXACT if is_exact else Relation.AT_LEAST if error.is_bound else Relation.ESTIMATE
    if wanted.metric == "rel_l2":
        return Measure(error.size, about)
    if wanted.metric == "cosine":
        product = 2 * error.norm_a * error.norm_b
        return Measure((error.apart**2 - (error.norm_a - error.norm_b) ** 2) / product if product else 1.0, about)
    if not is_exact:
        return _from_statistics(wanted, event.a, error)
    if wanted.metric != ALLCLOSE:
        return Measure(float(getattr(error, wanted.metric)))
    if not wanted.rtol:
        return Measure(_share(error.max_abs, wanted.atol))
    x, y = laid(event.a, event.b, step.may_permute(event))
    with np.errstate(all="ignore"):
        share = np.abs(y - x) / (wanted.atol + wanted.rtol * abs(x))
    return Measure(float(np.nan_to_num(share, nan=0.0, posinf=math.inf).max(initial=0.0)))


def _from_statistics(wanted: Tolerance, a: Tensor, error: Error) -> Measure:
    """Return what statistics say: the mean, or what the largest error is at least, or at most, if that tells.

    No element is off by more than all of them together.
    """
    rms = error.apart / math.sqrt(max(a.size, 1))
    limit, largest = bound_of(wanted), a.largest
    if wanted.metric == "mean_abs":
        mean = math.sqrt(2 / math.pi) * rms  # of normally distributed errors; that of others is less
        is_open = limit / _OF_SKETCHES < mean < limit * _OF_SKETCHES or (error.is_bound and mean <= limit)
        return UNKNOWN if is_open else Measure(mean, Relation.ESTIMATE)
    if wanted.metric == "max_rel":
        least = _share(rms, largest)
    else:
        least = rms if wanted.metric == "max_abs" else _share(rms, wanted.atol + wanted.rtol * largest)
    if least > limit:
        return Measure(least, Relation.AT_LEAST)
    most = error.apart * _OF_SKETCHES
    if error.is_bound or wanted.metric == "max_rel" or most > wanted.atol:
        return UNKNOWN
    return Measure(most / (wanted.atol if wanted.metric == ALLCLOSE else 1.0), Relation.AT_MOST)


def _share(error: float, of: float) -> float:
    return error / of if of else math.inf if error else 0.0
