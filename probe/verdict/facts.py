"""Facts of a finding, and what to look at, by its code."""

from __future__ import annotations

from collections.abc import Callable

from probe.comparison.notes import Note, note
from probe.records import Role
from probe.verdict.judge.verdicts import Finding
from probe.verdict.steps.step import Step

Said = tuple[list[Note], Note | None]


def said_of(step: Step, finding: Finding) -> Said:
    """Return what was found, and what to look at."""
    return _FACTS.get(finding.code, _nothing)(step, finding)


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
    return [note("weights-differ", when=note("before-first-step"))], note("loading-of-weight")


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
    return [note("loss-alone-differs")], note("loss-scale-or-reduction")


def _update(step: Step, finding: Finding) -> Said:
    return [note("update-differs", is_seen=True)], note("settings-of-parameter")


_FACTS: dict[str, Callable[[Step, Finding], Said]] = {
    "module": _own_code,
    "caller": _caller,
    "unpaired-call": _caller,
    "maker-of-inputs": _caller,
    "model-input": _plain("model-is-given-other-inputs"),
    "weight": _weight,
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
    "update": _update,
    "length-of-update": _update,
    "along-weight": _update,
    "longer-updates": _update,
}
