"""Gradients of B that are one multiple of A's: loss scaling, a loss that is divided on one side only."""

from __future__ import annotations

import math
from collections.abc import Iterable

from probe.comparison.distance.metrics import Status
from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event

_LEAST_SCALE = 8
"""powers of two from here on are taken for loss scales"""

_OFF = 0.25
"""how far the logarithm of a loss scale may be off where the outputs differ already"""
_MOST_LEFT = 0.5
"""relative error that gradients have at most without such a scale"""
_MOST_MICROS = 4
"""micro-batches whose factors are listed"""


def factor_of(pairs: StepPairs, events: Iterable[Event], limit: float) -> float:
    """Return the number that all of A's tensors are to be multiplied by to be B's up to an error; 1 if there is none."""
    not_zero = [
        (event, event.metrics) for event in events
        if event.metrics is not None and event.metrics.norm_a > 0 and event.metrics.norm_b > 0
    ]  # fmt: skip
    known = [(event, metrics) for event, metrics in not_zero if metrics.status is Status.COMPARED]
    if not known or any(metrics.status is Status.EQUAL for _, metrics in not_zero):
        return 1.0
    _, largest = max(known, key=lambda pair: pair[1].norm_a)
    factor = _rounded(math.copysign(largest.norm_ratio, largest.cosine), limit)
    if abs(factor - 1) <= limit:
        return 1.0
    return factor if all(pairs.measured(event, factor).rel_l2 <= limit for event, _ in known) else 1.0


def loss_scale_of(pairs: StepPairs, events: Iterable[Event], limit: float) -> float:
    """Return the power of two that B's tensors are A's times, up to an error that outputs which differ already explain; else 1."""
    known = [event for event in events if event.metrics is not None and event.metrics.norm_a > 0]
    if not known:
        return 1.0
    ratio = max(
        (event.metrics for event in known if event.metrics is not None), key=lambda each: each.norm_a
    ).norm_ratio
    factor = _loss_scale(ratio)
    if factor == 1:
        return 1.0
    fits = (pairs.measured(event, factor).rel_l2 <= min(limit, _MOST_LEFT) for event in known)
    return factor if all(fits) else 1.0


def factor_of_all(pairs: StepPairs, events: Iterable[Event], limit: float) -> float:
    """Return the number that A's gradients are to be multiplied by to be B's up to an error of all as one vector; 1 if there is none.

    Of each alone noise may be as large as itself, as of a key's bias. A number that is nearly a loss scale is one.
    """
    known = [(event, event.metrics) for event in events if event.metrics is not None and event.metrics.is_known]
    norm_a, norm_b = (math.hypot(*each) for each in ([m.norm_a for _, m in known], [m.norm_b for _, m in known]))
    ratio = norm_b / norm_a if norm_a else 1.0
    if not 0 < ratio < math.inf or abs(ratio - 1) <= limit or abs(1 / ratio - 1) <= limit:
        return 1.0
    scale = _loss_scale(ratio)
    factor = scale if scale != 1 else _rounded(ratio, limit)
    apart = [metrics.rel_l2 * max(metrics.norm_a, metrics.norm_b)
             for metrics in (pairs.measured(event, factor) for event, _ in known)]  # fmt: skip
    return factor if math.hypot(*apart) <= min(limit, _MOST_LEFT) * norm_b else 1.0


def _loss_scale(ratio: float) -> float:
    """Return the power of two that a ratio of norms is nearly, if it is one that loss scales have; else 1."""
    power = math.log2(ratio) if math.isfinite(ratio) and ratio > 0 else 0.0
    is_none = abs(power) < math.log2(_LEAST_SCALE) - _OFF or abs(power - round(power)) > _OFF
    return 1.0 if is_none else 2.0 ** round(power)


def _rounded(factor: float, limit: float) -> float:
    """Return a whole number, or one over a whole number, where that is as good."""
    whole = float(round(factor)) if abs(factor) >= 1 else 1 / round(1 / factor)
    return whole if abs(factor / whole - 1) <= min(limit, 1e-3) else factor


def meaning_of(factor: float, micros_a: int, micros_b: int) -> Note:
    """Return what a common factor of the gradients most likely is."""
    for side, other, count, whole in (("B", "A", micros_b, factor), ("A", "B", micros_a, 1 / factor)):
        if count > 1 and math.isclose(whole, count, rel_tol=1e-3):
            return note("accumulation-divided-on-one-side", other=other, side=side, count=count)
    if micros_a != micros_b and micros_a and math.isclose(factor, micros_b / micros_a, rel_tol=1e-3):
        return note("loss-not-divided-by-micro-batches", a=micros_a, b=micros_b)
    if factor == -1:
        return note("sign-of-loss")
    size = math.log2(max(factor, 1 / factor)) if factor > 0 else 0.0
    if size >= math.log2(_LEAST_SCALE) and size == round(size):
        return note("loss-scaling")
    return note("loss-scale-or-reduction")


def scaling_note(factor: float) -> Note:
    """Say what the factor is."""
    return note("gradients-scaled", factor=factor)


def are_several(factors: dict[int, float]) -> bool:
    """Tell whether the factors of a step's micro-batches are not one."""
    return any(not math.isclose(factor, each, rel_tol=1e-3) for factor in factors.values() for each in factors.values())


def several_note(factors: dict[int, float]) -> Note:
    """Say what B's gradients are times A's in each micro-batch."""
    return note("gradients-scaled-by-micro-batch", factors=tuple(factors.items())[:_MOST_MICROS], count=len(factors))


AVERAGED = note("loss-averaged-by-micro-batch")
"""what such factors mean"""


def common_factor(events: Iterable[Event]) -> list[Note]:
    """Say so when all of B's tensors are the same multiple of A's, and nothing else makes them differ."""
    found = [event.metrics for event in events if event.metrics is not None]
    if any(metrics.of_integers for metrics in found):  # counts have no common scale
        return []
    factors = [math.copysign(metrics.norm_ratio, metrics.cosine) for metrics in found if metrics.norm_a]
    if not factors or len(factors) < len(found) or max(factors) - min(factors) >= 1e-3 * abs(max(factors)):
        return []
    coherences = [metrics.coherence for metrics in found if not math.isnan(metrics.coherence)]
    if not coherences or any(abs(coherence) < 0.98 for coherence in coherences):
        return []
    return [note("all-by-one-factor", factor=factors[0])]
