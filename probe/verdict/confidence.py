"""How sure a finding is: a logistic of what the judge knows of it, fitted by ``python -m benchmarks.confidence``."""

from __future__ import annotations

import math

from probe.records import Role
from probe.verdict.distance.error import Error, View
from probe.verdict.judge.verdicts import Finding
from probe.verdict.steps.step import Step

Known = dict[str, float]
"""what is known of a finding, by the names of `WEIGHTS`"""

WEIGHTS = {
    "always": 3.39,
    "a bound": -1.69,
    "backward": -0.99,
    "code of the caller": 0.97,
    "from a sketch": -0.2,
    "near the limit": -1.11,
    "not compared": 0.0,
    "own code": -0.04,
    "settings alone": -2.19,
    "times the limit": 0.16,
    "weights, updates, loss": 0.06,
}
"""what each counts for, in log-odds; `docs/evidence/confidence.md` has said against true"""
_CODES = {
    "module": "own code",
    "caller": "code of the caller",
    "maker-of-inputs": "code of the caller",
    "unpaired-call": "code of the caller",
    "own-backward": "backward",
    "code-behind": "backward",
    "loss-behind": "backward",
}
"""the rows of blame that are told apart"""


def confidence_of(step: Step, finding: Finding) -> float:
    """Return the probability that a finding is at the right place."""
    odds = sum(WEIGHTS.get(name, 0.0) * value for name, value in known_of(step, finding).items())
    return 1 / (1 + math.exp(-odds))


def known_of(step: Step, finding: Finding) -> Known:
    """Return what is known of a finding."""
    error = finding.error
    times = _times(error, finding.limit)
    known = {
        "always": 1.0,
        "times the limit": min(times / 4, 1.0),
        "near the limit": max(1 - times, 0.0),
        _CODES.get(finding.code, "weights, updates, loss"): 1.0,
        "not compared": _not_compared(step, finding),
    }
    if error is not None and error.is_bound:
        known["a bound"] = 1.0
    elif error is not None and error.view is View.SKETCH:
        known["from a sketch"] = 1.0
    if not finding.is_shown:
        known["settings alone"] = 1.0
    return known


def _times(error: Error | None, limit: float) -> float:
    """Return by how many orders of magnitude an error is above its limit."""
    if error is None or not math.isfinite(error.size) or not limit > 0:
        return math.inf
    return max(math.log10(error.size / limit), 0.0) if error.size else 0.0


def _not_compared(step: Step, finding: Finding) -> float:
    """Return the share of what the wrong tensor's call was given, or has around it, that was not compared."""
    node = finding.event.node if finding.event is not None else None
    if node is None:
        return 0.0
    events = [*node.inputs, *(each for inner in node.inner for each in inner.outputs)]
    if finding.event is not None and finding.event.role is Role.INPUT and node.parent is not None:
        events = [*node.parent.inputs, *(each for other in node.parent.inner for each in other.outputs)]
    unknown = sum(step.error(each) is None for each in events if each.is_paired)
    return unknown / max(len(events), 1)
