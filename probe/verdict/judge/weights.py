"""The weights and buffers that a step begins with, and the buffers that its calls leave."""

from __future__ import annotations

from collections import defaultdict

from probe.matching import Reason
from probe.records import Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.judge.judging import MOST, Judging, Weights, bounded
from probe.verdict.judge.loss import loss_agrees, loss_error
from probe.verdict.judge.verdicts import State, Verdict
from probe.verdict.noise.model import BACKWARD, GRADIENT, WEIGHTS, WORST
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

_WRITTEN_OTHERWISE = 0.3
"""a weight in another representation differs by at least this"""
_AGREE = 0.03
"""error up to which the outputs of its module show that it is one"""


def weights_of(step: Step) -> Weights:
    """Return the weights that a step was recorded to begin with."""
    return _known(step, Role.PARAM)


def judge_weights(judging: Judging) -> None:
    """Judge the weights of the first step; take those that an earlier step left as sources."""
    step, verdicts = judging.step, judging.verdicts
    drift = BACKWARD.k if step.a.step else 1.0  # of steps that were not recorded
    for event, error, excess in judging.before:
        assert event.place is not None and event.a is not None
        module = event.place[0]
        limit = 0.0 if event.a.kind == "integer" else drift * WEIGHTS.limit(event.u, 0)
        check = judging.check(event, error, limit, WEIGHTS, event.u, 0.0) if judging.is_first else None
        is_wrong = check is not None and check.is_wrong and not check.is_consequence
        if is_wrong and error.size > _WRITTEN_OTHERWISE and _module_agrees(judging, module, error.size):
            verdicts.add(Verdict(event, State.HEALED, 0.0, event.u, limit, code="moved-border"))
            continue
        state = State.INTRODUCED if is_wrong else State.AGREES if error.size else State.EQUAL
        state = State.OPEN if check is not None and check.code else state
        shown = check.limit if check is not None else limit
        code = check.code if check is not None else ""
        verdicts.add(Verdict(event, state, bounded(error.size), event.u, shown, code=code, check=check, excess=excess))
        known, u, more = verdicts.weights.get(module, (0.0, 0.0, 0.0))
        own = bounded(error.size)
        verdicts.weights[module] = max(known, own), max(u, event.u), max(more, own if excess is None else excess)
        if is_wrong:
            line = mapping_line(judging, event, error)
            code, facts = ("mapping", (line,)) if line else ("weight", ())
            paths = (step.path(module),)
            judging.finds(Phase.INIT, paths, event, shown, code, error=error, facts=facts, check=check)
    for owners in step.parameters.owners():  # of one parameter
        known = [verdicts.weights[owner] for owner in owners if owner in verdicts.weights]
        for owner in owners if known else ():
            error, u, more = map(max, zip(*known, strict=True))
            verdicts.weights[owner] = error, u, more
    if judging.is_first:
        _join_findings(judging)
        _judge_forms(judging)
    for event, error, _ in _known(step, Role.BUFFER) if judging.is_first else ():
        assert event.place is not None
        if error.size > WEIGHTS.limit(event.u, 0):
            verdicts.differing_buffers[event.place[0]] = event


def judge_buffers(judging: Judging) -> None:
    """Judge what the calls left in their buffers, such as running statistics."""
    step, verdicts = judging.step, judging.verdicts
    given: dict[int, tuple[float, float, float, bool]] = defaultdict(lambda: (0.0, 0.0, 0.0, False))
    for event, verdict in verdicts.by_event.items():
        if event.node is not None and event.role is Role.INPUT:
            e, u, excess, wrong = given[event.node.a.module]
            wrong |= verdict.is_behind or verdict.state is State.INTRODUCED
            excess = max(excess, verdict.beyond)
            given[event.node.a.module] = max(e, verdict.error), max(u, verdict.u), excess, wrong
    for event in step.parameters.events(Phase.UPDATE, Role.BUFFER):
        error, place = step.error(event), event.place
        assert place is not None
        first = verdicts.differing_buffers.get(place[0])
        if error is None or first is not None or place[0] not in given:
            limit = WEIGHTS.limit(max(event.u, judging.lowest_precision()), 0)
            is_left = error is not None and error.size > limit
            if first is not None and is_left and not (verdicts.findings or step.is_other_code(place[0])):
                _find_buffer(judging, first)
            continue
        sources, u, excess, is_behind = given[place[0]]
        kept, beyond = judging.kept.get(place, (0.0, 0.0))
        limit = max(GRADIENT.limit(max(u, event.u), sources), WORST * kept)
        check = judging.check(event, error, limit, GRADIENT, max(u, event.u), max(excess, beyond))
        is_wrong = check.is_wrong and not (step.is_across_frameworks or is_behind or check.is_consequence)
        state = State.INTRODUCED if is_wrong else State.OPEN if check.code else State.AGREES
        verdicts.add(Verdict(event, state, bounded(error.size), u, check.limit, code=check.code, check=check))
        if is_wrong:
            paths = (step.path(place[0]),)
            judging.finds(Phase.UPDATE, paths, event, check.limit, "buffer", error=error, check=check)


