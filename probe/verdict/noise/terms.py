"""Reasons for more noise, one function each: a larger error of the sources, or another limit; never a skip."""

from __future__ import annotations

import math

from probe.numbers.statistics import smallest_rounding
from probe.records import Phase, Role
from probe.verdict.distance.masks import fill_of
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
        given = segment.a.of(Role.INPUT).values()
        made = [tensor for tensor in given if _is_value(tensor) and fill_of(tensor) is None]
        made = made if len(made) > 1 else []
    largest = sorted(tensor.rms for tensor in made if math.isfinite(tensor.rms))[-2:]
    return max(1.0, (math.prod(largest) if len(largest) > 1 else sum(largest) ** 2) / _SCORES)


def product_condition(step: Step, event: Event) -> float:
    """Return how much larger the terms of a linear layer's output are than what they sum up to."""
    (given, own), made = _leaf(step, event), event.a
    ends = {*(each.shape[-1] for each in (made, given) if each is not None and each.shape)}
    matrices = [each for each in own if len(each.shape) == 2 and ends <= {*each.shape}]  # a router also returns weights
    if made is None or not made.norm or given is None or len(matrices) != 1:
        return 1.0
    return max(1.0, given.norm * matrices[0].norm / math.sqrt(given.shape[-1]) / made.norm)


def centring_condition(step: Step, event: Event) -> float:
    """Return how much larger a norm's input is than what it leaves of it without the mean.

    A mean makes most of a tensor, and a call takes it away: less than half is left of what its vectors would leave. A
    spread of less than a rounding is none. Of channels with other means, statistics show only the mean of all.
    """
    (given, own), made = _leaf(step, event), event.a
    if made is None or given is None or given.form != made.form or event.node is None:
        return 1.0
    mean, spread = _of_mean(given), math.sqrt(max(0.0, 1 - _of_mean(given)))
    kept = mean * max((_of_mean(weight) for weight in own if weight.norm), default=1.0)
    if mean <= 0.5 or _of_mean(made) >= kept / 2 or spread <= given.u:
        return 1.0
    shapes = [step.a.zeros(place).form for place in step.a.weights_of(event.node.a.module)]  # known in later steps too
    return 1.0 if any(len(shape) > 1 for shape in shapes) else 1 / spread


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
    largest = 1 / max(peaks_of(a), 1) if expected >= 1 else 0.0  # may be among those that flip
    return math.sqrt(4 * (expected + 4 * math.sqrt(expected) + 2) / size + largest)


def subnormal_limit(event: Event) -> float:
    """Return the error that numbers below the range of a dtype may have."""
    a, b = event.a, event.b
    assert a is not None and b is not None
    larger = max(a.norm, b.norm)
    return 4 * smallest_rounding(a.dtype) * math.sqrt(a.size) / larger if larger else 0.0


def sibling_limit(event: Event, apart: float) -> float:
    """Return the error of a gradient beside larger ones: softmax passes little back, with their rounding.

    ``apart`` is the absolute error, by element, of what the segment passed back so far.
    """
    a, b = event.a, event.b
    assert a is not None and b is not None
    larger = max(a.norm, b.norm)
    return 2 * apart * math.sqrt(a.size) / larger if larger else 0.0


def near_zero(loss: float, out: Tensor, gradient: Tensor, error: float) -> tuple[float, float]:
    """Return the error of a loss that is near 0 to what it is made of, and that of its gradient.

    It is a mean of differences of numbers of the size of the output, and rounds as they do. One that is never negative
    curves by ‖g‖²/2L at least: that is how much an error of the output moves its gradient.
    """
    if not (loss > 0 and math.isfinite(gradient.norm) and math.isfinite(out.norm)):
        return 0.0, 0.0
    rounding = 4 * 2**-24 * out.rms / (loss * math.sqrt(out.size / max(out.shape[-1] if out.shape else 1, 1)))
    moved = gradient.norm * out.norm / (2 * loss) * error
    return rounding + moved**2, rounding + 2 * moved


def alignment_limit(loss: float, gradient: Tensor) -> float:
    """Return the error of the gradient of a CTC loss: of exponentials whose exponent is the loss of a sequence.

    Rows of the gradient of a sum have norms of about 1, whatever it is divided by. The batch is the shortest axis.
    """
    sizes = [size for size in gradient.shape[:-1] if size]
    known = gradient.norm * min(sizes, default=0)
    return 4 * 2**-24 * abs(loss) * math.sqrt(math.prod(sizes)) / known if known else 0.0


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


def _leaf(step: Step, event: Event) -> tuple[Tensor | None, list[Tensor]]:
    """Return the one tensor that a call without inner ones made an output of, None of more, and the call's weights."""
    node = event.node
    if node is None or node.inner or event.role is not Role.OUTPUT:
        return None, []
    weights = step.a.params.get((Phase.INIT, Role.PARAM), {})
    given = [each for each in node.a.of(Role.INPUT).values() if _is_value(each)]
    own = [weight for at in step.a.weights_of(node.a.module) if (weight := weights.get(at)) is not None]
    return (given[0] if len(given) == 1 else None), own


def _of_mean(tensor: Tensor) -> float:
    """Return the share of the sum of squares that the mean of all elements makes."""
    return (tensor.mean / tensor.rms) ** 2 if tensor.rms and math.isfinite(tensor.rms) else 0.0


def _is_value(tensor: Tensor) -> bool:
    return tensor.kind == "float" and len(tensor.shape) > 1
