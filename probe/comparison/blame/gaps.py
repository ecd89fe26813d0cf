"""Where a module's own code is at fault: behind which call inside it, and before which one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Call, Event, Node, StepHalf
from probe.records import Phase, Role


@dataclass(frozen=True, slots=True)
class Cut:
    """The call behind which one side alone cuts the graph."""

    around: Node
    """whose code does it"""
    side: str
    name: str
    """of the call that gets no gradient"""
    place: Note
    """behind and before which calls"""


def cut_in(pairs: StepPairs, place: Node) -> Cut | None:
    """Return where one side alone cuts the graph inside a call, or right behind it; None where neither does.

    What a call returned needs a gradient there and gets none; its counterpart gets one. Calls without a counterpart are asked where all
    of the other side's get theirs.
    """
    around = place
    if not any(node.parent is place for node in pairs.nodes.values()):
        if place.parent is None:
            return None
        around = place.parent
    missing = {
        half.name: [call for call in _calls_of(half, around) if _misses_gradient(half, call)] for half in pairs.halves
    }
    partners = {half.name: {half.key(node): node for node in pairs.nodes.values()} for half in pairs.halves}
    for half in pairs.halves:
        other = pairs.half(half.other)
        theirs = {call.key for call in missing[other.name]}
        are_loose = [call.key not in partners[other.name] for call in missing[other.name]]
        found = [
            call
            for call in missing[half.name]
            if (node := partners[half.name].get(call.key)) is not None
            and other.key(node) not in theirs
            and _has_gradient(other, other.key(node))
        ]
        if not any(are_loose) and _all_loose_learn(other, around, partners[other.name]):
            found += [call for call in missing[half.name] if call.key not in partners[half.name]]
        if found:
            last = max(found, key=lambda call: call.begin)
            name = half.path(last.module)
            return Cut(around, half.name, name, gap_text(half, around, last))
    return None


def gap_text(half: StepHalf, around: Node, call: Call) -> Note:
    """Say between which calls of one caller the code stands that uses what one of them returned."""
    following = next(
        (other for other in sorted(_direct(half, around), key=lambda each: each.begin)
         if other.begin > call.end and _is_made_by_code(half, other)), None,
    )  # fmt: skip
    after = _short(half, call)
    return (
        note("after", call=after)
        if following is None
        else note("between", call=after, following=_short(half, following))
    )


def gap_behind(pairs: StepPairs, node: Node, place: Node) -> Note | None:
    """Say where in a caller's code it is that what a call returned gets a wrong gradient; None if the caller does not call it itself."""
    half = pairs.half("A")
    call = next((each for each in _direct(half, place) if each.key == half.key(node)), None)
    return None if call is None else gap_text(half, place, call)


def given_otherwise(pairs: StepPairs, node: Node, event: Event) -> Note | None:
    """Say so where B gives a call what one of its neighbours returned, and A what another one did: two are exchanged."""
    if event.role is not Role.INPUT or event.is_one_sided or node.parent is None:
        return None
    makers = []
    for half in pairs.halves:
        digest = half.side.digest(half.row(event))
        called = [
            each for each in _direct(half, node.parent)
            if each.key != half.key(node) and digest is not None and digest in set(half.hashes(each.key, Role.OUTPUT))
        ]  # fmt: skip
        if len(called) != 1:
            return None
        makers.append(called[0])
    partners = {pairs.half("A").key(each): pairs.half("B").key(each) for each in pairs.nodes.values()}
    if partners.get(makers[0].key, makers[1].key) == makers[1].key or makers[1].key not in partners.values():
        return None
    names = [_short(half, call) for half, call in zip(pairs.halves, makers, strict=True)]
    own = _short(pairs.half("A"), next(c for c in pairs.half("A").calls if c.key == pairs.half("A").key(node)))
    return note("given-what-another-returned", to=own, a=names[0], b=names[1])


def _calls_of(half: StepHalf, around: Node) -> Iterator[Call]:
    """Yield the calls inside a call, at any depth."""
    inside = {call.row for call in half.calls if call.key == half.key(around)}
    for call in sorted(half.calls, key=lambda each: each.begin):
        if call.caller in inside:
            inside.add(call.row)
            yield call


def _direct(half: StepHalf, around: Node) -> list[Call]:
    """Return the calls that a call makes itself."""
    rows = {call.row for call in half.calls if call.key == half.key(around)}
    return [call for call in half.calls if call.caller in rows]


def _misses_gradient(half: StepHalf, call: Call) -> bool:
    is_watched = half.side.watches(Phase.BACKWARD, call.module)
    return is_watched and _learns(half, call) and not _has_gradient(half, call.key)


def _learns(half: StepHalf, call: Call) -> bool:
    rows = [row for found in half.rows.get(call.key, Role.OUTPUT).values() for row in found]
    return any(half.side.columns["requires_grad"][row] for row in rows)


def _has_gradient(half: StepHalf, key: tuple[int, int, int]) -> bool:
    return bool(half.rows.get(key, Role.GRAD_OUTPUT))


def _all_loose_learn(half: StepHalf, around: Node, partners: dict[tuple[int, int, int], Node]) -> bool:
    """Tell whether there are calls without a counterpart inside a call, and all of them get a gradient."""
    loose = [call for call in _calls_of(half, around) if call.key not in partners and _learns(half, call)]
    return bool(loose) and all(_has_gradient(half, call.key) for call in loose)


def _is_made_by_code(half: StepHalf, call: Call) -> bool:
    """Tell whether something that a call is given is nothing that another call was given, or returned, before it."""
    known = {
        digest for other in half.calls if other.micro == call.micro and other.begin < call.begin
        for role in (Role.INPUT, *([Role.OUTPUT] if other.end < call.begin else []))
        for digest in half.hashes(other.key, role)
    }  # fmt: skip
    return any(digest not in known for digest in half.hashes(call.key, Role.INPUT))


def _short(half: StepHalf, call: Call) -> str:
    parts = half.path(call.module).split(".")
    return ".".join(parts[-2:] if parts[-1].isdigit() else parts[-1:])
