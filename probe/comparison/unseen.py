"""How large an error would not have been seen: said of 16-bit runs that the built-in model finds aligned."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from probe.comparison.noise import BUILT_IN
from probe.comparison.result import SlotResult, Verdict
from probe.comparison.tolerance import SIXTEEN_BIT
from probe.records import Phase, Role
from probe.statistics import unit_roundoff


@dataclass(frozen=True, slots=True)
class Unseen:
    """What an answer does not rule out."""

    error: float
    """the limit of a typical tensor that modules return in 16 bits, as a share of the tensor"""

    @property
    def text(self) -> str:
        """The same in a sentence."""
        return (
            f"16-bit values, judged by the {BUILT_IN}: errors below about {percent(self.error)} of what a module returns "
            "are not told from noise; --noise a2.h5 or --reference fp32.h5 sees smaller ones"
        )

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {"error": self.error, "text": self.text}


def percent(share: float) -> str:
    """Return a share with one digit that counts."""
    return f"{float(f'{100 * share:.1g}'):g} %"


def unseen_of(verdict: Verdict, noise: str, slots: Iterable[SlotResult]) -> Unseen | None:
    """Return what a verdict does not rule out; None where 16 bits hide nothing, or a better rung than the lowest judged."""
    if verdict is not Verdict.ALIGNED or BUILT_IN not in noise:
        return None
    returned = [slot for slot in slots if _is_judged(slot)]
    if all(slot.verdict == "equal" for slot in returned):
        return None
    limits = sorted(slot.limit for slot in returned)
    return Unseen(limits[len(limits) // 2])


def _is_judged(slot: SlotResult) -> bool:
    """Tell whether it is something that a module returned in 16 bits, and the built-in model judged it."""
    is_output = slot.phase is Phase.FORWARD and slot.role is Role.OUTPUT and not slot.is_fixed
    u = max(unit_roundoff(slot.dtype_a), unit_roundoff(slot.dtype_b)) if is_output and slot.metrics.is_known else 0.0
    return u > SIXTEEN_BIT and math.isfinite(slot.limit)
