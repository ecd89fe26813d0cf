"""Whether a curve has a steady offset from the other, over the whole run or its later part."""

from __future__ import annotations

import numpy as np

from probe.curve_comparison.pairing import PairedSeries
from probe.curve_comparison.signs import FEWEST, Fluctuation, Sign, SignJudgement, fluctuations, judge_signs
from probe.curve_comparison.tolerance import WIDENED, Tolerance

_STRETCHES = (1, 2, 4)
"""the whole run, its later half, its last quarter: what drifts apart does so late"""
_SHOWS_NOISE = 128
"""steps that tell how noise is correlated; a stretch of fewer has the noise of the longer one that it is a part of"""


def judge_offset(pair: PairedSeries, tolerance: Tolerance) -> SignJudgement:
    """Judge the signed difference of a pair of curves.

    The offset is that from the nearest run of A, and may be the multiple `WIDENED` of the largest between these: B that
    lies between two of them has none.

    Returns
    -------
    SignJudgement
        of the first stretch that is biased, or may be, else of the whole run
    """
    known = np.flatnonzero(pair.finite)
    judged: list[SignJudgement] = []
    noise: tuple[Fluctuation, ...] = ()
    for part in _STRETCHES:
        rows = known[len(known) - len(known) // part :]
        if part > 1 and len(rows) < FEWEST:
            break
        own = fluctuations(_in_units(pair, rows, pair.difference[rows], tolerance))
        judged.append(_of_stretch(pair, rows, tolerance, own if len(rows) >= _SHOWS_NOISE else (*own, *noise)))
        if part == 1 or len(rows) >= _SHOWS_NOISE:
            noise = own
    return next((each for sign in (Sign.BIASED, Sign.UNCLEAR) for each in judged if each.sign is sign), judged[0])


def _of_stretch(
    pair: PairedSeries, rows: np.ndarray, tolerance: Tolerance, noise: tuple[Fluctuation, ...]
) -> SignJudgement:
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
    difference = pair.b[rows] - nearest
    return judge_signs(difference, allowed, first, _in_units(pair, rows, difference, tolerance), noise)


def _in_units(pair: PairedSeries, rows: np.ndarray, difference: np.ndarray, tolerance: Tolerance) -> np.ndarray:
    """Return differences as the kind of curve has them: relative where its noise is."""
    if not tolerance.is_relative:
        return difference
    return np.divide(difference, pair.scale[rows], out=np.zeros(len(rows)), where=pair.scale[rows] > 0)
