"""Walking the forward pass of a step in causal order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from functools import partial

from probe.comparison.blame.order import module_a
from probe.comparison.blame.table import blame_changes, blame_input, blame_output
from probe.comparison.blame.unpaired_calls import side_with_part
from probe.comparison.blame.values import (
    SAME_BATCH,
    blame_dtype,
    context_of,
    judge_given,
    mode_name,
    place_of,
)
from probe.comparison.distance.metrics import Status, are_merged, squeezed
from probe.comparison.exemptions import expert_routing
from probe.comparison.exemptions.label_inputs import Aside, is_handed_on
from probe.comparison.exemptions.moved_factor import MovedFactors
from probe.comparison.exemptions.other_sizes import OtherSize
from probe.comparison.exemptions.padding import Padding
from probe.comparison.exemptions.reordered_tokens import Reordering
from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import order, path_a, refs_of, requires_grad_of, roundoff
from probe.comparison.ledger.recording import add, record
from probe.comparison.noise import tolerance
from probe.comparison.noise.interface import Check
from probe.comparison.noise.tolerance import Level
from probe.comparison.notes import note
from probe.comparison.result import Divergence, Kind
from probe.comparison.steps.input_pairing import without_wrong_guesses
from probe.comparison.steps.step_half import Event, Node
from probe.comparison.walk.inputs import given_otherwise, is_given, logged_apart
from probe.comparison.walk.values import (
    hold,
    refitted,
    runs_same_code,
    weights_agree,
    with_angles,
    with_cancelled,
    with_hidden,
)
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role

_FILL, _FILL_TO_REST = 1e3, 300
"""how far below 0, and how many times the largest element, what a mask puts in is at least"""


def judge_forward(walk: Walk, micro: int) -> None:
    """Judge what the modules of a micro-batch were given and returned."""
    walk.forward.errors[None] = Level()
    walk.forward.last_good, walk.forward.last_good_b = {}, {}
    walk.forward.with_inputs = set()
    walk.forward.largest = 0.0
    walk.exempted.padding = Padding(walk.pairs, micro)
    events = [*walk.pairs.node_events(micro, backward=False), *given_otherwise(walk.pairs, micro),
              *logged_apart(walk.pairs, micro)]  # fmt: skip
    events = list(without_wrong_guesses(walk.pairs, events))
    for node, event in events:
        if event.is_one_sided and event.role is Role.INPUT:
            slot, side = (event.slot_a, "A") if event.row_a >= 0 else (event.slot_b, "B")
            walk.forward.unknown.setdefault(id(node), set()).add(slot)
            walk.forward.one_sided.setdefault(id(node), []).append((slot, side))
    tops = [e for n, e in events if n.parent is None and e.role is Role.INPUT and e.metrics is not None]
    walk.forward.other_batch = not all(_same_size(walk, event) for event in tops)
    _compare_modes(walk, {id(node): node for node, _ in events}.values())
    walk.weights.begins_alike = weights_agree(walk)
    walk.exempted.reordering = Reordering(walk.pairs, events, walk.state.parameters, partial(roundoff, walk))
    walk.exempted.moving = MovedFactors(walk.pairs, events)
    walk.exempted.choosing = expert_routing.choosing(walk.pairs, events)
    walk.exempted.flipped = {
        (node, walk.pairs.a.shapes[event.row_a]): share
        for node, event in events
        if (share := _other_choices(walk, event))
    }
    _compare_batches(walk, events)
    for node, event in sorted(events, key=lambda pair: order(walk, pair[1])):
        if event.metrics is not None:
            _judge_forward_event(walk, node, event)
            _look_for_cut(walk, node, event)
            if event.role is Role.OUTPUT:
                walk.state.returned.add(_digests(walk, event))


def _other_choices(walk: Walk, event: Event) -> float:
    """Return the share of the integers that a call returns which differ: whether noise may have changed them is judged with them."""
    is_integer = event.role is Role.OUTPUT and not event.is_one_sided and not roundoff(walk, event)
    return event.metrics.rel_l2 if is_integer and event.metrics is not None else 0.0


def _digests(walk: Walk, event: Event) -> tuple[object, object]:
    return walk.pairs.a.digest(event.row_a), walk.pairs.b.digest(event.row_b)


def warn_of_order(walk: Walk) -> None:
    """Say where elements stood in another order."""
    for code, places in (
        ("border-lies-elsewhere", walk.exempted.borders),
        ("same-steps-in-another-order", walk.exempted.borders_of_size),
        ("elements-in-another-order", walk.exempted.around),
        ("tokens-in-another-order", walk.exempted.flattened),
        ("residual-sum-not-compared", walk.exempted.unseen_sums),
        ("tokens-of-what-was-made-before", walk.exempted.flattened_after),
    ):
        if places:
            walk.ledger.notes.append(note(code, places=tuple(places)))


def is_inside_rearranged(walk: Walk, node: Node) -> bool:
    """Tell whether a call is, or runs inside, one that was given elements in another order."""
    return bool(walk.exempted.rearranged) and any(
        call in walk.exempted.rearranged for call in (node, *node.ancestors())
    )


def _pass_over(walk: Walk, node: Node, event: Event) -> bool:
    """Pass over what differs because it stands in another order inside a call that returns the same, or was given it so."""
    around, told = walk.exempted.reordering.flattened(node, event), walk.exempted.flattened
    if around is None and walk.exempted.reordering.flattened_after(node, event):
        around, told = node, walk.exempted.flattened_after
    if around is None:
        around, told = walk.exempted.reordering.around(node, event), walk.exempted.around
    if around is None:
        return False
    walk.exempted.rearranged.add(node)
    told[path_a(walk, around.pair)] = None
    record(walk, event, math.nan, False, exempt="reordered")
    return True


def _compare_batches(walk: Walk, events: Iterable[tuple[Node, Event]]) -> None:
    """The model's inputs have other sizes, and so has what it returns: it is another batch."""
    tops = [(n, e) for n, e in events if n.parent is None and e.metrics is not None]
    other = [(n, e) for n, e in tops if e.role is Role.INPUT and not _same_size(walk, e)]
    outputs = [e for _, e in tops if e.role is Role.OUTPUT]
    if other and not walk.ledger.findings and not (outputs and all(map(partial(_same_size, walk), outputs))):
        blame_input(walk, *other[0])
        context_of(walk, None).tainted = True


