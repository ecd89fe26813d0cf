"""The form of an Adam update, from values: its rate, where eps stands and how large it is, whether the moments are corrected."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np

from probe.diagnosis.optimizer.linear import Solution, solved
from probe.diagnosis.optimizer.rules import Rule
from probe.diagnosis.optimizer.traces import Trace, values_of

_MOST = 1 << 14
"""elements that are looked at"""
_GRID = np.concatenate([[0.0], 10.0 ** np.arange(-12, 1.01, 0.5)])
_EXACT = 3e-3
"""share of an update that rounding may leave unexplained"""
_CLEARLY = 3.0
"""a form is the right one if every other leaves this many times more unexplained"""
_CLOSE = 0.01


@dataclass(frozen=True, slots=True)
class Form:
    """δ = −rate · (m / c₁) / (√(v / c₂) + eps) − decay · p, with c₁ = c₂ = 1 where the moments are not corrected."""

    rate: float
    decay: float
    eps: float
    """NaN where it makes no difference"""
    is_inside: bool
    """eps is added to v, inside the root"""
    is_corrected: bool
    residual: float


def form_of(trace: Trace, rule: Rule) -> Form | None:
    """Return the form that explains one side's update of a parameter, None where the numbers leave several, or none."""
    tensors = _values(trace, rule)
    first = rule.first_decay if rule.first_decay is not None else None if rule.gain is None else 1 - rule.gain
    if tensors is None or first is None or rule.second_decay is None:
        return None
    count = 1 if rule.is_fresh else trace.side.step + 1
    corrections = {True: (1 - first**count, 1 - rule.second_decay**count), False: (1.0, 1.0)}
    found = [
        _best_eps(tensors, corrections[corrected], inside, corrected)
        for inside, corrected in itertools.product((False, True), (True, False))
    ]
    forms = sorted(
        (form for form in found if form is not None and form.residual < _EXACT), key=lambda form: form.residual
    )
    return _told_apart(forms, trace.settings)


def _told_apart(forms: list[Form], settings: dict[str, object]) -> Form | None:
    """Return the form that is right: the only one that explains the update, or the only one with the recorded rate."""
    if not forms:
        return None
    close = [form for form in forms if form.residual <= _CLEARLY * forms[0].residual + 1e-6]
    if len(close) > 1 and all(math.isnan(form.eps) for form in close):
        close = [form for form in close if not form.is_inside]
    rate = settings.get("lr")
    if len(close) > 1 and isinstance(rate, (int, float)):
        close = [form for form in close if math.isclose(form.rate, rate, rel_tol=_CLOSE)]
    if (
        len({form.is_corrected for form in close}) > 1
    ):  # in a first step the rate makes up for it, which nobody recorded
        close = [form for form in close if form.is_corrected]
    return close[0] if len(close) == 1 else None


_Tensors = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]


def _values(trace: Trace, rule: Rule) -> _Tensors | None:
    """Return m, v, p and δ, and how far δ may be off."""
    first, second = (trace.states.get(name) for name in rule.moments)
    if first is None or second is None or trace.before is None or trace.after is None:
        return None
    found = [values_of(each) for each in (first, second, trace.before, trace.after)]
    if any(each is None or not np.isfinite(each).all() for each in found):
        return None
    m, v, p, q = (each[:: max(1, len(each) // _MOST)] for each in found if each is not None)
    rounding = trace.after.u * float(np.linalg.norm(q))
    return (m, v, p, q - p, rounding) if len(m) == len(v) == len(p) == len(q) and len(m) > 3 else None


def _best_eps(tensors: _Tensors, corrections: tuple[float, float], inside: bool, corrected: bool) -> Form | None:
    """Return the form with the eps that leaves the least unexplained: of a grid, then more closely around it."""
    tried = {eps: _solved(tensors, corrections, inside, eps) for eps in _GRID.tolist()}
    known = {eps: found for eps, found in tried.items() if found is not None}
    if not known:
        return None
    best = min(known, key=lambda eps: known[eps].residual)
    solution, without = known[best], known.get(0.0)
    for width in (2.0 ** -np.arange(2, 14)).tolist() if best else ():
        for other in (best * 10**-width, best * 10**width):
            found = _solved(tensors, corrections, inside, other)
            if found is not None and found.residual < solution.residual:
                best, solution = other, found
    matters = without is None or without.residual > _CLEARLY * solution.residual + 1e-6
    decay = -solution.coefficients[1] if len(solution.coefficients) > 1 and solution.is_there(1) else 0.0
    eps = best if matters else math.nan
    return Form(-solution.coefficients[0], decay, eps, inside, corrected, solution.residual)


def _solved(tensors: _Tensors, corrections: tuple[float, float], inside: bool, eps: float) -> Solution | None:
    m, v, p, update, rounding = tensors
    square = v / corrections[1]
    below = np.sqrt(square + eps) if inside else np.sqrt(square) + eps
    with np.errstate(divide="ignore", invalid="ignore"):
        direction = np.where(below > 0, m / corrections[0] / below, 0.0)
    if not np.isfinite(direction).all():
        return None
    found = solved(update, [direction, p], rounding)
    return found if found is not None else solved(update, [direction], rounding)
