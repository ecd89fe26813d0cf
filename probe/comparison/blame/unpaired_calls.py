"""Who answers for a wrong value of the forward pass where one side alone makes a call."""

from __future__ import annotations

from dataclasses import replace

from probe.comparison.blame import causes
from probe.comparison.blame.case import Case
from probe.comparison.blame.order import ref_of
from probe.comparison.blame.uncalled_modules import about, called_alone, callers, compared_with, pairs_inside, partner
from probe.comparison.coverage.changes import OF_NUMBER, change_at, more_calls
from probe.comparison.fusion.parts import unseen_order
from probe.comparison.fusion.sharded import side_with_parts
from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import last_agreeing, path_a, refs_of, roundoff, unpaired_between
from probe.comparison.ledger.recording import add, append, confidence, guessed, kind_of_finding, stands_apart
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Rule
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Kind
from probe.comparison.steps.step_half import Call, Event, Loose, Node, StepHalf
from probe.comparison.steps.unpaired_calls import is_noop
from probe.comparison.walk.inputs import is_handed, maker_of
from probe.matching import Reason
from probe.matching.changes import Change
from probe.records import Phase, Role

_UNCOMPARED = 0.9
"""by which confidence falls where a call on the way has no partner"""


def finished(walk: Walk, caller: Node, before: int, name: str = "A") -> list[Loose]:
    """Return one side's calls without a partner, however deep, that began and ended since the last good event."""
    half, since = walk.pairs.half(name), last_agreeing(walk, caller, name)
    paired = {half.key(node) for node in walk.pairs.nodes.values()}
    calls = {
        call.row: call for call in half.calls
        if call.micro == caller.micro and since <= call.begin and call.end < before and call.key not in paired
    }  # fmt: skip
    outermost = [call for call in calls.values() if call.caller not in calls]
    found = [Loose(call.micro, call.module, call.number, call.begin, call.end) for call in outermost]
    return [loose for loose in found if not is_noop(half, loose)]


def has_part(walk: Walk, half: StepHalf, loose: Loose, event: Event) -> bool:
    """Tell whether a wrong input may be made of what a call without a partner returned.

    Not if that has no weights, and all that it returned is handed as it is, by other arguments, to what gets the wrong one.
    Nor if another module makes the same on the other side, as where one embedding is two modules there.
    """
    side = half.side
    if _is_made_by_another(walk, half, loose):
        return False
    node = walk.pairs.nodes.get((event.micro, walk.pairs.matching.pairs[event.pair].a, event.call))
    if node is None or event.role is not Role.INPUT or side.reader.modules[loose.module].n_params:
        return True
    made, given = set(half.hashes(loose.key, Role.OUTPUT)), half.rows.get(half.key(node), Role.INPUT)
    others = {side.digest(found[0]) for slot, found in given.items() if slot != half.slot(event)}
    return not made or not made <= others


def _is_made_by_another(walk: Walk, half: StepHalf, loose: Loose) -> bool:
    """Tell whether calls of the other side that have no partner either returned, bit for bit, all that a call did."""
    there, made = walk.pairs.half(half.other), set(half.hashes(loose.key, Role.OUTPUT))
    paired = {there.key(node) for node in walk.pairs.nodes.values()}
    others = (call.key for call in there.calls if call.micro == loose.micro and call.key not in paired)
    return bool(made) and made <= {digest for key in others for digest in there.hashes(key, Role.OUTPUT)}


def names(walk: Walk, calls: list[Loose]) -> tuple[str, ...]:
    """Return the paths of calls."""
    return tuple(walk.pairs.a.reader.modules[loose.module].path for loose in calls)


def uncalled_module(case: Case) -> bool:
    """Blame modules that both sides have and one alone called since the last good event."""
    walk, caller = case.walk, case.caller
    assert caller is not None
    for here, end in zip(walk.pairs.halves, case.before, strict=True):
        calls = called_alone(walk.pairs, here, caller.micro, last_agreeing(walk, caller, here.name), end)
        if calls:
            _append_uncalled(walk, here, calls, case.event, case.rule)
            return True
    return False


