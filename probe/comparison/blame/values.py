"""Who answers for a wrong value of the forward pass."""

from __future__ import annotations

import math
from fnmatch import fnmatchcase
from functools import partial

from probe.comparison.blame import causes
from probe.comparison.blame.case import Case
from probe.comparison.blame.gaps import given_otherwise
from probe.comparison.blame.missing_inputs import missing_input
from probe.comparison.blame.order import module_a
from probe.comparison.blame.uncalled_modules import to_look_at
from probe.comparison.blame.unpaired_calls import (
    finished,
    has_part,
    last_module,
    names,
    side_with_part,
    uncalled_by_caller,
)
from probe.comparison.distance.metrics import squeezed
from probe.comparison.fusion import parts
from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import (
    are_alike,
    class_a,
    classes_of,
    parameters_of,
    path_a,
    refs_of,
    roundoff,
    unpaired,
    unpaired_between,
)
from probe.comparison.ledger.recording import add, append, kind_of_finding, record, scale_hint
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Level
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Kind
from probe.comparison.steps.step_half import Event, Loose, Node
from probe.comparison.walk.inputs import ran_before
from probe.matching import Reason
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role

SAME_BATCH = note("same-batch")
_SETTINGS = {
    "*Dropout*": "dropout-on-both-sides",
    "*Norm": "settings-of-norm",
    "*Norm?[dD]": "settings-of-norm",
}
"""by glob of the class"""


_ONE_DIRECTION = 0.98
"""cosines from which on an error is a multiple of the value"""
_FACTOR = 0.01
"""what a multiple differs from 1 by at least, to be called a factor"""


def context_of(walk: Walk, node: Node | None) -> Level:
    """Return the errors of all that a call has been given and its children have returned so far."""
    level = walk.forward.errors.get(node)
    if level is None:
        level = walk.forward.errors[node] = Level()
        assert node is not None
        level.merge(parameters_of(walk, node) or Level())
        level.tainted = context_of(walk, node.parent).tainted
        alone = [loose for loose in node.loose_a if loose.module not in walk.pairs.matching.stepped_a]
        if any(map(partial(_has_parameters, walk), alone)):
            level.merge(walk.state.worst)
        for module in (module_a(walk, node), *(loose.module for loose in alone)):
            _merge_drift(walk, level, module, is_own=module == module_a(walk, node))
    return level


def _merge_drift(walk: Walk, level: Level, module: int, *, is_own: bool) -> None:
    """Add what parameters that were not compared may have of error: a module's own, or all below one without a partner."""
    level.merge_known(
        walk.state.drifted, (module,) if is_own or not walk.state.drifted else walk.tree_a.subtree(module)
    )


def _has_parameters(walk: Walk, loose: Loose) -> bool:
    return walk.pairs.a.reader.modules[loose.module].n_params > 0


def returns_loss(walk: Walk, event: Event) -> bool:
    """Tell whether an output is the number that is minimised."""
    if event.role is not Role.OUTPUT or squeezed(walk.pairs.a.shapes[event.row_a]):
        return False
    return walk.pairs.a.reader.modules[walk.pairs.matching.pairs[event.pair].a].path == _root_path(walk)


def _root_path(walk: Walk) -> str:
    tops = [walk.pairs.matching.pairs[n.pair].a for n in walk.pairs.nodes.values() if n.parent is None]
    return walk.pairs.a.reader.modules[tops[0]].path if tops else ""


# Rows of the table for an input


def input_of_the_model(case: Case) -> bool:
    """Blame the batch for an input of the root."""
    walk, event = case.walk, case.event
    if case.node.parent is not None:
        return False
    assert event.metrics is not None
    what = event.metrics.why or note("model-is-given-other-inputs")
    side = side_with_part(walk, event)
    half = walk.pairs.half(side or "A")
    info = half.side.reader.info
    facts = (note("side-is-rank", side=side, rank=info.rank, ranks=info.world_size),) if side else ()
    hint = note("same-part-of-batch") if side else SAME_BATCH
    add(walk, Phase.FORWARD, Kind.INPUTS, event, case.node.pair, case.rule, (what, *facts), node=case.node, advice=hint)
    return True


