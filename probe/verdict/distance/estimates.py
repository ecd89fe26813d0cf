"""The error without values: sketches give ‖A−B‖ to 9 % (``docs/reference/file-format.md``), statistics a bound."""

from __future__ import annotations

import math

import numpy as np

from probe.verdict.distance.error import Error, View
from probe.verdict.tensors import Tensor

_ALONG = 0.9
"""cosine from which on an error is along A, so that the norms tell better how large it is"""
SAME = 1e-5
"""relative error up to which statistics of the same numbers, in another order or by another function, agree"""
_EXACT = 1e-14
"""float64 sums of statistics agree to this"""


def from_sketches(a: Tensor, b: Tensor) -> Error:
    """Return the error as sketches estimate it."""
    assert a.sketch is not None and b.sketch is not None
    difference = b.sketch - a.sketch
    apart = float(np.linalg.norm(difference))
    if a.kind == "integer":
        return _of_integers(a, b, apart)
    length = float(np.linalg.norm(a.sketch))
    if math.isnan(a.norm) or math.isnan(b.norm):  # a sum, of which only the sketch is known
        norms = length, float(np.linalg.norm(b.sketch))
        return Error(apart / max(*norms, 1e-300), *norms, view=View.SKETCH)
    larger = max(a.norm, b.norm)
    if not larger:
        return Error(math.inf if apart else 0.0, a.norm, b.norm)
    exact = abs(a.norm - math.copysign(b.norm, float(a.sketch @ b.sketch)))
    along = float(difference @ a.sketch) / (apart * length) if apart and length else 0.0
    apart = max(apart, abs(a.norm - b.norm))
    if abs(along) > _ALONG and 0.5 * apart < exact < 2 * apart:
        apart = min(exact / abs(along), a.norm + b.norm)
    return Error(min(apart / larger, 2.0), a.norm, b.norm, max(-1.0, min(1.0, along)), View.SKETCH)


def _of_integers(a: Tensor, b: Tensor, apart: float) -> Error:
    """Return the share of integers that differs: each has a sign by its value, so half of those that differ count 4."""
    size = max(a.size, 1)
    share = min(1.0, apart**2 / (2 * size))
    is_moved = (a.mean, a.low, a.high, a.zeros) != (b.mean, b.low, b.high, b.zeros)
    is_other = a.dtype == b.dtype and a.form == b.form and a.hash != b.hash
    return Error(max(share, 1 / size) if is_moved or is_other else share, a.norm, b.norm, view=View.INTEGERS)


def from_statistics(a: Tensor, b: Tensor) -> Error:
    """Return the least error that minimum, maximum, mean and norm allow; of parts, that of the sums of their rows."""
    larger = max(a.norm, b.norm)
    if not larger:
        return Error(0.0, a.norm, b.norm, view=View.STATISTICS, is_bound=True)
    mine, theirs = (a.rows, b.rows) if a.parts or b.parts or a.axes != b.axes else (None, None)
    if mine is not None and theirs is not None and len(mine) == len(theirs):
        apart = float(np.linalg.norm(theirs - mine)) / larger
        if apart > SAME:
            return Error(apart, a.norm, b.norm, view=View.SKETCH)
    exact = larger * (SAME if a.is_summary or b.is_summary else _EXACT)
    sums = math.sqrt(a.size) * abs(a.mean - b.mean), abs(a.norm - b.norm)
    gaps = [abs(a.low - b.low), abs(a.high - b.high), *(gap for gap in sums if gap > exact)]
    gap = max((gap for gap in gaps if not math.isnan(gap)), default=0.0) / larger
    return Error(gap if gap > _EXACT else 0.0, a.norm, b.norm, view=View.STATISTICS, is_bound=True)


def look_permuted(a: Tensor, b: Tensor) -> bool:
    """Return True if norms, minima and maxima that are known are alike, as of the same elements in another order."""
    pairs, is_summary = ((a.low, b.low), (a.high, b.high), (a.norm, b.norm)), a.is_summary or b.is_summary
    return all((is_summary and math.isnan(x + y)) or math.isclose(x, y, rel_tol=SAME, abs_tol=1e-12) for x, y in pairs)