def uncalled_by_caller(case: Case, caller: Node | None = None) -> bool:
    """Blame modules that one side's own code alone called since the call began, where gradients tell that the other side uses their weights nowhere."""
    walk, caller = case.walk, caller or case.caller
    assert caller is not None
    for here, end in zip(walk.pairs.halves, case.before, strict=True):
        calls = called_alone(walk.pairs, here, caller.micro, here.span(caller)[0], end)
        has_gradients = bool(walk.pairs.half(here.other).rows.by_module(Role.PARAM_GRAD))
        if calls and has_gradients and callers(walk.pairs, here, calls) == [caller]:
            _append_uncalled(walk, here, calls, case.event, case.rule)
            return True
    return False


def _append_uncalled(walk: Walk, here: StepHalf, calls: list[Call], event: Event, rule: Rule) -> None:
    """Blame modules that one side alone called for what comes next."""
    there = walk.pairs.half(here.other)
    told = [about(walk.pairs, here, call) for call in calls]
    own = tuple(ref_of(here.side, event.micro, call.module, call.number) for call in calls)
    theirs = tuple(ref_of(there.side, event.micro, partner(walk.pairs, here, call.module)) for call in calls)
    refs = (own, theirs) if here.name == "A" else (theirs, own)
    in_calls = callers(walk.pairs, here, calls)
    if in_calls:  # to call a module is up to the caller's code
        at = [refs_of(walk, node.pair, node, "", "") for node in in_calls]
        refs = tuple(ref for a, _ in at for ref in a), tuple(ref for _, b in at for ref in b)
    share, guess = guessed(walk, event, None)
    append(walk, Divergence(
        Phase.FORWARD, event.role, Kind.MISSING, share * confidence(walk, event, None),
        *refs, event.metrics, rule.limit(roundoff(walk, event), 0.0),
        (*causes.returns_input(walk.pairs, event, there), *(text for text, _ in told),
         _next(walk, event), *guess), told[0][1], is_independent=stands_apart(walk, event, rule),
        uncalled=theirs if in_calls else (), uncalled_on=there.name,
    ), event)  # fmt: skip
    walk.weights.uncalled |= {pair for call in calls for pair in pairs_inside(here, call.module)}


def between_models(case: Case) -> bool:
    """Blame what the program does between models, or stages, that it calls in turn: one is given what another one returned."""
    walk, node, event, rule = case.walk, case.node, case.event, case.rule
    if not is_handed(walk.pairs, node, event) or side_with_part(walk, event):
        return False
    for here, end in zip(walk.pairs.halves, case.before, strict=True):
        ended = (here.span(other)[1] for other in walk.pairs.nodes.values() if other.micro == node.micro)
        since = max((each for each in ended if each < end), default=0)
        calls = called_alone(walk.pairs, here, node.micro, since, end)
        if calls:
            _append_uncalled(walk, here, calls, event, rule)
            return True
    makers = [(half.name, maker_of(half, node, event)) for half in walk.pairs.halves]
    facts = (
        note("input-is-no-part-of-batch", slot=event.slot_a, path=path_a(walk, node.pair)),
        note("handed-by", makers=tuple(sorted(makers, key=lambda each: each[1] is None))),
    )
    advice = note("code-between-models")
    add(walk, Phase.FORWARD, kind_of_finding(event.metrics), event, node.pair, rule, facts, node=node, advice=advice)
    return True


def unpaired_call(case: Case) -> bool:
    """Blame the only unpaired call since the last good event, or layers that one side has more."""
    walk, caller, event, rule = case.walk, case.caller, case.event, case.rule
    assert caller is not None
    ends = list(zip(walk.pairs.halves, case.before, strict=True))
    mine, theirs = (
        [each for each in unpaired_between(walk, caller, end, half.name)
         if each.module not in half.ignored and has_part(walk, half, each, event)]
        for half, end in ends
    )  # fmt: skip
    if not mine and not theirs:
        mine, theirs = (_finished_layers(walk, caller, end, half) for half, end in ends)
    if len(mine) + len(theirs) == 1:
        half, (only,) = walk.pairs.half("A" if mine else "B"), mine or theirs
        if _is_only_on_the_way(walk, caller, half, only, event):
            _code_around(walk, caller, event, half, only, rule)
            return True
    refs, facts, hints, kind, computed = [], [], [], Kind.MISSING, False
    for half, calls in zip(walk.pairs.halves, (mine, theirs), strict=True):
        paths = [half.path(loose.module) for loose in calls]
        change = change_at(walk.pairs.changes, OF_NUMBER, half.name, paths) if paths else None
        if (
            calls
            and change is None
            and (len(mine) + len(theirs) > 1 or _may_stand_there(walk, caller, half, calls[0], ends))
        ):
            return False
        refs.append(tuple(ref_of(half.side, event.micro, loose.module, loose.call) for loose in calls))
        if calls:
            said, advice = _about_loose(walk, half, calls[0], change)
            facts.append(said)
            hints.append(advice)
            computed = change is None and _computes_alone(walk, half, calls[0])
            by_hand = _compared_by_weights(walk, half, calls[0]) is not None or _is_tied(half, calls[0])
            if computed or (change is None and by_hand):
                kind = kind_of_finding(event.metrics)
    if not facts:
        return False
    limit = rule.limit(roundoff(walk, event), 0.0)
    share, guess = guessed(walk, event, None)
    append(walk, Divergence(
        Phase.FORWARD, event.role, kind, share * confidence(walk, event, None), refs[0], refs[1],
        event.metrics, limit,
        (*facts, _next(walk, event), *unseen_order(walk.pairs, caller), *guess), hints[0], is_independent=stands_apart(walk, event, rule),
        event=event if computed else None,
    ), event)  # fmt: skip
    return True


