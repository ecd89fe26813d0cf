"""Integers that a model is given otherwise on both sides and that no module is handed: labels, of which only the loss is made.

Whether they matter is told by what the modules computed, by the loss and by its gradient, so they wait until a step is judged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from probe.comparison.events import Event, Node, StepHalf, StepPairs
from probe.comparison.metrics import kind_of
from probe.comparison.result import Divergence, Kind
from probe.records import Phase, Role

_OF_THE_LOSS = ("label", "target")
"""in the names of arguments of which the loss is made"""
_FURTHEST = 2
"""positions by which labels may be shifted"""


@dataclass(frozen=True, slots=True)
class Aside:
    """An input that differs, and what is to be said if that turns out to matter."""

    event: Event
    finding: Divergence

    @property
    def name(self) -> str:
        """The argument, by its names in A and in B."""
        event = self.event
        same = event.slot_a == event.slot_b
        return event.slot_a if same else f"{event.slot_a} (in B {event.slot_b})"

    @property
    def is_of_the_loss(self) -> bool:
        """Tell whether the argument is called as labels are."""
        return _is_named_as_labels(self.event.slot_a) or _is_named_as_labels(self.event.slot_b)


def is_handed_on(pairs: StepPairs, node: Node, event: Event) -> bool:
    """Tell whether a call inside that calls nothing itself is given what the model is given, on one of the sides."""
    return any(_handed_on(half, node.micro, half.side.digest(half.row(event))) for half in pairs.halves)


def can_reach(half: StepHalf, top: Node, slot: str, place: Node, alone: Iterable[str], before: int) -> bool:
    """Tell whether an input of the model that one side alone is given may be behind what is wrong in a call inside.

    Integers that no module was handed by then are no such input if they are called as labels are: the loss is made of them. Of
    others the code outside may make what that call is handed alone (a mask), not what a module returned.

    Parameters
    ----------
    half
        the side that is given it
    top, slot
        the model's call, and the input
    place, alone
        the call that is wrong, and the inputs that this side alone gives it
    before
        where among that side's events something is wrong
    """
    row = half.rows.get(half.key(top), Role.INPUT)[slot][0]
    digest = half.side.digest(row)
    others = {
        half.side.digest(found[0]) for name, found in half.rows.get(half.key(top), Role.INPUT).items() if name != slot
    }
    if kind_of(half.side.dtypes[row]) != "integer" or (
        digest not in others and _handed_on(half, top.micro, digest, before)
    ):
        return True
    if _is_named_as_labels(slot):
        return False
    given = half.rows.get(half.key(place), Role.INPUT)
    returned = {made for call in half.calls if call.micro == top.micro for made in half.hashes(call.key, Role.OUTPUT)}
    return place is top or any(half.side.digest(given[name][0]) not in returned for name in alone)


def _is_named_as_labels(slot: str) -> bool:
    return any(part in slot.casefold() for part in _OF_THE_LOSS)


def _handed_on(half: StepHalf, micro: int, digest: object, before: float = math.inf) -> bool:
    """Tell whether a call inside that calls nothing itself and began by then is given a tensor of this hash."""
    callers = {call.caller for call in half.calls}
    return any(
        digest in half.hashes(call.key, Role.INPUT)
        for call in half.calls
        if call.micro == micro and call.caller >= 0 and call.row not in callers and call.begin <= before
    )


def shifted(pairs: StepPairs, event: Event) -> str:
    """Say so where one side's integers are the other's some positions further on, but for negative ones; needs values."""
    a, b = pairs.a, pairs.b
    if not (a.has_values(event.row_a) and b.has_values(event.row_b)):
        return ""
    x, y = np.asarray(a.values(event.row_a)), np.asarray(b.values(event.row_b))
    for other in (y, y.T):
        if other.shape != x.shape or not x.ndim:
            continue
        for by in range(1, min(_FURTHEST + 1, x.shape[-1])):
            for mine, theirs, first, second in ((x, other, "B", "A"), (other, x, "A", "B")):
                late, early = mine[..., by:], theirs[..., :-by]
                counted = late >= 0  # labels that the loss leaves out are another number, or none
                if counted.any() and np.array_equal(late[counted], early[counted]):
                    positions = "one position" if by == 1 else f"{by} positions"
                    return f"those of {first} are {second}'s shifted by {positions} (verified)"
    return ""


def is_from_elsewhere(pairs: StepPairs, aside: Aside, first: Divergence) -> bool:
    """Tell whether a finding of the forward pass has nothing to do with an input that no module was handed.

    Labels are made into integers only before the loss. Behind another input is only what a module's own code makes, not what a
    module without modules inside returns, of which all that it was given agrees.
    """
    event = first.event
    is_integer = event is not None and not max(pairs.a.roundoffs[event.row_a], pairs.b.roundoffs[event.row_b])
    if first.kind is Kind.INPUTS or is_integer:
        return False
    if aside.is_of_the_loss:
        return True
    if event is None or event.role is not Role.OUTPUT:
        return False
    module, modules = pairs.matching.pairs[event.pair].a, pairs.a.reader.modules
    is_named = any(ref.path == modules[module].path for ref in first.a)
    return is_named and not any(other.parent == module for other in modules)


def is_behind_the_loss(first: Divergence) -> bool:
    """Tell whether a finding is none of the loss, nor of the gradient that it sends back to the model."""
    return first.phase is Phase.UPDATE or (first.phase > Phase.LOSS and any(ref.path for ref in first.a))
