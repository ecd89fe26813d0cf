"""From the inputs to what the model returns: the first tensor that neither rounding nor its sources explain."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from probe.numbers import tokens
from probe.numbers.choices import WIDEST
from probe.numbers.statistics import unit_roundoff
from probe.numbers.tokens import Near
from probe.records import Phase, Role
from probe.verdict.distance.error import Error, View
from probe.verdict.distance.values import can_be_laid, error_of
from probe.verdict.distance.views import activation_between, seen_error
from probe.verdict.judge import blame
from probe.verdict.judge.beside import judge_beside
from probe.verdict.judge.healing import CARRIED, Healing, may_be_written_otherwise
from probe.verdict.judge.judging import Judging, bounded, has_direction, hides, norm_error
from probe.verdict.judge.loss import loss_agrees
from probe.verdict.judge.verdicts import Sources, State, Verdict, Verdicts
from probe.verdict.noise.limits import widened
from probe.verdict.noise.model import BACKWARD, FORWARD, JUDGES_NOTHING, OTHER, WORST
from probe.verdict.noise.rung import Check
from probe.verdict.noise.terms import centring_condition, product_condition, routing_limit, softmax_gain
from probe.verdict.steps.events import Event, Node

_ROUNDED_ONCE = 2.0
"""roundoffs by which two roundings of one number may differ"""


def judge_forward(judging: Judging) -> None:
    """Judge what calls were given and returned, in the order of A."""
    judge_beside(judging)
    moved = _rows_moved(judging)
    for event in judging.graph.forward():
        if not event.is_paired:
            continue
        sources = sources_of(judging, event)
        error = judging.step.error(event)
        scope = event.node.parent if event.node is not None else None
        if event.role is Role.INPUT and scope in moved and judging.graph.producer(event) is None:
            rows, of_rows = moved.pop(scope)
            if rows <= of_rows * routing_limit(of_rows, sources.error):
                judging.verdicts.routed[scope] = rows / of_rows
        if error is None:
            if _is_other_batch(judging, event) and judging.may_find(event):
                judging.verdicts.add(Verdict(event, State.INTRODUCED, 1.0, sources.u, 0.0))
                assert event.node is not None
                judging.finds(Phase.FORWARD, (event.node.a.path,), event, 0.0, "model-input")
                continue
            if not _is_wrong_size(judging, event, sources):
                passed = max(sources.error, _routed(judging, event))
                verdict = Verdict(event, State.OPEN, passed, sources.u, is_behind=sources.is_wrong, code="other-size")
                judging.verdicts.add(replace(verdict, excess=max(sources.excess, _routed(judging, event))))
                continue
            error = Error(1.0)
        _judge_value(judging, event, error, sources)
    _decide_experts(judging.verdicts)


def _decide_experts(verdicts: Verdicts) -> None:
    """Let what is open inside of experts be decided by what they return, if that is judged token by token."""
    told = {
        at
        for at in verdicts.routed
        if all(verdicts.agrees(each) and verdicts.rows(each, verdicts.tokens) is not None for each in at.outputs)
    }
    for each in list(verdicts.by_event.values()):
        if each.state is State.OPEN and each.event.node is not None and told.intersection(each.event.node.callers()):
            verdicts.add(replace(each, state=State.INHERITS))


def sources_of(judging: Judging, event: Event) -> Sources:
    """Return what an event was made of: tensors, its segment's weights, and the precisions on the way."""
    step, verdicts = judging.step, judging.verdicts
    segment = judging.graph.segment(event)
    made_of = judging.graph.sources(event)
    found = verdicts.of(made_of)
    nothing = (0.0, 0.0, 0.0)
    error, u, excess = verdicts.weights.get(segment.a.module, nothing) if segment is not None else nothing
    error, excess = (min(1.0, each if judging.is_first else WORST * each) for each in (error, excess))
    own = _own_roundoff(judging, event)
    u = max(found.u, own, u) if own == event.u else own
    is_unknown = segment is not None and segment.a.module not in verdicts.weights
    is_unknown = is_unknown and bool(step.a.weights_of(segment.a.module))
    if not judging.is_first and (segment is None or is_unknown):  # such as a state that an earlier step returned
        error, excess = (max(each[i] for each in [*verdicts.weights.values(), nothing]) for i in (0, 2))
        error = max(error, BACKWARD.floor(u)) if is_unknown else error
    if segment is None and event.a is not None and event.b is not None and event.a.hash is not None:
        error = max(error, judging.before.returned.get((event.a.hash, event.b.hash), 0.0))
    for each, passed, more in _written(judging, segment):
        error, excess, u = max(error, WORST * passed), max(excess, WORST * more), max(u, each)
    if segment is not None:
        has_own_code = event.role is Role.INPUT or bool(segment.inner)
        if has_own_code and made_of and judging.graph.producer(event) is None:
            u = max([u, *(unit_roundoff(call.autocast) for call in (segment.a, segment.b) if call.autocast)])
        for call in segment.a.inner:
            if call not in step.of_a:
                u = max([u, *(tensor.u for tensor in call.of(Role.OUTPUT).values())])
    hidden = [hides(each) * passed for each in made_of if (passed := verdicts.error(each))]
    alone, error, excess = error, max(found.error, error), max(found.excess, excess)
    return replace(found, error=error, u=u, excess=excess, hidden=max(hidden, default=0.0), own=alone)


