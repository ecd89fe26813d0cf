"""Numbers in fewer bits, rotary angles, tensors that are one number: what a tensor alone, or two alone, tell."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from probe.diagnosis.evidence import Evidence, Half, distance, read
from probe.diagnosis.hint import Found, verified, weak
from probe.notes import Note, note
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role
from probe.verdict.tensors import Tensor

ROUNDED = {"bfloat16": 2.0**-8, "float16": 2.0**-11, "TensorFloat-32": 2.0**-11}
"""unit roundoff by name"""
_BITS = {"bfloat16": 16, "TensorFloat-32": 13}
"""bits of a float32 that are dropped"""
_FEW = 64
"""elements from which on it is no chance that all are rounded"""
_ROUNDED = 1e-4
"""relative error of a norm, and of a mean, of numbers that were rounded"""
_KEPT = 0.5
"""rounding explains an error if what it leaves over is at most this share of it"""


# Precision


def rounded(values: np.ndarray, name: str) -> np.ndarray:
    """Return numbers rounded to the nearest of a narrower format, as float64."""
    if name == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float64)
    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    drop = np.uint32(_BITS[name])
    half = np.uint32((1 << (int(drop) - 1)) - 1)
    even = (bits >> drop) & np.uint32(1)
    kept = ((bits + half + even) >> drop) << drop
    return kept.view(np.float32).astype(np.float64).reshape(values.shape)


def is_rounded(values: np.ndarray, name: str) -> bool:
    """Return True if all numbers have a narrower format."""
    return bool(np.array_equal(rounded(values, name), values))


def precision(evidence: Evidence) -> Found | None:
    """One side's numbers have fewer bits than their dtype."""
    values = evidence.values
    if values is None or values.a.size < _FEW or not values.difference.any():
        return None
    for side, own, other, half in (("B", values.b, values.a, evidence.b), ("A", values.a, values.b, evidence.a)):
        for name in ("bfloat16", "float16", "TensorFloat-32"):
            if ROUNDED[name] < 2 * unit_roundoff(half.dtype) or not is_rounded(own, name) or is_rounded(other, name):
                continue
            if distance(own, other) > 4 * ROUNDED[name]:
                continue
            exactly = distance(rounded(other, name), own) <= _KEPT * evidence.error
            code = "rounded-value-of-other-side" if exactly else "has-fewer-bits"
            return verified(Note(code, {"side": side, "format": name, "dtype": half.dtype}), format=name, side=side)
    return None


def dtype(evidence: Evidence) -> Found | None:
    """The dtypes differ; the error is at most some roundings of the coarser one."""
    names = [half.dtype for half in evidence.halves]
    units = [unit_roundoff(name) for name in names]
    if min(units) == 0 or max(units) < 4 * min(units):
        return None
    side, coarse = ("B", names[1]) if units[1] > units[0] else ("A", names[0])
    if not evidence.error <= 64 * max(units):
        return None
    return weak(note("other-dtypes", a=names[0], b=names[1], side=side, coarse=coarse), a=names[0], b=names[1])


# Tensors that are one number


def one_number(evidence: Evidence) -> Found | None:
    """All elements are one number on one side alone."""
    for side, half, other in (("B", evidence.b, evidence.a), ("A", evidence.a, evidence.b)):
        low, high = half.tensor.low, half.tensor.high
        if low == high and not half.tensor.bad[0] and other.tensor.low != other.tensor.high:
            return verified(note("one-number", side=side, number=low), side=side, number=low)
    return None


def redrawn(evidence: Evidence) -> Found | None:
    """Initial weights have the same spread and nothing else in common, and are nowhere else in the other model."""
    metrics = evidence.metrics
    size = evidence.size
    if size < 1024 or metrics.estimated:
        return None
    is_alike = abs(metrics.norm_ratio - 1) < 4 / math.sqrt(size) and abs(metrics.cosine) < 4 / math.sqrt(size)
    means = [abs(half.tensor.mean) / half.tensor.rms for half in evidence.halves if half.tensor.rms]
    if not is_alike or max(means, default=1.0) > 8 / math.sqrt(size):
        return None
    key, (a, b) = (evidence.phase, Role.PARAM), evidence.halves
    others = [(a.tensor, other) for other in b.params.get(key, {}).values()]
    others += [(b.tensor, other) for other in a.params.get(key, {}).values()]
    may_be_elsewhere = any(_are_near(*pair) for pair in others)  # rounded, or in another order
    return None if may_be_elsewhere else weak(note("drawn-anew"), cosine=metrics.cosine)


def _are_near(a: Tensor, b: Tensor) -> bool:
    numbers = [(each.low, each.high, each.norm, each.mean + each.rms) for each in (a, b)]
    return a.size == b.size and np.allclose(*numbers, rtol=_ROUNDED, atol=0.0)


# Rotary embeddings