def _same_size(walk: Walk, event: Event) -> bool:
    sizes = {math.prod(half.side.shapes[half.row(event)]) for half in walk.pairs.halves}
    return len(sizes) == 1 or walk.pairs.is_padded(event)


def _compare_modes(walk: Walk, nodes: Iterable[Node]) -> None:
    """Warn where one side runs in training mode and the other in evaluation mode."""
    differing = [node for node in nodes if node.training[0] != node.training[1]]
    if differing:
        first = min(differing, key=lambda node: node.begin)
        walk.forward.modes |= {node.pair: node.training for node in differing}
        count, (a, b) = len({node.pair for node in differing}), map(mode_name, first.training)
        walk.ledger.notes.append(note("modes-differ", count=count, path=path_a(walk, first.pair), a=a, b=b))


def _learn_alone(walk: Walk, event: Event) -> str | None:
    """Return the side, if there is one, on which alone a tensor needs a gradient."""
    learns = requires_grad_of(walk, event)
    return None if learns[0] == learns[1] else "A" if learns[0] else "B"


def _look_for_cut(walk: Walk, node: Node, event: Event) -> None:
    """Note the first tensor that learns on one side only, though all that it was made from learns alike."""
    if not node.grad_enabled or event.role is Role.VALUE:
        return
    alone = _learn_alone(walk, event)
    if alone is None or _is_filled(walk, event):
        return  # beside what masks fill in nothing shows: it may be a mask on one side, and a learned bias with it on the other
    if node.parent is None and event.role is Role.INPUT:
        walk.backward.asked_for.add(alone)
    if roundoff(walk, event) == 0.0 or alone in walk.backward.asked_for:
        return  # what is made of the batch alone (a mask) learns where the batch does; another cut shows in the gradients
    if not _same_size(walk, event) and not runs_same_code(walk, node):
        return  # what another class is given at that place, or returns, may be something else: a mask, a table of positions
    place = (node.shared or node.parent) if event.role is Role.INPUT else node
    inherits = place in walk.backward.learns_otherwise
    walk.backward.learns_otherwise |= {node, node.parent, place}
    if (
        walk.backward.cut
        or inherits
        or place is None
        or walk.weights.frozen & set(walk.tree_a.subtree(module_a(walk, place)))
    ):
        return
    side = "B" if alone == "A" else "A"
    needed = note(
        "needs-gradient-on-one-side", role=event.role.label, slot=event.slot_a, path=path_a(walk, node.pair), side=alone
    )
    slots = (event.slot_a, event.slot_b) if place is node else ("", "")
    walk.backward.cut.append(Divergence(
        Phase.BACKWARD, event.role, Kind.MISSING, 0.95, *refs_of(walk, place.pair, place, *slots),
        None, math.nan, (needed,), note("cuts-graph-here", side=side),
    ))  # fmt: skip