def _written(judging: Judging, segment: Node | None) -> Iterator[tuple[float, float, float]]:
    """Yield roundoff, error and excess of a call's own weights that were written to in the step before it ended."""
    for place, found in judging.verdicts.written.items() if segment is not None else ():
        for wrote, event, error, excess in found if place and place[0] == segment.a.module else ():
            if wrote < segment.a.end:
                own = bounded(error.size)
                yield event.u, own, own if excess is None else excess


def _own_roundoff(judging: Judging, event: Event) -> float:
    """Return the roundoff of a tensor; of one that code of one side alone makes coarser, that of the other side."""
    node, step = event.node, judging.step
    assert node is not None and event.a is not None and event.b is not None
    if event.a.dtype == event.b.dtype or node.inner or node.a.autocast != node.b.autocast:
        return event.u
    if node.a.is_operation and node.parent is not None:  # the code around it may have made what it is given
        around = [*node.parent.inputs, *node.parent.outputs]
    elif event.role is not Role.OUTPUT or step.is_other_code(node.a.module):
        return event.u
    else:
        own = (each for each in step.parameters.events(Phase.INIT, Role.PARAM) if each.place)
        around = [*node.inputs, *(each for each in own if each.place[0] == node.a.module)]
    made_of = [(each.a, each.b) for each in around]
    is_alone = all(a is not None and b is not None and a.dtype == b.dtype for a, b in made_of)
    is_of_floats = any(a is not None and a.kind == "float" for a, _ in made_of)
    return min(event.a.u, event.b.u) if is_alone and is_of_floats else event.u


@dataclass(frozen=True)
class _Held:
    """What is held against a limit: the error of all tokens, or of those that tell (`is_near`)."""

    error: Error
    limit: float
    is_off: bool
    is_near: bool = False
    is_mixed: bool = False
    """others may be mixed into these tokens, and do not explain their error"""


def _limit(judging: Judging, event: Event, sources: Sources) -> tuple[float, float]:
    """Return the limit of a tensor, and how many times larger its module makes it."""
    step, segment = judging.step, judging.graph.segment(event)
    assert event.a is not None
    if event.a.kind == "integer":  # without a segment the program gives it
        return widened(0.0, routing=0.0 if segment is None else routing_limit(event.a.size, sources.error)), 1.0
    gains = {"cancelled": product_condition(step, event), "centred": centring_condition(step, event)}
    gains |= {"softmax": softmax_gain(step, segment)}
    limit = widened(FORWARD.limit(sources.u, sources.error), beside_peaks=FORWARD.limit(sources.u, sources.hidden))
    gain = math.prod(gains.values())
    return widened(limit, **{max(gains, key=gains.__getitem__): gain * limit}), gain