def _find_buffer(judging: Judging, event: Event) -> None:
    """Find a buffer that differs as the step begins, unless the rung lets it pass."""
    error, limit = judging.step.error(event), WEIGHTS.limit(max(event.u, judging.lowest_precision()), 0)
    assert error is not None and event.place is not None
    check = judging.check(event, error, limit, WEIGHTS, event.u, 0.0)
    if check.is_wrong and not check.is_consequence:
        paths = (judging.step.path(event.place[0]),)
        judging.finds(Phase.INIT, paths, event, check.limit, "buffer", error=error, check=check)


def _join_findings(judging: Judging) -> None:
    """Make findings on most of the weights one: the runs do not start alike."""
    judged = sum(judging.verdicts.state(event) is not State.OPEN for event, *_ in judging.before)
    found = [each for each in judging.verdicts.findings if each.code == "weight"]
    if len(found) > max(1, MOST * judged) and len({each.paths for each in found}) > 1:
        judging.verdicts.findings[:] = [each for each in judging.verdicts.findings if each.code != "weight"]
        first, facts = found[0], (len(found), judged)
        event, error, check = first.event, first.error, first.check
        judging.finds(Phase.INIT, ("",), event, first.limit, "all-weights", error=error, facts=facts, check=check)


def _judge_forms(judging: Judging) -> None:
    """Find weights of one class that have other sizes, or integers for floats; a padded vocabulary is neither."""
    step = judging.step
    events = [event for event in step.parameters.events(Phase.INIT, Role.PARAM) if event.is_paired]
    vocabularies = {_sizes(event) for event in events if "mbedding" in _class(judging, event)}
    for event in events:
        a, b = event.a, event.b
        assert a is not None and b is not None and event.place is not None
        module = event.place[0]
        if step.error(event) is not None or module not in step.pair_of or step.is_other_code(module):
            continue
        is_other_size = a.size != b.size and _sizes(event) not in vocabularies and not _is_part(judging, event)
        is_other_kind = a.kind != b.kind and a.size == b.size
        if (is_other_kind or is_other_size) and judging.may_find(event):
            code = "weight-kind" if is_other_kind else "weight-shape"
            judging.finds(Phase.INIT, (step.path(module),), event, 0.0, code)


def _sizes(event: Event) -> tuple[int, int]:
    assert event.a is not None and event.b is not None
    return max(event.a.shape, default=1), max(event.b.shape, default=1)


def _class(judging: Judging, event: Event) -> str:
    assert event.place is not None
    return judging.step.a.reader.modules[event.place[0]].class_name


def _is_part(judging: Judging, event: Event) -> bool:
    """Return True if one rank of several recorded, and may hold a part of the weight."""
    return any(half.reader.info.world_size > 1 for half in (judging.step.a, judging.step.b))


def mapping_line(judging: Judging, event: Event, error: Error) -> str:
    """Return the mapping's line for a weight, if another weight of B has A's values or the loss shows no difference."""
    step, matching = judging.step, judging.step.matching
    assert event.place is not None and event.a is not None
    is_said = step.pair_of[event.place[0]].reason is Reason.MAPPED if event.place[0] in step.pair_of else False
    others = step.b.params.get((Phase.INIT, Role.PARAM), {})
    is_elsewhere = event.a.hash is not None and any(each.hash == event.a.hash for each in others.values())
    is_unseen = error.size > _WRITTEN_OTHERWISE and loss_error(step) is not None and loss_agrees(judging)
    if not is_said or not (is_elsewhere or is_unseen):
        return ""
    return matching.lines.get(event.place[0], "the mapping")


def _known(step: Step, role: Role) -> Weights:
    events = ((event, step.error(event)) for event in step.parameters.events(Phase.INIT, role))
    return [(event, error, None) for event, error in events if error is not None]


def _module_agrees(judging: Judging, module: int, error: float) -> bool:
    outputs = [out for node in judging.step.nodes if node.a.module == module for out in node.outputs]
    errors = [found.size for found in map(judging.step.error, outputs) if found is not None]
    return bool(errors) and max(errors) < min(_AGREE, 0.1 * error)