def _judge_forward_event(walk: Walk, node: Node, event: Event) -> None:
    metrics = event.metrics
    assert metrics is not None
    is_input = event.role is Role.INPUT
    context = _context_of_input(walk, node) if is_input else context_of(walk, node)
    if is_inside_rearranged(walk, node):
        record(walk, event, math.nan, False, exempt="reordered-inside")
        return
    if is_given(walk.pairs, node, event):
        judge_given(walk, node, event)
        return
    if not metrics.is_known:
        _leave_open(walk, node, event, context)
        return
    if is_input and _sets_aside(walk, node, event):
        return
    u = max(roundoff(walk, event), context.u, unit_roundoff(node.autocast) if node.autocast else 0.0)
    sources = context
    digests = _digests(walk, event) if is_input and node.parent is None else None
    if digests is not None and (digests in walk.state.carried or digests in walk.state.returned):
        sources = Level(metrics.rel_l2, u, excess=metrics.rel_l2)  # an earlier call returned it
    elif digests is not None and not all(requires_grad_of(walk, event)):
        sources = Level(u=u)
    elif metrics.rel_l2 > tolerance.FORWARD.limit(u, sources.error):
        sources = sources if is_input else with_cancelled(walk, node, event, sources, u)
        sources = with_hidden(walk, node, event, sources, u)
        sources = with_angles(walk, node, event, sources)
    check = hold(walk, node, event, u, sources)
    if check.is_wrong and not context.tainted and not check.is_fixed:
        check = refitted(walk, node, event, u, sources, check)
        if check.verdict:
            record(walk, event, math.nan, False, exempt=check.exemption)
            return
    if is_input and node.parent is None and _has_other_axes(walk, node, event):
        _blame_other_axes(walk, node, event)
        return
    wrong = check.is_wrong and not context.tainted
    if wrong and (
        _pass_over(walk, node, event)
        or _is_chosen_otherwise(walk, node, event)
        or _may_be_chosen_otherwise(walk, node, event, check, context, u)
    ):
        return
    wrong = wrong and not _blame_other_size(walk, node, event)
    record(walk, event, check.limit, wrong, sources.error, error=check.error, check=check)
    if wrong:
        if is_input:
            blame_input(walk, node, event)
        else:
            blame_output(walk, node, event)
    elif event.role is Role.OUTPUT and not context.tainted:
        blame_dtype(walk, node, event, sources.error)
    is_noise = not check.is_wrong and not context.tainted and not walk.ledger.findings
    if is_noise and event.role is Role.OUTPUT and roundoff(walk, event):
        walk.forward.largest = max(walk.forward.largest, metrics.rel_l2)
    if check.verdict != "not judged" or roundoff(walk, event):
        _take_in(walk, node, event, context, wrong)


def _context_of_input(walk: Walk, node: Node) -> Level:
    """Return the errors of all that a call's input may have been made from: where B calls it elsewhere, in all callers up to a shared one."""
    if node.shared is node.parent:
        return context_of(walk, node.parent)
    level = Level()
    for caller in node.callers_from_parent():
        level.merge(context_of(walk, caller))
    return level


