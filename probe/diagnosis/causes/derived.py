"""What is derived from something else: where documents begin, tables of frequencies, caps of scores, scaled float8."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping

import ml_dtypes
import numpy as np

from probe.diagnosis.causes.formulas import common_sources
from probe.diagnosis.causes.sizes import rounded
from probe.diagnosis.evidence import Evidence, Half, distance, read
from probe.diagnosis.hint import Found, strong, verified
from probe.notes import Note, note
from probe.numbers.documents import begins_of
from probe.numbers.statistics import dtype_of, unit_roundoff
from probe.records import Phase, Role
from probe.verdict.tensors import Tensor

_FORMATS = ("bfloat16", "float16")
_CAPPED = 1e-3
"""share of an error that a cap may leave over"""
_WIDEST = 64.0
"""caps up to this many times the largest score are told"""
_HALVINGS = 60


# Documents


def documents(evidence: Evidence) -> Found | None:
    """Documents begin elsewhere on the two sides, by positions, lengths or masks that the model is given."""
    a, b = (dict(_begins(half, evidence)) for half in evidence.halves)
    same = [name for name in a if name in b]
    pairs = itertools.chain(((x, x) for x in same), itertools.product(set(a) - set(b), set(b) - set(a)))
    for x, y in pairs:
        if a[x] != b[y]:
            said = note("documents-begin-elsewhere", slot_a=x, slot_b=y, a=a[x], b=b[y])
            return verified(said, by="from-inputs", a=a[x], b=b[y])
    return None


def _begins(half: Half, evidence: Evidence) -> Iterator[tuple[str, tuple[int, ...]]]:
    for slot, tensor in evidence.given_to_model(half):
        found = begins_of(slot, tensor.shape, lambda tensor=tensor: read(tensor))  # type: ignore[misc]
        if found is not None:
            yield slot, found


# Frequencies, and the angles that are made of them


def frequencies(evidence: Evidence) -> Found | None:
    """One side holds a table that positions are multiplied by in fewer bits."""
    values = evidence.values
    names = f"{evidence.names} {evidence.a.name} {evidence.b.name}".casefold()
    if values is None or not any(each in names for each in ("rot", "rope", "freq")):
        return None
    for side, own, other, half in (("B", values.b, values.a, evidence.b), ("A", values.a, values.b, evidence.a)):
        for name in _FORMATS:
            if not np.array_equal(own, other) and np.array_equal(rounded(other, name), own):
                position, most = _last_position(half, evidence), float(np.abs(own - other).max())
                said = note(
                    "frequencies-in-fewer-bits", side=side, format=name, position=position, angle=position * most
                )
                return verified(said, side=side, format=name, angle=position * most)
    return None


def _last_position(half: Half, evidence: Evidence) -> int:
    given = [tensor.high for call in half.calls for tensor in call(Role.INPUT).values() if tensor.kind == "integer"]
    return int(max(given, default=(evidence.tokens or (1, 1))[1] - 1))


def angles(evidence: Evidence) -> Found | None:
    """Cosines or sines of positions, frequencies or angles that one side rounds to 16 bits."""
    found = [_angles(half, evidence) for half in evidence.halves]
    if None in found or found[0] == found[1]:
        return None
    a, b = found
    return verified(note("angles-in-fewer-bits", a=a, b=b), by="from-inputs", a=a, b=b)


def _angles(half: Half, evidence: Evidence) -> Note | None:
    """Return what a side rounds before it takes cosines and sines; None where nothing gives them."""
    tables = [
        x for (module, _), tensor in _buffers(half).items() if module == half.module if (x := read(tensor)) is not None
    ]
    positions, values = half.given(kind="integer"), half.values
    if values is None or values.ndim < 2:
        return None
    best: tuple[float, Note | None] = 4 * max(unit_roundoff(half.dtype), 2.0**-20), None
    for table, given, make in itertools.product((t for t in tables if t.ndim == 1), positions, (np.cos, np.sin)):
        if values.shape[-1] not in (len(table), 2 * len(table)) or given.size * values.shape[-1] != values.size:
            continue
        for what, name in [("nothing", ""), *itertools.product(("positions", "frequencies", "angles"), _FORMATS)]:
            x = rounded(given, name) if what == "positions" else given.astype(np.float64)
            w = rounded(table, name) if what == "frequencies" else table
            made = x.reshape(-1, 1) * w
            made = make(rounded(made, name) if what == "angles" else made)
            made = np.concatenate([made, made], axis=1) if values.shape[-1] == 2 * len(table) else made
            rest = distance(made.reshape(values.shape), values)
            best = min(best, (rest, note("rounds-before", what=what, format=name)), key=lambda each: each[0])
    return best[1]


def _buffers(half: Half) -> Mapping[tuple[int, str], Tensor]:
    return half.params.get((Phase.INIT, Role.BUFFER), {})


# Caps


def soft_cap(evidence: Evidence) -> Found | None:
    """Scores that one side caps by c · tanh(x / c), and the other not, or by another c."""
    if evidence.values is None:
        return None
    sources = common_sources(evidence)
    names = [_cap(half, given) for half, given in zip(evidence.halves, sources, strict=True)]
    a, b = names
    if a is None or b is None or a == b:
        return None
    return verified(note("computes", a=a, b=b), by="from-records", a=a, b=b)


def _cap(half: Half, sources: Iterable[np.ndarray]) -> Note | None:
    """Return how a side makes its tensor of one that it was given: as it is, or capped by a number that is solved for."""
    y = half.values
    for x in (each for each in sources if y is not None and each.size == y.size):
        flat, found = x.reshape(-1), half.values.reshape(-1)  # type: ignore[union-attr]
        if distance(flat, found) <= 8 * unit_roundoff(half.dtype):
            return note("not-capped")
        bound = solved_cap(flat, found)
        if bound is not None and distance(bound * np.tanh(flat / bound), found) <= max(
            8 * unit_roundoff(half.dtype), _CAPPED * distance(flat, found)
        ):
            return note("capped", cap=float(f"{bound:.4g}"))
    return None


def solved_cap(x: np.ndarray, y: np.ndarray) -> float | None:
    """Return the c for which c · tanh(x / c) is nearest to y; None where y is not smaller than x."""
    lost = float((x**3) @ (x - y))
    if not lost > 0:
        return None
    about = math.sqrt(float((x**3) @ (x**3)) / (3 * lost))
    low, high = math.log(about / 8), math.log(min(about * 8, _WIDEST * float(np.abs(x).max())))
    for _ in range(_HALVINGS):
        one, other = high - 0.618 * (high - low), low + 0.618 * (high - low)
        left, right = (float(np.linalg.norm(math.exp(c) * np.tanh(x / math.exp(c)) - y)) for c in (one, other))
        low, high = (low, other) if left < right else (one, high)
    return math.exp((low + high) / 2)


# float8 and its scale


def float8(evidence: Evidence) -> Found | None:
    """One side holds a tensor in 8 bits, with a scale beside it."""
    for half, wide, side in ((evidence.b, evidence.a, "B"), (evidence.a, evidence.b, "A")):
        if not half.dtype.startswith("float8") or wide.dtype.startswith("float8"):
            continue
        values, meant = half.values, wide.values
        for name, scale in _scales(half, evidence):
            made = None if values is None else scaled(values, scale)
            if made is None or meant is None or meant.size != made.size:
                continue
            rest = distance(made.reshape(meant.shape), meant)
            said = note(
                "float8-of-the-other", side=side, dtype=half.dtype, scale=name, rest=rest, lost=_lost(half, meant)
            )
            numbers = {"side": side, "rel": rest, "scale_min": float(scale.min()), "scale_max": float(scale.max())}
            if rest <= 2 * unit_roundoff(half.dtype):
                return verified(said, **numbers)
            return strong(said, **numbers) if rest < evidence.error else None
    return None


def _lost(half: Half, meant: np.ndarray) -> tuple[float, float]:
    """Return which shares of a float8 tensor are at the end of its range, and are 0 where the other side's are not."""
    values, most = half.values, float(ml_dtypes.finfo(dtype_of(half.dtype)).max)
    assert values is not None
    is_lost = (values.reshape(-1) == 0) & (meant.reshape(-1) != 0)
    return float(np.mean(np.abs(values) >= most)), float(is_lost.mean())