def handed_on_batch(case: Case) -> bool:
    """Blame the batch for an input that is, on both sides, one of the model's own inputs."""
    walk, event = case.walk, case.event
    given = _given_to_the_model(walk, case.node, event)
    if given is None:
        return False
    top, slots = given
    facts = (note("handed-what-the-model-was-given", path=path_a(walk, case.node.pair)),)
    limit = case.rule.limit(roundoff(walk, event), 0.0)
    append(walk, Divergence(Phase.FORWARD, event.role, Kind.INPUTS, 0.95, *refs_of(walk, top.pair, top, *slots),
                            event.metrics, limit, facts, SAME_BATCH, event=event), event)  # fmt: skip
    return True


def missing_input_of_caller(case: Case) -> bool:
    """Blame an input that the model, and the caller, get on one side only; what ran right before and was not compared is nearer."""
    return not _between(case) and not _factor_before(case)[0] and missing_input(case)


def unknown_before(case: Case) -> bool:
    """Blame nobody: it is not known of any caller whether it began right."""
    walk, event = case.walk, case.event
    if place_of(walk, case.node) is not None:
        return False
    facts = (note("input-differs-already", slot=event.slot_a, path=path_a(walk, case.node.pair)),)
    facts += (event.metrics.why,) if event.metrics is not None and event.metrics.why else ()
    add(walk, Phase.FORWARD, Kind.INPUTS, event, case.node.pair, case.rule, facts, node=case.node,
        advice=note("record-modules-before"))  # fmt: skip
    return True


def uncalled_since_place_began(case: Case) -> bool:
    """Blame modules that one side alone called since the innermost caller that began right, by its own code."""
    place = place_of(case.walk, case.node)
    assert place is not None
    return uncalled_by_caller(case, place)


def caller_of_input(case: Case) -> bool:
    """Blame the own code of the innermost caller that began right."""
    walk, node, event = case.walk, case.node, case.event
    place, between = place_of(walk, node), _between(case)
    assert place is not None and event.metrics is not None
    factor, of_what = _factor_before(case)
    facts = (note("differs-first", role="input", slot=event.slot_a, path=path_a(walk, node.pair)),)
    exchanged = given_otherwise(walk.pairs, node, event)
    facts += (exchanged,) if exchanged else ()
    if between:
        facts += (note("not-compared-on-the-way", paths=names(walk, between)),)
    facts += (*factor, *parts.unseen_order(walk.pairs, node.parent))
    advice = of_what or (note("exchanged", given=exchanged) if exchanged else _code_hint(walk, between))
    kind = kind_of_finding(event.metrics)
    add(walk, Phase.FORWARD, kind, event, place.pair, case.rule, facts, node=place, advice=advice)
    return True


def _between(case: Case) -> list[Loose]:
    """Return A's calls without a partner, since the last good event, that a wrong input may be made of."""
    walk, node, event = case.walk, case.node, case.event
    assert node.parent is not None
    between = finished(walk, node.parent, node.begin) or unpaired_between(walk, node.parent, node.begin)
    return [loose for loose in between if has_part(walk, walk.pairs.half("A"), loose, event)]


def _factor_before(case: Case) -> tuple[tuple[Note, ...], Note | None]:
    """Return a fact and a hint where a wrong input is a multiple of A's: a factor that one side alone applies, or another one."""
    walk, node, metrics, a = case.walk, case.node, case.event.metrics, case.walk.pairs.half("A")
    last = None if node.parent is None else last_module(walk, node.parent, a)
    if last is None or metrics is None or not min(abs(metrics.coherence), abs(metrics.cosine)) > _ONE_DIRECTION:
        return (), None
    ratio, source = metrics.norm_ratio, a.path(last)
    if metrics.cosine < 0 or abs(ratio - 1) < _FACTOR or not 0 < ratio < math.inf:
        return (), None
    whole = round(max(ratio, 1 / ratio))
    is_whole = math.isclose(max(ratio, 1 / ratio), whole, rel_tol=1e-5)
    fact = note("factor-behind", factor=ratio, divisor=whole if is_whole and ratio < 1 else 0, path=source)
    return (fact,), note("factor-of-one-side", path=source)