def _is_chosen_otherwise(walk: Walk, node: Node, event: Event) -> bool:
    """Pass over what a call returns for each of the integers that it returns where some differ: the weights of other experts.

    Such a share of the weights may be others, and no more.
    """
    assert event.metrics is not None
    share = walk.exempted.flipped.get((node, walk.pairs.a.shapes[event.row_a]), 0.0)
    if event.role is not Role.OUTPUT or not roundoff(walk, event) or event.metrics.rel_l2 > math.sqrt(share):
        return False
    record(walk, event, math.nan, False, exempt="expert-routing")
    _take_in(walk, node, event, context_of(walk, node), False)
    return True


def _may_be_chosen_otherwise(walk: Walk, node: Node, event: Event, check: Check, context: Level, u: float) -> bool:
    """Pass over a few tokens of what a call returns, or hands on, where it chooses and 16 bits may have made it choose otherwise."""
    is_input = event.role is Role.INPUT
    begun = walk.exempted.choosing.get(node.parent if is_input else node)
    if begun is None or is_input and node.begin < begun or u <= tolerance.SIXTEEN_BIT:
        return False
    tokens, is_seen = expert_routing.explain(walk.pairs, event, max(context.error, u), check.limit)
    if tokens is None:
        return False
    what = {
        "role": event.role.label,
        "slot": event.slot_a,
        "path": path_a(walk, node.pair),
        "error": check.error,
        "tokens": tokens,
    }
    if not walk.ledger.findings and is_seen:
        walk.ledger.notes.append(note("tokens-routed-otherwise", **what))
    elif not walk.ledger.findings:
        walk.ledger.reasons.append(note("tokens-may-be-routed-otherwise", **what))
    walk.noise.routes_differ = True
    record(walk, event, math.nan, False, exempt="routed-tokens")
    _take_in(walk, node, event, context, is_input)  # what the caller goes on with has these tokens, too
    return True


def _sets_aside(walk: Walk, node: Node, event: Event) -> bool:
    """Set integers aside that the model is given otherwise and hands to no module: whether they matter is told later."""
    assert event.metrics is not None
    if roundoff(walk, event) or not event.metrics.rel_l2:
        return False
    digests = _digests(walk, event)
    if node.parent is not None:
        if digests not in walk.exempted.label_digests:
            return False
        record(walk, event, math.nan, False, exempt="label-inputs")
        return True
    is_known = digests in walk.state.carried | walk.state.returned
    if is_known or hold(walk, node, event, 0.0, Level()).verdict or is_handed_on(walk.pairs, node, event):
        return False
    record(walk, event, 0.0, True)
    blame_input(walk, node, event)
    walk.exempted.label_inputs.append(Aside(event, walk.ledger.findings.pop()))
    walk.exempted.label_digests.add(digests)
    walk.forward.with_inputs.add(node)
    return True


def _has_other_axes(walk: Walk, node: Node, event: Event) -> bool:
    """Tell whether as many elements stand in axes that are neither swapped nor merged, in the same class."""
    shapes = squeezed(walk.pairs.a.shapes[event.row_a]), squeezed(walk.pairs.b.shapes[event.row_b])
    return runs_same_code(walk, node) and sorted(shapes[0]) != sorted(shapes[1]) and not are_merged(*shapes)


def _blame_other_axes(walk: Walk, node: Node, event: Event) -> None:
    shapes = [list(half.side.shapes[half.row(event)]) for half in walk.pairs.halves]
    record(walk, event, math.nan, False)
    add(walk, Phase.FORWARD, Kind.INPUTS, event, node.pair, tolerance.FORWARD,
              (note("shapes-differ", a=tuple(shapes[0]), b=tuple(shapes[1])),), node=node, advice=SAME_BATCH)  # fmt: skip
    for level in (context_of(walk, node), context_of(walk, None)):
        level.tainted = True


