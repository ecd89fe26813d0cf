"""Gradients that come in several backward passes: two losses, one after the other, against their sum, or in another order."""

from __future__ import annotations

import itertools

import numpy as np

from probe.comparison.distance.combined import add_sum
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Node
from probe.records import Role

_MOST_PASSES = 4
"""of which all orders are tried"""
_NEARER = 0.5
"""share of the distance in their own order up to which passes stand in another one"""
_ROLES = (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL)


def sum_passes(pairs: StepPairs) -> None:
    """Put the sum in the place of gradients that came in several passes, where the other side had another number of them.

    Where it had as many, B's are put into the order of A's.

    Parameters
    ----------
    pairs
        a step, whose rows are changed and whose calls with such gradients are noted
    """
    pairs.summed = [node for node in pairs.nodes.values() if _sum(pairs, node)]


def _sum(pairs: StepPairs, node: Node) -> bool:
    found = [[half.rows.get(half.key(node), role) for role in _ROLES] for half in pairs.halves]
    passes = [max((len(rows) for by_slot in each for rows in by_slot.values()), default=0) for each in found]
    if passes[0] == passes[1]:
        _reorder(pairs, node, passes[0])
    if passes[0] == passes[1] or not min(passes):
        return False
    for half, each in zip(pairs.halves, found, strict=True):
        for by_slot in each:
            for slot, rows in by_slot.items():
                if len(rows) > 1 and len({half.side.shapes[row] for row in rows}) == 1:
                    by_slot[slot] = [add_sum(half.side, rows, half.modules[node.pair])]
    return True


def _reorder(pairs: StepPairs, node: Node, passes: int) -> None:
    """Put the passes of a call of B into the order in which those of A are nearest to them."""
    if not 1 < passes <= _MOST_PASSES:
        return
    rows = [half.rows.get(half.key(node), Role.GRAD_OUTPUT) for half in pairs.halves]
    sketches = [
        [[half.side.sketch(row) for row in taken] for _, taken in sorted(each.items()) if len(taken) == passes]
        for half, each in zip(pairs.halves, rows, strict=True)
    ]
    if len(sketches[0]) != len(sketches[1]) or any(x is None for each in sketches for slot in each for x in slot):
        return
    a, b = (np.array(each) for each in sketches)
    orders = list(itertools.permutations(range(passes)))
    far = [float(np.linalg.norm(a - b[:, order])) if len(a) else 0.0 for order in orders]
    best = int(np.argmin(far))
    if far[best] < _NEARER * far[0]:
        half = pairs.halves[1]
        for role in _ROLES:
            by_slot = half.rows.get(half.key(node), role)
            for slot, taken in by_slot.items():
                if len(taken) == passes:
                    by_slot[slot] = [taken[place] for place in orders[best]]
