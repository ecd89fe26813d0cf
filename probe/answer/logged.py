"""Numbers that were logged beside the loss. They are no tensors and not judged here; that both sides wrote down others is said."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from probe.notes import Note, note

_OF_THE_MACHINE = re.compile(
    r"(^|[\s/_.-])(times?|timestamp|date|secs?|seconds?|s|ms|elapsed|eta|duration|latency|per|speed|throughput|t?flops|mfu|mem|memory|"
    r"[cgn]pu|[gm]i?b)($|[\s/_.-])",
    re.IGNORECASE,
)
"""names of times, speeds and memory: right runs do not share these"""
_NORM, _OTHER = 0.1, 0.01
"""relative differences up to which `probe curves` sees noise in a single step of a norm, of a loss"""
_SAME = 0.01


class Logged:
    """Says, over the steps, what was logged otherwise: under one name in the first such step, on one side only in the first of each name."""

    def __init__(self) -> None:
        self._alone: set[tuple[str, str]] = set()
        """(side, name)"""
        self._is_told = False

    def said(self, step: int, a: Mapping[str, float], b: Mapping[str, float]) -> list[Note]:
        """Return what is to be said of a step.

        Parameters
        ----------
        step
            its number, in A
        a, b
            what was given to ``probe.step`` and ``probe.log``
        """
        notes = [] if self._is_told else logged_otherwise(step, a, b)
        self._is_told = self._is_told or bool(notes)
        for side, mine, theirs in (("A", a, b), ("B", b, a)):
            found = [name for name in sorted(mine.keys() - theirs.keys()) if not _OF_THE_MACHINE.search(name)]
            names = [name for name in found if (side, name) not in self._alone]
            self._alone.update((side, name) for name in names)
            if names:
                notes.append(note("logged-on-one-side", step=step, side=side, names=tuple(names)))
        return notes


def logged_otherwise(step: int, a: Mapping[str, float], b: Mapping[str, float]) -> list[Note]:
    """Say which numbers both sides logged in a step, under one name, and that are not the same.

    Parameters
    ----------
    step
        number of the step, in A
    a, b
        what was given to ``probe.step`` and ``probe.log``
    """
    notes = []
    for name in sorted(name for name in a.keys() & b.keys() if name != "loss" and not _OF_THE_MACHINE.search(name)):
        x, y = a[name], b[name]
        limit = _NORM if "norm" in name.lower() else _OTHER
        is_number = math.isfinite(x), math.isfinite(y)
        if is_number[0] != is_number[1] or (all(is_number) and abs(x - y) > limit * max(abs(x), abs(y))):
            notes.append(note("logged-otherwise", step=step, name=name, a=x, b=y, square=_squared(x, y)))
    return notes


def _squared(x: float, y: float) -> str:
    """Return the side of which the number is the square of the other's, or nothing."""
    for side, root, square in (("B", x, y), ("A", y, x)):
        if root > 0 and abs(square - root**2) <= _SAME * root**2:
            return side
    return ""
