"""What was judged, as rows of the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator

from probe.comparison.distance.metrics import Metrics, Status
from probe.comparison.notes import Note, note
from probe.comparison.result import SlotResult
from probe.records import JudgementName, Phase
from probe.verdict.distance.error import Error, View
from probe.verdict.judge.verdicts import State, Verdict, Verdicts
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

_JUDGEMENTS: dict[State, JudgementName] = {
    State.EQUAL: "equal",
    State.AGREES: "noise",
    State.INHERITS: "inherited",
    State.INTRODUCED: "introduced",
    State.HEALED: "noise",
    State.OPEN: "not judged",
}
_WITH_BLAME = (Phase.FORWARD, Phase.BACKWARD)
"""phases in which a row of blame answers"""


def rows_of(step: Step, verdicts: Verdicts) -> list[SlotResult]:
    """Return a row for each pair of tensors that was judged, in causal order."""
    judged = sorted(verdicts.by_event.values(), key=lambda each: (micro_of(each.event), each.event.phase))
    blame = {finding.event: finding.code for finding in verdicts.findings if finding.phase in _WITH_BLAME}
    return [row for each in judged for row in _row(step, each, blame.get(each.event, ""))]


def micro_of(event: Event | None) -> int:
    """Return the micro-batch of an event; 0 for parameters."""
    return event.node.a.micro if event is not None and event.node is not None else 0


def metrics_of(event: Event | None, error: Error | None) -> Metrics:
    """Return an error in the terms of the answer; that of a number has no event."""
    if error is None:
        assert event is not None
        return Metrics(Status.NOT_COMPARABLE, why=why_not(event))
    is_equal = error.size == 0 and not error.is_bound
    status = Status.EQUAL if is_equal else Status.NONFINITE if math.isinf(error.size) else Status.COMPARED
    product = 2 * error.norm_a * error.norm_b
    cosine = (
        (error.norm_a**2 + error.norm_b**2 - error.apart**2) / product if product and not error.is_bound else math.nan
    )
    return Metrics(
        status,
        error.size,
        max(-1.0, min(1.0, cosine)) if math.isfinite(cosine) and event is not None else math.nan,
        error.along,
        error.norm_a,
        error.norm_b,
        error.max_abs,
        estimated=error.view in (View.SKETCH, View.STATISTICS) and not is_equal,
        is_lower_bound=error.is_bound,
        why=mask_note(event, error) if event is not None else None,
        of_integers=error.view is View.INTEGERS,
    )


def mask_note(event: Event, error: Error) -> Note | None:
    """Say in which notations two masks are written; None for what is none."""
    a, b = event.a, event.b
    if error.view is not View.MASK or a is None or b is None:
        return None
    if a.kind == b.kind == "integer":
        return note("masks-are-inverses")
    if a.kind == b.kind:
        return note("masks-of-other-numbers", a=a.low, b=b.low)
    return note("masks-of-other-kinds", a=a.dtype, b=b.dtype)


def why_not(event: Event) -> Note:
    """Say why two tensors cannot be compared."""
    a, b = event.a, event.b
    assert a is not None and b is not None
    if a.size != b.size:
        return note("shapes-differ", a=a.shape, b=b.shape)
    return note("no-statistics") if a.dtype == b.dtype else note("kinds-differ", a=a.dtype, b=b.dtype)


def _row(step: Step, verdict: Verdict, blame: str) -> Iterator[SlotResult]:
    event = verdict.event
    if event.a is None or event.b is None:
        return
    module_a, module_b = _modules(step, event)
    here, there = step.a.reader.modules[module_a], step.b.reader.modules[module_b]
    error, check = step.error(event), verdict.check
    judgement = _JUDGEMENTS[verdict.state] if error is not None else "not comparable"
    yield SlotResult(
        step.a.step,
        micro_of(event),
        event.phase,
        event.role,
        event.node.a.number if event.node is not None else 0,
        here.path,
        here.class_name,
        event.slot_a,
        there.path,
        there.class_name,
        event.slot_b,
        event.a.dtype,
        event.b.dtype,
        event.a.shape,
        event.b.shape,
        step.pair_of[module_a].reason.value if module_a in step.pair_of else "",
        metrics_of(event, error),
        _record(event.a),
        _record(event.b),
        verdict.limit,
        check.error if check is not None else error.size if error is not None else math.nan,
        verdict=judgement,
        measure=check.measure if check is not None else "",
        is_fixed=check is not None and check.is_fixed,
        sources=verdict.sources,
        exemption=verdict.code,
        blame=blame,
    )


def _modules(step: Step, event: Event) -> tuple[int, int]:
    if event.node is not None:
        return event.node.a.module, event.node.b.module
    assert event.place is not None
    module = event.place[0]
    return module, step.pair_of[module].b if module in step.pair_of else module


def _record(tensor: Tensor) -> int:
    """Return the record of a tensor, or of its first part."""
    return _record(tensor.parts[0][0]) if tensor.parts else tensor.row