def _next(walk: Walk, event: Event) -> Note:
    """Say which tensor shows what a call before it does."""
    return note("next-tensor-differs", path=path_a(walk, event.pair), is_input=event.role is Role.INPUT,
                role=event.role.label, slot=event.slot_a)  # fmt: skip


def _may_stand_there(walk: Walk, caller: Node, half: StepHalf, loose: Loose, ends: list[tuple[StepHalf, int]]) -> bool:
    """Tell whether the other side ran modules with weights and without a partner there too, however deep: what one lacks may be they.

    Not if that is one module with as many weights, which is its partner but for its name, and nothing else was computed before it.
    """
    there, end = next((each, end) for each, end in ends if each is not half)
    sizes = [there.side.reader.modules[each.module].n_params for each in finished(walk, caller, end, there.name)]
    own, found = half.side.reader.modules[loose.module].n_params, [size for size in sizes if size]
    return bool(found) and (found != [own] or _is_behind_unfinished(walk, caller, half, loose))


def _is_behind_unfinished(walk: Walk, caller: Node, half: StepHalf, loose: Loose) -> bool:
    """Tell whether a call without a partner, begun before the last good event, ended between that and this one."""
    since, begin = last_agreeing(walk, caller, half.name), half.span(caller)[0]
    paired = {half.key(node) for node in walk.pairs.nodes.values()}
    return any(
        call.micro == loose.micro and begin < call.begin < since <= call.end < loose.begin and call.key not in paired
        for call in half.calls
    )


def _finished_layers(walk: Walk, caller: Node, before: int, half: StepHalf) -> list[Loose]:
    """Return the layers that one side has more and ran, however deep, since the last good event."""
    found = finished(walk, caller, before, half.name)
    paths = [half.path(loose.module) for loose in found]
    return found if paths and change_at(walk.pairs.changes, OF_NUMBER, half.name, paths) else []


def _began_right(walk: Walk, half: StepHalf, loose: Loose) -> bool:
    """Tell whether a call without a partner was given nothing but tensors that were compared elsewhere, and agree."""
    side, given = half.side, half.rows.get(loose.key, Role.INPUT).values()
    wanted = {side.digest(found[0]) for found in given if side.roundoffs[found[0]]}
    compared = (
        half.row(judged.event)
        for judged in walk.ledger.events
        if judged.verdict in ("equal", "noise") and judged.event.micro == loose.micro
        and judged.event.role in (Role.INPUT, Role.OUTPUT)
    )  # fmt: skip
    right = {digest for row in compared for digest in side.digests(row)}
    return bool(wanted) and wanted <= right


def _is_only_on_the_way(walk: Walk, caller: Node, half: StepHalf, loose: Loose, event: Event) -> bool:
    """Tell whether a call that the other side computes in code of its own may be right, and what lies around it wrong.

    One without weights if it is not known to have begun right; one whose weights alone are compared, or are those of another
    module (a tied head), if what comes next gets something that was made of what it returned.
    """
    if _computes_alone(walk, half, loose) or _is_behind_others(walk, caller, half, loose):
        return not _began_right(walk, half, loose)
    made = set(half.hashes(loose.key, Role.OUTPUT))
    is_by_hand = _compared_by_weights(walk, half, loose) is not None or _is_tied(half, loose)
    return is_by_hand and half.side.digest(half.row(event)) not in made


