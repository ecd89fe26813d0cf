"""What a comparison says beside its answer where B's modules were replayed with A's tensors (`probe.replay`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from probe.comparison.noise.tolerance import SIXTEEN_BIT
from probe.comparison.notes import Note, as_json, note
from probe.comparison.result import Verdict
from probe.numbers.statistics import unit_roundoff

if TYPE_CHECKING:
    from probe.comparison.answer import Comparison

_STICKS_OUT = "error-sticks-out"
"""code of the note that names what is noise by all that is known, and larger than elsewhere"""


@dataclass(frozen=True, slots=True)
class Replayed:
    """How much was replayed, and what was not."""

    modules: int
    """pairs of modules that were run"""
    calls: int
    left: tuple[Note, ...] = ()
    """what was not replayed, or only forwards, and why; the outermost modules"""
    weights: str = "a"
    """whose weights the modules had: ``a`` or ``b``"""

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {
            "modules": self.modules,
            "calls": self.calls,
            "left": [as_json(each) for each in self.left],
            "weights": self.weights,
        }


def deciding(comparison: Comparison) -> Note | None:
    """Return what would decide a comparison that rounding leaves open: a replay, which neither inherits errors nor adds them up.

    That is a verdict that could not be told where numbers have 16 bits, or where something sticks out.
    """
    if comparison.replayed is not None or comparison.verdict is Verdict.DIVERGED:
        return None
    dtypes = {dtype for slot in comparison.slots for dtype in (slot.dtype_a, slot.dtype_b)}
    is_open = comparison.verdict is Verdict.UNDECIDED and any(unit_roundoff(dtype) > SIXTEEN_BIT for dtype in dtypes)
    sticks_out = any(each.code == _STICKS_OUT for each in comparison.notes)
    return note("replay-decides", file=comparison.path_a) if comparison.slots and (is_open or sticks_out) else None