def _take_in(walk: Walk, node: Node, event: Event, context: Level, wrong: bool) -> None:
    """Make an event a source of what comes after it."""
    assert event.metrics is not None
    own_u = roundoff(walk, event)
    error = event.metrics.rel_l2 if own_u or context.u or node.autocast else math.sqrt(event.metrics.rel_l2)
    excess = walk.noise.excess(event, error) if own_u else error
    if event.metrics.is_lower_bound or (event.role is Role.INPUT and _is_filled(walk, event)):
        error, excess = (
            max(error, context.error),
            max(excess, context.excess),
        )  # no less than its own sources explain
    size, ratio = math.prod(walk.pairs.a.shapes[event.row_a]), event.metrics.norm_ratio
    places = (node,) if event.role is Role.INPUT else (node, node.parent)
    for level in map(partial(context_of, walk), places):
        level.add(error, own_u, excess)
        level.add_scale(ratio, size)
    if event.role is Role.INPUT:
        walk.forward.with_inputs.add(node)
        differs = event.metrics.rel_l2 > 0  # what it was computed from has an error, says nothing of integers
        if differs and not own_u and not walk.ledger.findings and not context_of(walk, node).tainted:
            _taint(walk, node, event)
        if wrong:
            context.add(error, own_u, excess)
        else:
            walk.forward.last_good[node.parent] = node.begin
            walk.forward.last_good_b[node.parent] = max(node.begin_b, walk.forward.last_good_b.get(node.parent, -1))
    elif not wrong:
        walk.forward.last_good[node.parent] = node.end
        walk.forward.last_good_b[node.parent] = max(node.end_b, walk.forward.last_good_b.get(node.parent, -1))


def _is_filled(walk: Walk, event: Event) -> bool:
    """Tell whether large negative numbers, as masks put them in for softmax, are nearly all of a tensor's norm."""
    columns = walk.pairs.a.columns
    low, high = columns["min"][event.row_a], columns["max"][event.row_a]
    return bool(low <= -_FILL and -low >= _FILL_TO_REST * abs(high))


def _leave_open(walk: Walk, node: Node, event: Event, context: Level) -> None:
    """Two tensors cannot be compared: a wrong size is a finding, what may be permuted is a doubt, both hide the rest."""
    assert event.metrics is not None
    is_input = event.role is Role.INPUT
    place = node.parent if is_input else node
    is_permuted = event.metrics.status is Status.PERMUTED
    same_code = place is not None and runs_same_code(walk, node) and runs_same_code(walk, place)
    is_part = bool(same_code and not _same_size(walk, event) and side_with_part(walk, event))
    is_wrong = same_code and not walk.forward.other_batch and not _same_size(walk, event) and not is_part
    is_in_chunks = is_wrong and _is_in_chunks(walk, node, event)
    if (is_permuted or is_in_chunks) and not context.tainted and _pass_over(walk, node, event):
        return
    is_wrong = is_wrong and not is_in_chunks
    record(walk, event, math.nan, False, context.error)
    if is_input:
        walk.forward.unknown.setdefault(id(node), set()).add(event.slot_a)
    what = {"role": event.role.label, "slot": event.slot_a, "path": path_a(walk, node.pair)}
    if is_part and not walk.forward.other_batch:
        _doubt_part(walk, what, event)
    if is_permuted and not context.tainted:
        walk.ledger.reasons.append(note("looks-permuted", step=event.step, why=event.metrics.why, **what))
    elif is_wrong and not context.tainted:
        walk.exempted.other_sizes.open.append(OtherSize(node, event))
        if is_input:
            context_of(walk, node).merge(context)  # it is made of what its caller has
    levels = (context_of(walk, node), context if is_input else context_of(walk, node.parent))
    if not is_permuted and not context.tainted:
        for level in levels:
            level.add(0.0, roundoff(walk, event))  # its dtype is known, and rounds what comes after it
        return
    for level in levels:
        level.tainted = True


def _blame_other_size(walk: Walk, node: Node, event: Event) -> bool:
    """Charge a wrong value to the first tensor of another size that it may be computed of; tell whether there is one."""
    found = walk.exempted.other_sizes.behind(node, event)
    if found:
        _add_other_size(walk, found[0])
        _taint_behind(walk, found)
    return bool(found)


