"""What an error looks like: a multiple of the value, a shift, in some places only, growing, the same numbers elsewhere."""

from __future__ import annotations

import math

import numpy as np

from probe.diagnosis.causes.factors import factor_of
from probe.diagnosis.causes.places import zero_rows
from probe.diagnosis.evidence import Evidence, Half, Values, distance
from probe.diagnosis.hint import Found, verified, weak
from probe.notes import Note, note
from probe.records import Role
from probe.verdict.side import PARAMETER_ROLES

_FEW = 8
_FEW_INTEGERS = 3
"""rows or elements from which on a pattern is none by chance"""
_SURVIVOR = 1.1
"""how much larger an element may be than dropout of the share that is zero makes the largest one: the share is not the rate"""


def value_for_another(evidence: Evidence) -> Found | None:
    """Two integers or more differ, all from one number to one other."""
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
    if values is None:
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


def constant_shift(evidence: Evidence, of_integers: bool) -> Found | None:
    """The same number is added everywhere."""
    if evidence.is_of_integers is not of_integers:
        return None
    values, few = evidence.values, _FEW_INTEGERS if of_integers else _FEW
    if values is None:
        moved = _moved_by_statistics(evidence, few)
        is_shift = bool(moved) and (of_integers or _is_as_large_as_error(evidence, moved))
        return weak(note("shift-by-statistics", shift=moved), shift=moved) if is_shift else None
    shift = float(values.difference.flat[0] if of_integers else values.difference.mean())
    is_shift = values.a.size >= few and _is_shift(evidence, values, np.asarray(shift))
    return verified(note("shift", shift=shift), shift=shift) if is_shift else None


def _is_shift(evidence: Evidence, values: Values, shift: np.ndarray) -> bool:
    return bool(np.any(shift)) and evidence.explains(values.a + shift, values.b)


def _is_as_large_as_error(evidence: Evidence, moved: float) -> bool:
    """Return True if a shift is of about the size of the error."""
    expected = evidence.error * max(half.tensor.norm for half in evidence.halves)
    return 0.7 < abs(moved) * math.sqrt(evidence.size) / expected < 1.4


def _moved_by_statistics(evidence: Evidence, few: int) -> float:
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
    """Some elements are zero on one side, or other ones on each; the rest is multiplied."""
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
    """Return True if whole rows or columns are zero: that is no dropout of elements."""
    zero = ((values.b == 0) & (values.a != 0)) if side == "B" else ((values.a == 0) & (values.b != 0))
    flat = zero.reshape(-1, zero.shape[-1])
    return bool(flat.all(axis=1).any() or flat.all(axis=0).any()) and min(flat.shape) > 4


def _zeros_by_statistics(evidence: Evidence) -> Found | None:
    metrics, zeros = evidence.metrics, [half.tensor.zeros / evidence.size for half in evidence.halves]
    share = max(zeros)
    if evidence.size < 64 or evidence.role not in (Role.INPUT, Role.OUTPUT) or not metrics.estimated:
        return None
    if min(zeros) > 0 or not 0.02 < share < 0.6 or zero_rows(evidence) is not None:
        return None
    side, half, other = ("B", evidence.b, evidence.a) if zeros[1] else ("A", evidence.a, evidence.b)
    if other.tensor.low < 0 and half.tensor.low == 0 or not _are_scaled_survivors(half, other, share):
        return None
    ratio = metrics.norm_ratio if side == "B" else 1 / metrics.norm_ratio
    is_divided = abs(ratio * math.sqrt(1 - share) - 1) <= 0.1  # what is kept, by 1 − p
    return weak(note("dropped-out-by-norm", side=side, share=share), share=share) if is_divided else None


def _are_scaled_survivors(half: Half, other: Half, share: float) -> bool:
    """Return True if no element is larger than 1/(1 − p) times the other side's largest, and the largest ones that stay are."""
    times = 1 / (1 - share)
    ends = [(abs(half.tensor.low), abs(other.tensor.low)), (abs(half.tensor.high), abs(other.tensor.high))]
    return all(x <= _SURVIVOR * times * y for x, y in ends) and any(x > y for x, y in ends)
