"""The answer: findings as places of both sides, and everything that they rest on."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from probe.comparison.answer import Comparison
from probe.comparison.coverage.detection_limit import limit_of_detection
from probe.comparison.coverage.left_out import LeftOut
from probe.comparison.coverage.verdict_margin import margin_of
from probe.comparison.module_pairs import module_pairs
from probe.comparison.notes import Note
from probe.comparison.result import Divergence, Kind, NodeRef, Verdict
from probe.comparison.settings import DifferingSetting
from probe.matching import Matching
from probe.records import ModuleInfo, Phase, Role
from probe.store.reading.reader import Reader
from probe.verdict.confidence import confidence_of
from probe.verdict.coverage.doubts import Doubts
from probe.verdict.distance.error import View
from probe.verdict.facts import said_of
from probe.verdict.judge.verdicts import Finding
from probe.verdict.noise.rung import Noise
from probe.verdict.ranks import ranks_of
from probe.verdict.rows import metrics_of, micro_of
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

if TYPE_CHECKING:
    from probe.comparison.acceptance.result import Acceptance
    from probe.verdict.accepting import AcceptanceTally


def divergence_of(step: Step, finding: Finding) -> Divergence:
    """Return a finding with its places on both sides and what was found, as notes."""
    event = finding.event
    places_a = {module.path: index for index, module in enumerate(step.a.reader.modules)}
    refs_a, refs_b = [], []
    for path in finding.paths:
        module = places_a.get(path)
        is_alone = module is None or (module not in step.pair_of and path != "")
        if module is not None:
            refs_a.append(_ref(step, finding, step.a.reader.modules[module], "A"))
        if not is_alone and module in step.pair_of:
            refs_b.append(_ref(step, finding, step.b.reader.modules[step.pair_of[module].b], "B"))
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
        event=cast("Any", event),
        blame=finding.code if finding.phase in (Phase.FORWARD, Phase.BACKWARD) else "",
        is_read=finding.code == "settings",
    )


def answer_of(
    readers: tuple[Reader, Reader],
    matching: Matching,
    doubts: Doubts,
    findings: tuple[Divergence, ...],
    steps: Sequence[tuple[int, int]],
    left_out: Iterable[LeftOut],
    settings: tuple[DifferingSetting, ...],
    noise: Noise,
    table: AcceptanceTally | None = None,
) -> Comparison:
    """Assemble the answer."""
    a, b = readers
    tally, trees = doubts.tally, doubts.tally.trees
    doubts.notes += noise.notes()
    doubts.doubt(*noise.reasons(tally.rows))
    reasons = tuple(dict.fromkeys(doubts.reasons))
    verdict = Verdict.DIVERGED if findings else Verdict.UNDECIDED if reasons else Verdict.ALIGNED
    verdict = Verdict.UNDECIDED if a.info.run_id == b.info.run_id else verdict
    changes, told = tuple(dict.fromkeys(tally.changes)), {fact for finding in findings for fact in finding.facts}
    notes = (*(change.note for change in changes if change.note not in told), *doubts.notes)
    return Comparison(
        verdict,
        findings,
        tally.coverage(),
        tuple(dict.fromkeys(notes)),
        noise.name,
        tuple(tally.rows),
        matching,
        str(a.path),
        str(b.path),
        *tally.alone(findings),
        inputs=tally.inputs(),
        reasons=reasons,
        flip=margin_of(verdict, findings, tally.rows),
        unseen=limit_of_detection(verdict, noise.uses_built_in, tally.rows),
        left_out=tuple(left_out),
        steps=tuple(steps),
        changes=changes,
        ignored_a=tuple(trees[0].path(module) for module in sorted(matching.ignored_a)),
        ignored_b=tuple(trees[1].path(module) for module in sorted(matching.ignored_b)),
        pairs=module_pairs(matching, *trees),
        runs=doubts.runs,
        settings=settings,
        acceptance=_accepted(table, verdict, findings, reasons) if table is not None else None,
    )


def _accepted(
    table: AcceptanceTally, verdict: Verdict, findings: Sequence[Divergence], reasons: Sequence[Note]
) -> Acceptance:
    from probe.comparison.acceptance.deciding import decided  # which few comparisons ask for

    return decided(cast("Any", table), verdict, findings, reasons)


def _ref(step: Step, finding: Finding, module: ModuleInfo, side: str) -> NodeRef:
    event, half = finding.event, step.a if side == "A" else step.b
    slot = _slot_in(step, event, module.path, side) if event is not None else "loss" if finding.code == "loss" else ""
    call = event.node.a.number if event is not None and event.node is not None else 0
    return NodeRef.of(half.step, micro_of(event), module, call, slot)


def _slot_in(step: Step, event: Event, path: str, side: str) -> str:
    """Return the slot of a tensor that belongs to a module itself; of others that it answers for none."""
    if event.node is not None:
        home = event.node.a.path if side == "A" else event.node.b.path
    else:
        assert event.place is not None
        home = step.path(event.place[0])
        if side == "B" and event.place[0] in step.pair_of:
            home = step.b.reader.modules[step.pair_of[event.place[0]].b].path
    return "" if home != path else event.slot_a if side == "A" else event.slot_b


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
