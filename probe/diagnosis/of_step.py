"""Evidence from a step of `probe.verdict`."""

from __future__ import annotations

import functools

from probe.comparison.result import Divergence
from probe.diagnosis.evidence import NOTHING, Call, Evidence, Half, Made
from probe.records import Phase, Role
from probe.verdict.judge.verdicts import Finding
from probe.verdict.rows import metrics_of
from probe.verdict.side import Place
from probe.verdict.steps.events import Event, Node
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

_MOST_SOURCES = 6
"""of the calls that an input may be made from: the last"""


def evidence_of(step: Step, finding: Finding, said: Divergence) -> Evidence | None:
    """Return what a step holds about a finding; None if it names no pair of tensors."""
    event = finding.event
    node = event.node if event is not None else None
    if event is None:
        node = next((each for each in reversed(step.nodes) if each.parent is None), None)
        if finding.phase is not Phase.LOSS or node is None:
            return None
    module = node.a.module if node is not None else event.place[0] if event is not None and event.place else 0
    if module not in step.pair_of:
        return None
    pair = step.pair_of[module]
    micros = [len({call.micro for call in side.calls if call.micro >= 0}) for side in (step.a, step.b)]
    error = finding.error if event is None else step.error(event)
    return Evidence(
        said,
        event.phase if event is not None else finding.phase,
        event.role if event is not None else said.role,
        _half(step, "A", pair.a, event, node),
        _half(step, "B", pair.b, event, node),
        said.metrics if event is None or error is None else metrics_of(event, error),
        finding.micro,
        (micros[0], micros[1]),
        is_guess=pair.confidence < 1,
    )


def _half(step: Step, side: str, module: int, event: Event | None, node: Node | None) -> Half:
    half = step.a if side == "A" else step.b
    tensor, name = None, ""
    if event is not None:
        tensor, name = (event.a, event.slot_a) if side == "A" else (event.b, event.slot_b)
    own = [each for each in step.nodes if (each.a if side == "A" else each.b).module == module and each.a.micro >= 0]
    roots = [each for each in step.nodes if each.parent is None and each.a.micro >= 0]
    return Half(
        half.reader,
        half.step,
        module,
        name,
        tensor if tensor is not None else NOTHING,
        _call(step, side, node),
        [_call(step, side, each) for each in own],
        [(each.a.micro, _call(step, side, each)) for each in roots],
        _with_fused(step, side, event),
        {name: tensor for name, (_, tensor) in half.beside.items()},
        functools.partial(_made_from, step, side, node),
    )


def _with_fused(step: Step, side: str, event: Event | None) -> dict[tuple[Phase, Role], dict[Place, Tensor]]:
    """Return what belongs to parameters of a side; of those that are one on the other side, what they are together."""
    half = step.a if side == "A" else step.b
    found = {key: dict(tensors) for key, tensors in half.params.items()}
    if event is None or event.place is None or not step.parameters.bundles:
        return found
    for key in [key for key in found if key[1] is Role.PARAM]:
        for each in step.parameters.events(*key):
            if each.place is not None and each.a is not None and each.b is not None:
                module = each.place[0] if side == "A" else step.pair_of[each.place[0]].b
                tensor, name = (each.a, each.slot_a) if side == "A" else (each.b, each.slot_b)
                found[key][module, name] = tensor
    return found


def _call(step: Step, side: str, node: Node | None) -> Call:
    return lambda role: {} if node is None else step.tensors(node, side, role)


def _made_from(step: Step, side: str, node: Node | None, before: bool) -> list[list[Made]]:
    """Return what a tensor of a call may be made from: not what calls without a counterpart returned."""
    around = node.parent if node is not None and before else node
    if node is None or around is None:
        return []
    at = 0 if side == "A" else 1
    inside = [each for each in around.inner if not before or each.calls[at][0].end < node.calls[at][0].begin]
    found: list[list[Made]] = []
    for each in reversed(inside[-_MOST_SOURCES:]):
        calls = each.calls[at]
        if len({call.module for call in calls}) > 1:  # of several modules that are one on the other side
            slots = calls[0].of(Role.OUTPUT)
            parts = [[(call.path, slot, call.of(Role.OUTPUT).get(slot), False) for call in calls] for slot in slots]
            found += [[part for part in several if part[2] is not None] for several in parts]  # type: ignore[misc]
        else:
            whole = step.tensors(each, side, Role.OUTPUT)
            found += [[(calls[0].path, slot, tensor, False)] for slot, tensor in whole.items()]
    return found + [[("", slot, tensor, True)] for slot, tensor in step.tensors(around, side, Role.INPUT).items()]