def _is_behind_others(walk: Walk, caller: Node, half: StepHalf, loose: Loose) -> bool:
    """Tell whether a call without weights stands behind calls that have some and no partner either, deeper inside."""
    if half.side.reader.modules[loose.module].n_params or causes.dropout_alone(half, loose):
        return False
    before = finished(walk, caller, loose.begin, half.name)
    return any(half.side.reader.modules[each.module].n_params for each in before)


def _code_around(walk: Walk, caller: Node, event: Event, half: StepHalf, loose: Loose, rule: Rule) -> None:
    """Charge a wrong value to the code around a call without a partner, of which it is not known whether it began right."""
    before, after = last_module(walk, caller, half), half.modules[event.pair]
    named = {loose.module: None, **dict.fromkeys(_handed_by(walk, caller, half))}
    start = "" if before is None else half.path(before).rpartition(".")[2]
    end = "" if event.pair == caller.pair else half.path(after).rpartition(".")[2]
    facts = (
        note("differs-first", role=event.role.label, slot=event.slot_a, path=path_a(walk, event.pair)),
        note("made-between", start=start, end=end, paths=tuple(half.path(module) for module in named), side=half.name),
        *unseen_order(walk.pairs, caller),
    )
    class_name = half.side.reader.modules[loose.module].class_name
    advice = note("computed-between", start=start, end=end, class_name=class_name)
    add(
        walk, Phase.FORWARD, kind_of_finding(event.metrics), event, caller.pair, rule, facts, node=caller, advice=advice
    )
    found = walk.ledger.findings[-1]
    walk.ledger.findings[-1] = replace(found, confidence=_UNCOMPARED * found.confidence)


def maker_of_inputs(case: Case) -> bool:
    """Blame the caller where its own code makes inputs of a call that are in another form on the other side, as routing is.

    They could not be compared: either may be wrong, and both are inside the caller.
    """
    walk, node, event = case.walk, case.node, case.event
    caller, unknown = node.parent, walk.forward.unknown.get(id(node), set())
    alone = walk.forward.one_sided.get(id(node), [])
    sides = {side for _, side in alone} | ({"A", "B"} if unknown.difference(slot for slot, _ in alone) else set())
    if _other_number_of_ranks(walk) or caller is None or len(sides) < 2:  # they are handed parts
        return False
    if not any(_made(walk, half, caller, node) for half in walk.pairs.halves):
        return False
    path, slots = path_a(walk, node.pair), tuple(sorted(unknown))
    facts = (
        note("differs-first", role="output", slot=event.slot_a, path=path),
        note("inputs-in-another-form", slots=slots, maker=path_a(walk, caller.pair)),
    )
    advice = note("maker-of-inputs", slots=slots, path=path)
    add(walk, Phase.FORWARD, kind_of_finding(event.metrics), event, caller.pair, tolerance.FORWARD, facts,
              node=caller, advice=advice)  # fmt: skip
    walk.ledger.findings[-1] = replace(
        walk.ledger.findings[-1], confidence=_UNCOMPARED * walk.ledger.findings[-1].confidence
    )
    return True


def side_with_part(walk: Walk, event: Event) -> str:
    """Return the side of which a rank may have a part of what the other side has; empty if none may."""
    shapes = [half.side.shapes[half.row(event)] for half in walk.pairs.halves]
    return side_with_parts(walk.pairs.a.reader, walk.pairs.b.reader, *shapes)


def _other_number_of_ranks(walk: Walk) -> bool:
    return len({half.side.reader.info.world_size for half in walk.pairs.halves}) > 1


def _made(walk: Walk, half: StepHalf, caller: Node, node: Node) -> bool:
    """Tell whether a side's caller makes of what it is given, in its own code, an input of a call that was not compared.

    Such inputs learn, which masks and tables of positions do not, and no call returned them.
    """
    given = half.rows.get(half.key(node), Role.INPUT)
    rows = [given[slot][0] for slot in walk.forward.unknown.get(id(node), set()) if slot in given]
    digests = {half.side.digest(row) for row in rows if half.side.columns["requires_grad"][row]} - {None}
    known = set(half.hashes(half.key(caller), Role.INPUT))
    inner = [call.key for call in half.calls if call.micro == caller.micro]
    return bool(digests - known - {digest for key in inner for digest in half.hashes(key, Role.OUTPUT)})


