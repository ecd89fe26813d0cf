"""What the program logged of the batch beside the model, such as labels and images."""

from __future__ import annotations

from probe.records import Phase, Role
from probe.verdict.judge.judging import Judging, bounded
from probe.verdict.judge.verdicts import State, Verdict
from probe.verdict.noise.model import FORWARD
from probe.verdict.steps.events import Event


def judge_beside(judging: Judging) -> None:
    """Judge what was logged outside of all modules before the model ran, and integers behind it: the batch.

    Floats that were logged behind the model are computed from it.
    """
    step = judging.step
    top = next((node for node in step.nodes if node.parent is None), None)
    if top is None:
        return
    for slot, (at, a) in step.a.beside.items():
        when, b = step.b.beside.get(slot, (at, None))
        is_before = at < top.a.begin and when < top.b.begin
        if b is None or (not is_before and not (a.kind == b.kind == "integer")):
            continue
        event = Event(Phase.FORWARD, Role.VALUE, top, None, slot, slot, a, b, at)
        error = step.error(event)
        limit = FORWARD.floor(event.u) if a.kind != "integer" else 0.0
        if error is None:
            judging.verdicts.add(Verdict(event, State.OPEN, 1.0, event.u, limit))
            if judging.may_find(event):
                judging.finds(Phase.FORWARD, ("",), event, limit, "model-input")
            continue
        check = judging.check(event, error, limit, FORWARD, event.u, 0.0)
        state, size, code = State.AGREES if error.size else State.EQUAL, bounded(error.size), check.code
        state = State.OPEN if code else State.INTRODUCED if check.is_wrong else state
        judging.verdicts.add(Verdict(event, state, size, event.u, check.limit, code=code, check=check))
        if check.is_wrong:
            judging.finds(Phase.FORWARD, ("",), event, check.limit, "model-input", error=error, check=check)
