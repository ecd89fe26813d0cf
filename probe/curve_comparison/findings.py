"""What the curves of two runs say, in the order of cause, and what to look at."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from probe.comparison.coverage.guards import grouped
from probe.curve_comparison.norms import LocalNorms, NormResult
from probe.curve_comparison.pairing import PairedSeries
from probe.curve_comparison.parameters import SettingDifference
from probe.curve_comparison.reading.names import GRAD_NORM, LOSS, LR
from probe.curve_comparison.reading.recorded import BEFORE_CLIPPING, TOTAL
from probe.curve_comparison.result import Finding, FindingKind, SeriesResult
from probe.curve_comparison.standard import StandardVerdict, percent
from probe.curve_comparison.tolerance import AHEAD, WARM_UP, MetricLimit, is_loss

_MOST_NAMED = 4
_GROWN = 0.5
_ALIKE = 0.02
_SAME = 0.01
"""relative difference of numbers that are the same ones: logs print three digits"""
_FEWEST_SQUARED = 3
TOTALS = (BEFORE_CLIPPING, GRAD_NORM, TOTAL)
"""what the global gradient norm is called: before clipping where that was recorded, as it was logged, else of the gradients as used"""

HINTS = {
    "lr": "the schedule: warmup, decay, the number of steps it is made for, scaling with the batch size",
    "nonfinite": "overflow: the loss scale, the precision of softmax and of norms, a learning rate that is too large",
    "loss at once": "the forward pass: weights, inputs, the model's structure and settings, the loss itself",
    "loss after agreement": (
        "the update of the step before (learning rate, weight decay, betas, eps, clipping), or what begins in this step: "
        "its batch, a schedule"
    ),
    "gradient": "the backward pass: the loss of that step still agrees; gradient accumulation, loss scale, clipping, reduction",
    "norm alone": (
        "how this parameter's gradient is computed: its precision (an embedding in float32 against bfloat16), how it is "
        "summed over ranks or micro-batches, what is detached or tied"
    ),
    "norm all": "what all gradients pass through: the loss, its scale, gradient accumulation, clipping, reduction over ranks",
    "late": (
        "what adds up: the optimizer's type and settings, weight decay (which parameters have it: biases and one-dimensional "
        "weights?), the learning rate, the precision of single modules"
    ),
    "offset": "the loss (reduction, padding, auxiliary losses), inputs, weights, the precision of single modules",
    "squared": "what is logged: {squared}'s numbers are the square of {root}'s in every step, a norm of which the root was not taken",
    "metric": "the whole training: its loss, its data, its settings, and how the metric itself is computed",
    "spike": "this step's batch alone: its ids and decoded text; skip it and run again",
}
"""what to look at, by what was found"""

_OF_BACKWARD = {HINTS["gradient"], HINTS["norm alone"], HINTS["norm all"]}
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
        each if index == 0 or each.hint not in _OF_BACKWARD else replace(each, hint="")
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
    return [Finding(FindingKind.STANDARD, step, LOSS, f"migration standard: {text}") for text in standard.failed]


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
    if not pair.finite[at]:
        text = f"{each.name} is {a:.6g} in A and {b:.6g} in B"
        return Finding(FindingKind.NONFINITE, step, each.name, text, HINTS["nonfinite"])
    limit = max(float(pair.a[at] - each.band.low[at]), float(each.band.high[at] - pair.a[at]))
    relative = f", {percent(abs(b - a) / abs(a))}" if a else ""
    text = f"{each.name} leaves the noise band: {a:.6g} in A, {b:.6g} in B (Δ {b - a:+.2g}{relative}; up to {limit:.2g} is noise)"
    if each.name.startswith(LR):
        return Finding(
            FindingKind.SETTING, step, each.name, f"{each.name} is {a:.6g} in A and {b:.6g} in B", HINTS["lr"]
        )
    if is_gradual(each):
        drifts = _grows_until(each.pair.difference[:at])
        text += "; it drifted there, no step did it alone" if drifts else ""
        hint = "; ".join(map(str, settings[:_MOST_NAMED])) or HINTS["late" if drifts else "offset"]
    elif side := _squared(pair):
        hint = HINTS["squared"].format(squared=side, root="A" if side == "B" else "B")
    elif at + 1 < len(pair) and not each.band.out[at + 1 : at + AHEAD].any():
        hint = HINTS["spike"]
    elif is_loss(each.name):
        hint = HINTS["loss at once" if at == 0 else "loss after agreement"]
    else:
        hint = HINTS["gradient"]
    return Finding(FindingKind.BAND, step, each.name, text, hint, not is_gradual(each))


def _not_accepted(each: SeriesResult, metric: MetricLimit) -> Finding:
    text = f"{each.name} is not accepted: {metric_text(each, metric)}"
    return Finding(FindingKind.METRIC, int(each.pair.steps[-1]), each.name, text, HINTS["metric"], is_sudden=False)


def metric_text(each: SeriesResult, metric: MetricLimit) -> str:
    """Say what the last values are, and how many before are further apart than is accepted."""
    pair = each.pair
    a, b = float(pair.a[-1]), float(pair.b[-1])
    apart = percent(abs(b - a) / abs(a), metric.limit) if metric.is_relative and a else f"{abs(b - a):.4g}"
    before = int(each.band.out[:-1].sum())
    more = f"; further apart in {before} of {len(pair) - 1} steps before" if before else ""
    return f"{a:.6g} in A, {b:.6g} in B at its last step, {int(pair.steps[-1])} (Δ {apart}; up to {metric} is accepted){more}"


def _squared(pair: PairedSeries) -> str:
    """Tell which side's numbers are the square of the other's in every step, to the digits that logs print; empty for neither."""
    known = pair.finite & (pair.a > 0) & (pair.b > 0)
    if known.sum() < max(_FEWEST_SQUARED, len(pair) // 2):
        return ""
    a, b = np.log(pair.a[known]), np.log(pair.b[known])
    apart = {"A": np.abs(a - 2 * b), "B": np.abs(b - 2 * a)}
    return next((side for side, rest in apart.items() if rest.max() < _SAME < np.abs(a - b).max()), "")


def is_gradual(each: SeriesResult) -> bool:
    """Tell whether a curve left its band by growing, not at once: half of the difference was there before."""
    at = each.band.first
    if at is None or at < WARM_UP:
        return False
    before = np.nan_to_num(np.abs(each.pair.difference[at - AHEAD : at]))
    return float(before.max()) > _GROWN * abs(float(each.pair.difference[at]))


def _grows_until(difference: np.ndarray) -> bool:
    """Tell whether a signed difference grew: the mean of its first half is less than half of that of its last steps."""
    known = difference[np.isfinite(difference)]
    return abs(float(known[: len(known) // 2].mean())) < _GROWN * abs(float(known[-AHEAD:].mean()))


def _biased(each: SeriesResult, settings: tuple[SettingDifference, ...]) -> Finding:
    sign = each.sign
    first = int(each.pair.steps[sign.first])
    stretch = "" if not sign.first else f" from step {first} on"
    text = (
        f"{each.name} is biased{stretch}: B − A is {sign.offset:+.2g} on average and has one sign in "
        f"{sign.share:.0%} of {sign.steps} steps (sign test p = {sign.p_value:.1g})"
    )
    hint = HINTS["offset"]
    if each.drifts_late:
        text += f"; it drifts apart: {each.quarters[0]:+.2g} in the first quarter, {each.quarters[-1]:+.2g} in the last"
        hint = HINTS["late"]
    if settings:
        hint = "; ".join(str(setting) for setting in settings[:_MOST_NAMED])
    return Finding(FindingKind.BIASED, first, each.name, text, hint, is_sudden=False)


def _of_norms(norms: LocalNorms, series: list[SeriesResult]) -> list[Finding]:
    first = norms.first
    if not first:
        return []
    step = first[0].first_out
    assert step is not None
    lead = first[0]
    shown = (
        f"norm {lead.a:.4g} in A, {lead.b:.4g} in B ({_ratio(lead.a, lead.b)}; up to {percent(lead.limit)} is noise)"
    )
    if norms.is_about_all:
        factor = _common_factor(first)
        if abs(factor - 1) > _ALIKE and factor:
            shown += f"; all of them are {factor:.4g} times those of A"
        text = f"the gradient norms of {len(first)} of {len(norms.results)} parameters leave the noise band, most {lead.name_a}: {shown}"
        return [Finding(FindingKind.NORM, step, lead.name_a, text, HINTS["norm all"])]
    names = grouped([each.name_a for each in first], _MOST_NAMED)
    others = [each.first_out for each in series if each.decides and each.first_out is not None]
    alone = " alone" if not others or min(others) > step else ""
    text = f"the gradient norm of {names}{alone} leaves the noise band: {shown}"
    return [Finding(FindingKind.NORM, step, lead.name_a, text, HINTS["norm alone"])]


def _common_factor(first: Sequence[NormResult]) -> float:
    """Return the one factor between the norms of all parameters, or 0 where there is none."""
    ratios = [each.b / each.a for each in first if each.a and math.isfinite(each.b / each.a)]
    middle = float(np.median(ratios)) if ratios else 0.0
    return middle if all(abs(ratio - middle) <= _ALIKE * middle for ratio in ratios) else 0.0


def _ratio(a: float, b: float) -> str:
    return (
        percent(abs(b - a) / max(abs(a), abs(b)))
        if math.isfinite(b) and math.isfinite(a) and (a or b)
        else "not finite"
    )
