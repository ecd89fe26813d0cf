"""How near a verdict is to another one: what would change it, and what it does not rule out."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from probe.answer.metrics import SIXTEEN_BIT
from probe.answer.result import Divergence, SlotResult, Verdict
from probe.notes import Note, named, note, plain
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role

_LARGE = 0.01
"""limit of a typical gradient from which on it is said how large an error it hides"""


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
        told = "phase", "role", "path_a", "slot_a", "error", "limit"
        closest = None if slot is None else named(slot, *told)
        return {"factor": plain(self.factor), "first_divergence": plain(self.first), "closest": closest}


def margin_of(verdict: Verdict, findings: Iterable[Divergence], slots: Iterable[SlotResult]) -> Flip | None:
    """Return what would change a verdict; None where it is undecided, or nothing had a limit."""
    if verdict is Verdict.DIVERGED:
        factors = [_factor(finding) for finding in findings]
        inherited = (slot for slot in slots if slot.verdict == "inherited" and slot.error > slot.limit > 0)
        return Flip(max([*factors, *(slot.error / slot.limit for slot in inherited)]), factors[0])
    # an update is judged by its length and direction too: its error alone says little; what is beyond its limit and no finding
    # was let pass for another reason, as what an expert is given after other tokens were sent to it
    judged = (slot for slot in slots if slot.role is not Role.DELTA and slot.verdict != "not judged")
    within = (slot for slot in judged if slot.limit >= slot.error > 0)
    closest = max(within, key=lambda slot: slot.error / slot.limit, default=None)
    if verdict is not Verdict.ALIGNED or closest is None:
        return None
    return Flip(closest.error / closest.limit, closest=closest)


def _factor(finding: Divergence) -> float:
    """Return how many times its limit an error is; inf for what is no matter of size."""
    metrics = finding.metrics
    error = finding.error if not math.isnan(finding.error) else math.nan if metrics is None else metrics.rel_l2
    return error / finding.limit if finding.limit > 0 and error > finding.limit else math.inf


@dataclass(frozen=True, slots=True)
class Unseen:
    """What an answer does not rule out."""

    error: float
    """the limit of a typical tensor that modules return in 16 bits, or of a typical gradient, as a share of the tensor"""
    of_gradients: bool = False
    """nothing but sums of gradients was compared"""

    @property
    def text(self) -> str:
        """The same in a sentence."""
        return str(self.note)

    @property
    def note(self) -> Note:
        """The same as a code and facts."""
        if self.of_gradients:
            return note("gradients-hide-errors", error=self.error)
        return note("rounding-hides-errors", error=self.error)

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return named(self, "error", "text")


def limit_of_detection(verdict: Verdict, is_built_in: bool, slots: Iterable[SlotResult]) -> Unseen | None:
    """Return what a verdict does not rule out; None where 16 bits hide nothing, or a better rung than the lowest judged."""
    if verdict is not Verdict.ALIGNED or not is_built_in:
        return None
    slots = tuple(slots)
    if any((slot.phase, slot.role) == (Phase.FORWARD, Role.OUTPUT) and slot.metrics.is_known for slot in slots):
        returned = [slot for slot in slots if _is_judged(slot)]
        return None if _are_equal(returned) else Unseen(_median(returned))
    gradients = [slot for slot in slots if slot.phase is Phase.GRADIENT and math.isfinite(slot.limit)]
    if _are_equal(gradients) or not _median(gradients) >= _LARGE:
        return None
    return Unseen(_median(gradients), of_gradients=True)


def _are_equal(slots: list[SlotResult]) -> bool:
    return all(slot.verdict == "equal" for slot in slots)


def _median(slots: list[SlotResult]) -> float:
    limits = sorted(slot.limit for slot in slots)
    return limits[len(limits) // 2]


def _is_judged(slot: SlotResult) -> bool:
    """Return True if it is something that a module returned in 16 bits, and the built-in model judged it."""
    is_output = slot.phase is Phase.FORWARD and slot.role is Role.OUTPUT and not slot.is_fixed
    u = max(unit_roundoff(slot.dtype_a), unit_roundoff(slot.dtype_b)) if is_output and slot.metrics.is_known else 0.0
    return u > SIXTEEN_BIT and math.isfinite(slot.limit)
