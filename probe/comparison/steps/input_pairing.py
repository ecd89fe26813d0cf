"""Inputs of the model that were taken for each other though their names differ, and that other tensors turn out to stand for.

A model that is given labels may make its decoder's inputs of them, where the other one is given those: both are integers of one shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import ONE_SIDED, Event, Node, StepHalf
from probe.records import Role

Seen = tuple[Node, Event]


def without_wrong_guesses(pairs: StepPairs, events: Sequence[Seen]) -> Iterator[Seen]:
    """Yield the events of a pass; of two inputs that are not each other's counterpart, each as one that its side alone has."""
    for node, event in events:
        if _are_no_pair(pairs, events, node, event):
            yield node, replace(event, slot_b="", row_b=ONE_SIDED, metrics=None)
            yield node, replace(event, slot_a="", row_a=ONE_SIDED, metrics=None)
        else:
            yield node, event


def _are_no_pair(pairs: StepPairs, events: Sequence[Seen], node: Node, event: Event) -> bool:
    """Tell whether two integer inputs of the model that differ were paired by their form alone, and one has another counterpart."""
    if node.parent is not None or event.role is not Role.INPUT or event.slot_a == event.slot_b or event.metrics is None:
        return False
    if not event.metrics.of_integers or not event.metrics.rel_l2:
        return False
    a, b = pairs.halves
    return _has_another(events, node, event, a, b) or _has_another(events, node, event, b, a)


def _has_another(events: Sequence[Seen], top: Node, event: Event, half: StepHalf, there: StepHalf) -> bool:
    """Tell whether calls inside are handed a side's input, and the other side hands them the same, which it was not given."""
    digest, given = half.side.digest(half.row(event)), there.hashes(there.key(top), Role.INPUT)
    handed = [
        each for node, each in events
        if node.micro == top.micro and node.parent is not None and each.role is Role.INPUT and not each.is_one_sided
        and half.side.digest(half.row(each)) == digest
    ]  # fmt: skip
    return bool(handed) and all(
        each.metrics is not None
        and each.metrics.is_known
        and not each.metrics.rel_l2
        and there.side.digest(there.row(each)) not in given
        for each in handed
    )
