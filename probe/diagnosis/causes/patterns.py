"""What an error looks like: a multiple of the value, a shift, in some places only, growing, the same numbers elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from probe.comparison.distance.metrics import Status
from probe.comparison.notes import Note, note
from probe.comparison.result import Kind
from probe.diagnosis.causes.places import treats_each_alone, zero_rows
from probe.diagnosis.evidence import Evidence, Half, Values, distance
from probe.diagnosis.grades import Found, strong, verified, weak
from probe.records import Phase, Role
from probe.verdict.side import PARAMETER_ROLES

_FACTOR = 1e-3
"""a factor is a known number if it is one up to this, or up to the noise"""
_ALL = 0.999
"""share of the squared error that is all of it"""
_GROWS = 0.8
"""rank correlation from which an error grows with the position"""
_JUMP = 8.0
"""by how much an error is larger than noise, and than before it, at the position at which it begins"""
_FEW = 8
_FEW_INTEGERS = 3
"""rows or elements from which on a pattern is none by chance"""
_PARALLEL = 0.98
_BESIDE = 1e-2
"""share of the difference of two sketches up to which it has no other direction than theirs"""
_SURVIVOR = 1.1
"""how much larger an element may be than dropout of the share that is zero makes the largest one: the share is not the rate"""


# Multiples


def factor_of(evidence: Evidence) -> tuple[float, bool] | None:
    """Return what B is times A, and whether that is computed from values."""
    return evidence.once(_factor)


def _factor(evidence: Evidence) -> tuple[float, bool] | None:
    values, metrics = evidence.values, evidence.metrics
    if values is not None:
        squares = float(np.vdot(values.a, values.a))
        factor = float(np.vdot(values.a, values.b)) / squares if squares else 0.0
        fits = values.a.size > 1 and factor and evidence.explains(factor * values.a, values.b)
        return (factor, True) if fits else None
    if metrics is None or metrics.status is not Status.COMPARED or not metrics.norm_a or not metrics.norm_b:
        return None
    a, b = (half.tensor.sketch for half in evidence.halves)
    if evidence.size < 2 or not metrics.estimated or a is None or b is None or not a.any():
        return None
    along = float(a @ b) / float(a @ a)
    rest, least = float(np.linalg.norm(b - along * a)), min(float(np.linalg.norm(b - a)), float(np.linalg.norm(b)))
    return (math.copysign(metrics.norm_ratio, along), False) if rest <= _BESIDE * least else None


def _is(evidence: Evidence, factor: float, number: float) -> bool:
    return abs(factor / number - 1) <= min(_FACTOR, max(4 * evidence.limit, 1e-6), abs(number - 1) / 4 or _FACTOR)


def _multiple(evidence: Evidence, factor: float, by_values: bool, meaning: Note | None = None) -> Found:
    said = note("multiple", factor=factor, meaning=meaning)
    return verified(said, factor=factor) if by_values else strong(said, factor=factor)


def doubled(evidence: Evidence) -> Found | None:
    """Twice, or half, everywhere."""
    found = factor_of(evidence)
    if found is None or not any(_is(evidence, found[0], number) for number in (2.0, 0.5)):
        return None
    return _multiple(evidence, 2.0 if found[0] > 1 else 0.5, found[1])


def sign(evidence: Evidence) -> Found | None:
    """The opposite sign everywhere."""
    found = factor_of(evidence)
    if found is None or not _is(evidence, found[0], -1.0):
        return None
    said = note("opposite-sign")
    return verified(said, factor=-1.0) if found[1] else strong(said, factor=-1.0)


def known_scale(evidence: Evidence) -> Found | None:
    """A factor that is made of the model's own sizes, or that of dropout."""
    found = factor_of(evidence)
    if found is None:
        return None
    for meaning, number in _known_factors(evidence):
        if number != 1 and _is(evidence, found[0], number):
            return _multiple(evidence, found[0], found[1], meaning)
    return None


def _known_factors(evidence: Evidence) -> list[tuple[Note, float]]:
    width = evidence.a.tensor.shape[-1:] or (1,)
    sizes = [("width", float(width[0]))]
    if evidence.has_known_heads:
        sizes += [("head-size", width[0] / n) for n in evidence.heads(width[0])]
    found = [(note("root-of-two"), math.sqrt(2.0)), (note("one-over-root-of-two"), math.sqrt(0.5))]
    for name, size in sizes:
        found += [
            (note("root-of-size", size=size, of=Note(name)), math.sqrt(size)),
            (note("one-over-root-of-size", size=size, of=Note(name)), size**-0.5),
        ]
    return [*found, *((note("kept-by-dropout", rate=p), 1 / (1 - p)) for p in (0.05, 0.1, 0.15, 0.2, 0.3))]


