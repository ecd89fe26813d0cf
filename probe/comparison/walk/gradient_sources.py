"""What the gradient of a parameter was computed from: how large the errors of that are, and what of them cancels out."""

from __future__ import annotations

import math
from functools import partial

from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import roundoff
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Level
from probe.comparison.once import once
from probe.comparison.steps.step_half import Event
from probe.numbers.statistics import unit_roundoff
from probe.records import Role

_CANCELLED = 0.1
"""share of the gradients of a module's output up to which their sum has cancelled out"""
_OF_ROWS = 2
"""errors of the rows' sum, in those of the rows where all have one direction: sketches are off by less than half of it"""


def cancelled_in(walk: Walk, event: Event, pairs: list[int]) -> float:
    """Return how many times larger a weight's gradient would be, had the terms that it is the sum of not cancelled out.

    Sums over r rows without a common direction have the norm ‖g‖·‖x‖/√r. What is left of keys' is less: softmax does not
    change if all of them move. The terms' errors stay.
    """
    a, squares = walk.pairs.a, 0.0
    if len(a.shapes[event.row_a]) == 1:
        return _cancelled_over_rows(walk, event, pairs)
    if len(a.shapes[event.row_a]) != 2:
        return 1.0
    for (micro, module, call), node in walk.pairs.nodes.items():
        if node.pair in pairs:
            key = micro, module, call
            given = [rows[0] for rows in walk.pairs.rows_a.get(key, Role.INPUT).values()]
            came = [rows[0] for rows in walk.pairs.rows_a.get(key, Role.GRAD_OUTPUT).values()]
            if len(given) == len(came) == 1 and a.shapes[given[0]] and a.roundoffs[given[0]]:
                norms = a.columns["norm"][given[0]], a.columns["norm"][came[0]]
                squares += (norms[0] * norms[1]) ** 2 / (math.prod(a.shapes[given[0]][:-1]) or 1)
    left = a.columns["norm"][event.row_a]
    return max(1.0, math.sqrt(squares) / left) if left and math.isfinite(squares) else 1.0


def _cancelled_over_rows(walk: Walk, event: Event, pairs: list[int]) -> float:
    """Return the same for a bias: its gradient is a sum over r rows, which is 0 before a normalisation.

    There the rows' errors have a common direction (that of the mean that was taken away): √r times theirs is left, at most.
    """
    a, size = walk.pairs.a, math.prod(walk.pairs.a.shapes[event.row_a])
    if a.columns["norm"][event.row_a] > _CANCELLED * math.hypot(*map(partial(norm_that_arrived, walk), pairs)):
        return 1.0
    modules = {walk.pairs.matching.pairs[pair].a for pair in pairs}
    rows = [
        math.prod(a.shapes[row]) / (size or 1)
        for module in modules for row in walk.pairs.rows_a.by_module(Role.GRAD_OUTPUT).get(module, ())
    ]  # fmt: skip
    return max(1.0, _OF_ROWS * math.sqrt(max(rows, default=1.0)) / tolerance.GRADIENT.gain)


def blind_sources(walk: Walk, u: float) -> float:
    """Return what gradients may be off by where nothing on the way to them was compared."""
    return max(16 * u if u <= tolerance.SIXTEEN_BIT else 0.0, worst_weight(walk).error)


@once
def worst_weight(walk: Walk) -> Level:
    """The largest of the weights' errors, as the gradients that backward left are judged."""
    return walk.state.worst


def beside_key(walk: Walk, event: Event) -> tuple[int, int]:
    """Return what gradients that the same code passes back side by side have in common: the caller, and the size."""
    module = walk.pairs.matching.pairs[event.pair].a
    return walk.pairs.a.reader.modules[module].parent, math.prod(walk.pairs.a.shapes[event.row_a])