@dataclass(frozen=True, slots=True)
class _Angles:
    base: float
    stretch: float
    """what positions are divided by"""
    layout: str
    first: int
    """number of the first position"""


def rotary(evidence: Evidence) -> Found | None:
    """Cosines, sines or angles with another base, scaling, layout or first position."""
    names = f"{evidence.classes[0]} {evidence.classes[1]} {evidence.finding.path}".casefold()
    if ("rot" not in names and "rope" not in names) or evidence.is_of_integers:
        return None
    a, b = (_angles(half, evidence) for half in evidence.halves)
    if a is None or b is None or a == b:
        return None
    both = {what: (getattr(a, what), getattr(b, what)) for what in _Angles.__dataclass_fields__}
    differing = [
        Note(f"rotary-{what}", {"a": x, "b": y})
        for what, (x, y) in both.items()
        if not (math.isclose(x, y, rel_tol=1e-3) if isinstance(x, float) else x == y)
    ]
    said = note("rotary-embeddings", differing=tuple(differing))
    return verified(said, by="from-angles", base_a=a.base, base_b=b.base) if differing else None


def _angles(half: Half, evidence: Evidence) -> _Angles | None:
    """Solve how angles of [positions, size] were made, from their sines, cosines or themselves."""
    values = half.values
    if values is None or not values.ndim or values.shape[-1] % 2:
        return None
    if values.ndim < 2 or values.shape[-2] < 3:
        positions = evidence.axis_of_positions(values.shape)
        if positions is None:
            return None
        values = np.moveaxis(values, positions, -2)
    table = values.reshape(-1, *values.shape[-2:])[0]
    made = (np.cos, np.arccos), (np.sin, np.arcsin), (np.asarray, np.asarray)
    lying = ("halves", slice(0, table.shape[1] // 2)), ("pairs", slice(0, None, 2))
    ways = itertools.product((0, 1), made, lying)
    found = (_solved(table, columns, make, back, first, layout) for first, (make, back), (layout, columns) in ways)
    return next((each for each in found if each is not None), None)


def _solved(
    table: np.ndarray, columns: slice, make: Callable[..., Any], back: Callable[..., Any], first: int, layout: str
) -> _Angles | None:
    row = table[1 - first, columns]
    if make is not np.asarray and np.abs(row).max() > 1:
        return None
    frequency = np.asarray(back(row), np.float64)
    used = np.flatnonzero(frequency > 0.02)
    if len(used) < 2 or len(frequency) < 2:
        return None
    rate, start = np.polyfit(-used / len(frequency), np.log(frequency[used]), 1)
    steps = np.exp(start - rate * np.arange(len(frequency)) / len(frequency))
    half = make((np.arange(table.shape[0]) + first)[:, None] * steps)
    whole = np.concatenate([half, half], axis=1) if layout == "halves" else np.repeat(half, 2, axis=1)
    found = _Angles(float(f"{math.exp(rate):.4g}"), float(f"{math.exp(-start):.4g}"), layout, first)
    return found if distance(whole, table) <= 1e-2 else None


# Running statistics


def momentum(evidence: Evidence) -> Found | None:
    """How much of the batch's statistics went into the running ones."""
    name = evidence.a.name
    if evidence.phase is not Phase.UPDATE or name not in ("running_mean", "running_var"):
        return None
    found = [_momentum(half, evidence, name) for half in evidence.halves]
    if None in found or found[0] == found[1]:
        return None
    (a, kind_a), (b, kind_b) = (each for each in found if each is not None)
    is_variance = math.isclose(a, b, rel_tol=1e-2)
    said = note("variance-of-batch", a=kind_a, b=kind_b) if is_variance else note("momentum-of-statistics", a=a, b=b)
    return verified(said, by="from-inputs", a=a, b=b)


def _momentum(half: Half, evidence: Evidence, name: str) -> tuple[float, Note | None] | None:
    if len(half.calls) != 1:
        return None
    x = next((read(tensor) for tensor in half.calls[0](Role.INPUT).values()), None)
    old, new = half.parameter(name, Role.BUFFER), half.parameter(name, Role.BUFFER, Phase.UPDATE)
    if x is None or old is None or new is None or x.ndim < 2:
        return None
    flat = np.moveaxis(x, 1, 0).reshape(x.shape[1], -1)
    count = flat.shape[1]
    variance = flat.var(axis=1)
    batches: dict[str, np.ndarray] = {"": flat.mean(axis=1)}
    if name == "running_var":
        batches = {"divided-by-n-minus-1": variance * count / max(1, count - 1), "divided-by-n": variance}
    for kind, batch in batches.items():
        away = batch - old
        squares = float(away @ away)
        share = float((new - old) @ away) / squares if squares else 0.0
        if share and distance(old + share * away, new) <= 1e-5:
            return float(f"{share:.4g}"), Note(kind) if kind else None
    return None
