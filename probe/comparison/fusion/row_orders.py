"""Whether both models read the rows of a weight in the order in which they lie: what is made of them agrees, then.

A weight whose rows lie in another order in all layers is either a layout, as q, k and v head by head, or was loaded wrongly everywhere. What
the next module is given decides of several parts, as gate and up. Else the
gradient decides, row by row: a row that is used in the place of another one gets the gradient of that one. What the callers return may hide it
(the scores of untrained attention are about 0, whatever the order of its queries); it decides where no gradient was recorded.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from probe.comparison.distance.combined import Fused
from probe.comparison.distance.metrics import Metrics, measure_pair
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Node
from probe.matching import Bundle
from probe.records import Phase, Role

_LIKE = 0.1
"""error of what a module is given up to which what its caller returns says anything"""
_GAIN = 16.0
"""times the error of what a module is given, or rounding: what the next one may be off by"""
_OTHER = 0.5
"""error from which on two tensors are others: the shares of heads that are mixed up have nothing in common"""


def refuted_orders(pairs: StepPairs, bundles: Sequence[Bundle]) -> list[Bundle]:
    """Return the modules of which the rows were taken to lie in another order, and what is made of them says that they do not.

    Parameters
    ----------
    pairs
        of a step, the modules compared row by row
    bundles
        modules whose rows lie in another order; what is true of most layers of an order is true of all
    """
    found: dict[tuple[object, ...], list[Bundle]] = defaultdict(list)
    for bundle in bundles:
        half = pairs.half(bundle.side)
        names = (half.path(part).rpartition(".")[2] for part in bundle.parts) if len(bundle.parts) > 1 else ()
        found[*bundle.order, *names].append(bundle)
    wrong = []
    for kind in found.values():
        if len(kind[0].parts) > 1:
            seen = list(_by_next(pairs, kind))
        else:
            seen = list(_by_gradients(pairs, kind)) or [
                alike for bundle in kind for alike in _by_callers(pairs, bundle)
            ]
        if 2 * sum(seen) <= len(seen):
            wrong += kind
    return wrong


def _by_callers(pairs: StepPairs, bundle: Bundle) -> Iterator[bool]:
    """Tell whether what the callers of a module return is alike, where it was given about the same on both sides."""
    pair = pairs.pair_of_a[bundle.whole]
    for node in (each for each in pairs.nodes.values() if each.pair == pair):
        given = _worst(pairs, node, Role.INPUT)
        caller = next((each for each in node.ancestors() if _width(pairs, each) != _width(pairs, node)), None)
        made = math.nan if caller is None else _worst(pairs, caller, Role.OUTPUT)
        if given < _LIKE and not math.isnan(made):
            yield made < _OTHER
            return


def _by_next(pairs: StepPairs, bundles: Sequence[Bundle]) -> Iterator[bool]:
    """Tell whether the next module is given the same, up to rounding, behind the layer that was given the most similar.

    Which of two parts is activated makes little difference while both are small: the product of gate and up is nearly symmetric.
    """
    wanted = {pairs.half(bundle.side).pair_of[bundle.parts[0]] for bundle in bundles}
    nodes = sorted(pairs.nodes.values(), key=lambda node: (node.micro, node.begin))
    seen = []
    for place, node in enumerate(nodes):
        following = next(
            (each for each in nodes[place + 1 :] if each.micro == node.micro and each.begin >= node.end), None
        )
        if node.pair in wanted and following is not None:
            seen.append((_worst(pairs, node, Role.INPUT), _worst(pairs, following, Role.INPUT), _coarsest(pairs, node)))
    known = [each for each in seen if not any(map(math.isnan, each))]
    if known:
        given, made, u = min(known)
        yield made <= _GAIN * max(given, u)


def _coarsest(pairs: StepPairs, node: Node) -> float:
    """Return the unit roundoff of the coarsest that a call was given or returned on either side."""
    rows = (
        (half, row)
        for half in pairs.halves
        for role in (Role.INPUT, Role.OUTPUT)
        for found in half.rows.get(half.key(node), role).values()
        for row in found
    )
    return max((half.side.roundoffs[row] for half, row in rows), default=0.0)


def _worst(pairs: StepPairs, node: Node, role: Role) -> float:
    """Return the largest error of what a call was given, or of what it returned; NaN where nothing is known."""
    errors = [
        event.metrics.rel_l2
        for event in pairs.forward_events(node)
        if event.role is role and event.metrics is not None and event.metrics.is_known
    ]
    return max(errors, default=math.nan)


def _width(pairs: StepPairs, node: Node) -> int:
    """Return the last size of what a call returned in A; 0 where nothing was recorded."""
    half = pairs.half("A")
    rows = [row for found in half.rows.get(half.key(node), Role.OUTPUT).values() for row in found]
    shapes = [half.side.shapes[row] for row in rows[:1]]
    return next((shape[-1] for shape in shapes if shape), 0)


def _by_gradients(pairs: StepPairs, bundles: Sequence[Bundle]) -> Iterator[bool]:
    """Tell for each weight whether its gradients are alike in the order of its rows, rather than as they lie.

    Directions alone count: a gradient that is wrong in length says nothing of an order. Without values only the second is known, which
    refutes an order and does not prove one: then the callers decide.
    """
    orders = {bundle.whole: bundle.order for bundle in bundles if bundle.order}
    for event in pairs.parameter_events(Phase.GRADIENT, Role.PARAM_GRAD):
        order, combined = orders.get(pairs.matching.pairs[event.pair].a), pairs.b.combined.get(event.row_b)
        if order is None or event.metrics is None or not isinstance(combined, Fused):
            continue
        reordered = _cosine(event.metrics)
        as_it_lies = _cosine(measure_pair(pairs.a, event.row_a, pairs.b, combined.pieces[0][0].row))
        in_place = sum(place == block for place, block in enumerate(order)) / len(order)
        if not math.isnan(reordered):
            yield reordered > as_it_lies or math.isnan(as_it_lies)
        elif as_it_lies > (1 + in_place) / 2:
            yield False


def _cosine(metrics: Metrics) -> float:
    """Return the size of the cosine; NaN where it is not known."""
    return abs(metrics.cosine) if metrics.is_known and not metrics.is_lower_bound else math.nan
