"""What was judged, as rows of the answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from probe.answer.metrics import Metrics, Status
from probe.answer.result import SlotResult
from probe.notes import Note, note
from probe.records import Phase
from probe.verdict.distance.error import Error, View
from probe.verdict.judge.verdicts import State, Verdict, Verdicts
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

_JUDGEMENTS = {State.AGREES: "noise", State.HEALED: "noise", State.INHERITS: "inherited", State.OPEN: "not judged"}
"""what a state is called in the answer, where it has another name there"""


def rows_of(step: Step, verdicts: Verdicts) -> list[SlotResult]:
    """Return a row for each pair of tensors that was judged, in causal order."""
    judged = sorted(verdicts.by_event.values(), key=lambda each: (micro_of(each.event), each.event.phase))
    blame = {finding.event: finding.code for finding in verdicts.findings}
    factors = dict.fromkeys((Phase.BACKWARD, Phase.GRADIENT), verdicts.unused_factor)
    return [row for each in judged for row in _row(step, each, blame.get(each.event, ""), factors)]


def micro_of(event: Event | None) -> int:
    """Return the micro-batch of an event; 0 for parameters."""
    return event.node.a.micro if event is not None and event.node is not None else 0


def metrics_of(event: Event | None, error: Error | None) -> Metrics:
    """Return an error in the terms of the answer; that of a number has no event."""
    if error is None:
        assert event is not None
        return Metrics(Status.NOT_COMPARABLE, why=why_not(event))
    are_read = event is not None and all(each is not None and each.has_values for each in (event.a, event.b))
    is_estimate = error.view in (View.SKETCH, View.STATISTICS) or (error.view is View.INTEGERS and not are_read)
    may_be_permuted = error.view is View.PERMUTED and error.is_bound
    is_equal = error.size == 0 and not (error.is_bound or is_estimate) and error.view is not View.MASK
    status = Status.EQUAL if is_equal else Status.NONFINITE if math.isinf(error.size) else Status.COMPARED
    status = Status.PERMUTED if may_be_permuted else status
    product = 2 * error.norm_a * error.norm_b
    inner = error.norm_a * error.norm_a + error.norm_b * error.norm_b - error.apart * error.apart
    cosine = inner / product if product and not error.is_bound else 0.0 if error.size == 1 else math.nan
    cosine = max(-1.0, min(1.0, cosine)) if math.isfinite(cosine) and event is not None else math.nan
    figures = error.max_abs, place_of(event, error), error.max_rel, error.mean_abs
    return Metrics(
        *(status, error.size, cosine, error.along, error.norm_a, error.norm_b),
        *figures,
        estimated=is_estimate or may_be_permuted,
        is_lower_bound=error.is_bound,
        why=note("axes-may-be-swapped") if may_be_permuted else form_note(event, error) if event is not None else None,
        of_integers=error.view is View.INTEGERS,
    )


def place_of(event: Event | None, error: Error | None) -> tuple[int, ...] | None:
    """Return where, in A, two tensors differ most; None without values."""
    if event is None or event.a is None or error is None or not error.is_of_values:
        return None
    return event.a.place(error.max_at) if error.max_abs else None


def form_note(event: Event, error: Error) -> Note | None:
    """Say in which notations two masks are written, or that one side pads the tensor; None for what is neither."""
    a, b = event.a, event.b
    if error.view is View.PADDED and a is not None and b is not None:
        return note("padding-left-out", a=a.shape, b=b.shape)
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
    if a.size != b.size or a.form != b.form:
        return note("shapes-differ", a=a.shape, b=b.shape)
    if a.dtype != b.dtype:
        return note("kinds-differ", a=a.dtype, b=b.dtype)
    return note("not-told" if a.is_known and b.is_known else "no-statistics")


def _row(step: Step, verdict: Verdict, blame: str, factors: Mapping[Phase, float]) -> Iterator[SlotResult]:
    event = verdict.event
    if event.a is None or event.b is None:
        return
    module_a, module_b = step.modules_of(event)
    here, there = step.a.reader.modules[module_a], step.b.reader.modules[module_b]
    error = step.error(event, factors.get(event.phase, 1.0))
    check, (parts_a, parts_b) = verdict.check, step.places(event)
    slots = event.slot_a, event.slot_b
    if event.node is None:
        slots = step.a.recorded_slot(module_a, event.slot_a), step.b.recorded_slot(module_b, event.slot_b)
    when = step.a.step, micro_of(event), event.phase, event.role, event.node.a.number if event.node is not None else 0
    where = here.path, here.class_name, slots[0], there.path, there.class_name, slots[1]
    form = event.a.dtype, event.b.dtype, event.a.shape, event.b.shape
    reason = step.pair_of[module_a].reason.value if module_a in step.pair_of else ""
    found = metrics_of(event, error), _record(event.a), _record(event.b), verdict.limit
    held = check.error if check is not None else error.size if error is not None else math.nan
    said: dict[str, Any] = {
        "verdict": _JUDGEMENTS.get(verdict.state, verdict.state.value) if error is not None else "not comparable"
    }
    said |= {"measure": check.measure, "is_fixed": check.is_fixed} if check is not None else {}
    said |= {"sources": verdict.sources, "exemption": verdict.code, "blame": blame}
    yield SlotResult(*when, *where, *form, reason, *found, held, tuple(parts_a), tuple(parts_b), **said)


def _record(tensor: Tensor) -> int:
    """Return the record of a tensor, or of its first part."""
    return _record(tensor.parts[0][0]) if tensor.parts else tensor.row
