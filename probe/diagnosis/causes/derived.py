"""What is derived from something else: where documents begin, tables of frequencies, caps of scores, scaled float8."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import ml_dtypes
import numpy as np

from probe.diagnosis.causes.attention import begins_told, least
from probe.diagnosis.causes.formulas import common_sources
from probe.diagnosis.causes.sizes import rounded
from probe.diagnosis.evidence import Evidence, Half, distance, read
from probe.diagnosis.hint import Found, strong, verified
from probe.notes import Note, note
from probe.numbers.statistics import dtype_of, unit_roundoff
from probe.records import Phase, Role

_FORMATS = ("bfloat16", "float16")
_LEFT = 1e-3
"""share of an error that a cap may leave over"""
_WIDEST = 64.0
"""caps between this share of the largest score and as many times it are told"""
_TINY = 1e-30
_SMALLER = 8
"""times fewer elements than a tensor has, from which on what stands beside it may be its scale"""


def documents(evidence: Evidence) -> Found | None:
    """Documents begin elsewhere on the two sides, by positions, lengths or masks that the model is given."""
    a, b = (begins_told(half, evidence) for half in evidence.halves)
    pairs = itertools.chain(((x, x) for x in a if x in b), itertools.product(a.keys() - b.keys(), b.keys() - a.keys()))
    for x, y in pairs:
        if a[x] != b[y]:
            said = note("documents-begin-elsewhere", slot_a=x, slot_b=y, a=a[x], b=b[y])
            return verified(said, by="from-inputs", a=a[x], b=b[y])
    return None


# Frequencies, and the angles that are made of them


def frequencies(evidence: Evidence) -> Found | None:
    """One side holds a table that positions are multiplied by in fewer bits."""
    values, names = evidence.values, f"{evidence.names} {evidence.a.name}".casefold()
    if values is None or not any(each in names for each in ("rot", "rope", "freq")):
        return None
    sides = ("B", values.b, values.a, evidence.b), ("A", values.a, values.b, evidence.a)
    for (side, own, other, half), name in itertools.product(sides, _FORMATS):
        if not np.array_equal(own, other) and np.array_equal(rounded(other, name), own):
            given = [each.high for call in half.calls for each in call(Role.INPUT).values() if each.kind == "integer"]
            position = int(max(given, default=(evidence.tokens or (1, 1))[1] - 1))
            told = {"side": side, "format": name, "angle": position * float(np.abs(own - other).max())}
            return verified(note("frequencies-in-fewer-bits", position=position, **told), **told)
    return None


def angles(evidence: Evidence) -> Found | None:
    """Cosines or sines of positions, frequencies or angles that one side rounds to 16 bits."""
    a, b = (_angles(half) for half in evidence.halves)
    if a is None or b is None or a == b:
        return None
    return verified(note("angles-in-fewer-bits", a=a, b=b), by="from-inputs", a=a, b=b)


def _angles(half: Half) -> Note | None:
    """Return what a side rounds before it takes cosines and sines; None where nothing gives them."""
    own = half.params.get((Phase.INIT, Role.BUFFER), {}).items()
    tables = [x for (module, _), each in own if module == half.module and (x := read(each)) is not None and x.ndim == 1]
    values = half.values
    if values is None or values.ndim < 2:
        return None
    best: tuple[float, Note | None] = 4 * max(unit_roundoff(half.dtype), 2.0**-20), None
    for table, given, make in itertools.product(tables, half.given(kind="integer"), (np.cos, np.sin)):
        times = values.shape[-1] / len(table)
        if times not in (1, 2) or given.size * values.shape[-1] != values.size:
            continue
        for what, name in [("nothing", ""), *itertools.product(("positions", "frequencies", "angles"), _FORMATS)]:
            x, w = given.reshape(-1, 1).astype(np.float64), table
            x, w = rounded(x, name) if what == "positions" else x, rounded(w, name) if what == "frequencies" else w
            made = make(rounded(x * w, name) if what == "angles" else x * w)
            rest = distance(np.tile(made, int(times)).reshape(values.shape), values)
            best = min(best, (rest, note("rounds-before", what=what, format=name)), key=lambda each: each[0])
    return best[1]


# Caps


def soft_cap(evidence: Evidence) -> Found | None:
    """Scores that one side caps by c · tanh(x / c), and the other not, or by another c."""
    if evidence.values is None:
        return None
    a, b = (_cap(half, given) for half, given in zip(evidence.halves, common_sources(evidence), strict=True))
    return (
        None if a is None or b is None or a == b else verified(note("computes", a=a, b=b), by="from-records", a=a, b=b)
    )


def _cap(half: Half, sources: Iterable[np.ndarray]) -> Note | None:
    """Return how a side makes its tensor of one that it was given: as it is, or capped by a number that is solved for."""
    found, noise = half.values, 8 * unit_roundoff(half.dtype)
    for x in (each.reshape(-1) for each in sources if found is not None and each.size == found.size):
        y = found.reshape(-1)  # type: ignore[union-attr]
        if distance(x, y) <= noise:
            return note("not-capped")
        largest = max(float(np.abs(x).max()), _TINY)
        cap = least(lambda c: distance(c * np.tanh(x / c), y), largest / _WIDEST, largest * _WIDEST)  # noqa: B023
        if distance(cap * np.tanh(x / cap), y) <= max(noise, _LEFT * distance(x, y)):
            return note("capped", cap=float(f"{cap:.4g}"))
    return None


# float8 and its scale


def float8(evidence: Evidence) -> Found | None:
    """One side holds a tensor, or the weight that makes it, in 8 bits, with a scale beside it."""
    for half, other, side in ((evidence.b, evidence.a, "B"), (evidence.a, evidence.b, "A")):
        pairs = [(half.tensor, other.tensor)]
        pairs += [(x, y) for slot in ("weight",) if (x := half.belonging(slot)) and (y := other.belonging(slot))]
        for held, wide in pairs if evidence.role is not Role.PARAM else pairs[:1]:
            values, meant = (read(each) if each.kind == "float" else None for each in (held, wide))
            if not held.dtype.startswith("float8") or values is None or meant is None or values.shape != meant.shape:
                continue
            if wide.dtype.startswith("float8"):
                meant = next((made for _, _, made in _scaled(other, meant)), meant)
            for name, scale, made in _scaled(half, values):
                rest = distance(made, meant)
                most = np.abs(values) >= float(ml_dtypes.finfo(dtype_of(held.dtype)).max)
                lost = float(most.mean()), float(((values == 0) & (meant != 0)).mean())
                said = note("float8-of-the-other", side=side, dtype=held.dtype, scale=name, rest=rest, lost=lost)
                numbers = {"rel": rest, "scale_min": float(scale.min()), "scale_max": float(scale.max())}
                if rest <= 2 * unit_roundoff(held.dtype):
                    return verified(said, "", side=side, **numbers)
                if rest < evidence.error or wide.dtype == held.dtype:
                    return strong(said, side=side, **numbers)
    return None


def _scaled(half: Half, values: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield values times what may be their scale, one number or one of each row, column or block, or divided by it."""
    own = {slot: each for (_, role), found in half.params.items() if role in (Role.PARAM, Role.BUFFER)
           for (module, slot), each in found.items() if module == half.module}  # fmt: skip
    beside = {**own, **{f"input {slot}": each for slot, each in half.call(Role.INPUT).items()}}
    for name, tensor in beside.items():
        scale = read(tensor) if tensor.kind == "float" and not tensor.dtype.startswith("float8") else None
        is_named = "scale" in name or (tensor.size < values.size / _SMALLER and not name.endswith("bias"))
        if scale is None or not is_named or not scale.size or not (scale > 0).all():
            continue
        shape = (1,) * (values.ndim - len(tensor.laid)) + tensor.laid
        shape = (len(scale), 1) if values.ndim == 2 and scale.shape == values.shape[:1] != values.shape[1:] else shape
        if len(shape) == values.ndim and all(x <= y for x, y in zip(shape, values.shape, strict=True)):
            blocks = [-(-size // count) for size, count in zip(values.shape, shape, strict=True)]
            whole = np.kron(scale.reshape(shape), np.ones(blocks))[tuple(map(slice, values.shape))]
            yield from ((name, scale, values * whole), (f"1 / {name}", 1 / scale, values / whole))
