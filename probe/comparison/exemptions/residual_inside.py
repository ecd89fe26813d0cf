"""What a module adds to its input by itself, where the other side adds it before: the residual of a norm that is fused with it."""

from __future__ import annotations

import math
from collections.abc import Iterable

from probe.comparison.steps.step_half import Event, Node, StepHalf
from probe.numbers.statistics import unit_roundoff
from probe.records import Role


def addend(half: StepHalf, node: Node, event: Event, alone: Iterable[tuple[str, str]]) -> int | None:
    """Return the record of the only further input, of the same shape, that a side alone gives to a call; None if there is no such.

    Parameters
    ----------
    alone
        slots of inputs that one side alone has, each with its side
    """
    side, shape = half.side, half.side.shapes[half.row(event)]
    given = half.rows.get(half.key(node), Role.INPUT)
    rows = [given[slot][0] for slot, name in alone if name == half.name and slot in given]
    alike = [row for row in rows if side.shapes[row] == shape and unit_roundoff(side.dtypes[row])]
    return alike[0] if len(alike) == 1 and math.prod(shape) > 1 else None
