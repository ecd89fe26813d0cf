"""Who answers for a wrong input where layers stand, or run, in another order."""

from __future__ import annotations

import math

from probe.comparison.blame.case import Case
from probe.comparison.coverage.changes import OF_ORDER, change_at, exchanged, is_exchanged
from probe.comparison.distance.metrics import measure_pair
from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import path_a, path_b, refs_of, roundoff
from probe.comparison.ledger.recording import append, confidence
from probe.comparison.noise import tolerance
from probe.comparison.notes import note
from probe.comparison.once import once
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.comparison.steps.side import Side
from probe.comparison.steps.step_half import Event, Node
from probe.matching import Reason
from probe.matching.changes import Change
from probe.records import Phase, Role

_AS_GIVEN = 1e-2
"""relative error up to which two calls were given the same"""


def order_of_layers(case: Case) -> bool:
    """Blame the order of layers for a wrong input: they stand, or run, at other places in B."""
    walk, node, event = case.walk, case.node, case.event
    paths = [walk.pairs.a.reader.modules[module_a(walk, each)].path for each in (node, *node.ancestors())]
    found = (change_at(walk.pairs.changes, OF_ORDER, "A", [path]) for path in paths)
    change = next((each for each in found if each is not None), None)
    if change is not None:
        if change not in walk.forward.told_of_order:
            walk.forward.told_of_order.add(change)
            _add_change(walk, node, event, change)
        return True
    return _order_of_calls(walk, node, event)


def _add_change(walk: Walk, node: Node, event: Event, change: Change) -> None:
    sides = zip((walk.pairs.a, walk.pairs.b), _index(walk), (change.a, change.b), strict=True)
    refs = [tuple(ref_of(side, node.micro, index[path]) for path in paths) for side, index, paths in sides]
    first = walk.pairs.matching.pairs[walk.pairs.pair_of_a[_index(walk)[0][change.a[0]]]]
    by_weights = first.reason is Reason.SAME_VALUES
    phase, role, kind = (
        (Phase.INIT, Role.PARAM, Kind.INIT) if by_weights else (Phase.FORWARD, event.role, Kind.INTRODUCED)
    )
    assert event.metrics is not None
    facts = (
        change.note,
        note("first-to-run-differs", slot=event.slot_a, path=path_a(walk, node.pair), error=event.metrics.rel_l2),
    )
    hint = note("order-of-building", by_weights=by_weights)
    append(walk, Divergence(
        phase, role, kind, confidence(walk, event, None), refs[0], refs[1], None, math.nan, facts, hint,
    ))  # fmt: skip


def _order_of_calls(walk: Walk, node: Node, event: Event) -> bool:
    siblings = [each for each in walk.pairs.nodes.values() if each.parent is node.parent]
    pair = exchanged(node, siblings)
    if pair is None:
        return False
    mine, theirs = pair
    if not _may_stand_for(walk, mine, theirs) or _is_harmless(walk, node, mine, theirs):
        return False
    if (mine, theirs) in walk.forward.told_of_order:
        return True
    walk.forward.told_of_order.add((mine, theirs))
    if theirs.begin_b < mine.begin_b < theirs.end_b:
        _add_held(walk, mine, theirs, event)
        return True
    back = is_exchanged(mine, theirs, siblings)
    nodes = [mine, theirs] if back else [mine]
    partners = [theirs, mine] if back else [theirs]
    said = (
        note("calls-are-swapped", one=path_a(walk, mine.pair), other=path_a(walk, theirs.pair))
        if back
        else note("called-where-another-is", a=path_a(walk, mine.pair), b=path_b(walk, theirs.pair))
    )
    modules = walk.pairs.matching.pairs
    refs_a = tuple(ref_of(walk.pairs.a, each.micro, modules[each.pair].a, each.call) for each in nodes)
    refs_b = tuple(ref_of(walk.pairs.b, each.micro, modules[each.pair].b, each.call_b) for each in partners)
    assert event.metrics is not None
    append(walk, Divergence(
        Phase.FORWARD, event.role, Kind.INTRODUCED, confidence(walk, event, None), refs_a, refs_b, event.metrics,
        tolerance.FORWARD.limit(roundoff(walk, event), 0.0),
        (said, note("differs-first", role="input", slot=event.slot_a, path=path_a(walk, node.pair))),
        note("order-of-calls"),
    ), event)  # fmt: skip
    return True


def _may_stand_for(walk: Walk, mine: Node, theirs: Node) -> bool:
    """Tell whether B gives the call that it makes first what A gives the one that it makes first: else their order does not matter."""
    a, b = walk.pairs.halves
    given = [
        [found[0] for found in half.rows.get(half.key(node), Role.INPUT).values()]
        for half, node in ((a, mine), (b, theirs))
    ]
    found = [measure_pair(a.side, i, b.side, j) for i in given[0] for j in given[1]]
    return not all(given) or any(each.is_known and each.rel_l2 <= _AS_GIVEN for each in found)


def _add_held(walk: Walk, inner: Node, outer: Node, event: Event) -> None:
    """Say that a call is inside another one in B, which in A it comes before: what the other one is given is something else."""
    name, holder = path_b(walk, inner.pair), path_b(walk, outer.pair)
    assert event.metrics is not None
    append(walk, Divergence(
        Phase.FORWARD, event.role, Kind.INTRODUCED, confidence(walk, event, None), *refs_of(walk, outer.pair, outer, "", ""),
        event.metrics, tolerance.FORWARD.limit(roundoff(walk, event), 0.0),
        (note("called-inside", path=name, holder=holder, before=path_a(walk, outer.pair)),),
        note("holder-is-no-counterpart", holder=holder, a=path_a(walk, outer.pair)),
    ), event)  # fmt: skip


def _is_harmless(walk: Walk, node: Node, mine: Node, theirs: Node) -> bool:
    """Tell whether two calls that come before a wrong one are given and return the same on both sides: so their order does not matter."""
    keys = {(each.pair, each.micro, each.call) for each in (mine, theirs)}
    found = [
        judged for judged in walk.ledger.events
        if judged.event.phase is Phase.FORWARD and (judged.event.pair, judged.event.micro, judged.event.call) in keys
    ]  # fmt: skip
    roles = {(each.event.pair, each.event.role) for each in found}
    return (
        node is not mine and node is not theirs
        and all((each.pair, role) in roles for each in (mine, theirs) for role in (Role.INPUT, Role.OUTPUT))
        and all(each.verdict in ("equal", "noise") for each in found)
    )  # fmt: skip


def ref_of(side: Side, micro: int, module: int, call: int = 0) -> NodeRef:
    """Return a place in one model."""
    info = side.reader.modules[module]
    return NodeRef.of(side.step, micro, info, call, "")


def module_a(walk: Walk, node: Node) -> int:
    """Return a call's module in A."""
    return walk.pairs.matching.pairs[node.pair].a


@once
def _index(walk: Walk) -> tuple[dict[str, int], dict[str, int]]:
    """The modules of both sides by path."""
    a, b = ({m.path: i for i, m in enumerate(side.reader.modules)} for side in (walk.pairs.a, walk.pairs.b))
    return a, b