def largest_beside(walk: Walk, events: list[Event]) -> dict[tuple[int, int], float]:
    """Return the largest absolute errors that are noise of parameter gradients, by caller and size.

    As with the gradients themselves (`_limit_beside`): those of queries may be small, with the rounding of the values'.
    """
    found: dict[tuple[int, int], float] = {}
    for event in events:
        metrics, u = event.metrics, max(roundoff(walk, event), coarsest(walk))
        assert metrics is not None
        if metrics.is_known and metrics.rel_l2 <= tolerance.GRADIENT.limit(u, blind_sources(walk, u)):
            key, error = beside_key(walk, event), metrics.rel_l2 * max(metrics.norm_a, metrics.norm_b)
            found[key] = max(found.get(key, 0.0), error)
    return found


def largest_norms(walk: Walk, events: list[Event]) -> dict[tuple[int, int], float]:
    """Return the largest norms of parameter gradients, by caller and size.

    They stand for the gradients that come to modules which are not called, as keys' biases in PyTorch's attention.
    """
    found: dict[tuple[int, int], float] = {}
    for event in events:
        if event.metrics is not None and math.isfinite(norm := max(event.metrics.norm_a, event.metrics.norm_b)):
            key = beside_key(walk, event)
            found[key] = max(found.get(key, 0.0), norm)
    return found


def norm_that_arrived(walk: Walk, pair: int) -> float:
    """Return the norm of all gradients at a module's outputs, whether they were compared or only recorded."""
    if pair in walk.backward.grad_norm:
        return walk.backward.grad_norm[pair]
    modules = walk.pairs.matching.pairs[pair]
    return max(_recorded_norms(walk)[0].get(modules.a, 0.0), _recorded_norms(walk)[1].get(modules.b, 0.0))


@once
def _recorded_norms(walk: Walk) -> tuple[dict[int, float], dict[int, float]]:
    """For each side, the norm of all gradients at a module's outputs, by module."""
    a, b = (
        {
            module: math.hypot(*(half.side.columns["norm"][row] for row in taken))
            for module, taken in half.rows.by_module(Role.GRAD_OUTPUT).items()
        }
        for half in walk.pairs.halves
    )
    return a, b


@once
def coarsest(walk: Walk) -> float:
    """The unit roundoff of the least precise dtype that anything was computed in on either side."""
    dtypes = {
        dtype
        for side in (walk.pairs.a, walk.pairs.b)
        for dtype, role in zip(side.dtypes, side.columns["role"], strict=True)
        if role in (Role.OUTPUT, Role.GRAD_OUTPUT)
    }
    return max(map(unit_roundoff, dtypes), default=0.0)


def sources_of_gradient(walk: Walk, pairs: list[int]) -> Level:
    """Return the errors of what the gradient of a parameter of these pairs of modules was computed from."""
    sources = Level()
    for levels in (walk.backward.arrived, walk.backward.inside, _forward_of_pairs(walk)):
        sources.merge_known(levels, pairs)
    if not has_arrived(walk, pairs):
        sources.merge(_all_of_backward(walk))
        sources.add(0.0, coarsest(walk))  # in which dtype it came is not known
    return sources


@once
def _all_of_backward(walk: Walk) -> Level:
    """The largest errors of the gradients that were passed back, once all are judged."""
    found = Level()
    for level in walk.backward.errors.values():
        found.merge(level)
    return found


def has_arrived(walk: Walk, pairs: list[int]) -> bool:
    """Tell whether gradients of a module's outputs were compared: not of one that is not called, whose weights others use."""
    return not walk.backward.arrived.keys().isdisjoint(pairs)


@once
def _forward_of_pairs(walk: Walk) -> dict[int, Level]:
    """The errors of the forward pass, over all calls of a pair of modules."""
    found: dict[int, Level] = {}
    for node, level in walk.forward.errors.items():
        if node is not None and node not in walk.exempted.rearranged:
            found.setdefault(node.pair, Level()).merge(level)
    return found
