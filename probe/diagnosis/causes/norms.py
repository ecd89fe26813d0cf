"""How a normalisation computed its output, solved from its recorded input, weight and output."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np

from probe.diagnosis.evidence import Evidence, Half, once
from probe.diagnosis.hint import Found, verified
from probe.notes import Note, note
from probe.numbers.statistics import unit_roundoff
from probe.records import Role

_BATCH_NORM, _GROUP_NORM = re.compile("[Bb]atch_?Norm"), re.compile("(Group|Instance)_?Norm")
"""what classes are called that normalise channels; `GraniteRMSNorm` and `InternLM2RMSNorm` do not"""
_EPS = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon", "norm_eps", "eps", "epsilon")
_ROUND = [10.0**-power for power in range(3, 13)]
_SIGMAS = 5
"""two eps are different if they are apart by this many standard errors"""
_ENOUGH = 1 << 19
"""elements from which an eps is solved"""
_FEW = 8
_FITS = 3
"""a simpler formula is taken if its misfit is at most this many times the best one's"""


@dataclass(frozen=True, slots=True)
class _Rows:
    """A normalisation's tensors: what is normalised together stands in a row."""

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    """of a shape that goes with x"""
    bias: np.ndarray


Running = tuple[np.ndarray, np.ndarray]
"""running mean and variance"""
Way = tuple[Note, Note, Note, int]
"""what is subtracted and divided by, what it is multiplied by, what is added, in how many groups"""
Form = tuple[Note, Note]
"""what the squares are divided by, where eps stands"""


class Solved(NamedTuple):
    """An eps."""

    eps: float
    is_round: bool
    """it is a power of ten, or what the configuration says, within its uncertainty"""
    uncertainty: float


@dataclass(frozen=True, slots=True)
class Normed:
    """A formula that gives the recorded output."""

    way: Way
    form: Form
    solved: Solved


@once
def _both(evidence: Evidence) -> tuple[Normed, Normed] | None:
    """Return how both sides computed the output: by the same formula where one fits both."""
    if not all("norm" in name.casefold() for name in evidence.classes):
        return None
    ways = [_fitting(half, evidence.tolerance) for half in evidence.halves]
    if not all(ways):
        return None
    alike = [way for way in ways[0] if way in ways[1]]
    a, b = (alike[0], alike[0]) if alike else (next(iter(ways[0])), next(iter(ways[1])))
    forms = [_forms(half, *each[way]) for half, each, way in zip(evidence.halves, ways, (a, b), strict=True)]
    if not all(forms):
        return None
    chosen = _chosen(*forms)
    return Normed(a, chosen[0], forms[0][chosen[0]]), Normed(b, chosen[1], forms[1][chosen[1]])


def _chosen(a: dict[Form, Solved], b: dict[Form, Solved]) -> tuple[Form, Form]:
    """Return the formula of each side: one in which both eps are round, else round ones, else one that fits both."""
    alike = [form for form in a if form in b]
    for form in alike:
        if a[form].is_round and b[form].is_round:
            return form, form
    round_ones = [next((form for form, solved in side.items() if solved.is_round), None) for side in (a, b)]
    if round_ones[0] is not None and round_ones[1] is not None:
        return round_ones[0], round_ones[1]
    return (alike[0], alike[0]) if alike else (next(iter(a)), next(iter(b)))


def _fitting(half: Half, tolerance: float) -> dict[Way, tuple[np.ndarray, np.ndarray, int]]:
    """Return the ways that give the recorded output: what each row is multiplied by, its variance, its length."""
    output = half.values
    inputs = [x for x in half.given() if output is not None and x.shape == output.shape]
    if output is None or not inputs or not np.isfinite(output).all() or not np.isfinite(inputs[0]).all():
        return {}
    weight, bias = half.parameter("weight"), half.parameter("bias")
    noise = max(tolerance, 16 * unit_roundoff(half.dtype))
    found = {}
    for groups, whole, given in _layouts(half, inputs[0], output, weight, bias):
        rows, given = _leading(whole, given)
        size = float(np.linalg.norm(rows.y))
        shifts = [(note("bias"), rows.bias), *([(note("no-bias"), np.zeros(()))] if bias is not None else [])]
        for statistics, mean, variance in _statistics(rows.x, given):
            for scaling, factor in _scalings(rows.weight, weight is not None):
                for shift, added in shifts:
                    z, t = (rows.x - mean) * factor, rows.y - added
                    squares = np.sum(z * z, axis=1)
                    with np.errstate(divide="ignore", invalid="ignore"):
                        s = np.where(squares > 0, np.sum(t * z, axis=1) / squares, 0.0)
                    if size and float(np.linalg.norm(t - s[:, None] * z)) <= noise * size:
                        found[statistics, scaling, shift, groups] = s, variance, rows.x.shape[1]
    return found


