"""Reasons for more noise, one function each: a larger error of the sources, or another limit; never a skip."""

from __future__ import annotations

import math

from probe.numbers.statistics import smallest_rounding
from probe.records import Role
from probe.verdict.steps.events import Event, Node
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

_SCORES = 8.0
"""size of attention scores up to which softmax enlarges no error"""
_KINK_SHARE = 0.01
"""share of zeros in a gradient from which on it comes from behind a kink"""
_LIKELY = 1e-4
"""expected number of elements beside a kink from which on some may lie on the other side of it"""
_ROUTED = 20.0
"""share of integers that may differ, in errors of what they are made of"""


def softmax_gain(step: Step, segment: Node | None) -> float:
    """Return by how much softmax enlarges the error of what a segment projects: by the size of its scores.

    Queries and keys without a common direction make scores of the product of their root mean squares.
    """
    if segment is None:
        return 1.0
    weighted = [each for each in segment.inner if step.a.weights_of(each.a.module)]
    projections = weighted[:-1] if len(weighted) > 1 else weighted
    made = [tensor for each in projections for tensor in each.a.of(Role.OUTPUT).values() if _is_value(tensor)]
    if not segment.inner:
        made = [tensor for tensor in segment.a.of(Role.INPUT).values() if _is_value(tensor)]
        made = made if len(made) > 1 else []
    largest = sorted(tensor.rms for tensor in made if math.isfinite(tensor.rms))[-2:]
    size = math.prod(largest) if len(largest) > 1 else sum(largest) ** 2
    return max(1.0, size / _SCORES)


def routing_limit(size: int, sources: float) -> float:
    """Return the share of choices that rounding may have made otherwise: none if what they were made from is equal."""
    size = max(size, 1)
    expected = _ROUTED * sources * size
    return min(1.0, (expected + 3 * math.sqrt(expected) + 2) / size) if sources else 0.0


def kink_limit(step: Step, event: Event, forward: float) -> float:
    """Return the error of a gradient behind a ReLU, a clamp or a maximum, where elements near the kink may flip."""
    a, b = event.a, event.b
    assert a is not None and b is not None
    size = max(a.size, 1)
    expected = forward * size
    row = a.shape[-1] if a.shape else 1
    has_zeros = _KINK_SHARE * size <= min(a.zeros, b.zeros) < size and a.zeros % row > 0  # not whole rows
    if expected < _LIKELY or not (has_zeros or _is_activation(step, event)):
        return 0.0
    return 2 * math.sqrt((expected + 4 * math.sqrt(expected) + 2) / size)


def subnormal_limit(event: Event) -> float:
    """Return the error that numbers below the range of a dtype may have."""
    a, b = event.a, event.b
    assert a is not None and b is not None
    larger = max(a.norm, b.norm)
    return 4 * smallest_rounding(a.dtype) * math.sqrt(a.size) / larger if larger else 0.0


def sibling_limit(event: Event, apart: float) -> float:
    """Return the error of a gradient beside larger ones: softmax passes little back, with their rounding.

    Parameters
    ----------
    apart
        absolute error, by element, of what the segment passed back so far
    """
    a, b = event.a, event.b
    assert a is not None and b is not None
    larger = max(a.norm, b.norm)
    return 2 * apart * math.sqrt(a.size) / larger if larger else 0.0


def peaks_of(tensor: Tensor) -> float:
    """Return how many elements as large as the largest would have the norm of a tensor."""
    return (tensor.norm / tensor.largest) ** 2 if tensor.largest else 0.0


def _is_activation(step: Step, event: Event) -> bool:
    """Return True for what a call without weights passes back that keeps its largest numbers: a leaky ReLU."""
    call = event.node.a if event.node is not None else None
    if call is None or call.inner or event.role is Role.GRAD_OUTPUT or step.a.weights_of(call.module):
        return False
    given, returned = ([*call.of(role).values()] for role in (Role.INPUT, Role.OUTPUT))
    if len(given) != 1 or len(returned) != 1 or given[0].form != returned[0].form:
        return False
    return given[0].high == returned[0].high and given[0].low != returned[0].low


def _is_value(tensor: Tensor) -> bool:
    return tensor.kind == "float" and len(tensor.shape) > 1