def _held(judging: Judging, event: Event, error: Error, sources: Sources, routed: float) -> _Held:
    (limit, gain), verdicts = _limit(judging, event, sources), judging.verdicts
    sources_off = sources.off if judging.is_first and not verdicts.written else None
    is_off = has_direction(event, error, sources.u, sources.error, sources_off)
    near = _nearest(judging, event, sources.u) if verdicts.tokens else None
    is_number = event.a is not None and event.a.kind == "integer"
    if near is None:
        is_wide = error.size > limit and routed and not is_number
        return _Held(error, widened(limit, experts=routed) if is_wide else limit, is_off)
    told, apart, may_mix = near
    if may_mix and (error.size > limit or is_off):
        return _Held(error, limit, is_off, True)
    own = max(told.error, sources.own)
    limit = FORWARD.limit(sources.u, own) + (tokens.MIXES * sources.error if may_mix else 0.0)
    limit = routing_limit(told.x.size, own) if is_number else limit * gain
    off = None if sources_off is None else told.off
    is_off = not may_mix and has_direction(told.event, apart, sources.u, own, off)
    return _Held(apart, widened(0.0, tokens=limit), is_off, True, may_mix and apart.size > limit)


def _judge_value(judging: Judging, event: Event, error: Error, sources: Sources) -> None:
    verdicts, routed, whole = judging.verdicts, _routed(judging, event), error
    assert event.a is not None
    held = _held(judging, event, error, sources, routed)
    error, limit = held.error, held.limit
    if event.a.kind == "integer" and 0 < whole.size and (error.size <= limit or sources.is_wrong):
        _note_routing(judging, event, whole)
    floor, own = FORWARD.floor(sources.u), bounded(max(whole.size, sources.error) if whole.is_bound else whole.size)
    known = {"has_direction": held.is_off, "passed": sources.off}
    check = judging.check(event, error, limit, FORWARD, sources.u, sources.excess, **known)

    def add(state: State, carried: float | None, code: str = "") -> None:
        """Give a verdict that passes on an error, or None: those of its sources."""
        off, excess = norm_error(event, whole), sources.excess if carried is None else None
        passed = sources.error if carried is None else carried
        is_behind = sources.is_wrong or check.is_consequence
        verdict = Verdict(event, state, passed, sources.u, check.limit, off, is_behind, code, sources.error, check)
        verdicts.add(replace(verdict, excess=excess))

    if check.code:
        add(State.OPEN, None, check.code)
    elif limit >= JUDGES_NOTHING and error.size > floor and not (check.is_fixed or sources.is_wrong):
        add(State.OPEN, own, "expert-routing" if routed else "no-limit")
    elif held.is_mixed or (held.is_near and limit > tokens.LOOSEST and error.size > floor and not check.is_wrong):
        verdicts.notes += ["mixed"] if held.is_mixed else []
        add(State.OPEN, own, "expert-routing")
    elif error is not whole and not check.is_wrong:
        add(State.INHERITS, own)
    elif not check.is_wrong and (check.is_fixed or not _shows_buffer(judging, event, error)):
        judging.explained(event, error, floor, sources.u, check, sources.error, sources.is_wrong)
    elif not (check.is_fixed or _is_of_other_samples(judging, event)) and (
        code := _without_effect(judging, event, error, sources, limit)
    ):
        add(State.HEALED, None, code)
    elif event.u > unit_roundoff("float32") and _chooses_on_one_side(event):
        verdicts.notes.append("mixed")
        add(State.OPEN, own, "expert-routing")
    elif _waits_for_loss(judging, event):
        add(State.OPEN, None, "label-inputs")
    elif check.is_consequence or (sources.is_wrong and not check.is_far):
        add(State.INHERITS, own)
    else:
        add(State.INTRODUCED, own)
        _find(judging, event, error, check, sources.is_wrong)


def _find(judging: Judging, event: Event, error: Error, check: Check, is_behind: bool) -> None:
    """Name who answers for a tensor that nothing explains."""
    labels = _labels_of(judging, event)
    if labels is not None:
        judging.finds(Phase.FORWARD, ("",), labels, check.limit, "model-input", error=judging.step.error(labels))
        return
    paths, code = blame.of_value(judging, event)
    buffers = judging.verdicts.differing_buffers.items()
    buffer = next((each for module, each in buffers if judging.step.path(module) in paths), None)
    if buffer is not None:
        judging.finds(Phase.INIT, paths[:1], buffer, 0.0, "buffer", error=judging.step.error(buffer))
    else:
        judging.finds(Phase.FORWARD, paths, event, check.limit, code, error=error, check=check, is_behind=is_behind)