def blame_first_other_size(walk: Walk) -> None:
    """Charge the first tensor of another size: what is computed of all of them differs."""
    _add_other_size(walk, walk.exempted.other_sizes.open[0])
    _taint_behind(walk, list(walk.exempted.other_sizes.open))


def _taint_behind(walk: Walk, found: Iterable[OtherSize]) -> None:
    """Judge nothing any more that may be computed of tensors of other sizes."""
    for each in found:
        for level in (context_of(walk, each.node), *map(partial(context_of, walk), each.node.ancestors())):
            level.tainted = True
    walk.exempted.other_sizes.open.clear()


def _add_other_size(walk: Walk, each: OtherSize) -> None:
    node, event = each.node, each.event
    assert event.metrics is not None
    is_input = event.role is Role.INPUT
    place = place_of(walk, node) if is_input else node
    if place is None:
        blame_input(walk, node, event)
    elif not (is_input and blame_changes(walk, node, event)):
        what = note("of-another-size", role=event.role.label, slot=event.slot_a, path=path_a(walk, node.pair),
                    why=event.metrics.why)  # fmt: skip
        add(walk, Phase.FORWARD, Kind.SHAPE, event, place.pair, tolerance.FORWARD, (what,), node=place,
                  advice=note("sizes-padding-and-strides"))  # fmt: skip


def resolve_other_sizes(walk: Walk) -> None:
    """Say of tensors of other sizes that nothing behind them is wrong; one of which nothing is computed that agrees is a finding."""
    nodes = {(node.micro, node.pair, node.call): node for node in walk.pairs.nodes.values()}
    returned = [
        nodes[key]
        for judged in walk.ledger.events
        if judged.event.role is Role.OUTPUT and judged.verdict in ("equal", "noise") and roundoff(walk, judged.event)
        and (key := (judged.event.micro, judged.event.pair, judged.event.call)) in nodes
    ]  # fmt: skip
    for each in walk.exempted.other_sizes.open:
        if not walk.exempted.other_sizes.agree(each, returned, walk.forward.loss_agrees):
            _add_other_size(walk, each)
            _taint_behind(walk, [each])
            return
        walk.ledger.judged[id(each.event)].exempt("other-size")
        place = f"{each.event.role.label} {each.event.slot_a} of {path_a(walk, each.event.pair)}"
        walk.exempted.borders_of_size[place] = None
    walk.exempted.other_sizes.open.clear()


def _is_in_chunks(walk: Walk, node: Node, event: Event) -> bool:
    """Tell whether one side calls a module more often, each time with a part of what the other side gives it at once."""
    calls, sizes = [], []
    for half in walk.pairs.halves:
        module, slot = half.modules[node.pair], half.slot(event)
        own = [call.key for call in half.calls if call.micro == node.micro and call.module == module]
        found = [rows for key in own for rows in [half.rows.get(key, event.role).get(slot)] if rows]
        calls.append(len(own))
        sizes.append(sum(math.prod(half.side.shapes[rows[0]]) for rows in found))
    return calls[0] != calls[1] and sizes[0] == sizes[1]


def _doubt_part(walk: Walk, what: Mapping[str, str], event: Event) -> None:
    """Doubt a run of which one side's modules are handed parts, as of a sequence, of what the other side's are; once."""
    if walk.state.in_parts or walk.state.parts_were_told or event.metrics is None:
        return
    walk.state.parts_were_told = True
    a, b = ((half.side.reader.info.rank, half.side.reader.info.world_size) for half in walk.pairs.halves)
    walk.ledger.reasons.append(note("tensor-in-parts", a=a, b=b, why=event.metrics.why, **what))


def _taint(walk: Walk, node: Node, event: Event) -> None:
    """A few of the integers that a module is given differ (routing): do not judge what it makes of them."""
    assert event.metrics is not None
    context_of(walk, node).tainted = walk.noise.routes_differ = True
    walk.ledger.notes.append(
        note("routed-otherwise-inside", share=event.metrics.rel_l2, slot=event.slot_a, path=path_a(walk, node.pair))
    )
