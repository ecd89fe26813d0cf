"""Trying the hints on the findings, the best supported first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.comparison.events import StepPairs
from probe.comparison.hints.evidence import Evidence
from probe.comparison.hints.failing import unless_it_fails
from probe.comparison.hints.grades import Found, Grade
from probe.comparison.hints.hint import Hint
from probe.comparison.hints.table import HINTS, OF_NUMBERS
from probe.comparison.metrics import Status
from probe.comparison.result import Divergence, Kind
from probe.comparison.step_half import ONE_SIDED, Event
from probe.records import Phase

_MOST_FINDINGS = 8
"""findings of a step, the first ones, whose tensors are read once more"""
_MOST_HINTS = 3
_KINDS = (Kind.INPUTS, Kind.INTRODUCED, Kind.INIT, Kind.UPDATE, Kind.DTYPE)
_IN_ITS_PLACE = ("what A computes in the place of ", "what B computes in the place of ")
"""how they begin that only what is verified says more than"""
_GENERAL = ("look at ", "B has the same numbers in another order")
"""how the walk's own hints begin that a better one takes the place of"""
_OF_LOSS = "look at the loss scale"
"""how the hint begins of a factor that all gradients have"""
_ANY_SCALE = "a uniform scale of the value"


@dataclass(frozen=True, slots=True)
class Given:
    """A hint that the numbers of a finding support."""

    hint: Hint
    found: Found

    @property
    def text(self) -> str:
        """What was found, whether it is verified, what to look at."""
        by = f" from {self.found.by}" if self.found.by else ""
        sure = f" (verified{by})" if self.found.grade is Grade.VERIFIED else ""
        return f"{self.found.text}{sure}: look at {self.hint.check}"

    def as_json(self) -> dict[str, object]:
        """Return it by the names in JSON."""
        return {
            "name": self.hint.name, "grade": self.found.grade.label, "verified": self.found.grade is Grade.VERIFIED,
            "found": self.found.text, "from": self.found.by, "check": self.hint.check,
            "numbers": {name: _plain(value) for name, value in self.found.numbers.items()},
        }  # fmt: skip


def _plain(value: object) -> object:
    """Return a value as JSON has it."""
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


def with_hints(pairs: StepPairs, findings: Sequence[Divergence], warnings: list[str]) -> list[Divergence]:
    """Return the findings of a step, the first of them with the hints that their numbers support.

    A hint that fails is left out, which is added to the warnings: what is wrong is known without it.
    """
    return [*(_hinted(pairs, finding, warnings) for finding in findings[:_MOST_FINDINGS]), *findings[_MOST_FINDINGS:]]


def _hinted(pairs: StepPairs, finding: Divergence, warnings: list[str]) -> Divergence:
    event = finding.event or _event_of_loss(pairs, finding)
    if event is None or event.metrics is None or finding.kind not in _KINDS:
        return finding
    given = supported(Evidence(pairs, finding, event), warnings)
    if not given:
        return finding
    return replace(finding, hint=_text(finding, given[0]), hints=tuple(each.as_json() for each in given))


def _text(finding: Divergence, best: Given) -> str:
    """Return the text of a finding's hint: the walk's own where that says more than what is tried here."""
    own = finding.hint
    is_general = not own or own.startswith(_GENERAL) or _ANY_SCALE in own
    is_general |= own.startswith(_IN_ITS_PLACE) and best.found.grade is Grade.VERIFIED
    says_less = best.hint.name == "gradient scale" and own.startswith(_OF_LOSS)
    if finding.kind is Kind.INPUTS and best.found.grade is Grade.VERIFIED:
        return f"{own}; {best.found.text} (verified)" if best.hint.name == "permuted" else f"{own}; {best.text}"
    return own if not is_general or says_less or finding.kind is Kind.DTYPE else best.text


def _event_of_loss(pairs: StepPairs, finding: Divergence) -> Event | None:
    """Return an event for a loss, which is a number and no record."""
    if finding.phase is not Phase.LOSS or not finding.a or not finding.b:
        return None
    ref = finding.a[0]
    modules = {pairs.a.reader.modules[pair.a].path: index for index, pair in enumerate(pairs.matching.pairs)}
    pair = modules.get(ref.path)
    if pair is None:
        return None
    return Event(ref.step, ref.micro, Phase.LOSS, finding.role, pair, ref.call, ref.slot, ref.slot, ONE_SIDED, ONE_SIDED,
                 finding.metrics)  # fmt: skip


def supported(evidence: Evidence, warnings: list[str]) -> list[Given]:
    """Return the hints that the numbers of a finding support, the best supported first; those that fail as warnings."""
    metrics = evidence.metrics
    if metrics is None or metrics.status is not Status.COMPARED:
        return []
    hints = OF_NUMBERS if evidence.is_number else HINTS
    with np.errstate(all="ignore"):
        found = [(hint, _tried(hint, evidence, warnings)) for hint in hints if evidence.role in hint.roles]
    given = [Given(hint, each) for hint, each in found if each is not None]
    return sorted(given, key=lambda each: each.found.grade)[:_MOST_HINTS]


def _tried(hint: Hint, evidence: Evidence, warnings: list[str]) -> Found | None:
    return unless_it_fails(lambda: hint.test(evidence), None, hint.name, evidence.finding.path, warnings)