def _scales(half: Half, evidence: Evidence) -> Iterator[tuple[str, np.ndarray]]:
    """Yield what is called a scale beside a tensor, and what it is one over."""
    beside = {slot: tensor for (_, role), found in half.params.items() if role in (Role.PARAM, Role.BUFFER)
              for (module, slot), tensor in found.items() if module == half.module}  # fmt: skip
    for slot, tensor in {**beside, **half.call(Role.INPUT), **half.call(Role.OUTPUT)}.items():
        values = read(tensor) if tensor.kind == "float" and not tensor.dtype.startswith("float8") else None
        is_named = "scale" in slot or tensor.size < half.tensor.size / 8
        if values is not None and values.size and is_named and (values > 0).all():
            values = values.reshape(tensor.laid)
            yield from ((slot, values), (f"1 / {slot}", 1 / values))


def scaled(values: np.ndarray, scale: np.ndarray) -> np.ndarray | None:
    """Return values times a scale: one number, one of each row, column or block; None where it has none of these forms."""
    shape = scale.shape if scale.ndim == values.ndim else (1,) * (values.ndim - scale.ndim) + scale.shape
    if scale.size == 1:
        return values * scale.reshape(-1)[0]
    if scale.ndim == 1 and values.ndim == 2 and len(scale) == len(values) != values.shape[1]:
        shape = (len(scale), 1)
    if len(shape) != values.ndim:
        return None
    blocks = [-(-size // count) for size, count in zip(values.shape, shape, strict=True)]
    for axis, block in enumerate(blocks):
        scale = scale.reshape(shape) if axis == 0 else scale
        scale = np.repeat(scale, block, axis=axis)
    return values * scale[tuple(map(slice, values.shape))]
