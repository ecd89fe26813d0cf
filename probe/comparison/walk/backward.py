"""Walking the backward pass of a step in causal order: which module passes back what it should not."""

from __future__ import annotations

import functools
import math
from fnmatch import fnmatchcase

from probe.comparison.blame.case import Case, answer
from probe.comparison.blame.gradients import GRADIENT
from probe.comparison.blame.order import module_a
from probe.comparison.fusion.sharded import side_with_parts
from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import class_a, peaks_of, refs_of, root_refs, roundoff, underflow_limit
from probe.comparison.ledger.recording import confidence, record
from probe.comparison.noise import conditioning, tolerance
from probe.comparison.noise.tolerance import Level
from probe.comparison.notes import Note
from probe.comparison.result import Divergence, Kind
from probe.comparison.steps.dataflow import Flow, Use, turns
from probe.comparison.steps.step_half import Event, Node
from probe.comparison.walk.forward import is_inside_rearranged
from probe.comparison.walk.loss import (
    is_model,
    is_most_of_loss,
    last_outputs_known,
    rounding_of_alignments,
    rule_of_loss,
)
from probe.comparison.walk.scaling import factor_of, loss_scale_of, meaning_of, scaling_note
from probe.records import Phase, Role

_KINKS = ("*ReLU*", "*MaxPool*", "Hard*", "*shrink", "Threshold")
"""classes whose derivative jumps"""
_NORMS = "*Norm*"
_OF_CANCELLED = 4
"""unit roundoffs, or errors of what came, that are left of a gradient which a normalisation has cancelled out"""
_CUT_OFF = 0.1
"""share of zeros from which on a gradient has passed a function that cuts elements off"""
_PARALLEL = 0.9
"""from this cosine between error and value on, the error is a multiple of the value"""


def judge_backward(walk: Walk, micro: int) -> None:
    """Judge the gradients that ran back through the modules of a micro-batch."""
    walk.backward.errors = {None: Level()}
    walk.backward.flow, walk.backward.has_flow = Flow(walk.pairs, micro), True
    found = walk.pairs.node_events(micro, backward=True)
    events = [(n, e) for n, e in found if e.metrics is not None and not e.is_one_sided]
    events.sort(key=lambda pair: walk.backward.flow.order(*pair))
    walk.exempted.other_totals = {
        (Role.GRAD_TOTAL, *place) for place in walk.exempted.with_mask | walk.exempted.with_addend
    }
    walk.exempted.other_totals |= {(Role.GRAD_INPUT, *place) for place in walk.exempted.with_addend}
    walk.exempted.other_totals |= {(Role.GRAD_OUTPUT, *place) for place in walk.exempted.with_border}
    for called, passed_back in turns(walk.pairs, micro, events):
        walk.backward.errors[None].merge_known(walk.forward.errors, called)
        _judge_turn(walk, passed_back)


def _judge_turn(walk: Walk, events: list[tuple[Node, Event]]) -> None:
    """Judge the gradients that ran back before the model was called anew."""
    _look_for_scaling(walk, events)
    for node, event in events:
        factor = walk.exempted.moved_factors.get((node, event.slot_a), 1.0) if event.role is Role.GRAD_OUTPUT else 1.0
        if factor != 1:
            event.metrics = walk.pairs.measured(event, event.factor / factor)
    for node, event in events:
        if is_inside_rearranged(walk, node):
            record(walk, event, math.nan, False, exempt="reordered-inside")
        elif (event.role, node, event.slot_a) in walk.exempted.other_totals:
            record(walk, event, math.nan, False, exempt="other-consumers")
        else:
            _judge_backward_event(walk, node, event)


