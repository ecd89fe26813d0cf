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
        if slot not in step.b.beside:
            continue
        when, b = step.b.beside[slot]
        is_before = at < top.a.begin and when < top.b.begin
        event = Event(Phase.FORWARD, Role.VALUE, top, None, slot, slot, a, b, at)
        error = step.error(event)
        if not is_before and not (a.kind == b.kind == "integer"):
            continue
        limit = FORWARD.floor(event.u) if a.kind != "integer" else 0.0
        is_wrong = error is None or error.size > limit
        state = (
            State.OPEN
            if error is None
            else State.INTRODUCED
            if is_wrong
            else State.AGREES
            if error and error.size
            else State.EQUAL
        )
        size = 1.0 if error is None else bounded(error.size)
        judging.verdicts.add(Verdict(event, state, size, event.u, limit))
        if is_wrong:
            judging.finds(Phase.FORWARD, ("",), event, limit, "model-input", error=error)
