"""Numbers that were logged beside the loss. They are no tensors and not judged here; that both sides wrote down others is said."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

_TOLD = re.compile(r"(^|[\s/_-])(norm|loss|lr|learning[\s_-]rate)($|[\s/_-])", re.IGNORECASE)
"""names of numbers that right runs share; times and speeds differ"""
_NORM, _OTHER = 0.1, 0.01
"""relative differences up to which `probe curves` sees noise in a single step of a norm, of a loss"""
_SAME = 0.01


def logged_otherwise(step: int, a: Mapping[str, float], b: Mapping[str, float]) -> list[str]:
    """Say which numbers both sides logged in a step, under one name, and that are not the same.

    Parameters
    ----------
    step
        number of the step, in A
    a, b
        what was given to ``probe.step`` and ``probe.log``
    """
    notes = []
    for name in sorted(name for name in a.keys() & b.keys() if name != "loss" and _TOLD.search(name)):
        x, y = a[name], b[name]
        if not (math.isfinite(x) and math.isfinite(y)):
            continue
        limit = _NORM if "norm" in name.lower() else _OTHER
        if abs(x - y) > limit * max(abs(x), abs(y)):
            notes.append(
                f"step {step}: {name} was logged as {x:.6g} in A and {y:.6g} in B{_squared(x, y)}; what was logged is judged by "
                "probe curves alone"
            )
    return notes


def _squared(x: float, y: float) -> str:
    for name, other, root, square in (("B", "A", x, y), ("A", "B", y, x)):
        if root > 0 and abs(square - root**2) <= _SAME * root**2:
            return f" ({name}'s is the square of {other}'s: a norm of which the root was not taken)"
    return ""