def _look_for_scaling(walk: Walk, events: list[tuple[Node, Event]]) -> None:
    """Where B's gradients begin as a multiple of A's, compare all of them without that factor."""
    tops = [(n, e) for n, e in events if n.parent is None and e.role is Role.GRAD_OUTPUT] or events[:1]
    if not tops:
        return
    node, first = tops[0]
    factor = 1.0
    later = walk.backward.scaling is not None and all(finding.phase is Phase.LOSS for finding in walk.ledger.findings)
    is_behind = not later and all(finding.phase in (Phase.INIT, Phase.FORWARD) for finding in walk.ledger.findings)
    if (later or is_behind) and last_outputs_known(walk, [node]):
        error = walk.backward.errors[None].error
        if walk.ledger.findings:
            error = max(error, *(walk.forward.errors.get(each, Level()).error for each, _ in tops))
        limit = tolerance.BACKWARD.limit(max(roundoff(walk, event) for _, event in tops), error)
        find = loss_scale_of if walk.ledger.findings and is_behind else factor_of
        factor = find(walk.pairs, [event for _, event in tops], limit)
        if factor != 1 or all(event.metrics is not None and event.metrics.rel_l2 <= limit for _, event in tops):
            walk.backward.factors.setdefault(node.micro, factor)
        elif walk.backward.scaling is not None:  # this loss is wrong beside its scale, which is no other one
            factor = walk.backward.scaling[0]
    walk.backward.factors_of_passes.append(factor)
    if factor == 1:
        return
    outputs = (
        "outputs-differ-by-less"
        if is_behind and walk.ledger.findings
        else "outputs-agree"
        if is_model(walk, node)
        else "last-outputs-agree"
    )
    facts = (Note(outputs), scaling_note(factor))
    note_scaling(walk, factor, Phase.LOSS, first, facts, node if is_model(walk, node) else None)
    for _, event in events:
        event.metrics = walk.pairs.measured(event, factor)


def note_scaling(
    walk: Walk, factor: float, phase: Phase, event: Event, facts: tuple[Note, ...], node: Node | None = None
) -> None:
    """Keep the finding that B's gradients are a multiple of A's until it is known whether the optimizer used them so."""
    if walk.backward.scaling is not None:
        return
    meaning = meaning_of(factor, *walk.pairs.ran)
    slots = (event.slot_a, event.slot_b) if node is not None else ("", "")
    refs = root_refs(walk) if node is None else refs_of(walk, node.pair, node, *slots)
    finding = Divergence(
        phase, event.role, Kind.INTRODUCED, confidence(walk, event, None), *refs, event.metrics,
        tolerance.BACKWARD.limit(roundoff(walk, event), 0.0), facts, meaning, event=event,
    )  # fmt: skip
    walk.backward.scaling = factor, finding