def judge_given(walk: Walk, node: Node, event: Event) -> None:
    """Judge a part of the batch that was logged beside the model: it is an input, and no source of anything."""
    metrics = event.metrics
    assert metrics is not None
    u, context = roundoff(walk, event), context_of(walk, node)
    sources = 0.0 if ran_before(walk.pairs, node, event) else context.error
    limit = tolerance.FORWARD.limit(u, sources) if u else tolerance.INTEGER_GAIN * sources
    sizes = {math.prod(half.side.shapes[half.row(event)]) for half in walk.pairs.halves}
    check = walk.noise.start(event, limit) if u else walk.noise.exact(event, limit)
    wrong = check.is_wrong if metrics.is_known else len(sizes) > 1
    if record(walk, event, check.limit, wrong and not context.tainted, sources, error=check.error, check=check):
        what = metrics.why or note("logged-input-differs", slot=event.slot_a)
        add(
            walk, Phase.FORWARD, Kind.INPUTS, event, node.pair, tolerance.FORWARD, (what,), node=node, advice=SAME_BATCH
        )


def lacking_inputs(walk: Walk) -> list[tuple[str, str]]:
    """Return (slot, side) of the model's inputs that one side alone has."""
    tops = (node for node in walk.pairs.nodes.values() if node.parent is None)
    return [each for node in tops for each in walk.forward.one_sided.get(id(node), ())]


def blame_batches(walk: Walk, said: Note) -> None:
    """The micro-batches of the two sides are not the same data."""
    tops = [node for node in walk.pairs.nodes.values() if node.parent is None]
    if tops:
        append(walk, Divergence(
            Phase.FORWARD, Role.INPUT, Kind.INPUTS, 0.9, *refs_of(walk, tops[0].pair, tops[0], "", ""), None,
            facts=(said,), advice=SAME_BATCH,
        ))  # fmt: skip
    else:
        walk.ledger.reasons.append(said)


def _given_to_the_model(walk: Walk, node: Node, event: Event) -> tuple[Node, tuple[str, str]] | None:
    """Return the model and its slots when an input is, on both sides, one of the model's own inputs."""
    top = list(node.ancestors())[-1]
    slots = []
    for half in walk.pairs.halves:
        side, digest = half.side, half.side.digest(half.row(event))
        rows = half.rows.get(half.key(top), Role.INPUT) if digest is not None else {}
        same = [slot for slot, found in rows.items() if side.digest(found[0]) == digest]
        slots += same[:1]
    return (top, (slots[0], slots[1])) if len(slots) == 2 else None


def place_of(walk: Walk, node: Node) -> Node | None:
    """Return the innermost caller of which it is known that it began right, by its inputs or by what ran inside."""
    good = max(walk.forward.last_good.values(), default=-1)
    moved = set(node.callers_from_parent()) - {node.shared} if node.shared is not node.parent else ()
    for place in node.ancestors():
        if place in moved:
            continue
        module = module_a(walk, place)
        has_none = not walk.pairs.rows_a.get((place.micro, module, place.call), Role.INPUT)
        if place in walk.forward.with_inputs or good >= place.begin:
            return place
        if has_none and walk.pairs.a.watches(Phase.FORWARD, module):
            return place
    return None


# Rows of the table for an output


def loss_alone(case: Case) -> bool:
    """Blame the loss function for a loss that the model returns."""
    walk, node, event = case.walk, case.node, case.event
    if not returns_loss(walk, event):
        return False
    add(walk, Phase.LOSS, Kind.INTRODUCED, event, node.pair, tolerance.LOSS,
        (note("loss-alone-differs"), *unseen_before_loss(walk, node)), node=node, advice=loss_hint(walk, node))  # fmt: skip
    return True


