"""`check_overflow`: the first NaN or Inf and where it was born, and how near the numbers come to the ends of their dtypes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probe.checks.outcome import CheckResult, Line, fault, fine, unchecked
from probe.checks.overflow.birth import Birth, Count, Origin, first_birth
from probe.checks.overflow.ranges import Headroom, Underflow, ranges
from probe.checks.seen import range_of
from probe.notes import Note, note
from probe.ranks.opening import open_reader
from probe.records import Phase, Task

NEAR = 0.5
"""share of the dtype's largest number from which on a magnitude is too near to it: one more doubling overflows"""
LOST = 0.1
"""share of a module's gradients that are 0 by underflow, from which on the gradients are too small for their dtype"""
NARROW = 1e6
"""a dtype whose largest number is below this overflows in practice: float16 and float8"""


@dataclass(frozen=True, repr=False)
class Overflow(CheckResult):
    """What a recording says of overflow and underflow."""

    check = "overflow"
    birth: Birth | None = None
    """the first NaN or Inf; None where there is none"""
    advice: Note | None = None
    """what may have made it"""
    headroom: tuple[Headroom, ...] = ()
    """of each module the tensor nearest to its dtype's largest number, nearest first"""
    underflow: tuple[Underflow, ...] = ()
    """modules with numbers too small for their dtype, most first"""

    def as_json(self) -> dict[str, Any]:
        """Return the answer by the names that ``--json`` uses."""
        return {**super().as_json(), "advice": None if self.advice is None else str(self.advice)}


def check_overflow(path: str | Path) -> Overflow:
    """Look for NaN, Inf, and numbers near the ends of their dtypes in one recording.

    Parameters
    ----------
    path
        a recording; statistics are enough, values tell subnormal numbers exactly

    Raises
    ------
    StoreError, FormatError
        the file cannot be read
    """
    with open_reader(path) as reader:
        reader.require_steps()
        if reader.info.config.get("task") == Task.STRUCTURE:
            return Overflow((str(path),), (unchecked("NaN and Inf", "structure-has-no-numbers"),))
        birth, count = first_birth(reader)
        headroom, underflow, phases = ranges(reader)
    lines = (_finite(birth, count), *_near(headroom), *_small(underflow, phases))
    return Overflow((str(path),), lines, birth, None if birth is None else _advice(birth), headroom, underflow)


def _finite(birth: Birth | None, count: Count) -> Line:
    """Say whether all is finite."""
    if birth is None:
        return fine("NaN and Inf", "all-finite", masks=count.masks)
    first = birth.first
    counts = (0, 0, 0) if first is None else (first.nan, first.posinf, first.neginf)
    facts = {"origin": birth.origin.value, "step": birth.step, "phase": birth.phase.label, "path": birth.path}
    facts |= {"kind": birth.class_name, "counts": counts, "tensors": count.tensors, "steps": count.steps}
    return fault("NaN and Inf", "nonfinite-born", **facts)


def _near(headroom: Sequence[Headroom]) -> Iterator[Line]:
    """Say how near to the largest number the largest magnitudes come."""
    if not headroom:
        yield unchecked("largest numbers", "no-floats-recorded")
        return
    near = [each for each in headroom if each.share >= NEAR]
    first = headroom[0]
    facts = {name: getattr(first.tensor, name) for name in ("path", "largest", "dtype")} | {"limit": first.limit}
    code = "near-largest-number" if near else "far-from-largest-number"
    yield (fault if near else fine)("largest numbers", code, **facts, modules=len(near))


def _small(underflow: Sequence[Underflow], phases: frozenset[Phase]) -> Iterator[Line]:
    """Say whether gradients are lost to underflow."""
    if not phases & {Phase.BACKWARD, Phase.GRADIENT}:
        yield unchecked("underflow", "no-gradients-recorded")
        return
    lost = [each for each in underflow if each.share >= LOST and each.phase is not Phase.FORWARD]
    if lost:
        first = lost[0]
        facts = {"path": first.path, "share": first.share, "dtype": first.dtype, "phase": first.phase.label}
        yield fault("underflow", "gradients-underflow", **facts, modules=len(lost))
    else:
        most = max((each.share for each in underflow if each.phase is not Phase.FORWARD), default=0.0)
        yield fine("underflow", "little-underflow", share=most)


def _advice(birth: Birth) -> Note | None:
    """Return what may have made the first NaN or Inf."""
    masked = next((each for each in birth.made_from if each.neginf and not each.nan and not each.posinf), None)
    if birth.origin in (Origin.GIVEN, Origin.WEIGHT, Origin.LOGGED):
        return note("nonfinite-from-outside", origin=birth.origin.value)
    if masked is not None:
        return note("masked-throughout", path=masked.path, slot=masked.slot)
    dtypes = {each.dtype for each in birth.made_from} | ({birth.first.dtype} if birth.first else set())
    limits = {
        name: found.largest for name in dtypes if (found := range_of(name)) is not None and found.largest < NARROW
    }
    if limits:
        name = min(limits, key=limits.__getitem__)
        reached = (each.largest for each in birth.made_from if each.dtype == name)
        largest = max((each for each in reached if each < limits[name]), default=0.0)  # a mask is filled with the limit
        return note("narrow-dtype-overflows", dtype=name, limit=limits[name], largest=largest, is_backward=birth.phase >= Phase.BACKWARD)  # fmt: skip
    return note(
        "undefined-operation", has_inf=birth.first is not None and bool(birth.first.posinf or birth.first.neginf)
    )
