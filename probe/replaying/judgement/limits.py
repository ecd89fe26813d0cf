"""How large a module's own error may be: what rounding does to what it computes, measured where that is in question.

A module that is handed what A's was inherits nothing. In 16 bits its error is that of rounding what it computes, a unit or two; in float32 sums in
another order add some. Where it takes differences of large numbers, or divides by small ones, it may be any number of units. That is measured: B's
module runs once more with all that it is handed off by one unit in the last place, and its weights too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from probe.comparison.distance.metrics import Side, measure_pair
from probe.comparison.noise.tolerance import SIXTEEN_BIT
from probe.comparison.steps.rows import Key, Rows
from probe.comparison.steps.side import PARAMETER_ROLES
from probe.comparison.steps.step_half import Event
from probe.records import Role
from probe.store.reading.reader import Reader


@dataclass(frozen=True, slots=True)
class Limit:
    """What is rounding, for one kind of tensors. Evidence: docs/evidence/replay.md."""

    k: float
    """unit roundoffs allowed, for float32 and wider, without asking further"""
    k16: float
    """the same for 16 bits"""
    gain: float
    """times what one unit in everything that is handed in changes, for float32 and wider"""
    gain16: float
    """the same for 16 bits"""
    scale: float = math.inf
    """unit roundoffs that the norm may be off by, where it is one of many elements: rounding is up as often as down"""
    scale_gain: float = 0.0
    """times what one unit in everything changes, the same"""

    def between_frameworks(self) -> Limit:
        """Return the same for two frameworks, whose functions (exp, tanh) are approximations of their own."""
        return replace(self, k=2 * self.k, scale=2 * self.scale)

    def unasked(self, u: float) -> float:
        """Return the largest error that is rounding whatever is computed, for unit roundoff ``u``."""
        return (self.k16 if u > SIXTEEN_BIT else self.k) * u

    def of(self, u: float, moved: float) -> float:
        """Return the largest error that is rounding, given what one unit in everything changes (NaN: not known)."""
        gain = self.gain16 if u > SIXTEEN_BIT else self.gain
        return max(self.unasked(u), 0.0 if math.isnan(moved) else gain * moved)

    def of_scale(self, u: float, moved: float) -> float:
        """Return by how much rounding may change the norm, likewise."""
        return max(self.scale * u, 0.0 if math.isnan(moved) else self.scale_gain * moved)


_FEW, _MANY = 64, 512
"""elements"""
_VALUES = Limit(k=8, k16=1.5, gain=3, gain16=0.75)
_GRADIENTS = Limit(k=12, k16=2, gain=4, gain16=1.25)
_OF_FEW = Limit(k=64, k16=6, gain=20, gain16=3)
INTEGERS = Limit(k=0, k16=0, gain=3, gain16=3)
_LIMITS = {
    "values": (_VALUES, replace(_VALUES, scale=2.5, scale_gain=1), replace(_VALUES, scale=2.5, scale_gain=0.5)),
    "gradients": (_GRADIENTS, _GRADIENTS, replace(_GRADIENTS, scale=4, scale_gain=0.5)),
    "parameters": (_OF_FEW, *[Limit(k=16, k16=2.5, gain=6, gain16=1.35)] * 2),
}
"""for up to so few elements, for more, and for many"""
_KINDS = {
    Role.INPUT: "values", Role.OUTPUT: "values", Role.PARAM: "values", Role.GRAD_INPUT: "gradients", Role.GRAD_OUTPUT: "gradients",
    Role.GRAD_TOTAL: "gradients", Role.PARAM_GRAD: "parameters", Role.BUFFER: "parameters",
}  # fmt: skip


def limit_of(role: Role, size: int) -> Limit:
    """Return what is rounding for a tensor of so many elements."""
    few, some, many = _LIMITS[_KINDS[role]]
    return few if size < _FEW else some if size < _MANY else many


class Moved:
    """What one unit in the last place of everything changes: passes through B that are held against the one without.

    Parameters
    ----------
    readers
        recordings of such passes
    step
        the step that they have
    """

    def __init__(self, readers: list[Reader], step: int) -> None:
        self._sides = [Side(reader, step) for reader in readers]
        self._rows = [Rows.of(side) for side in self._sides]

    def error(self, b: Side, event: Event, key: Key) -> float:
        """Return the relative change of an event's tensor in B, the largest that was seen; NaN where there is none.

        Parameters
        ----------
        b
            the pass without
        key
            the call in B
        """
        is_own = event.role in PARAMETER_ROLES
        slot = f"{event.phase.label}:{event.slot_b}" if is_own else event.slot_b
        found = []
        for side, rows in zip(self._sides, self._rows, strict=True):
            there = rows.get(key, event.role).get(slot)
            if there and event.row_b < len(b.slots) and event.row_b not in b.combined:
                metrics = measure_pair(b, event.row_b, side, there[-1], free_axes=False)
                found += [metrics.rel_l2] if metrics.is_known else []
        return max(found, default=math.nan)
