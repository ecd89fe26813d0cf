"""From the inputs to what the model returns: the first tensor that neither rounding nor its sources explain."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.distance.values import can_be_laid, error_of
from probe.verdict.distance.views import activation_between, seen_error
from probe.verdict.judge import blame
from probe.verdict.judge.beside import judge_beside
from probe.verdict.judge.healing import CARRIED, Healing, may_be_written_otherwise
from probe.verdict.judge.judging import Judging, bounded, has_direction, norm_error
from probe.verdict.judge.loss import loss_agrees
from probe.verdict.judge.verdicts import Sources, State, Verdict
from probe.verdict.noise.model import FORWARD, JUDGES_NOTHING, OTHER, WORST
from probe.verdict.noise.rung import Check
from probe.verdict.noise.terms import routing_limit, softmax_gain
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


def sources_of(judging: Judging, event: Event) -> Sources:
    """Return what an event was made of: tensors, its segment's weights, and the precisions on the way."""
    step, verdicts = judging.step, judging.verdicts
    segment = judging.graph.segment(event)
    made_of = judging.graph.sources(event)
    found = verdicts.of(made_of)
    nothing = (0.0, 0.0, 0.0)
    error, u, excess = verdicts.weights.get(segment.a.module, nothing) if segment is not None else nothing
    error, excess = (min(1.0, each if judging.is_first else WORST * each) for each in (error, excess))
    u = max(found.u, event.u, u)
    if segment is not None:
        has_own_code = event.role is Role.INPUT or bool(segment.inner)
        if has_own_code and made_of and judging.graph.producer(event) is None:
            u = max([u, *(unit_roundoff(call.autocast) for call in (segment.a, segment.b) if call.autocast)])
        for call in segment.a.inner:
            if call not in step.of_a:
                u = max([u, *(tensor.u for tensor in call.of(Role.OUTPUT).values())])
    return replace(found, error=max(found.error, error), u=u, excess=max(found.excess, excess))


def _judge_value(judging: Judging, event: Event, error: Error, sources: Sources) -> None:
    step, verdicts = judging.step, judging.verdicts
    assert event.a is not None and event.node is not None
    if event.a.kind == "integer":
        limit = routing_limit(event.a.size, sources.error)
        if 0 < error.size <= limit and not sources.is_wrong:
            _note_routing(judging, event, error)
    else:
        gain = softmax_gain(step, judging.graph.segment(event))
        limit, routed = FORWARD.limit(sources.u, gain * sources.error), _routed(judging, event)
        if error.size > limit and routed:
            alike = _error_of_alike(judging, event)
            error, limit = (alike, limit) if alike is not None else (error, max(limit, routed))
    sources_off = sources.off if judging.is_first else None
    is_off = has_direction(event, error, sources.u, sources.error, sources_off)
    floor, own = FORWARD.floor(sources.u), bounded(error.size)
    check = judging.check(event, error, limit, FORWARD, sources.u, sources.excess, has_direction=is_off)

    def add(state: State, carried: float | None, code: str = "") -> None:
        """Give a verdict that passes on an error, or None: those of its sources."""
        off, excess = norm_error(event, error), sources.excess if carried is None else None
        passed = sources.error if carried is None else carried
        is_behind = sources.is_wrong or check.is_consequence
        verdict = Verdict(event, state, passed, sources.u, check.limit, off, is_behind, code, sources.error, check)
        verdicts.add(replace(verdict, excess=excess))

    if check.code:
        add(State.OPEN, None, check.code)
    elif limit >= JUDGES_NOTHING and error.size > floor and not check.is_fixed:
        add(State.OPEN, own, "expert-routing" if _routed(judging, event) else "no-limit")
    elif not check.is_wrong and (check.is_fixed or not _shows_buffer(judging, event, error)):
        judging.explained(event, error, floor, sources.u, check, sources.error, sources.is_wrong)
    elif not _is_of_other_samples(judging, event) and _is_representation(judging, event, error, sources, limit):
        add(State.HEALED, None, "moved-border")
    elif _waits_for_loss(judging, event):
        add(State.OPEN, None, "label-inputs")
    elif sources.is_wrong or check.is_consequence:
        add(State.INHERITS, own)
    else:
        add(State.INTRODUCED, own)
        _find(judging, event, error, check)


def _find(judging: Judging, event: Event, error: Error, check: Check) -> None:
    """Name who answers for a tensor that nothing explains."""
    labels = _labels_of(judging, event)
    if labels is not None:
        judging.finds(Phase.FORWARD, ("",), labels, check.limit, "model-input", error=judging.step.error(labels))
        return
    paths, code = blame.of_value(judging, event)
    buffer = _differing_buffer(judging, paths)
    if buffer is not None:
        judging.finds(Phase.INIT, paths[:1], buffer, 0.0, "buffer", error=judging.step.error(buffer))
    else:
        judging.finds(Phase.FORWARD, paths, event, check.limit, code, error=error, check=check)


