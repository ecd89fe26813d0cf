"""Gradients that come in several backward passes: two losses, one after the other, against their sum."""

from __future__ import annotations

from probe.comparison.combined import add_sum
from probe.comparison.events import StepPairs
from probe.comparison.step_half import Node
from probe.records import Role

_ROLES = (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL)


def sum_passes(pairs: StepPairs) -> None:
    """Put the sum in the place of gradients that came in several passes, where the other side had another number of them.

    Parameters
    ----------
    pairs
        a step, whose rows are changed and whose calls with such gradients are noted
    """
    pairs.summed = [node for node in pairs.nodes.values() if _sum(pairs, node)]


def _sum(pairs: StepPairs, node: Node) -> bool:
    found = [[half.rows.get(half.key(node), role) for role in _ROLES] for half in pairs.halves]
    passes = [max((len(rows) for by_slot in each for rows in by_slot.values()), default=0) for each in found]
    if passes[0] == passes[1] or not min(passes):
        return False
    for half, each in zip(pairs.halves, found, strict=True):
        for by_slot in each:
            for slot, rows in by_slot.items():
                if len(rows) > 1 and len({half.side.shapes[row] for row in rows}) == 1:
                    by_slot[slot] = [add_sum(half.side, rows, half.modules[node.pair])]
    return True
