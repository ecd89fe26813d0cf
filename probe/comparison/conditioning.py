"""What trained models do to errors: attention weighs by large scores, and a few large elements hide the errors of all others."""

from __future__ import annotations

import math
import re

from probe.comparison.events import StepPairs
from probe.comparison.step_half import Node
from probe.records import Role
from probe.statistics import unit_roundoff

_ATTENTION = re.compile(r"att(entio)?n(?!.*(norm|output|proj|dropout))", re.IGNORECASE)
"""names of classes, and last names of paths; not post_attention_layernorm"""
_UNEVEN = 16
"""largest element, in root mean squares, from which on a few may be most of a tensor (normal ones: 6 in a hundred million)"""


def score_size(pairs: StepPairs, node: Node | None) -> float:
    """Return how large the scores are by which an attention weighs, 0.0 where a call is none.

    Of queries and keys without a common direction, divided by the root of their size, they are as large as both root mean
    squares together. Softmax makes an error of the weights out of that of the scores, which is their size times what
    queries and keys are off by, relatively.
    """
    if node is None or not any(_ATTENTION.search(text) for text in _names(pairs, node)):
        return 0.0
    made = [row for inner in _projections(pairs, node) for row in _floats(pairs, inner, Role.OUTPUT)]
    sizes = sorted(pairs.a.columns["rms"][row] for row in made or _floats(pairs, node, Role.INPUT))
    if len(sizes) > 1:
        return math.prod(sizes[-2:])
    return sizes[0] ** 2 if made else 0.0


def is_given_uneven(pairs: StepPairs, node: Node) -> bool:
    """Tell whether a few elements may be most of what a call is given: one channel, or the first token."""
    columns = pairs.a.columns
    return any(
        max(-columns["min"][row], columns["max"][row]) > _UNEVEN * columns["rms"][row]
        for row in _floats(pairs, node, Role.INPUT)
    )


def _projections(pairs: StepPairs, node: Node) -> list[Node]:
    """Return the calls inside an attention that make queries, keys and values: all before the last one that has weights."""
    inner = sorted((each for each in pairs.nodes.values() if each.parent is node), key=lambda each: each.begin)
    modules = [pairs.matching.pairs[each.pair].a for each in inner]
    weighted = [k for k, module in enumerate(modules) if pairs.rows_a.get((0, module, 0), Role.PARAM)]
    return inner[: weighted[-1]] if len(weighted) > 1 else inner


def _names(pairs: StepPairs, node: Node) -> list[str]:
    pair = pairs.matching.pairs[node.pair]
    infos = pairs.a.reader.modules[pair.a], pairs.b.reader.modules[pair.b]
    return [text for info in infos for text in (info.class_name, info.path.rpartition(".")[2])]


def _floats(pairs: StepPairs, node: Node, role: Role) -> list[int]:
    """Return A's records of a call in a role, those of floating-point numbers."""
    rows = pairs.rows_a.get((node.micro, pairs.matching.pairs[node.pair].a, node.call), role)
    return [found[0] for found in rows.values() if unit_roundoff(pairs.a.dtypes[found[0]])]
