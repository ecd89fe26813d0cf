"""What the curves of two runs say, in the order of cause, and what to look at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from probe.curve_comparison.norms import LocalNorms, NormResult
from probe.curve_comparison.pairing import PairedSeries
from probe.curve_comparison.parameters import SettingDifference
from probe.curve_comparison.reading.names import GRAD_NORM, LOSS, LR
from probe.curve_comparison.reading.recorded import BEFORE_CLIPPING, TOTAL
from probe.curve_comparison.result import Finding, FindingKind, SeriesResult
from probe.curve_comparison.standard import StandardVerdict
from probe.curve_comparison.tolerance import AHEAD, WARM_UP, MetricLimit, is_loss
from probe.notes import Note, note

_MOST_NAMED = 4
_GROWN = 0.5
_ALIKE = 0.02
_SAME = 0.01
"""relative difference of numbers that are the same ones: logs print three digits"""
_FEWEST_SQUARED = 3
TOTALS = (BEFORE_CLIPPING, GRAD_NORM, TOTAL)
"""what the global gradient norm is called: before clipping where that was recorded, as it was logged, else of the gradients as used"""

_OF_BACKWARD = {"look-at-backward", "look-at-gradient", "look-at-gradients"}
"""what holds only where nothing before it is wrong"""

_RANK = {FindingKind.NONFINITE: 0, FindingKind.BAND: 1, FindingKind.NORM: 2, FindingKind.SETTING: 3, FindingKind.BIASED: 4,
         FindingKind.STANDARD: 5, FindingKind.METRIC: 6}  # fmt: skip
"""inside a step the loss comes before gradients, the update behind them; what is about all steps comes last"""


def find(series: list[SeriesResult], norms: LocalNorms, settings: tuple[SettingDifference, ...]) -> list[Finding]:
    """Return what is apart, in the order of cause."""
    found = [finding for each in _said_once(series) if each.decides for finding in _of_series(each, settings)]
    found += _of_norms(norms, series)
    found.sort(key=lambda each: (each.kind in _LAST, each.step, _RANK[each.kind], each.series != LOSS))
    return [
        replace(each, look_at=()) if index and any(said.code in _OF_BACKWARD for said in each.look_at) else each
        for index, each in enumerate(found)
    ]


_LAST = (FindingKind.BIASED, FindingKind.STANDARD)


def _said_once(series: list[SeriesResult]) -> list[SeriesResult]:
    """Leave out the norm of the recorded gradients where the logged one says the same."""
    logged = next((each for each in series if each.name == GRAD_NORM), None)
    return [
        each
        for each in series
        if each.name not in (TOTAL, BEFORE_CLIPPING)
        or logged is None
        or (each.first_out, each.is_biased) != (logged.first_out, logged.is_biased)
    ]


def of_standard(standard: StandardVerdict, step: int) -> list[Finding]:
    """Return what fails the migration standard."""
    return [Finding(FindingKind.STANDARD, step, LOSS, note("standard-not-met", why=each)) for each in standard.failed]


def _of_series(each: SeriesResult, settings: tuple[SettingDifference, ...]) -> list[Finding]:
    found = []
    if each.metric is not None:
        return [] if each.band.first is None else [_not_accepted(each, each.metric)]
    if each.band.first is not None:
        found.append(_out(each, each.band.first, settings))
    if each.is_biased and (is_loss(each.name) or not found):
        found.append(_biased(each, settings))
    return found


def _out(each: SeriesResult, at: int, settings: tuple[SettingDifference, ...]) -> Finding:
    pair = each.pair
    step, a, b = int(pair.steps[at]), float(pair.a[at]), float(pair.b[at])
    if not pair.finite[at] or each.name.startswith(LR):
        kind = FindingKind.SETTING if pair.finite[at] else FindingKind.NONFINITE
        hint = note("look-at-schedule" if pair.finite[at] else "look-at-overflow")
        return Finding(kind, step, each.name, note("curve-not-finite", name=each.name, a=a, b=b), (hint,))
    drifts = is_gradual(each) and _grows_until(pair.difference[:at])
    if is_gradual(each):
        look_at = _settings(settings) or (note("look-at-what-adds-up" if drifts else "look-at-loss"),)
    elif side := _squared(pair):
        look_at = (note("look-at-square", squared=side, root="A" if side == "B" else "B"),)
    elif at + 1 < len(pair) and not each.band.out[at + 1 : at + AHEAD].any():
        look_at = (note("look-at-batch"),)
    elif is_loss(each.name):
        look_at = (note("look-at-forward" if at == 0 else "look-at-update"),)
    else:
        look_at = (note("look-at-backward"),)
    limit = max(float(a - each.band.low[at]), float(each.band.high[at] - a))
    said = note("curve-out", name=each.name, a=a, b=b, limit=limit, has_drifted=drifts)
    return Finding(FindingKind.BAND, step, each.name, said, look_at, not is_gradual(each))


def _settings(settings: tuple[SettingDifference, ...]) -> tuple[Note, ...]:
    return tuple(each.note for each in settings[:_MOST_NAMED])


def _not_accepted(each: SeriesResult, metric: MetricLimit) -> Finding:
    said = note("metric-not-accepted", name=each.name, values=metric_values(each, metric))
    look_at = (note("look-at-training"),)
    return Finding(FindingKind.METRIC, int(each.pair.steps[-1]), each.name, said, look_at, is_sudden=False)


def metric_values(each: SeriesResult, metric: MetricLimit) -> Note:
    """Return what the last values are, and how many before are further apart than is accepted."""
    pair = each.pair
    return note("metric-values", a=float(pair.a[-1]), b=float(pair.b[-1]), step=int(pair.steps[-1]), limit=metric,
                steps=len(pair), before=int(each.band.out[:-1].sum()))  # fmt: skip


def _squared(pair: PairedSeries) -> str:
    """Tell which side's numbers are the square of the other's in every step, to the digits that logs print; empty for neither."""
    known = pair.finite & (pair.a > 0) & (pair.b > 0)
    if known.sum() < max(_FEWEST_SQUARED, len(pair) // 2):
        return ""
    a, b = np.log(pair.a[known]), np.log(pair.b[known])
    apart = {"A": np.abs(a - 2 * b), "B": np.abs(b - 2 * a)}
    return next((side for side, rest in apart.items() if rest.max() < _SAME < np.abs(a - b).max()), "")


def is_gradual(each: SeriesResult) -> bool:
    """Return True if a curve left its band by growing, not at once: half of the difference was there before."""
    at = each.band.first
    if at is None or at < WARM_UP:
        return False
    before = np.nan_to_num(np.abs(each.pair.difference[at - AHEAD : at]))
    return float(before.max()) > _GROWN * abs(float(each.pair.difference[at]))


def _grows_until(difference: np.ndarray) -> bool:
    """Return True if a signed difference grew: the mean of its first half is less than half of that of its last steps."""
    known = difference[np.isfinite(difference)]
    return abs(float(known[: len(known) // 2].mean())) < _GROWN * abs(float(known[-AHEAD:].mean()))


def _biased(each: SeriesResult, settings: tuple[SettingDifference, ...]) -> Finding:
    sign = each.sign
    first = int(each.pair.steps[sign.first])
    said = note(
        "curve-biased", name=each.name, since=first if sign.first else None, offset=sign.offset, share=sign.share,
        steps=sign.steps, p_value=sign.p_value, quarters=each.quarters if each.drifts_late else (),
    )  # fmt: skip
    look_at = _settings(settings) or (note("look-at-what-adds-up" if each.drifts_late else "look-at-loss"),)
    return Finding(FindingKind.BIASED, first, each.name, said, look_at, is_sudden=False)


def _of_norms(norms: LocalNorms, series: list[SeriesResult]) -> list[Finding]:
    first = norms.first
    if not first:
        return []
    lead, step = first[0], first[0].first_out
    assert step is not None
    facts = {"a": lead.a, "b": lead.b, "limit": lead.limit}
    if norms.is_about_all:
        factor = _common_factor(first)
        facts["factor"] = factor if abs(factor - 1) > _ALIKE else 0.0
        said = note("norms-out", name=lead.name_a, count=len(first), total=len(norms.results), **facts)
        return [Finding(FindingKind.NORM, step, lead.name_a, said, (note("look-at-gradients"),))]
    others = [each.first_out for each in series if each.decides and each.first_out is not None]
    is_alone = not others or min(others) > step
    said = note("norm-out", names=tuple(each.name_a for each in first), is_alone=is_alone, **facts)
    return [Finding(FindingKind.NORM, step, lead.name_a, said, (note("look-at-gradient"),))]


def _common_factor(first: Sequence[NormResult]) -> float:
    """Return the one factor between the norms of all parameters, or 0 where there is none."""
    ratios = [each.b / each.a for each in first if each.a and math.isfinite(each.b / each.a)]
    middle = float(np.median(ratios)) if ratios else 0.0
    return middle if all(abs(ratio - middle) <= _ALIKE * middle for ratio in ratios) else 0.0
