"""Who answers for a wrong value of the forward pass where one side's model alone is given an input."""

from __future__ import annotations

from probe.comparison.blame.case import Case
from probe.comparison.blame.one_sided_inputs import effect, has_counterpart, is_named_as_labels, named, size_of, ways_to
from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import classes_of, path_a, refs_of, roundoff
from probe.comparison.ledger.recording import append
from probe.comparison.noise import tolerance
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Kind
from probe.comparison.steps.step_half import Event, Node, StepHalf
from probe.records import Phase, Role


def missing_input(case: Case) -> bool:
    """Blame an input that the model, and the call in which something is wrong, get on one side only."""
    walk, place, event, at = case.walk, case.caller, case.event, case.before
    assert place is not None
    alone: dict[str, list[str]] = {}
    for slot, side in walk.forward.one_sided.get(id(place), ()):
        alone.setdefault(side, []).append(slot)
    tops = [top for top in walk.pairs.nodes.values() if top.parent is None and top.micro == place.micro]
    lacking = [(top, *each) for top in tops for each in walk.forward.one_sided.get(id(top), ()) if each[1] in alone]
    is_integer = not roundoff(walk, event)  # what tokens are made of: of labels, too
    found = [
        each for each in lacking
        if not _is_kept_out(walk, *each, place, at) and (is_integer or _may_be_behind(walk, *each, place, alone[each[2]], at))
    ]  # fmt: skip
    if not found:
        return False
    found.sort(key=lambda each: -size_of(walk.pairs.half(each[2]), *each[:2]))  # a mask before a number
    top, slot, side = found[0]
    other = "B" if side == "A" else "A"
    name = named(walk.pairs.half(side), top, slot)
    own = [
        named(walk.pairs.half(other), top, each)
        for each, its in walk.forward.one_sided[id(top)] if its == other and not is_named_as_labels(each)
    ]  # fmt: skip
    advice = note("give-other-side-the-input", other=other, name=name, is_slot=name == slot, own=tuple(own))
    facts = [
        note("model-is-given-on-one-side", name=named(walk.pairs.half(its), at, each), side=its)
        for at, each, its in found
    ]
    append(walk, Divergence(
        Phase.FORWARD, Role.INPUT, Kind.INPUTS, 0.8, *refs_of(walk, top.pair, top, slot, slot), event.metrics,
        tolerance.FORWARD.limit(roundoff(walk, event), 0.0), (*facts, case.what), advice,
    ), event)  # fmt: skip
    return True


def _is_kept_out(walk: Walk, top: Node, slot: str, side: str, place: Node, at: tuple[int, int]) -> bool:
    """Tell whether what is wrong in a call, at positions of A and of B, lies in one that was given all it needs on both sides.

    All that such a call is given was compared and agrees, but for what was not made of the input in question. Nor is that handed to
    what runs inside it, as something that is no tensor, and so is not recorded, would bring it there. The model itself has it.
    """
    half = walk.pairs.half(side)
    digest = half.side.digest(half.rows.get(half.key(top), Role.INPUT)[slot][0])
    for call in (place, *place.ancestors()):
        if digest in half.hashes(half.key(call), Role.INPUT):
            return False
        alone = {name for name, its in walk.forward.one_sided.get(id(call), ()) if its == side}
        ways = ways_to(half, top, slot, call, alone, at["AB".index(side)])
        if not ways and _was_given_the_same(walk, call, side, alone):
            return True
    return False


def _was_given_the_same(walk: Walk, node: Node, side: str, but_for: set[str]) -> bool:
    """Tell whether a call's inputs were compared and agree, but for some that this side alone has."""
    has_more = any(its != side for _, its in walk.forward.one_sided.get(id(node), ()))
    if has_more or node not in walk.forward.with_inputs or not walk.forward.unknown.get(id(node), set()) <= but_for:
        return False
    given = (each for each in walk.ledger.events if each.event.role is Role.INPUT and _is_of(node, each.event))
    return all(each.verdict in ("equal", "noise") and not each.event.metrics.is_lower_bound for each in given)


def _may_be_behind(
    walk: Walk, top: Node, slot: str, side: str, place: Node, alone: list[str], at: tuple[int, int]
) -> bool:
    """Tell whether what the model is given on one side only may be behind what is wrong in a call.

    Not if the other side has it under another name, nor if calls like this one had it before, and made the same of it.
    """
    half, other = walk.pairs.half(side), walk.pairs.half("B" if side == "A" else "A")
    ways = ways_to(half, top, slot, place, alone, at["AB".index(side)])
    if not ways:
        return False
    given = (j.event for j in walk.ledger.events if j.event.role is Role.INPUT and _is_of(place, j.event))
    theirs = [each for each, its in walk.forward.one_sided[id(top)] if its == other.name]
    if place is not top and has_counterpart(walk.pairs, half, top, theirs, given):
        return False
    none = effect(half, top, slot)
    if none is not None:
        _say_of_lacking(walk, half, top, slot, none)
        return False
    before = [_handed_before(walk, way, side, place) for way in ways]
    if None in before:
        return True
    path = path_a(walk, before[0].pair)
    _say_of_lacking(walk, half, top, slot, note("call-handed-the-same-agrees", path=path))
    return False


def _say_of_lacking(walk: Walk, half: StepHalf, top: Node, slot: str, why: Note) -> None:
    if not walk.ledger.findings:
        walk.ledger.notes.append(note("input-on-one-side", input=named(half, top, slot), side=half.name, why=why))


def _handed_before(walk: Walk, way: object, side: str, place: Node) -> Node | None:
    """Return a call like another one that one side alone handed a tensor before, and that returned what agrees.

    Of the model's own code any call is like it: it hands on what it is given.
    """
    half = walk.pairs.half(side)
    for node in walk.pairs.nodes.values():
        is_alike = place.parent is None or classes_of(walk, node.pair) == classes_of(walk, place.pair)
        if node.micro != place.micro or not is_alike:
            continue
        rows = half.rows.get(half.key(node), Role.INPUT)
        was_given = any(
            its == side and half.side.digest(rows[slot][0]) == way
            for slot, its in walk.forward.one_sided.get(id(node), ())
        )
        if way is not None and was_given and _returned_the_same(walk, node):
            return node
    return None


def _returned_the_same(walk: Walk, node: Node) -> bool:
    """Tell whether what a call returned was compared, as far as it is no integers, and agrees."""
    returned = [
        judged for judged in walk.ledger.events
        if judged.event.role is Role.OUTPUT and _is_of(node, judged.event) and roundoff(walk, judged.event)
    ]  # fmt: skip
    return bool(returned) and all(
        judged.verdict in ("equal", "noise") and not judged.event.metrics.is_lower_bound for judged in returned
    )


def _is_of(node: Node, event: Event) -> bool:
    return (event.micro, event.pair, event.call) == (node.micro, node.pair, node.call)
