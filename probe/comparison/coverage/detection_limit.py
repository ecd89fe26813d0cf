"""How large an error would not have been seen: said of what the built-in model finds aligned in 16 bits, or by sums of gradients alone."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from probe.comparison.noise.tolerance import SIXTEEN_BIT
from probe.comparison.notes import Note, note
from probe.comparison.result import SlotResult, Verdict
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role

_LARGE = 0.01
"""limit of a typical gradient from which on it is said"""


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
        return {"error": self.error, "text": self.text}


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
    """Tell whether it is something that a module returned in 16 bits, and the built-in model judged it."""
    is_output = slot.phase is Phase.FORWARD and slot.role is Role.OUTPUT and not slot.is_fixed
    u = max(unit_roundoff(slot.dtype_a), unit_roundoff(slot.dtype_b)) if is_output and slot.metrics.is_known else 0.0
    return u > SIXTEEN_BIT and math.isfinite(slot.limit)
