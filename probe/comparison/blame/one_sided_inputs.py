"""Inputs that one side's model alone is given: by what they may reach a call inside, and what rules them out.

Such an input is behind what is wrong in a call only if the call's code has it, or something that may have been made of it, and
the other side's has not.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from probe.comparison.distance.masks import without_effect
from probe.comparison.notes import Note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Call, Event, Node, StepHalf
from probe.records import Role

_OF_THE_LOSS = ("label", "target", "num_items")
"""in the names of arguments of which the loss is made"""


def is_named_as_labels(slot: str) -> bool:
    """Tell whether an argument is called as what only the loss is made of: labels, and how many there are."""
    return any(part in slot.casefold() for part in _OF_THE_LOSS)


def named(half: StepHalf, node: Node, slot: str) -> str:
    """Return what to call an input: by its place, dtype and shape where it has no name."""
    row = _row(half, node, slot)
    return f"argument {slot} ({half.side.dtypes[row]} {list(half.side.shapes[row])})" if slot[:1].isdigit() else slot


def size_of(half: StepHalf, node: Node, slot: str) -> int:
    """Return how many elements an input has."""
    return math.prod(half.side.shapes[_row(half, node, slot)])


def _row(half: StepHalf, node: Node, slot: str) -> int:
    return half.rows.get(half.key(node), Role.INPUT)[slot][0]


def effect(half: StepHalf, node: Node, slot: str) -> Note | None:
    """Say why an input that is a mask has no effect of its own; None of others. Integers are one if they are called so."""
    row = _row(half, node, slot)
    is_mask = half.side.dtypes[row] == "bool" or half.side.roundoffs[row] > 0 or "mask" in slot.casefold()
    return without_effect(half.side, row) if is_mask else None


def ways_to(half: StepHalf, top: Node, slot: str, place: Node, alone: Iterable[str], before: int) -> set[object]:
    """Return the hashes of the tensors by which an input of the model that one side alone is given may reach a call.

    That is the input itself, what modules made of it, and what code outside made, of which nothing is known but that no module
    returned it. What is called as labels are is handed to such code too, but only the loss is made of it: it reaches no call
    unless a module without modules inside was handed it.

    Parameters
    ----------
    half
        the side that is given it
    top, slot
        the model's call, and the input
    place, alone
        the call, and the inputs that this side alone gives it
    before
        where among that side's events something is wrong
    """
    side, given = half.side, half.rows.get(half.key(top), Role.INPUT)
    itself = side.digest(given[slot][0])
    others = {side.digest(found[0]) for name, found in given.items() if name != slot}
    is_unlike = itself not in others
    if is_named_as_labels(slot) and not (is_unlike and handed_on(half, top.micro, itself, before)):
        return set()
    if place is top:
        return {itself}
    rows = half.rows.get(half.key(place), Role.INPUT)
    own = {side.digest(rows[name][0]) for name in alone}
    made = _made_of(half, top.micro, itself, before) if is_unlike else set()
    if is_named_as_labels(slot):
        return own & made
    known = others | {digest for call in _calls(half, top.micro) for digest in half.hashes(call.key, Role.OUTPUT)}
    return {digest for digest in own if digest in made or digest not in known}


def handed_on(half: StepHalf, micro: int, digest: object, before: float = math.inf) -> bool:
    """Tell whether a call inside that calls nothing itself and began by then is given a tensor of this hash."""
    callers = {call.caller for call in half.calls}
    return any(
        digest in half.hashes(call.key, Role.INPUT)
        for call in _calls(half, micro)
        if call.caller >= 0 and call.row not in callers and call.begin <= before
    )


def has_counterpart(
    pairs: StepPairs, half: StepHalf, top: Node, lacking: Iterable[str], inputs: Iterable[Event]
) -> bool:
    """Tell whether a call is given an input that the other side's model alone has, where this side gives it what its code made.

    Then the two sides have it under two names, or in two forms, and both forms were compared there.

    Parameters
    ----------
    half
        the side of which an input is in question
    top
        the model's call
    lacking
        the inputs that the other side's model alone is given
    inputs
        what the call is given on both sides
    """
    there = pairs.half(half.other)
    rows = there.rows.get(there.key(top), Role.INPUT)
    wanted = {there.side.digest(rows[slot][0]) for slot in lacking if not is_named_as_labels(slot)}
    returned = {digest for call in _calls(half, top.micro) for digest in half.hashes(call.key, Role.OUTPUT)}
    return any(
        there.side.digest(there.row(event)) in wanted and half.side.digest(half.row(event)) not in returned
        for event in inputs
    )


def _calls(half: StepHalf, micro: int) -> Iterator[Call]:
    return (call for call in half.calls if call.micro == micro)


def _made_of(half: StepHalf, micro: int, digest: object, before: int) -> set[object]:
    """Return a tensor, by its hash, and what modules that returned by then made of it, or of what others did."""
    found = {digest}
    for call in sorted(_calls(half, micro), key=lambda call: call.end):
        if call.end < before and not found.isdisjoint(half.hashes(call.key, Role.INPUT)):
            found.update(half.hashes(call.key, Role.OUTPUT))
    return found