def _without_effect(judging: Judging, event: Event, error: Error, sources: Sources, limit: float) -> str:
    """Return why a tensor that differs changes nothing: how it is written, or rows that no loss reaches; "": it may."""
    step = judging.step
    assert event.a is not None and event.b is not None
    gradients = step.gradients_of(event)
    seen = seen_error(event.a, event.b, gradients, error_of) if gradients is not None else None
    whole = step.error(event)
    if seen and whole and seen.size <= limit < error.size and seen.apart <= CARRIED * whole.apart:
        return "rows-without-loss"
    if not may_be_written_otherwise(step, event):
        return ""
    at_most = min(limit, FORWARD.limit(sources.u, sources.error))
    if event.role is Role.OUTPUT and activation_between(event.a, event.b, at_most):
        return "moved-border"
    agrees = loss_agrees(judging)
    heals = Healing(step, judging.graph, sources.error, sources.u, lambda: agrees).heals(event)
    return "moved-border" if heals else ""


def _shows_buffer(judging: Judging, event: Event, error: Error) -> bool:
    """Return True if an output shows more of a differing buffer than one rounding: a table on a coarser grid."""
    assert event.node is not None and event.a is not None
    buffer = judging.verdicts.differing_buffers.get(event.node.a.module)
    if buffer is None or event.role is not Role.OUTPUT or event.a.kind != "float" or judging.step.is_across_frameworks:
        return False
    assert buffer.a is not None and buffer.b is not None
    return buffer.a.dtype == buffer.b.dtype and buffer.a.kind == "float" and error.size > _ROUNDED_ONCE * event.u


def _waits_for_loss(judging: Judging, event: Event) -> bool:
    """Return True for what the program gives to the model and only its loss shows, such as labels: the loss decides."""
    node = event.node
    assert node is not None and event.a is not None
    if event.role is not Role.INPUT or node.parent is not None:
        return False
    handed = [(inner, each) for inner in node.inner for each in inner.inputs]
    shown = [(inner, each) for inner, each in handed if judging.graph.is_same_tensor(each.a, event.a)]
    returned = [out.a for inner, each in shown if not judging.step.is_equal(each) for out in inner.outputs]
    is_loss = any(out.a is not None and out.a.size == 1 for out in node.outputs)
    return is_loss and not any(a is not None and a.size > 1 for a in returned)


def _labels_of(judging: Judging, event: Event) -> Event | None:
    """Return the input of the model that differs and that only its loss shows, of an output that is the loss."""
    node = event.node
    assert node is not None and event.a is not None
    if event.role is not Role.OUTPUT or node.parent is not None or event.a.size > 1:
        return None
    known = (each for each in judging.verdicts.of_node(node) if each.code == "label-inputs")
    return next((each.event for each in known), None)


def _is_of_other_samples(judging: Judging, event: Event) -> bool:
    """Return True for an input of the model in micro-batches of which some were given other samples."""
    is_given = event.role is Role.INPUT and event.node is not None and event.node.parent is None
    return is_given and judging.step.batches.order.is_of_others


def _is_other_batch(judging: Judging, event: Event) -> bool:
    """Return True for an input of the model of another size, if what it returns has another one too, or differs."""
    node = event.node
    assert node is not None and event.a is not None and event.b is not None
    if event.role is not Role.INPUT or node.parent is not None or can_be_laid(event.a.form, event.b.form):
        return False
    if event.a.size == event.b.size and not event.a.is_known:
        return False
    if judging.step.is_in_parts(node):
        return False
    outputs = [out for out in node.outputs if out.is_paired]
    errors = [(judging.step.error(out), out.u) for out in outputs]
    return bool(outputs) and all(error is None or error.size > OTHER * u for error, u in errors)


def _is_wrong_size(judging: Judging, event: Event, sources: Sources) -> bool:
    """Return True if one class made two sizes of equal ones, and what the same code makes of them differs."""
    step, node = judging.step, event.node
    assert event.a is not None and event.b is not None and node is not None
    if event.role is not Role.OUTPUT or step.is_other_code(node.a.module) or event.a.size == event.b.size:
        return False
    if any(each.is_of_other_size for each in node.inputs) or step.is_part(event):
        return False
    short, long = sorted((event.a.form, event.b.form), key=len)
    if long[len(long) - len(short) :] == short:  # one is broadcast
        return False
    use = next((each for each in judging.graph.uses(event) if step.error(each) is not None), None)
    if use is None:
        return False
    error, scope = step.error(use), node.parent
    limit = max(FORWARD.limit(max(sources.u, use.u), sources.error), _routed(judging, use))
    is_off = error is not None and error.size > limit
    return is_off and (scope is None or not step.is_other_code(scope.a.module))


