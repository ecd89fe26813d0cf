"""The weights and buffers that a step begins with, and the buffers that its calls leave."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from probe.matching import Reason
from probe.records import Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.judge.judging import Judging, bounded
from probe.verdict.judge.loss import loss_agrees, loss_error
from probe.verdict.judge.verdicts import State, Verdict
from probe.verdict.noise.model import GRADIENT, WEIGHTS
from probe.verdict.steps.events import Event

_WRITTEN_OTHERWISE = 0.3
"""a weight in another representation differs by at least this"""
_AGREE = 0.03
"""error up to which the outputs of its module show that it is one"""


def judge_weights(judging: Judging, before: Sequence[tuple[Event, Error, float | None]]) -> None:
    """Judge the weights of the first step; take those that an earlier step left, ``before``, as sources."""
    step, verdicts = judging.step, judging.verdicts
    for event, error, excess in before or [(*each, None) for each in _known(judging, Role.PARAM)]:
        assert event.place is not None and event.a is not None
        module = event.place[0]
        limit = 0.0 if event.a.kind == "integer" else WEIGHTS.limit(event.u, 0)
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
    for event, error in _known(judging, Role.BUFFER) if judging.is_first else ():
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
        if error is None or place[0] in verdicts.differing_buffers or place[0] not in given:
            continue
        sources, u, excess, is_behind = given[place[0]]
        limit = GRADIENT.limit(max(u, event.u), sources)
        check = judging.check(event, error, limit, GRADIENT, max(u, event.u), excess)
        is_wrong = check.is_wrong and not (step.is_across_frameworks or is_behind or check.is_consequence)
        state = State.INTRODUCED if is_wrong else State.OPEN if check.code else State.AGREES
        verdicts.add(Verdict(event, state, bounded(error.size), u, check.limit, code=check.code, check=check))
        if is_wrong:
            paths = (step.path(place[0]),)
            judging.finds(Phase.UPDATE, paths, event, check.limit, "buffer", error=error, check=check)


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


def _known(judging: Judging, role: Role) -> list[tuple[Event, Error]]:
    events = ((event, judging.step.error(event)) for event in judging.step.parameters.events(Phase.INIT, role))
    return [(event, error) for event, error in events if error is not None]


def _module_agrees(judging: Judging, module: int, error: float) -> bool:
    outputs = [out for node in judging.step.nodes if node.a.module == module for out in node.outputs]
    errors = [found.size for found in map(judging.step.error, outputs) if found is not None]
    return bool(errors) and max(errors) < min(_AGREE, 0.1 * error)