def last_module(walk: Walk, caller: Node, half: StepHalf) -> int | None:
    """Return the module of a side that returned last of what is known to be right in a call."""
    good = walk.forward.last_good.get(caller)
    found = (node.pair for node in walk.pairs.nodes.values() if node.parent is caller and node.end == good)
    pair = next(found, None)
    return None if pair is None else half.modules[pair]


def _handed_by(walk: Walk, caller: Node, half: StepHalf) -> list[int]:
    """Return the modules without a partner of which a call is given what they returned."""
    given = set(half.hashes(half.key(caller), Role.INPUT))
    return [
        call.module
        for call in half.calls
        if call.micro == caller.micro
        and call.module not in half.pair_of
        and not given.isdisjoint(half.hashes(call.key, Role.OUTPUT))
    ]


def _about_loose(walk: Walk, half: StepHalf, loose: Loose, change: Change | None) -> tuple[Note, Note]:
    """Say of a call without a partner what it is, and what to look at."""
    missing, path = half.other, half.path(loose.module)
    if change is not None:
        return change.note, note("number-of-layers")
    if loose.module in half.stepped:
        inner = half.path(half.stepped[loose.module])
        return note("does-more-than-its-module", path=path, inner=inner), note(
            "has-module-alone", side=missing, inner=inner
        )
    dropout = causes.dropout_alone(half, loose)
    if dropout is not None:
        return dropout
    by_weights = _compared_by_weights(walk, half, loose)
    if by_weights is not None:
        there = walk.pairs.half(missing).path(by_weights)
        said = note("called-with-weights-elsewhere", path=path, side=half.name, there=there, other=missing)
        return said, note("place-of-weights", path=path, other=missing)
    if loose.module in half.pair_of:
        said = more_calls(walk.pairs, half, loose.module, [loose.call]).note
        return said, note("code-that-makes-call", path=path, other=missing)
    if _computes_alone(walk, half, loose):
        kind = half.side.reader.modules[loose.module].class_name
        said = note("computed-by-code-of-other-side", path=path, side=half.name, other=missing)
        return said, note("computed-in-its-place", class_name=kind, other=missing)
    if _is_tied(half, loose):
        said = note("called-with-weights-of-another", path=path, side=half.name, other=missing)
        return said, note("place-of-tied-weights", path=path, other=missing)
    is_mapped = any(pair.reason is Reason.MAPPED for pair in walk.pairs.matching.pairs)
    said = note("called-without-counterpart", path=path, side=half.name, other=missing)
    return said, note("lacks-module", side=missing, is_mapped=is_mapped)


def _compared_by_weights(walk: Walk, half: StepHalf, loose: Loose) -> int | None:
    """Return the other side's module that has the weights of a call's module, where its own code uses them.

    That is a partner which is called nowhere, or a module whose weights alone are this one's.
    """
    if loose.module not in half.pair_of:
        return compared_with(walk.pairs, half, loose.module)
    is_called = any(node.pair == half.pair_of[loose.module] for node in walk.pairs.nodes.values())
    return None if is_called else partner(walk.pairs, half, loose.module)


def _computes_alone(walk: Walk, half: StepHalf, loose: Loose) -> bool:
    """Tell whether the other side's own code computes what a call without a partner does, as in other places or steps.

    It has no weights, and others of its class have no partner either; or the step before agreed, in which it had none.
    """
    modules = half.side.reader.modules
    if _ran_before(walk, half, loose):
        return True
    if loose.module in half.stepped or loose.module in half.pair_of or modules[loose.module].n_params:
        return False
    kind = modules[loose.module].class_name
    alike = [index for index, module in enumerate(modules) if module.class_name == kind]
    return len(alike) > 1 and not any(index in half.pair_of for index in alike)


def _ran_before(walk: Walk, half: StepHalf, loose: Loose) -> bool:
    """Tell whether a module that has no partner ran in the step before, too: no step is judged behind one with a finding."""
    earlier = half.side.earlier
    if earlier is None or loose.module in half.pair_of or loose.module in half.stepped:
        return False
    return loose.module in earlier.calls["module"] and compared_with(walk.pairs, half, loose.module) is None


def _is_tied(half: StepHalf, loose: Loose) -> bool:
    """Tell whether all weights of a call's module are those of other modules, too."""
    path = half.path(loose.module)
    own = [each for each in half.side.reader.parameters if any(name.rpartition(".")[0] == path for name in each.names)]
    return bool(own) and all(len(each.names) > 1 for each in own)