def _is_representation(judging: Judging, event: Event, error: Error, sources: Sources, limit: float) -> bool:
    """Return True if a tensor differs in how it is written, or in rows that the loss does not see."""
    step = judging.step
    assert event.a is not None and event.b is not None
    gradients = step.gradients_of(event)
    seen = seen_error(event.a, event.b, gradients, error_of) if gradients is not None else None
    whole = step.error(event)
    if seen is not None and whole is not None and seen.size <= limit < error.size:
        if seen.apart <= CARRIED * whole.apart:
            return True
    if not may_be_written_otherwise(step, event):
        return False
    if event.role is Role.OUTPUT and activation_between(event.a, event.b, FORWARD.limit(sources.u, sources.error)):
        return True
    agrees = loss_agrees(judging)
    return Healing(step, judging.graph, sources.error, sources.u, lambda: agrees).heals(event)


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
    shown = [
        each
        for inner in node.inner
        for each in inner.inputs
        if judging.graph.is_same_tensor(each.a, event.a) and not judging.step.is_equal(each)
    ]
    outputs = [out for out in node.outputs if out.a is not None]
    is_loss = any(out.a is not None and out.a.size == 1 for out in outputs)
    return is_loss and not any(_returns_more_than_a_loss(each.node) for each in shown)


def _labels_of(judging: Judging, event: Event) -> Event | None:
    """Return the input of the model that differs and that only its loss shows, of an output that is the loss."""
    node = event.node
    assert node is not None and event.a is not None
    if event.role is not Role.OUTPUT or node.parent is not None or event.a.size > 1:
        return None
    known = (each for each in judging.verdicts.of_node(node) if each.code == "label-inputs")
    return next((each.event for each in known), None)


def _returns_more_than_a_loss(node: Node | None) -> bool:
    return node is not None and any(out.a is not None and out.a.size > 1 for out in node.outputs)


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
    outputs = [out for out in node.outputs if out.is_paired]
    errors = [(judging.step.error(out), out.u) for out in outputs]
    return bool(outputs) and all(error is None or error.size > OTHER * u for error, u in errors)


def _is_wrong_size(judging: Judging, event: Event, sources: Sources) -> bool:
    """Return True if one class made two sizes of equal ones, and what the same code makes of them differs."""
    step, node = judging.step, event.node
    assert event.a is not None and event.b is not None and node is not None
    if event.role is not Role.OUTPUT or step.is_other_code(node.a.module) or event.a.size == event.b.size:
        return False
    if _is_given_other_sizes(node):
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
    width = event.a.form[-1] if len(event.a.form) > 1 else 1
    for node in (event.node, event.node.parent):
        if node is not None:
            known = judging.verdicts.routed.get(node, 0.0)
            judging.verdicts.routed[node] = max(known, min(1.0, error.size * width))


def _rows_moved(judging: Judging) -> dict[Node | None, tuple[int, int]]:
    """Return, by call, how many rows its code moved between inner calls, and of how many: choices not recorded."""
    found: dict[Node | None, tuple[int, int]] = {}
    for scope in judging.step.nodes:
        given = [
            each.a.size // max(each.a.shape[-1], 1) for each in scope.inputs if each.a is not None and each.a.shape
        ]
        tensors = [(each.a, each.b) for inner in scope.inner for each in inner.inputs if each.is_paired]
        rows = [(a.shape, b.shape) for a, b in tensors if a is not None and b is not None and a.shape and b.shape]
        moved = sum(abs(a[0] - b[0]) for a, b in rows if a[1:] == b[1:])
        if moved and not _is_given_other_sizes(scope):
            found[scope] = moved, max([1, *given])
    return found


def _is_given_other_sizes(node: Node) -> bool:
    return any(each.a is not None and each.b is not None and each.a.size != each.b.size for each in node.inputs)


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


def _error_of_alike(judging: Judging, event: Event) -> Error | None:
    """Return the error of the tokens that both sides route alike; None unless the values tell them."""
    node = event.node
    assert node is not None and event.a is not None and event.b is not None
    around = [each for each in (node, node.parent) if each is not None]
    known = [each for at in around for each in (*at.inputs, *(out for inner in at.inner for out in inner.outputs))]
    chosen = [each for each in known if each.is_paired and each.a is not None and each.a.kind == "integer"]
    for choice in chosen:
        error = judging.step.error(choice)
        assert choice.a is not None and choice.b is not None
        tensors = event.a, event.b, choice.a, choice.b
        if error is None or not error.size or not all(each.has_values and len(each.form) > 1 for each in tensors):
            continue
        x, y, here, there = (each.values().reshape(-1, each.form[-1]) for each in tensors)
        if len({len(x), len(y), len(here), len(there)}) == 1 and x.shape == y.shape and here.shape == there.shape:
            is_alike = (np.sort(here, -1) == np.sort(there, -1)).all(-1)
            return error_of(x[is_alike], y[is_alike]) if is_alike.any() else None
    return None


def _differing_buffer(judging: Judging, paths: tuple[str, ...]) -> Event | None:
    buffers = judging.verdicts.differing_buffers.items()
    return next((event for module, event in buffers if judging.step.path(module) in paths), None)