def _leading(rows: _Rows, given: Running | None) -> tuple[_Rows, Running | None]:
    """Return the first rows, as many as are enough."""
    kept = max(_FEW, _ENOUGH // rows.x.shape[1])
    parts = [
        each[:kept] if each.ndim and each.shape[0] > 1 else each for each in (rows.x, rows.y, rows.weight, rows.bias)
    ]
    return _Rows(*parts), None if given is None else (given[0][:kept], given[1][:kept])


def _layouts(
    half: Half, x: np.ndarray, y: np.ndarray, weight: np.ndarray | None, bias: np.ndarray | None
) -> Iterator[tuple[int, _Rows, Running | None]]:
    """Yield what may be normalised together: (groups, rows, running mean and variance)."""

    def rows(tensors: Sequence[np.ndarray], laid: Callable[[np.ndarray], np.ndarray]) -> _Rows:
        scale = np.ones(()) if weight is None else laid(weight)
        return _Rows(*tensors, scale, np.zeros(()) if bias is None else laid(bias))

    by_channel = x.ndim > 1 and all(each is None or each.size == x.shape[1] for each in (weight, bias))
    if _BATCH_NORM.search(half.class_name) and by_channel:
        columns = [np.moveaxis(each, 1, 0).reshape(x.shape[1], -1) for each in (x, y)]
        yield 1, rows(columns, lambda each: each[:, None]), _running(half)
        return
    if _GROUP_NORM.search(half.class_name) and by_channel and x.ndim > 2:
        for groups in (n for n in range(1, x.shape[1] + 1) if x.shape[1] % n == 0):
            flat = [each.reshape(x.shape[0] * groups, -1) for each in (x, y)]
            yield groups, rows(flat, partial(_per_channel, shape=x.shape, groups=groups)), None
        return
    width = x.shape[-1] if weight is None else weight.size
    if x.size % width == 0:
        flat = [each.reshape(-1, width) for each in (x, y)]
        yield 1, rows(flat, lambda each: each.reshape(1, -1)), None


def _running(half: Half) -> Running | None:
    mean, variance = (half.parameter(name, Role.BUFFER) for name in ("running_mean", "running_var"))
    return None if mean is None or variance is None else (mean[:, None], variance)


def _per_channel(values: np.ndarray, shape: tuple[int, ...], groups: int) -> np.ndarray:
    spread = np.broadcast_to(values.reshape(1, -1, *([1] * (len(shape) - 2))), shape)
    return spread.reshape(shape[0] * groups, -1)


def _statistics(x: np.ndarray, running: Running | None) -> Iterator[tuple[Note, np.ndarray | float, np.ndarray]]:
    mean = x.mean(axis=1, keepdims=True)
    yield note("mean-and-variance"), mean, np.mean((x - mean) ** 2, axis=1)
    if running is None:
        yield note("mean-square"), 0.0, np.mean(x * x, axis=1)
    else:
        yield note("running-mean-and-variance"), running[0], running[1]


def _scalings(weight: np.ndarray, has_weight: bool) -> Iterator[tuple[Note, np.ndarray]]:
    yield note("weight"), weight
    if has_weight:
        yield note("one-plus-weight"), 1 + weight
        yield note("no-weight"), np.ones(())


def _forms(half: Half, s: np.ndarray, variance: np.ndarray, n: int) -> dict[Form, Solved]:
    """Solve 1/s² = variance + eps and its variants for eps; those that fit."""
    used = (s > 0) & (variance > 0)
    if used.sum() < 2:
        return {}
    s, variance = s[used], variance[used]
    forms: dict[Form, tuple[np.ndarray, np.ndarray]] = {}
    unbiased = variance * n / max(1, n - 1)
    for divisor, mine in ((note("divided-by-n"), variance), (note("divided-by-n-minus-1"), unbiased)):
        forms[divisor, note("eps-under-root")] = 1 / s**2, mine
        forms[divisor, note("eps-outside-root")] = 1 / s, np.sqrt(mine)
    known = next((value for value in (half.config(name) for name in _EPS) if value), None)
    u, found = unit_roundoff(half.dtype), {}
    for form, (whole, part) in forms.items():
        weights = 1 / part**2
        eps = float(np.sum((whole - part) * weights) / weights.sum())
        misfit = float(np.sqrt(np.mean(((whole - part - eps) / part) ** 2)))
        noise = max(misfit, u / 4)
        uncertainty = noise / math.sqrt(float(weights.sum())) + u / 16 * float(part.min())
        if eps > -_SIGMAS * uncertainty:
            found[form] = misfit, Solved(*_rounded(eps, uncertainty, known), uncertainty)
    best = min((misfit for misfit, _ in found.values()), default=0.0)
    return {form: solved for form, (misfit, solved) in found.items() if misfit <= max(_FITS * best, u)}


def _rounded(eps: float, uncertainty: float, known: float | None) -> tuple[float, bool]:
    """Return the power of ten that an eps is, or the number in the configuration, and whether it is one."""
    if known and abs(eps - known) <= _SIGMAS * uncertainty:
        return known, True
    for value in (*_ROUND, 0.0):
        if abs(eps - value) <= max(_SIGMAS * uncertainty, 0.02 * value) and (value > 2 * uncertainty or not value):
            return value, True
    return eps, False


def _named(solved: Solved) -> Note:
    """Return an eps; one that is too small to be told from 0 by its bound."""
    return note("eps", eps=solved.eps) if solved.eps else note("eps-below", bound=_SIGMAS * solved.uncertainty)


def eps(evidence: Evidence) -> Found | None:
    """Both sides use the same formula with another eps."""
    both = _both(evidence)
    if both is None or (both[0].way, both[0].form) != (both[1].way, both[1].form):
        return None
    a, b = both[0].solved, both[1].solved
    apart = abs(a.eps - b.eps)
    if apart <= _SIGMAS * (a.uncertainty + b.uncertainty) or apart <= 0.05 * max(a.eps, b.eps):
        return None
    said = note("other-eps", a=_named(a), b=_named(b))
    return verified(said, by="from-input-weight-and-output", eps_a=a.eps, eps_b=b.eps)


def differs(evidence: Evidence, part: str, at: int, code: str) -> Found | None:
    """One part of a normalisation's formula differs: the place of eps, the divisor, statistics, weight, bias or groups."""
    both = _both(evidence)
    a, b = (None, None) if both is None else (getattr(normed, part)[at] for normed in both)
    if a == b:
        return None
    return verified(Note(code, {"a": a, "b": b}), by="from-input-and-output", a=a, b=b)