def missing_parameter(case: Case) -> bool:
    """Blame a parameter that one side's module alone has."""
    walk, node = case.walk, case.node
    if node.pair not in walk.weights.missing or node.loose_a:
        return False
    slot, side = walk.weights.missing[node.pair]
    facts = (note("parameter-on-one-side", slot=slot, side=side), note("output-of-module-differs"))
    advice = tied(walk, node.pair, slot, side) or note(
        "parameter-is-missing", slot=slot, side="B" if side == "A" else "A"
    )
    add(
        walk,
        Phase.INIT,
        Kind.MISSING,
        case.event,
        node.pair,
        tolerance.FORWARD,
        facts,
        node=node,
        slot=slot,
        advice=advice,
    )
    return True


def missing_input_of_module(case: Case) -> bool:
    """Blame an input that the model, and the module, get on one side only."""
    return case.node.parent is not None and missing_input(case)


def own_code(case: Case) -> bool:
    """Blame the module that returned it."""
    walk, node, event = case.walk, case.node, case.event
    assert event.metrics is not None
    facts, hint = _about_output(walk, node, event)
    dropout, dtype = causes.dropout(walk.pairs, node), causes.changed_dtype(walk.pairs, node, event)
    kind = Kind.DTYPE if dtype else kind_of_finding(event.metrics)
    told = tuple(text for text in (dropout, dtype, causes.born(walk.pairs, node, event)) if text)
    add(walk, Phase.FORWARD, kind, event, node.pair, tolerance.FORWARD, (*facts, *told), node=node,
        advice=hint or causes.hint_of_dropout(dropout) or _settings_hint(class_a(walk, module_a(walk, node))),
        is_apart=bool(dropout))  # fmt: skip
    return True


def loss_hint(walk: Walk, node: Node) -> Note:
    """Return what to look at where the loss differs."""
    a, unseen = walk.pairs.half("A"), unseen_before_loss(walk, node)
    last = last_module(walk, node, a)
    path = "" if last is None else a.path(last)
    return note("loss-function", behind=path if unseen else "")


def unseen_before_loss(walk: Walk, node: Node) -> tuple[Note, ...]:
    """Say so where the model's own code may do something to what its last module returned, and only the loss shows it."""
    a = walk.pairs.half("A")
    last = last_module(walk, node, a)
    returned = [judged.event for judged in walk.ledger.events if judged.event.role is Role.OUTPUT]
    own = [e for e in returned if (e.micro, e.pair, e.call) == (node.micro, node.pair, node.call)]
    if last is None or any(e.metrics is not None and e.metrics.is_known and not returns_loss(walk, e) for e in own):
        return ()
    made = [e for e in returned if e.micro == node.micro and a.modules[e.pair] == last]
    if not made or any(not squeezed(walk.pairs.a.shapes[e.row_a]) for e in made):
        return ()  # a module that computes the loss
    return (note("own-code-before-loss-not-compared", path=a.path(last)),)


def blame_dtype(walk: Walk, node: Node, event: Event, sources: float) -> None:
    """Charge a call that returns another dtype of the same, where that is more than the finer dtype would round."""
    a, b = walk.pairs.a.dtypes[event.row_a], walk.pairs.b.dtypes[event.row_b]
    assert event.metrics is not None
    if a == b or event.metrics.rel_l2 <= tolerance.FORWARD.limit(min(unit_roundoff(a), unit_roundoff(b)), sources):
        return
    text = causes.changed_dtype(walk.pairs, node, event)
    if text:
        add(walk, Phase.FORWARD, Kind.DTYPE, event, node.pair, tolerance.FORWARD, (_agreement(walk, node), text),
                  node=node, advice=note("precision-of-module"))  # fmt: skip


