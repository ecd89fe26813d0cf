"""How sure a finding is: a logistic of what the judge knows of it, fitted by ``python -m benchmarks.confidence``."""

from __future__ import annotations

import math

from probe.verdict.distance.error import Error, View
from probe.verdict.judge.verdicts import Finding

Known = dict[str, float]
"""what is known of a finding, by the names of `WEIGHTS`"""

WEIGHTS = {
    "always": 3.79,
    "a bound": -0.77,
    "backward": -0.7,
    "code of the caller": 0.45,
    "from a sketch": -0.1,
    "near the limit": -0.61,
    "own code": -0.09,
    "times the limit": 0.57,
    "weights, updates, loss": 0.34,
}
"""what each counts for, in log-odds; `docs/evidence/confidence.md` has said against true"""
_UNSHOWN = 0.6
"""of settings that differ while no number does: whether they are meant is not known"""
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


def confidence_of(finding: Finding) -> float:
    """Return the probability that a finding is at the right place."""
    if not finding.is_shown:
        return _UNSHOWN
    odds = sum(WEIGHTS.get(name, 0.0) * value for name, value in known_of(finding).items())
    return (0.5 if finding.is_behind else 1.0) / (1 + math.exp(-odds))


def known_of(finding: Finding) -> Known:
    """Return what is known of a finding."""
    error = finding.error
    times = _times(error, finding.limit)
    known = {
        "always": 1.0,
        "times the limit": min(times / 4, 1.0),
        "near the limit": max(1 - times, 0.0),
        _CODES.get(finding.code, "weights, updates, loss"): 1.0,
    }
    if error is not None and error.is_bound:
        known["a bound"] = 1.0
    elif error is not None and error.view is View.SKETCH:
        known["from a sketch"] = 1.0
    return known


def _times(error: Error | None, limit: float) -> float:
    """Return by how many orders of magnitude an error is above its limit."""
    if error is None or not math.isfinite(error.size) or not limit > 0:
        return math.inf
    return max(math.log10(error.size / limit), 0.0) if error.size else 0.0
