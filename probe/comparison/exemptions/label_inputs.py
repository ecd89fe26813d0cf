"""Integers that a model is given otherwise on both sides and that no module is handed: labels, of which only the loss is made.

Whether they matter is told by what the modules computed, by the loss and by its gradient, so they wait until a step is judged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from probe.comparison.blame.one_sided_inputs import handed_on, is_named_as_labels
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Kind
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event, Node
from probe.records import Phase, Role

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
        return is_named_as_labels(self.event.slot_a) or is_named_as_labels(self.event.slot_b)


def is_handed_on(pairs: StepPairs, node: Node, event: Event) -> bool:
    """Tell whether a call inside that calls nothing itself is given what the model is given, on one of the sides."""
    return any(handed_on(half, node.micro, half.side.digest(half.row(event))) for half in pairs.halves)


def shifted(pairs: StepPairs, event: Event) -> Note | None:
    """Say so where one side's integers are the other's some positions further on, but for negative ones; needs values."""
    a, b = pairs.a, pairs.b
    if not (a.has_values(event.row_a) and b.has_values(event.row_b)):
        return None
    x, y = np.asarray(a.values(event.row_a)), np.asarray(b.values(event.row_b))
    for other in (y, y.T):
        if other.shape != x.shape or not x.ndim:
            continue
        for by in range(1, min(_FURTHEST + 1, x.shape[-1])):
            for mine, theirs, first, second in ((x, other, "B", "A"), (other, x, "A", "B")):
                late, early = mine[..., by:], theirs[..., :-by]
                counted = late >= 0  # labels that the loss leaves out are another number, or none
                if counted.any() and np.array_equal(late[counted], early[counted]):
                    return note("integers-shifted", side=first, other=second, by=by)
    return None


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