def _code_hint(walk: Walk, between: list[Loose]) -> Note:
    """Return what to look at where a module's own code is blamed, with the calls in it that were not compared."""
    code = note("code-of-module")
    classes = [class_a(walk, loose.module) for loose in between]
    if any("dropout" in name.casefold() for name in classes):
        return note("dropout-on-both-sides")
    calls = to_look_at(walk.pairs, between)
    return note("any-of", ways=(*calls, code)) if calls else code


def tied(walk: Walk, pair: int, slot: str, side: str) -> Note | None:
    """Say so when a parameter that is not on the other side is another name of a tied one there."""
    other = walk.pairs.half(walk.pairs.half(side).other)
    full = f"{other.path(other.modules[pair])}.{slot}"
    tied = (p.names[0] for p in other.side.reader.parameters if full in p.names[1:])
    first = next(tied, None)
    return None if first is None else note("tied-there", slot=slot, to=first, side=other.name, other=side)


def _about_output(walk: Walk, node: Node, event: Event) -> tuple[tuple[Note, ...], Note | None]:
    """Return what is known of a call whose output is wrong, and a hint if there is one."""
    about = parts.unrecorded_weights, parts.unseen_order_of_weights, parts.unseen_elements
    facts = [_agreement(walk, node), *(text for each in about for text in each(walk.pairs, node))]
    lacking = unpaired(walk, node.pair)
    if any(lacking):
        facts.append(note("parameters-of-other-names", a=lacking[0], b=lacking[1]))
    facts += _weights_alone(walk, node.pair)
    unknown = sorted(walk.forward.unknown.get(id(node), ()))
    if unknown:
        facts.append(note("not-known-to-agree", slots=tuple(unknown)))
    classes = classes_of(walk, node.pair)
    in_parts = [each.slot_a for each in walk.weights.in_parts if each.pair == node.pair]
    if in_parts:
        facts.append(note("held-in-parts", slots=tuple(in_parts)))
    hint = note("split-of-layer") if in_parts else scale_hint(event.metrics)
    inside = unpaired_between(walk, node, node.end)
    if inside:
        facts.append(note("not-compared-inside", paths=names(walk, inside)))
    if node.training[0] != node.training[1]:
        facts.append(note("other-mode", a=mode_name(node.training[0]), b=mode_name(node.training[1])))
        hint = note("same-mode")
    if not are_alike(walk, node.pair) and walk.pairs.matching.pairs[node.pair].reason is not Reason.MAPPED:
        facts.append(note("other-classes", a=classes[0], b=classes[1]))
    return tuple(facts), hint


def _weights_alone(walk: Walk, pair: int) -> list[Note]:
    """Say which weights one side's module has and the other's has not: a bias that is left out."""
    a, b = walk.state.unpaired.get(pair, ({}, {}))
    alone = [slot for slot in a or b if (pair, slot) not in walk.state.elsewhere]
    if (a and b) or not alone:
        return []
    return [note("weights-on-one-side", side="A" if a else "B", slots=tuple(alone))]


def _agreement(walk: Walk, node: Node) -> Note:
    """Say what the output of a call was made from."""
    parameters = None if any(each.pair == node.pair for each in walk.weights.in_parts) else parameters_of(walk, node)
    if walk.forward.unknown.get(id(node)) and node not in walk.forward.with_inputs:
        return note("inputs-not-compared")
    weights = None if parameters is None else note("parameters-equal" if not parameters.error else "parameters-agree")
    if weights and parts.differently_laid(walk.pairs, node):
        weights = note("parameters-agree-in-statistics")
    return note("output-alone-differs", error=context_of(walk, node).error, weights=weights)


def _settings_hint(class_name: str) -> Note:
    """Return what to look at where a module makes something else of the same."""
    for pattern, code in _SETTINGS.items():
        if fnmatchcase(class_name, pattern):
            return Note(code)
    return note("settings-of-module")


def mode_name(training: bool) -> str:
    """Return the name of a module's mode."""
    return "training" if training else "evaluation"
