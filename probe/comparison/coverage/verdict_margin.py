"""By how much all limits would have to be wider, or tighter, for the verdict to be another one."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from probe.comparison.result import Divergence, SlotResult, Verdict
from probe.records import Role


@dataclass(frozen=True, slots=True)
class Flip:
    """The smallest change of tolerance that changes the verdict."""

    factor: float
    """all limits times this: above 1 for diverged, below 1 for aligned; inf where no tolerance does it"""
    first: float = math.nan
    """for diverged: the factor up to which the first divergence stands"""
    closest: SlotResult | None = None
    """for aligned: what would be found first"""

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON; what is not a finite number becomes null."""
        slot = self.closest
        return {
            "factor": self.factor if math.isfinite(self.factor) else None,
            "first_divergence": self.first if math.isfinite(self.first) else None,
            "closest": None if slot is None else {
                "phase": slot.phase.label, "role": slot.role.label, "path_a": slot.path_a, "slot_a": slot.slot_a,
                "error": slot.error, "limit": slot.limit,
            },
        }  # fmt: skip


def margin_of(verdict: Verdict, findings: Iterable[Divergence], slots: Iterable[SlotResult]) -> Flip | None:
    """Return what would change a verdict; None where it is undecided, or nothing had a limit."""
    if verdict is Verdict.DIVERGED:
        factors = [_factor(finding) for finding in findings]
        beyond = [
            slot.error / slot.limit for slot in slots if slot.verdict == "inherited" and slot.error > slot.limit > 0
        ]
        return Flip(max(factors + beyond), factors[0])
    # an update is judged by its length and direction too: its error alone says little; what is beyond its limit and no finding
    # was let pass for another reason, as what an expert is given after other tokens were sent to it
    judged = [
        slot
        for slot in slots
        if slot.limit >= slot.error > 0 and slot.role is not Role.DELTA and slot.verdict != "not judged"
    ]
    closest = max(judged, key=lambda slot: slot.error / slot.limit, default=None)
    if verdict is not Verdict.ALIGNED or closest is None:
        return None
    return Flip(closest.error / closest.limit, closest=closest)


def _factor(finding: Divergence) -> float:
    """Return how many times its limit an error is; inf for what is no matter of size."""
    metrics = finding.metrics
    error = finding.error if not math.isnan(finding.error) else math.nan if metrics is None else metrics.rel_l2
    return error / finding.limit if finding.limit > 0 and error > finding.limit else math.inf
