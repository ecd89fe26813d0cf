"""What would decide a comparison that rounding leaves open."""

from __future__ import annotations

from probe.comparison.answer import Comparison
from probe.comparison.noise.tolerance import SIXTEEN_BIT
from probe.comparison.notes import Note, note
from probe.comparison.result import Verdict
from probe.numbers.statistics import unit_roundoff

_STICKS_OUT = "error-sticks-out"
"""code of the note that names what is noise by all that is known, and larger than elsewhere"""


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