def _note_routing(judging: Judging, event: Event, error: Error) -> None:
    """Note the share of tokens whose choices rounding made otherwise, for the call and the one around it."""
    assert event.a is not None and event.node is not None
    judging.verdicts.tokens = tokens.count_of(event, (*event.node.inputs, *(event.node.parent or event.node).inputs))
    width = event.a.size // judging.verdicts.tokens
    for node in (event.node, event.node.parent):
        if node is not None:
            known = judging.verdicts.routed.get(node, 0.0)
            judging.verdicts.routed[node] = max(known, min(1.0, error.size * width))


def _rows_moved(judging: Judging) -> dict[Node | None, tuple[int, int]]:
    """Return, by call, how many rows its code moved between inner calls, and of how many: choices not recorded."""
    found: dict[Node | None, tuple[int, int]] = {}
    for scope in judging.step.nodes:
        given = [a.size // max(a.shape[-1], 1) for a in (each.a for each in scope.inputs) if a is not None and a.shape]
        tensors = [(each.a, each.b) for inner in scope.inner for each in inner.inputs if each.is_paired]
        rows = [(a.shape, b.shape) for a, b in tensors if a is not None and b is not None and a.shape and b.shape]
        moved = sum(abs(a[0] - b[0]) for a, b in rows if a[1:] == b[1:])
        if moved and not any(each.is_of_other_size for each in scope.inputs):
            found[scope] = moved, max([1, *given])
    return found


def _routed(judging: Judging, event: Event) -> float:
    """Return the error that a tensor may have behind choices that rounding made otherwise; inside a call, any."""
    node, routed = event.node, judging.verdicts.routed
    assert node is not None
    if not routed:
        return 0.0
    is_inside = any(each in routed and each is not node.parent for each in node.callers())
    if is_inside or (event.role is Role.INPUT and node.parent in routed):
        return 1.0
    return 1.5 * math.sqrt(routed.get(node, 0.0))


def _chooses_on_one_side(event: Event) -> bool:
    """Return True for what experts return whose choices, of each token that they are given, one side alone shows."""
    assert event.node is not None
    pairs = [each.both for each in event.node.inputs] if event.role is Role.OUTPUT else []
    given = [[each for each in side if each is not None and len(each.form) == 2] for side in zip(*pairs, strict=True)]
    chosen = [{each.form[0] for each in side if each.kind == "integer" and each.form[1] <= WIDEST} for side in given]
    rows = {each.form[0] for side in given for each in side if each.kind == "float"}
    return bool(chosen) and bool((chosen[0] ^ chosen[1]) & rows)


def _nearest(judging: Judging, event: Event, u: float) -> tuple[Near, Error, bool] | None:
    """Return what tokens tell that both sides route alike; True if others may be mixed into them."""
    node, verdicts, graph, step = event.node, judging.verdicts, judging.graph, judging.step
    assert node is not None
    segment, made_of = graph.segment(event), graph.sources(event)
    if segment is None or (segment in verdicts.routed and event.role is Role.INPUT and graph.producer(event) is None):
        return None  # experts are given their tokens in an order of their own
    own = [each for each in made_of if not (step.is_equal(each) or verdicts.state(each) is State.HEALED)]
    is_number = event.a is not None and event.a.kind == "integer"
    chosen = [] if is_number else verdicts.choices(node)
    near = tokens.near(event, own, chosen, verdicts.tokens, u, verdicts.rows)
    if near is None:
        return None
    error = Error(float(np.mean(near.x != near.y)), view=View.INTEGERS) if is_number else error_of(near.x, near.y)
    if error.max_at >= 0:
        row, column = divmod(error.max_at, near.x.shape[-1])
        error = replace(error, max_at=int(near.at[row]) * near.x.shape[-1] + column)
    weights = [len(step.a.zeros(each).shape) for each in step.a.weights_of(node.a.module)]
    is_leaf = event.role is Role.OUTPUT and len(own) == 1 and not (node.a.inner or node.b.inner)
    is_row_by_row = is_leaf and bool(weights) and max(weights) < 3 and weights.count(2) < 2  # as a norm, or one product
    is_same = len(made_of) == 1 and graph.is_same_tensor(made_of[0].a, event.a)
    return near, error, not (is_row_by_row or is_same or segment in verdicts.routed)