def uniform_scale(evidence: Evidence) -> Found | None:
    """Any factor."""
    found = factor_of(evidence)
    if found is not None:
        return _multiple(evidence, found[0], found[1], note("uniform-scale"))
    metrics = evidence.metrics
    if metrics is None or not metrics.norm_a or evidence.role is Role.VALUE:
        return None
    if (
        not min(abs(metrics.coherence), abs(metrics.cosine)) > _PARALLEL
    ):  # what is much smaller has an error parallel to A
        return None
    factor = math.copysign(metrics.norm_ratio, metrics.cosine)
    return _multiple(evidence, factor, False, note("uniform-scale"))


def scale_of_gradient(evidence: Evidence) -> Found | None:
    """Any factor, of a gradient as backward made it."""
    return None if _is_used_gradient(evidence) else uniform_scale(evidence)


def scale_of_used_gradient(evidence: Evidence) -> Found | None:
    """Any factor between backward and the optimizer."""
    return uniform_scale(evidence) if _is_used_gradient(evidence) else None


def _is_used_gradient(evidence: Evidence) -> bool:
    return evidence.phase is Phase.UPDATE and evidence.role is Role.PARAM_GRAD


def scale_of_input(evidence: Evidence) -> Found | None:
    """What the model is given is a multiple."""
    found = factor_of(evidence) if evidence.finding.kind is Kind.INPUTS and not evidence.is_of_integers else None
    return None if found is None else _multiple(evidence, found[0], found[1])


def value_for_another(evidence: Evidence) -> Found | None:
    """Of integers: all that differ have one number on A and one on B; of two and more, since one alone always has."""
    values = evidence.values if evidence.is_of_integers else None
    if values is None:
        return None
    differs = values.difference != 0
    a, b = np.unique(values.a[differs]), np.unique(values.b[differs])
    if len(a) != 1 or len(b) != 1 or np.count_nonzero(differs) < 2:
        return None
    count, among = int(np.count_nonzero(differs)), int(np.count_nonzero(values.a == a[0]))
    numbers = {"a": int(a[0]), "b": int(b[0])}
    return verified(note("value-for-another", count=count, among=among, **numbers), **numbers)


def scale_along(evidence: Evidence, axis: int, code: str) -> Found | None:
    """Each index of the last axis, or each row, has its own factor."""
    values = evidence.values
    if values is None or values.a.ndim < 2 or factor_of(evidence) is not None:
        return None
    a, b = (each.reshape(-1, each.shape[-1]) for each in (values.a, values.b))
    a, b = (a.T, b.T) if axis == -1 else (a, b)
    if a.shape[1] < _FEW or a.shape[0] < 2:
        return None
    squares = np.sum(a * a, axis=1)
    factors = np.divide(np.sum(a * b, axis=1), squares, out=np.ones_like(squares), where=squares > 0)
    if not evidence.explains(factors[:, None] * a, b):
        return None
    low, high = float(factors.min()), float(factors.max())
    return verified(Note(code, {"low": low, "high": high}), low=low, high=high)


# Shifts


def bias(evidence: Evidence) -> Found | None:
    """The module's own bias, once more or once less."""
    values = evidence.values
    if values is None or evidence.role is not Role.OUTPUT:
        return None
    for side, half, sign_of in (("B", evidence.a, -1.0), ("A", evidence.b, 1.0)):
        added = half.parameter("bias")
        if added is None or not added.any():
            continue
        for axis in (values.a.ndim - 1, 1):
            if axis < values.a.ndim and values.a.shape[axis] == added.size:
                shift = added.reshape(-1, *([1] * (values.a.ndim - 1 - axis)))
                for times, code in ((sign_of, "bias-lacking"), (-sign_of, "bias-twice")):
                    if evidence.explains(values.a + times * shift, values.b):
                        return verified(Note(code, {"side": side, "is_minus": times < 0}))
    return None


def shift_by_column(evidence: Evidence) -> Found | None:
    """The same vector is added to every row."""
    values = evidence.values
    if values is None or values.a.ndim < 2 or evidence.role in PARAMETER_ROLES:
        return None
    rows = values.difference.reshape(-1, values.a.shape[-1])
    shift = rows.mean(axis=0)
    if rows.shape[0] < _FEW or np.ptp(shift) <= 1e-3 * np.abs(shift).max() or not _is_shift(evidence, values, shift):
        return None
    return verified(note("same-vector-in-every-row"), norm=float(np.linalg.norm(shift)))


