"""The weights and buffers that a step begins with, and the buffers that its calls leave."""

from __future__ import annotations

import math
from collections import defaultdict

import numpy as np

from probe.matching import Reason
from probe.records import Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.judge.judging import MOST, Judging, Weights, Wrong, bounded
from probe.verdict.judge.loss import loss_agrees, loss_error
from probe.verdict.judge.verdicts import State, Verdict
from probe.verdict.judge.written import take_written
from probe.verdict.noise.limits import widened
from probe.verdict.noise.model import BACKWARD, GRADIENT, WEIGHTS, WORST
from probe.verdict.noise.rung import Check
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

_WRITTEN_OTHERWISE = 0.3
"""a weight in another representation differs by at least this"""
_AGREE = 0.03
"""error up to which the outputs of its module show that it is one"""


def judge_weights(judging: Judging) -> None:
    """Judge the weights of the first step; take those that an earlier step left as sources."""
    step, verdicts, first = judging.step, judging.verdicts, judging.is_first
    drift = BACKWARD.k if step.a.step else 1.0  # of steps that were not recorded
    seen = [bounded(error.size) for _, error, _ in judging.before.weights if not error.is_bound]
    wrong = []
    for event, error, excess in judging.before.weights:
        assert event.place is not None and event.a is not None
        module = event.place[0]
        own = 0.0 if event.a.kind == "integer" else WEIGHTS.floor(event.u)
        limit = widened(own, steps_before=drift * own)
        check = judging.check(event, error, limit, WEIGHTS, event.u, 0.0) if first else Check(error.size, limit, False)
        may_be = module not in step.pair_of or step.is_across_frameworks or step.is_other_code(module)
        may_be &= check.is_wrong and not check.is_consequence and error.size > _WRITTEN_OTHERWISE
        if may_be and _module_agrees(judging, module, error.size):
            verdicts.add(Verdict(event, State.HEALED, 0.0, event.u, limit, code="moved-border"))
            continue
        if judging.judged(event, error, check, excess):
            line = mapping_line(judging, event, error)
            if line:
                judging.blames(Phase.INIT, event, "mapping", check, error=error, facts=(line,))
            else:
                wrong.append(Wrong(check.share, event, error, check.limit, "weight", check))
        size = max(error.size, limit, *seen) if error.is_bound and not first else error.size  # of a bound, as its limit
        _take(judging, event, bounded(size), excess)
    for event, error, excess in judging.before.found.values():
        _take(judging, event, bounded(error.size), excess)
    for event in step.parameters.events(Phase.UPDATE, Role.DELTA) if not judging.is_first else ():
        if _is_unknown(step, event):
            assert event.place is not None
            verdicts.weights[event.place[0]] = 1.0, event.u, 1.0
    for owners in step.parameters.owners():  # of one parameter
        known = [verdicts.weights[owner] for owner in owners if owner in verdicts.weights]
        if known:
            error, u, more = map(max, zip(*known, strict=True))
            verdicts.weights.update(dict.fromkeys(owners, (error, u, more)))
    take_written(judging)
    if judging.is_first:
        judged = sum(verdicts.state(event) is not State.OPEN for event, *_ in judging.before.weights)
        if len(wrong) > max(1, MOST * judged) and len({each.event.place[0] for each in wrong if each.event.place}) > 1:
            judging.finds_worst(Phase.INIT, wrong, judged, True, "all-weights")
        else:
            for each in wrong:
                judging.blames(Phase.INIT, each.event, "weight", each.check, error=each.error)
        _judge_forms(judging)
        for event, error, _ in known_of(step, Role.BUFFER):
            if event.place is not None and error.size > WEIGHTS.limit(event.u, 0):
                verdicts.differing_buffers[event.place[0]] = event