def _judge_backward_event(walk: Walk, node: Node, event: Event) -> None:
    metrics = event.metrics
    assert metrics is not None
    if event.role is Role.GRAD_OUTPUT and metrics.is_known:
        norm = max(metrics.norm_a, metrics.norm_b)
        walk.backward.grad_norm[event.pair] = math.hypot(walk.backward.grad_norm.get(event.pair, 0.0), norm)
    if not metrics.is_known:
        record(walk, event, math.nan, False)
        return
    if _is_sum_of_parts(walk, node, event):
        record(walk, event, math.nan, False, exempt="sum-of-parts")
        return
    use = walk.backward.flow.use_of(node, event)
    consumers = [] if use is None else [consumer for consumer, _ in use.consumers]
    sources = Level()
    # what was given the tensor may be far from here: cross attention
    sources.merge_known(walk.backward.errors, (node, *node.ancestors(), None, *consumers))
    sources.merge_known(walk.forward.errors, (node,) if node.parent is None else (node, node.parent))
    digest = walk.backward.flow.digest_of(node, event) if node.parent is None else None
    if digest is not None and event.role is Role.GRAD_OUTPUT:
        sources.merge_known(walk.backward.passed_back, (digest,))
    u = max(roundoff(walk, event), sources.u)
    from_loss = _is_from_loss(walk, node, event, use, digest)
    rule = rule_of_loss(walk, node, event) if from_loss else tolerance.BACKWARD
    if not walk.ledger.findings and (not from_loss or is_most_of_loss(walk, node, event)):
        has_scale = from_loss and walk.weights.begins_alike
        size = math.prod(walk.pairs.a.shapes[event.row_a])
        rule = tolerance.backward_rule(metrics, size, lambda: peaks_of(walk, event), rule, has_scale)
    else:
        rule = rule.with_scale(None)
    check = walk.noise.check(event, metrics.rel_l2, rule, u, sources)
    check = check.raise_limit(max(_limit_at_a_kink(walk, node, event, use), underflow_limit(walk, event)))
    check = check.raise_limit(_limit_beside(walk, node, event, use, check.limit))
    if check.is_wrong and event.role is Role.GRAD_OUTPUT:  # where all queries are alike, so are all errors
        scores = conditioning.score_size(walk.pairs, node.parent)
        check = check.raise_limit(check.limit * scores / tolerance.SCORES)
    check = check.raise_limit(_OF_CANCELLED * _cancelled_by_norm(walk, node, event) * max(u, sources.error))
    if from_loss:
        check = check.raise_limit(rounding_of_alignments(walk, node, event))
    is_behind = from_loss and any(finding.phase is Phase.BACKWARD for finding in walk.ledger.findings)
    wrong = check.is_wrong and not sources.tainted and not is_behind  # what is returned may be used inside, too
    record(walk, event, check.limit, wrong, sources.error, error=check.error, check=check)
    if wrong:
        answer(GRADIENT, Case(walk, node, event, tolerance.BACKWARD))
    own = Level()
    own.add(metrics.rel_l2, roundoff(walk, event), walk.noise.excess(event, metrics.rel_l2))
    if metrics.is_lower_bound:
        own.add(sources.error, 0.0, sources.excess)
    walk.backward.errors.setdefault(node.parent, Level()).merge(own)
    if node.parent is not None:
        walk.backward.inside.setdefault(node.parent.pair, Level()).merge(own)
    if digest is not None and event.role is not Role.GRAD_OUTPUT:
        walk.backward.passed_back.setdefault(digest, Level()).merge(own)
    if event.role is Role.GRAD_OUTPUT:
        walk.backward.errors.setdefault(node, Level()).merge(own)
        if not metrics.is_lower_bound:  # what arrived is as good as not compared else
            walk.backward.arrived.setdefault(node.pair, Level()).merge(own)


def _is_sum_of_parts(walk: Walk, node: Node, event: Event) -> bool:
    """Tell whether a call passes back what a rank's part of its output gives, where the other side has the whole of it.

    What all ranks pass back may be added up behind the module, as DTensor does; what is then used is judged there.
    """
    if event.role is not Role.GRAD_INPUT:
        return False
    halves, reader = walk.pairs.halves, (walk.pairs.a.reader, walk.pairs.b.reader)
    if reader[0].info.world_size == reader[1].info.world_size:
        return False
    rows = [half.rows.get(half.key(node), Role.OUTPUT) for half in halves]
    for slot in rows[0].keys() & rows[1].keys():
        shapes = [half.side.shapes[each[slot][0]] for half, each in zip(halves, rows, strict=True)]
        if side_with_parts(*reader, *shapes):
            return True
    return False


def _is_from_loss(walk: Walk, node: Node, event: Event, use: Use | None, digest: object) -> bool:
    """Tell whether a gradient comes from the loss alone: no other call used what the model returned."""
    if node.parent is not None or event.role is not Role.GRAD_OUTPUT or use is None or use.consumers:
        return False
    models = {top.pair for top in walk.pairs.nodes.values() if top.parent is None}
    return len(models) == 1 and digest not in walk.backward.passed_back


