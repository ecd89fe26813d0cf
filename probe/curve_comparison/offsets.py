"""Whether a curve has a steady offset from the other, over the whole run or its later part."""

from __future__ import annotations

import numpy as np

from probe.curve_comparison.pairing import PairedSeries
from probe.curve_comparison.signs import FEWEST, Sign, SignJudgement, judge_signs
from probe.curve_comparison.tolerance import WIDENED, Tolerance

_STRETCHES = (1, 2, 4)
"""the whole run, its later half, its last quarter: what drifts apart does so late"""


def judge_offset(pair: PairedSeries, tolerance: Tolerance) -> SignJudgement:
    """Judge the signed difference of a pair of curves.

    The offset is that from the nearest run of A, and may be the multiple `WIDENED` of the largest between these: B that
    lies between two of them has none.

    Returns
    -------
    SignJudgement
        of the first stretch that is biased, else of the whole run
    """
    known = pair.finite
    judged = [
        _of_stretch(pair, np.flatnonzero(known)[int(known.sum()) - int(known.sum()) // part :], tolerance)
        for part in _STRETCHES
        if part == 1 or known.sum() // part >= FEWEST
    ]
    return next((each for each in judged if each.sign is Sign.BIASED), judged[0])


def _of_stretch(pair: PairedSeries, rows: np.ndarray, tolerance: Tolerance) -> SignJudgement:
    first = int(rows[0]) if len(rows) else 0
    runs = [pair.a[rows]]
    runs += [other[rows] for other in pair.others if np.isfinite(other[rows]).all()]
    offsets = [float((pair.b[rows] - run).mean()) if len(rows) else 0.0 for run in runs]
    level = float(pair.scale[rows].mean()) if len(rows) else 0.0
    allowed = tolerance.offset_relative * level
    allowed = min(allowed, tolerance.offset) if tolerance.offset else allowed
    if len(rows):
        allowed = max(allowed, float(pair.resolution[rows].mean()))
    if len(runs) > 1:
        allowed = max(allowed, WIDENED.get(len(runs), 1.0) * (max(offsets) - min(offsets)))
    nearest = runs[int(np.abs(offsets).argmin())]
    return judge_signs(pair.b[rows] - nearest, allowed, first)