def counted_on(evidence: Evidence) -> Found | None:
    """Integers are all further on by one number: they are counted from another one."""
    if not evidence.is_of_integers:
        return None
    values = evidence.values
    if values is None:
        moved = _moved_by_statistics(evidence, _FEW_INTEGERS)
        return weak(note("shift-by-statistics", shift=moved), shift=moved) if moved else None
    shift = float(values.difference.flat[0])
    if values.a.size < _FEW_INTEGERS or not _is_shift(evidence, values, np.asarray(shift)):
        return None
    return verified(note("shift", shift=shift), shift=shift)


def constant_shift(evidence: Evidence) -> Found | None:
    """The same number is added everywhere."""
    if evidence.is_of_integers:
        return None
    values = evidence.values
    if values is not None:
        if values.a.size < _FEW:
            return None
        shift = float(values.difference.mean())
        is_shift = _is_shift(evidence, values, np.asarray(shift))
        return verified(note("shift", shift=shift), shift=shift) if is_shift else None
    return _shift_by_statistics(evidence)


def _is_shift(evidence: Evidence, values: Values, shift: np.ndarray) -> bool:
    return bool(np.any(shift)) and evidence.explains(values.a + shift, values.b)


def _shift_by_statistics(evidence: Evidence) -> Found | None:
    """A shift of about the size of the error."""
    moved = _moved_by_statistics(evidence)
    if not moved:
        return None
    a, b = evidence.halves
    size_of_shift = abs(moved) * math.sqrt(evidence.size)
    expected = evidence.error * max(a.tensor.norm, b.tensor.norm)
    if not 0.7 < size_of_shift / expected < 1.4:
        return None
    return weak(note("shift-by-statistics", shift=moved), shift=moved)


def _moved_by_statistics(evidence: Evidence, few: int = _FEW) -> float:
    """Return by what number mean, least and largest element are apart, 0 where the spread about the mean is too."""
    a, b = evidence.halves
    moved = [getattr(b.tensor, name) - getattr(a.tensor, name) for name in ("low", "high", "mean")]
    size = evidence.size
    if size < few or not all(map(math.isfinite, moved)) or a.tensor.low == a.tensor.high:
        return 0.0
    spread = [max(0.0, half.tensor.rms**2 - half.tensor.mean**2) ** 0.5 for half in (a, b)]
    close = 1e-3 * abs(moved[2])
    if not moved[2] or max(moved) - min(moved) > close or abs(spread[0] - spread[1]) > close:
        return 0.0
    return moved[2]


# Growth along positions


def growth(evidence: Evidence) -> Found | None:
    """No error at the first position, and more and more behind it."""
    errors = _by_position(evidence)
    if errors is None or len(errors) < _FEW - 2 or errors[0] > evidence.limit or treats_each_alone(evidence):
        return None
    if _begins_behind(errors, evidence.limit):
        return None
    correlation = _rank_correlation(errors)
    if correlation < _GROWS or np.count_nonzero(errors > evidence.limit) < len(errors) // 2:
        return None
    said = note("error-grows-with-position", correlation=correlation, last=float(errors[-1]))
    return strong(said, correlation=correlation)


def _begins_behind(errors: np.ndarray, limit: float) -> bool:
    """Tell whether some first positions agree and the error jumps up behind them: embeddings of positions err from the second on."""
    begin = int((errors > limit).argmax())
    return begin > 1 and float(errors[begin]) > _JUMP * max(limit, float(errors[:begin].max()))


def looks_ahead(evidence: Evidence) -> Found | None:
    """The last position agrees, and the error grows towards the first one."""
    errors = _by_position(evidence)
    if errors is None or len(errors) < _FEW - 2 or errors[-1] > evidence.limit or "att" not in evidence.names:
        return None
    correlation = _rank_correlation(errors)
    if correlation > -_GROWS or np.count_nonzero(errors > evidence.limit) < len(errors) // 2:
        return None
    return strong(note("error-grows-towards-first-position"), correlation=correlation)


def _by_position(evidence: Evidence) -> np.ndarray | None:
    """Return the relative error at each position."""
    values = evidence.values
    axis = None if values is None or not values.is_whole else evidence.axis_of_positions(values.a.shape)
    if values is None or axis is None:
        return None
    norms = [_norms_along(each, (axis,)) for each in (values.difference, values.a, values.b)]
    return norms[0] / np.maximum(np.maximum(norms[1], norms[2]), 1e-300)


def _norms_along(array: np.ndarray, axes: Sequence[int]) -> np.ndarray:
    """Return the norm at each index of some axes."""
    return np.sqrt(np.sum(array * array, axis=tuple(axis for axis in range(array.ndim) if axis not in axes)))


