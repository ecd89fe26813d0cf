"""Choices that rounding makes fall otherwise, told by what is made of them: a few tokens go to other experts.

Of 72 tokens that two of four experts take, one or two did so in layers of a right bfloat16 model.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from probe.comparison.distance.metrics import kind_of, values_of_pair
from probe.comparison.noise import tolerance
from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event, Node
from probe.records import Role

_LARGEST = 1 << 24
"""elements of a tensor up to which it is looked at token by token"""


def choosing(pairs: StepPairs, events: Sequence[tuple[Node, Event]]) -> dict[Node, int]:
    """Return the calls of which a module inside makes integers of floats, as chosen experts are, not known to be the same.

    With each goes the place in A's order of the first such integers: what stands behind them may be made of the chosen.
    """
    chosen: dict[Node, int] = {}
    for node, event in events:
        if event.role is not Role.OUTPUT or (event.metrics is not None and event.metrics.rel_l2 == 0):
            continue
        shape = pairs.a.shapes[event.row_a] if event.row_a >= 0 else pairs.b.shapes[event.row_b]
        if kind_of(_dtype(pairs, event)) == "integer" and math.prod(shape) > 1:
            chosen[node] = node.end
    given: defaultdict[Node, set[str]] = defaultdict(set)
    for node, event in events if chosen else ():
        if event.role is Role.INPUT:
            given[node].add(kind_of(_dtype(pairs, event)))
    first: dict[Node, int] = {}
    for node, end in chosen.items():
        if node.parent is not None and given[node] == {"float"}:
            first[node.parent] = min(end, first.get(node.parent, end))
    return first


def _dtype(pairs: StepPairs, event: Event) -> str:
    return pairs.a.dtypes[event.row_a] if event.row_a >= 0 else pairs.b.dtypes[event.row_b]


def explain(pairs: StepPairs, event: Event, error: float, limit: float) -> tuple[Note | None, bool]:
    """Say how choices that fall otherwise explain what a call returns, None where they do not, and whether values show it.

    Parameters
    ----------
    error
        of what the choices are made from
    limit
        the largest error that is noise in the tokens of which the choice is the same
    """
    metrics, shape = event.metrics, pairs.a.shapes[event.row_a]
    if metrics is None or not metrics.is_known or len(shape) < 2:
        return None, False
    tokens = math.prod(shape[:-1])
    most = tolerance.choice_limit(error, tokens)
    values = None
    if not metrics.estimated and event.factor == 1 and math.prod(shape) <= _LARGEST:
        free = pairs.has_free_axes(event.role, event.pair, event.row_a)
        values = values_of_pair(pairs.a, event.row_a, pairs.b, event.row_b, free_axes=free)
    if values is None:
        return (note("share-of-tokens", most=most) if metrics.rel_l2 <= math.sqrt(most) else None), False
    a, b = (np.asarray(each, np.float64).reshape(tokens, -1) for each in values)
    squares = np.sort(np.sum((b - a) ** 2, axis=1))[::-1]
    left = np.sqrt(np.cumsum(squares[::-1])[::-1])  # without the first tokens, those that differ most
    fits = np.flatnonzero(left <= limit * max(np.linalg.norm(a), np.linalg.norm(b)))
    count = int(fits[0]) if fits.size else tokens
    return (note("tokens-alone", count=count, total=tokens) if count <= most * tokens else None), True