def judge_buffers(judging: Judging) -> None:
    """Judge what the calls left in their buffers, such as running statistics."""
    step, verdicts = judging.step, judging.verdicts
    given: dict[int, tuple[float, float, float, bool, float]] = defaultdict(lambda: (0.0, 0.0, 0.0, False, 0.0))
    for event, verdict in verdicts.by_event.items():
        if event.node is not None and event.role is Role.INPUT:
            e, u, excess, wrong, rms = given[event.node.a.module]
            wrong |= verdict.is_behind or verdict.state in (State.INTRODUCED, State.OPEN)
            rms = max(rms, event.a.rms) if event.a is not None and event.a.kind == "float" else rms
            excess = max(excess, verdict.beyond)
            given[event.node.a.module] = max(e, verdict.error), max(u, verdict.u), excess, wrong, rms
    begun = {event.place: event for event in step.parameters.events(Phase.INIT, Role.BUFFER)}
    for event in step.parameters.events(Phase.UPDATE, Role.BUFFER):
        error, place = step.error(event), event.place
        assert place is not None
        first = verdicts.differing_buffers.get(place[0])
        if error is None or first is not None or place[0] not in given:
            if first is not None and error is not None:
                _judge_begun(judging, first, event, error)
            continue
        sources, u, excess, is_behind, rms = given[place[0]]
        kept, beyond, was = judging.before.kept.get(place, (0.0, 0.0, begun.get(place)))
        limit = widened(GRADIENT.limit(max(u, event.u), sources), as_begun=WORST * kept)
        assert event.a is not None
        larger = rms * math.sqrt(event.a.size) / max(error.norm_a, error.norm_b, 1e-300)
        limit = widened(limit, larger_given=limit * larger)
        check = judging.check(event, error, limit, GRADIENT, max(u, event.u), max(excess, beyond))
        is_counter = event.a.kind == "integer"  # counts calls, or what they saw: outputs show what it is used for
        is_wrong = check.is_wrong and not (is_counter or is_behind or check.is_consequence)
        is_wrong = is_wrong and not (step.is_across_frameworks and _is_divided_otherwise(judging, event, was, limit))
        state = State.OPEN if check.code or (is_counter and error.size > 0) else State.AGREES
        state, known = State.INTRODUCED if is_wrong else state, {"code": check.code, "sources": sources, "check": check}
        verdicts.add(Verdict(event, state, bounded(error.size), u, check.limit, **known))
        if is_wrong:
            judging.blames(Phase.FORWARD, event, "buffer", check, error=error)
    for event in verdicts.differing_buffers.values():  # nothing may show one that no call writes to
        is_found = any(finding.event is event for finding in verdicts.findings)
        verdicts.add(Verdict(event, State.INTRODUCED if is_found else State.OPEN, 0.0, event.u, code="other-buffer"))


def _judge_begun(judging: Judging, first: Event, event: Event, left: Error) -> None:
    """Find a buffer that differs as the step begins, and still does when calls have written to it."""
    step, error = judging.step, judging.step.error(first)
    assert error is not None and first.a is not None and event.a is not None and first.place is not None
    is_same = first.slot_a != event.slot_a or first.a.hash == event.a.hash
    limit = WEIGHTS.limit(max(event.u, judging.lowest_precision()), 0)
    if is_same or left.size <= limit or judging.verdicts.findings or step.is_other_code(first.place[0]):
        return
    of_steps = max((1 / n for n in _counts(judging, first)), default=0.0)  # divided otherwise in steps not recorded
    if step.is_across_frameworks and step.a.step and "var" in first.slot_a and error.size <= of_steps:
        return
    check = judging.check(first, error, limit, WEIGHTS, first.u, 0.0)
    if check.is_wrong and not check.is_consequence:
        judging.blames(Phase.INIT, first, "buffer", check, error=error)


def _is_divided_otherwise(judging: Judging, event: Event, was: Event | None, limit: float) -> bool:
    """Return True for running variances of which one side divides by n, the other by n − 1, as far as sketches tell.

    With a factor f, and a share k that both keep of what they had: v′ − f·w′ = k·(v − f·w).
    """
    assert event.place is not None and event.a is not None
    sketches = [getattr(each, "sketch", None) for e in (event, was) if e is not None for each in (e.a, e.b)]
    if "var" not in event.place[1] or len(sketches) < 4 or any(each is None for each in sketches):
        return "var" in event.place[1]
    counts = _counts(judging, event)
    v, w, v0, w0 = sketches
    gaps = [(v - f * w, v0 - f * w0) for n in counts for f in (n / (n - 1), (n - 1) / n)]
    shares = [min(1.0, max(0.0, x @ y / max(y @ y, 1e-300))) for x, y in gaps]
    return any(np.linalg.norm(x - k * y) <= limit * event.a.norm for k, (x, y) in zip(shares, gaps, strict=True))


