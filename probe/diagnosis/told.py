"""Findings as they are told: as places of both sides, with all that they rest on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from probe.answer.result import Divergence, Kind, NodeRef
from probe.diagnosis.confidence import confidence_of
from probe.diagnosis.facts import is_call_of_a_alone, said_of
from probe.diagnosis.parts import ranks_of
from probe.records import ModuleInfo, Phase, Role
from probe.verdict.distance.error import View
from probe.verdict.judge.verdicts import Finding
from probe.verdict.rows import metrics_of, micro_of
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step


def divergence_of(step: Step, finding: Finding) -> Divergence:
    """Return a finding with its places on both sides and what was found, as notes."""
    event = finding.event
    places_a = {module.path: index for index, module in enumerate(step.a.reader.modules)}
    refs_a, refs_b = [], []
    alone_b = {call.path for call in step.b.calls if call.module not in step.a_of}
    for path in finding.paths:
        is_of_b = finding.code == "unpaired-call" and path in alone_b
        module = None if is_of_b else places_a.get(path)
        is_alone = module is None or (module not in step.pair_of and path != "")
        is_made = finding.code == "unpaired-call" and any(node.a.module == module for node in step.nodes)
        is_more_of_a = is_made and is_call_of_a_alone(step, path)
        if module is not None and (is_more_of_a or not is_made):
            modules = step.a.reader.modules
            refs_a += [_ref(step, finding, modules[part], "A", path) for part in step.parts_of("A", module)]
        if not is_alone and module in step.pair_of and not is_more_of_a:
            parts, modules = step.parts_of("B", step.pair_of[module].b), step.b.reader.modules
            refs_b += [_ref(step, finding, modules[part], "B", modules[parts[0]].path) for part in parts]
        elif module is None:
            refs_b += [_ref(step, finding, each, "B") for each in step.b.reader.modules if each.path == path]
    check = finding.check
    facts, advice = said_of(step, finding)
    is_measured = finding.code != "longer-updates" and (event is None or event.is_paired)
    return Divergence(
        finding.phase,
        event.role if event is not None else _ROLES.get(finding.phase, Role.DELTA),
        _kind(finding),
        confidence_of(finding),
        tuple(refs_a),
        tuple(refs_b),
        metrics_of(event, finding.error) if finding.error is not None and is_measured else None,
        finding.limit if is_measured else math.nan,
        (*(check.facts if check is not None else ()), *facts, *ranks_of(step, finding)),
        advice,
        error=check.error if check is not None else math.nan,
        measure=check.measure if check is not None else "",
        event=event,
        blame=finding.code,
        is_read=finding.code == "settings",
    )


def _ref(step: Step, finding: Finding, module: ModuleInfo, side: str, home: str = "") -> NodeRef:
    event, half, home = finding.event, step.a if side == "A" else step.b, home or module.path
    slot = _slot_in(step, event, home, side) if event is not None else "loss" if finding.code == "loss" else ""
    call = event.node.a.number if event is not None and event.node is not None else 0
    return NodeRef.of(half.step, micro_of(event), module, call, slot)


def _slot_in(step: Step, event: Event, path: str, side: str) -> str:
    """Return the slot of a tensor that belongs to a module itself; of others that it answers for none."""
    is_in_b = side == "B" and (event.place is None or event.place[0] in step.pair_of)
    half, module = step.b if is_in_b else step.a, step.modules_of(event)[is_in_b]
    if half.reader.modules[module].path != path:
        return ""
    slot = event.slot_a if side == "A" else event.slot_b
    return slot if event.node is not None else half.recorded_slot(module, slot)


def _kind(finding: Finding) -> Kind:
    if finding.code in _KINDS:
        return _KINDS[finding.code]
    if finding.error is not None and math.isinf(finding.error.size):
        return Kind.NONFINITE if finding.error.view is View.NON_FINITE else Kind.MISSING
    return {Phase.INIT: Kind.INIT, Phase.UPDATE: Kind.UPDATE}.get(finding.phase, Kind.INTRODUCED)


_ROLES = {Phase.LOSS: Role.VALUE, Phase.FORWARD: Role.INPUT}
"""of findings without a tensor"""
_KINDS = {
    "model-input": Kind.INPUTS,
    "unpaired-call": Kind.MISSING,
    "weight-shape": Kind.SHAPE,
    "weight-kind": Kind.DTYPE,
}


def findings_in_order(step: Step, findings: Iterable[Finding]) -> Iterator[tuple[Divergence, Finding]]:
    """Yield findings in causal order, each module once, as they are told and as they were found."""
    seen: set[tuple[str, ...]] = set()
    for finding in sorted(findings, key=lambda each: each.phase):
        if finding.paths not in seen:
            seen.add(finding.paths)
            yield divergence_of(step, finding), finding