def _limit_at_a_kink(walk: Walk, node: Node, event: Event, use: Use | None) -> float:
    """Return the largest error that is noise behind a function with a kink, 0.0 behind others.

    It is no such error if it is a multiple of the gradient.
    """
    assert event.metrics is not None
    if event.role is Role.GRAD_OUTPUT:
        is_kink = use is not None and not use.consumers and _is_cut_off(walk, event)
    else:
        is_kink = _is_kink(class_a(walk, module_a(walk, node)))
    forward = walk.forward.errors.get(node, Level()).error
    if not is_kink or not forward or not abs(event.metrics.coherence) < _PARALLEL:
        return 0.0
    limit = tolerance.kink_limit(forward, _passed_on(walk, event))
    return limit if event.role is not Role.GRAD_OUTPUT else tolerance.UNSEEN_KINK * limit


def _passed_on(walk: Walk, event: Event) -> int:
    """Return how many elements could be passed back: where most of a gradient is zero, twice as many as are not."""
    size = math.prod(walk.pairs.a.shapes[event.row_a])
    return min(size, 2 * (size - walk.pairs.a.columns["zeros"][event.row_a]))


def _is_cut_off(walk: Walk, event: Event) -> bool:
    """Tell whether single elements of a gradient are zero on both sides, as behind ReLU, and not whole rows (padding)."""
    shape = walk.pairs.a.shapes[event.row_a]
    zeros = [half.side.columns["zeros"][half.row(event)] for half in walk.pairs.halves]
    return bool(shape) and min(zeros) > _CUT_OFF * math.prod(shape) and any(count % shape[-1] for count in zeros)


def _limit_beside(walk: Walk, node: Node, event: Event, use: Use | None, limit: float) -> float:
    """Return the error that is noise because what the same code passes back beside it is as far off, absolutely.

    Softmax's derivative sums to zero: what attention passes back to the queries may be small, with the rounding of what
    it passes back to the values. What a scan passes back to its steps' sizes is a sum over all that came to it: where
    that cancels out, the error of what came stays. Sizes may differ: it is the error of an element that counts.
    """
    metrics = event.metrics
    assert metrics is not None
    is_result = event.role is Role.GRAD_OUTPUT and use is not None and not use.consumers
    is_given = event.role is Role.GRAD_INPUT and use is not None and not use.producers
    if node.parent is None or not (is_result or is_given):
        return 0.0
    norm = max(metrics.norm_a, metrics.norm_b) / math.sqrt(math.prod(walk.pairs.a.shapes[event.row_a]) or 1)
    beside = walk.backward.beside.get(node.parent, 0.0)
    if metrics.rel_l2 <= limit:
        walk.backward.beside[node.parent] = max(beside, metrics.rel_l2 * norm)
    return tolerance.SIBLING_GAIN * beside / norm if norm and is_result else 0.0


def _cancelled_by_norm(walk: Walk, node: Node, event: Event) -> float:
    """Return how many times larger what a normalisation passes back would be, had it not cancelled out; 0.0 for others.

    It takes away from a gradient what lies along its output: of one that does, rounding is left. The rest it makes as
    many times larger as it makes its input.
    """
    assert event.metrics is not None
    if event.role is not Role.GRAD_INPUT or not _is_norm(class_a(walk, module_a(walk, node))):
        return 0.0
    key = node.micro, module_a(walk, node), node.call
    roles = Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT
    found = [list(walk.pairs.rows_a.get(key, role).values()) for role in roles]
    if any(len(rows) != 1 for rows in found):
        return 0.0
    given, made, arrived = (walk.pairs.a.columns["norm"][rows[0][0]] for rows in found)
    left = given * max(event.metrics.norm_a, event.metrics.norm_b)
    return made * arrived / left if left else 0.0


@functools.cache
def _is_kink(class_name: str) -> bool:
    return any(fnmatchcase(class_name, pattern) for pattern in _KINKS)


@functools.cache
def _is_norm(class_name: str) -> bool:
    return fnmatchcase(class_name, _NORMS)