def _rank_correlation(values: np.ndarray) -> float:
    ranks = np.argsort(np.argsort(values)).astype(np.float64)
    return float(np.corrcoef(ranks, np.arange(len(values)))[0, 1])


# The form of the elements


def clamp(evidence: Evidence) -> Found | None:
    """One side cuts off what is beyond a bound."""
    values = evidence.values
    if values is None:
        return None
    for cut, whole, side in ((values.b, values.a, "B"), (values.a, values.b, "A")):
        low, high = float(cut.min()), float(cut.max())
        reached = int(np.count_nonzero(whole > high)) + int(np.count_nonzero(whole < low))
        if low < high and reached > 1 and distance(np.clip(whole, low, high), cut) <= evidence.tolerance:
            bounds = [f"{low:.5g}"] * bool((whole < low).any()) + [f"{high:.5g}"] * bool((whole > high).any())
            return verified(note("clamped", side=side, bounds=tuple(bounds), elements=reached), bounds=bounds)
    return None


def dropout(evidence: Evidence) -> Found | None:
    """A part of the elements is zero on one side, or zero at other places on each; the rest is multiplied."""
    values = evidence.values
    if values is None:
        return _zeros_by_statistics(evidence)
    if values.a.size < 4 * _FEW or evidence.role in PARAMETER_ROLES or evidence.is_of_integers:
        return None
    zero_a, zero_b = values.a == 0, values.b == 0
    kept = ~zero_a & ~zero_b
    shares = [float((zero & ~other).mean()) for zero, other in ((zero_a, zero_b), (zero_b, zero_a))]
    if not kept.any() or max(shares) < 0.005:
        return None
    squares = float(np.vdot(values.a[kept], values.a[kept]))
    factor = float(np.vdot(values.a[kept], values.b[kept])) / squares
    if distance(factor * values.a[kept], values.b[kept]) > evidence.tolerance:
        return None
    if min(shares) > 0.005:
        zeros = {"zeros_a": shares[0], "zeros_b": shares[1]}
        return verified(note("other-zeros-on-each-side", **zeros), **zeros)
    side, share = ("B", shares[1]) if shares[1] > shares[0] else ("A", shares[0])
    times = factor if side == "B" else 1 / factor
    expected = 1 / (1 - share)
    spread = min(0.25 * (expected - 1) + 4 * math.sqrt(share / values.a.size), 0.6 * (expected - 1))
    if abs(times - expected) > spread or _is_block(values, side):
        return None
    return verified(note("dropped-out", side=side, share=share, factor=times), share=share, factor=times)


def _is_block(values: Values, side: str) -> bool:
    """Tell whether whole rows or columns are zero: that is no dropout of elements."""
    zero = ((values.b == 0) & (values.a != 0)) if side == "B" else ((values.a == 0) & (values.b != 0))
    flat = zero.reshape(-1, zero.shape[-1])
    return bool(flat.all(axis=1).any() or flat.all(axis=0).any()) and min(flat.shape) > 4


def _zeros_by_statistics(evidence: Evidence) -> Found | None:
    size = evidence.size
    if evidence.is_one_sided or size < 64 or evidence.role not in (Role.INPUT, Role.OUTPUT):
        return None
    zeros = [half.tensor.zeros / size for half in evidence.halves]
    metrics = evidence.metrics
    if metrics is None or not metrics.estimated or min(zeros) > 0 or not 0.02 < max(zeros) < 0.6:
        return None
    side, half, other = ("B", evidence.b, evidence.a) if zeros[1] else ("A", evidence.a, evidence.b)
    share = max(zeros)
    if zero_rows(evidence) is not None:
        return None
    if other.tensor.low < 0 and half.tensor.low == 0 or not _are_scaled_survivors(half, other, share):
        return None
    ratio = metrics.norm_ratio if side == "B" else 1 / metrics.norm_ratio
    if abs(ratio * math.sqrt(1 - share) - 1) > 0.1:  # what is kept is divided by 1 − p
        return None
    return weak(note("dropped-out-by-norm", side=side, share=share), share=share)


def _are_scaled_survivors(half: Half, other: Half, share: float) -> bool:
    """Tell whether no element is larger than 1/(1 − p) times the other side's largest, and the largest ones that stay are."""
    times = 1 / (1 - share)
    ends = [(abs(half.tensor.low), abs(other.tensor.low)), (abs(half.tensor.high), abs(other.tensor.high))]
    return all(x <= _SURVIVOR * times * y for x, y in ends) and any(x > y for x, y in ends)
