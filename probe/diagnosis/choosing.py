"""Trying the hints on the findings, the best supported first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probe.answer.failing import unless_it_fails
from probe.answer.metrics import Status
from probe.answer.result import Divergence, Kind
from probe.diagnosis.evidence import Evidence
from probe.diagnosis.hint import Found, Grade, Hint
from probe.diagnosis.table import HINTS, OF_NUMBERS
from probe.notes import Note, note, plain

_MOST_FINDINGS = 8
"""findings of a step, the first ones, whose tensors are read once more"""
_MOST_HINTS = 3
_KINDS = (Kind.INPUTS, Kind.INTRODUCED, Kind.INIT, Kind.UPDATE, Kind.DTYPE)
_GRADIENT_SCALE, _PERMUTED = "gradient scale", "permuted"
_IN_ITS_PLACE = ("computed-in-its-place", "parameter-is-missing")
"""codes of advice that only what is verified says more than"""
_OF_LOSS = "loss-scale-or-reduction"
"""code of the advice on a factor that all gradients have"""
_GENERAL = {
    "accumulation-and-reduction", "backward-of-module", "behind-optimizer-step", "betas-and-first-state",
    "clipping-and-unscaling", "code-of-module", "code-of-operation", "code-that-calls-module", "code-that-makes-call",
    "decay-of-group", "learning-rate-and-correction", "learning-rate-and-schedule",
    "loaded-state-and-skipped-steps", "loading-of-running-statistics", "loading-of-weight", "loss-function",
    "loss-function-and-scale", "loss-scale-or-reduction", "maker-of-inputs", "modules-left-out-by-mapping",
    "number-of-layers", "order-of-calls", "precision-of-module", "same-numbers-in-another-order",
    "set-back-behind-optimizer-step", "settings-of-module", "settings-of-norm", "settings-of-parameter",
    "split-of-layer", "update-of-running-statistics", "what-optimizer-divides-by", "writes-behind-step",
    "writes-between-forwards",
}  # fmt: skip
"""codes of the walk's own advice that a better one takes the place of: it says where to look, not what is wrong"""


@dataclass(frozen=True, slots=True)
class Given:
    """A hint that the numbers of a finding support."""

    hint: Hint
    found: Found

    @property
    def advice(self) -> Note:
        """What was found, whether it is verified, what to look at."""
        found = self.found
        is_verified = found.grade is Grade.VERIFIED
        return note("supported", name=self.hint.name, found=found.said, is_verified=is_verified, by=found.by)

    def as_json(self) -> dict[str, object]:
        """Return it by the names in JSON."""
        return {
            "name": self.hint.name, "grade": self.found.grade.label, "verified": self.found.grade is Grade.VERIFIED,
            "found": str(self.found.said), "code": self.found.said.code,
            "from": str(self.found.by) if self.found.by else "", "check": self.hint.check,
            "numbers": {
                name: str(value) if isinstance(value, Note) else plain(value)
                for name, value in self.found.numbers.items()
            },
        }  # fmt: skip


def with_hints(
    findings: Sequence[Divergence], evidence: Callable[[Divergence], Evidence | None], warnings: list[Any]
) -> list[Divergence]:
    """Return the findings of a step, the first of them with the hints that their numbers support.

    A hint that fails is left out, which is added to the warnings: what is wrong is known without it.
    """
    first, rest = findings[:_MOST_FINDINGS], findings[_MOST_FINDINGS:]
    return [*(_hinted(finding, evidence(finding), warnings) for finding in first), *rest]


def _hinted(finding: Divergence, evidence: Evidence | None, warnings: list[Any]) -> Divergence:
    if evidence is None or finding.kind not in _KINDS:
        return finding
    given = supported(evidence, warnings)
    if not given:
        return finding
    return replace(finding, advice=_chosen(finding, given[0]), hints=tuple(each.as_json() for each in given))


def _chosen(finding: Divergence, best: Given) -> Note | None:
    """Return a finding's hint: the walk's own where that says more than what is tried here."""
    own, is_verified = _lead(finding.advice), best.found.grade is Grade.VERIFIED
    is_general = not own or own in _GENERAL or (own in _IN_ITS_PLACE and is_verified)
    says_less = best.hint.name == _GRADIENT_SCALE and own == _OF_LOSS
    if finding.kind is Kind.INPUTS and is_verified:
        also = note("verified", found=best.found.said) if best.hint.name == _PERMUTED else best.advice
        return note("and-also", first=finding.advice, then=also)
    return finding.advice if not is_general or says_less or finding.kind is Kind.DTYPE else best.advice


def _lead(advice: Note | None) -> str:
    """Return the code of advice, that of the first of several."""
    while advice is not None and ("ways" in advice.facts or "first" in advice.facts):
        advice = advice.facts["ways"][0] if "ways" in advice.facts else advice.facts["first"]
    return advice.code if advice is not None else ""


def supported(evidence: Evidence, warnings: list[Any]) -> list[Given]:
    """Return the hints that the numbers of a finding support, the best supported first; those that fail as warnings."""
    if evidence.metrics.status is not Status.COMPARED:
        return []
    hints = OF_NUMBERS if evidence.is_number else HINTS
    with np.errstate(all="ignore"):
        found = [(hint, _tried(hint, evidence, warnings)) for hint in hints if evidence.role in hint.roles]
    given = [Given(hint, each) for hint, each in found if each is not None]
    return sorted(given, key=lambda each: each.found.grade)[:_MOST_HINTS]


def _tried(hint: Hint, evidence: Evidence, warnings: list[Any]) -> Found | None:
    def test() -> Found | None:
        return None if hint.unless(evidence) else hint.test(evidence)

    return unless_it_fails(test, None, hint.name, evidence.finding.path, warnings)