def _counts(judging: Judging, event: Event) -> set[int]:
    """Return of how many elements a call makes one of a buffer."""
    assert event.place is not None and event.a is not None
    given = [each.a for node in judging.step.nodes if node.a.module == event.place[0] for each in node.inputs]
    return {each.size // event.a.size for each in given if each is not None} - {0, 1}


def _judge_forms(judging: Judging) -> None:
    """Find weights of one class that have other sizes, or integers for floats; a padded vocabulary is neither."""
    step = judging.step
    events = [event for event in step.parameters.events(Phase.INIT, Role.PARAM) if event.is_paired]
    for event in events:
        a, b = event.a, event.b
        assert a is not None and b is not None and event.place is not None
        module = event.place[0]
        if step.error(event) is not None or module not in step.pair_of or step.is_other_code(module):
            continue
        is_padded = any(sizes in step.padding for sizes in zip(a.laid, b.laid, strict=False))
        is_other_size = a.size != b.size and not is_padded and not step.is_part(event)
        is_other_kind = a.kind != b.kind and a.size == b.size
        if (is_other_kind or is_other_size) and judging.may_find(event):
            judging.blames(Phase.INIT, event, "weight-kind" if is_other_kind else "weight-shape")


def mapping_line(judging: Judging, event: Event, error: Error) -> str:
    """Return the mapping's line for a weight, if another weight of B has A's values or the loss shows no difference."""
    step, matching = judging.step, judging.step.matching
    assert event.place is not None and event.a is not None
    pair, others = step.pair_of.get(event.place[0]), step.b.params.get((Phase.INIT, Role.PARAM), {})
    is_elsewhere = event.a.hash is not None and any(each.hash == event.a.hash for each in others.values())
    is_unseen = error.size > _WRITTEN_OTHERWISE and loss_error(step) is not None and loss_agrees(judging)
    is_meant = pair is not None and pair.reason is Reason.MAPPED and (is_elsewhere or is_unseen)
    return matching.lines.get(event.place[0], "the mapping") if is_meant else ""


def _take(judging: Judging, event: Event, own: float, excess: float | None) -> None:
    """Take a weight as a source of what its module makes."""
    assert event.place is not None
    known, u, more = (weights := judging.verdicts.weights).get(event.place[0], (0.0, 0.0, 0.0))
    weights[event.place[0]] = max(known, own), max(u, event.u), max(more, own if excess is None else excess)


def _is_unknown(step: Step, event: Event) -> bool:
    """Return True for a weight that the steps before changed, and no counterpart is compared with."""
    half, pairs = (step.a, step.pair_of) if event.a is None else (step.b, step.a_of)  # the other side's may be it
    is_loose = any(place[0] not in pairs for place in half.params.get((Phase.UPDATE, Role.DELTA), {}))
    return step.error(event) is None and (event.is_paired or is_loose)


def known_of(step: Step, role: Role, phase: Phase = Phase.INIT) -> Weights:
    """Return the weights or buffers that a step was recorded to begin with, or had in another phase."""
    events = step.parameters.events(phase, role)
    return [(event, error, None) for event in events if (error := step.error(event)) is not None]


def _module_agrees(judging: Judging, module: int, error: float) -> bool:
    outputs = [out for node in judging.step.nodes if node.a.module == module for out in node.outputs]
    errors = [found for found in map(judging.step.error, outputs) if found is not None]
    is_shown = any(not found.is_bound for found in errors)
    return is_shown and max(found.size for found in errors) < min(_AGREE, 0.1 * error)
