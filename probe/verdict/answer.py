"""The answer: findings as places of both sides, and everything that they rest on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from probe.comparison.answer import Comparison
from probe.comparison.coverage.detection_limit import limit_of_detection
from probe.comparison.coverage.left_out import LeftOut
from probe.comparison.coverage.verdict_margin import margin_of
from probe.comparison.module_pairs import module_pairs
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Kind, NodeRef, Verdict
from probe.matching import Matching
from probe.records import ModuleInfo, Phase, Role
from probe.store.reading.reader import Reader
from probe.verdict.coverage.doubts import Doubts
from probe.verdict.distance.error import View
from probe.verdict.judge.verdicts import Finding
from probe.verdict.noise.rung import Noise
from probe.verdict.ranks import ranks_of
from probe.verdict.rows import mask_note, metrics_of, micro_of, why_not
from probe.verdict.steps.step import Step

if TYPE_CHECKING:
    from probe.comparison.acceptance.result import Acceptance
    from probe.verdict.accepting import AcceptanceTally

_CONFIDENCE = 0.9
_UNSHOWN = 0.6
"""confidence of settings that differ while no number does"""


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
    facts, advice = _FACTS.get(finding.code, _nothing)(step, finding)
    return Divergence(
        finding.phase,
        event.role if event is not None else _ROLES.get(finding.phase, Role.DELTA),
        _kind(finding),
        _CONFIDENCE if finding.is_shown else _UNSHOWN,
        tuple(refs_a),
        tuple(refs_b),
        metrics_of(event, finding.error) if event is not None and finding.error is not None else None,
        finding.limit,
        (*(check.facts if check is not None else ()), *facts, *ranks_of(step, finding)),
        advice,
        error=check.error if check is not None else math.nan,
        measure=check.measure if check is not None else "",
        event=cast("Any", event),
        blame=finding.code if finding.phase in (Phase.FORWARD, Phase.BACKWARD) else "",
    )


def answer_of(
    readers: tuple[Reader, Reader],
    matching: Matching,
    doubts: Doubts,
    findings: tuple[Divergence, ...],
    steps: Sequence[tuple[int, int]],
    left_out: Iterable[LeftOut],
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
        acceptance=_accepted(table, verdict, findings, reasons) if table is not None else None,
    )


def _accepted(
    table: AcceptanceTally, verdict: Verdict, findings: Sequence[Divergence], reasons: Sequence[Note]
) -> Acceptance:
    from probe.comparison.acceptance.deciding import decided  # which few comparisons ask for

    return decided(cast("Any", table), verdict, findings, reasons)


def _ref(step: Step, finding: Finding, module: ModuleInfo, side: str) -> NodeRef:
    event, half = finding.event, step.a if side == "A" else step.b
    slot = "" if event is None else event.slot_a if side == "A" else event.slot_b
    call = event.node.a.number if event is not None and event.node is not None else 0
    return NodeRef.of(half.step, micro_of(event), module, call, slot)


def _kind(finding: Finding) -> Kind:
    if finding.code in _KINDS:
        return _KINDS[finding.code]
    if finding.error is not None and math.isinf(finding.error.size):
        return Kind.NONFINITE if finding.error.view is View.NON_FINITE else Kind.MISSING
    return {Phase.INIT: Kind.INIT, Phase.UPDATE: Kind.UPDATE}.get(finding.phase, Kind.INTRODUCED)


_ROLES = {Phase.LOSS: Role.OUTPUT, Phase.FORWARD: Role.INPUT}
"""of findings without a tensor"""
_KINDS = {"model-input": Kind.INPUTS, "weight-shape": Kind.SHAPE, "weight-kind": Kind.DTYPE}


# Facts: what was found, and what to look at, by the code of a finding

Said = tuple[list[Note], Note | None]


def _nothing(step: Step, finding: Finding) -> Said:
    return [], None


def _own_code(step: Step, finding: Finding) -> Said:
    node = finding.event.node if finding.event is not None else None
    errors = [error.size for each in node.inputs if (error := step.error(each)) is not None] if node is not None else []
    weights = note("parameters-equal") if node is not None and step.a.weights_of(node.a.module) else None
    return [note("output-alone-differs", error=max(errors, default=0.0), weights=weights)], note("code-of-module")


def _caller(step: Step, finding: Finding) -> Said:
    event = finding.event
    if event is None or event.node is None:
        return [], note("code-of-module")
    is_input = event.role is Role.INPUT
    said = note(
        "next-tensor-differs",
        path=event.node.a.path or "the whole model",
        is_input=is_input,
        role=event.role.label,
        slot=event.slot_a,
    )
    return [said], note("code-of-module")


def _plain(code: str, advice: str = "") -> Callable[[Step, Finding], Said]:
    def said(step: Step, finding: Finding) -> Said:
        return [note(code)], note(advice) if advice else None

    return said


def _gradient(step: Step, finding: Finding) -> Said:
    return [note("gradient-of-parameter-differs", has_arrived=True)], note("accumulation-and-reduction")


def _backward(step: Step, finding: Finding) -> Said:
    event = finding.event
    if event is None or event.node is None:
        return [], note("backward-of-module")
    path, role = event.node.a.path or "the whole model", event.role.label
    return [note("gradient-differs", path=path, role=role, slot=event.slot_a)], note("backward-of-module")


def _weight(step: Step, finding: Finding) -> Said:
    number = step.a.step
    when = note("before-step", step=number) if number else note("before-first-step")
    if finding.code == "all-weights":
        count, judged = finding.facts
        advice = note("record-steps-before", step=number) if number else note("start-from-the-same-weights")
        return [note("parameters-differ", count=count, judged=judged, when=when)], advice
    advice = note("record-steps-before", step=number) if number else note("loading-of-weight")
    return [note("weights-differ", when=when)], advice


def _form(step: Step, finding: Finding) -> Said:
    assert finding.event is not None
    advice = "built-with-other-sizes" if finding.code == "weight-shape" else "other-kind-of-numbers"
    return [why_not(finding.event)], note(advice)


def _model_input(step: Step, finding: Finding) -> Said:
    event = finding.event
    is_open = event is not None and event.is_paired and step.error(event) is None
    told = why_not(event) if is_open and event is not None else note("model-is-given-other-inputs")
    if event is not None and finding.error is not None:
        told = mask_note(event, finding.error) or told
    if event is not None and event.role is Role.VALUE and not is_open:
        told = note("logged-input-differs", slot=event.slot_a)
    return [*finding.facts, told][:1], note("same-batch")


def _mapping(step: Step, finding: Finding) -> Said:
    event = finding.event
    assert event is not None and event.place is not None
    pair = step.pair_of[event.place[0]]
    paths = step.path(pair.a), step.b.reader.modules[pair.b].path
    return [note("mapping-says-pair", a=paths[0], b=paths[1], line=finding.facts[0])], note("loading-of-weight")


def _settings(step: Step, finding: Finding) -> Said:
    said = [note("other-setting", name=name, a=a, b=b) for name, a, b in finding.facts]
    return said, note("settings-of-parameter")


def _loss(step: Step, finding: Finding) -> Said:
    losses = [half.scalars.get("loss") for half in (step.a, step.b)]
    told = [note("losses-differ", a=losses[0], b=losses[1])] if None not in losses else []
    return [*told, note("loss-alone-differs")], note("loss-scale-or-reduction")


def _update(step: Step, finding: Finding) -> Said:
    return [note("update-differs", is_seen=True)], note("settings-of-parameter")


def _behind(step: Step, finding: Finding) -> Said:
    return list(finding.facts[:2]), finding.facts[2]


_FACTS: dict[str, Callable[[Step, Finding], Said]] = {
    "module": _own_code,
    "caller": _caller,
    "unpaired-call": _caller,
    "maker-of-inputs": _caller,
    "model-input": _model_input,
    "weight": _weight,
    "all-weights": _weight,
    "weight-shape": _form,
    "weight-kind": _form,
    "buffer": _plain("output-of-module-differs"),
    "mapping": _mapping,
    "loss": _loss,
    "loss-scale": _loss,
    "loss-behind": _loss,
    "own-backward": _backward,
    "code-behind": _backward,
    "gradient": _gradient,
    "all-gradients": _gradient,
    "settings": _settings,
    "behind-optimizer": _behind,
    "update": _update,
    "length-of-update": _update,
    "along-weight": _update,
    "longer-updates": _update,
}


def findings_in_order(step: Step, findings: Iterable[Finding]) -> Iterator[tuple[Finding, Divergence]]:
    """Yield findings in causal order, each module once."""
    seen: set[tuple[str, ...]] = set()
    for finding in sorted(findings, key=lambda each: each.phase):
        if finding.paths not in seen:
            seen.add(finding.paths)
            yield finding, divergence_of(step, finding)
