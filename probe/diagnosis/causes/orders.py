"""The same numbers at other places: transposed, permuted, shifted by a position."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np

from probe.diagnosis.evidence import Evidence, Values, distance
from probe.diagnosis.hint import Found, verified
from probe.notes import Note, note, sides
from probe.verdict.side import PARAMETER_ROLES

_MOST_INDICES = 4096
"""indices of an axis that are looked for in any order"""
_PROJECTIONS = 8
_ROUNDING = 4e-7
"""what sums of equal weights may differ by, of the weight's norm: they are kept in float32"""
_CLEARLY = 100
"""times the rounding of sums that what another order explains must be"""
_BY_SUMS = "from-sums-of-rows-and-columns"
_FEW_PARTS = 4
_NEARLY = 0.5
"""error of the first sample from which on the others need not be tried"""


def transposed(evidence: Evidence) -> Found | None:
    """Two axes are swapped or read in the other order, or heads stand before positions."""
    values = evidence.values
    if values is None:
        return _transposed_by_sums(evidence)
    if not values.is_whole or not 2 <= values.a.ndim <= 4:
        return None
    a, b = values.a, values.b
    for order in itertools.permutations(range(a.ndim)):
        if order != tuple(range(a.ndim)) and evidence.explains(a.transpose(order), b):
            said = note("transpose") if a.ndim == 2 else note("axes-in-order", order=order)
            return verified(said, order=list(order))
    if a.ndim == 2 and min(a.shape) > 1:
        for code, read in (
            ("transposed-and-read-by-row", a.T.reshape(a.shape)),
            ("read-by-column", a.reshape(a.shape[::-1]).T),
        ):
            if evidence.explains(read, b):
                return verified(Note(code))
    return None if evidence.role in PARAMETER_ROLES else _heads_left(evidence, values)


def _sums(evidence: Evidence) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...]] | None:
    """Return the sums along the axes of a weight that both sides begin with; None where one lacks them."""
    a, b = (half.sums for half in evidence.halves)
    return (a, b) if a and b else None


def _transposed_by_sums(evidence: Evidence) -> Found | None:
    sums = _sums(evidence)
    if sums is None or len(sums[0]) != 2 or [len(each) for each in sums[0]] != [len(each) for each in sums[1]][::-1]:
        return None
    bound = max(evidence.limit, _ROUNDING)
    is_so = all(distance(mine, theirs) <= bound for mine, theirs in zip(sums[0], sums[1][::-1], strict=True))
    is_so &= evidence.error > _CLEARLY * bound  # a symmetric matrix is its transpose, whatever is wrong with it
    return verified(note("transpose"), by=_BY_SUMS, order=[1, 0]) if is_so else None


def _heads_left(evidence: Evidence, values: Values) -> Found | None:
    """[samples, positions, heads · size] of which one side did not swap heads and positions back."""
    a, b = values.a, values.b
    if a.ndim != 3:
        return None
    for heads in evidence.heads(a.shape[-1]):
        for one, other, side in ((a, b, "B"), (b, a, "A")):
            if distance(_left(one[:1], heads), other[:1]) < _NEARLY and evidence.explains(_left(one, heads), other):
                return verified(note("heads-not-swapped-back", side=side, heads=heads), heads=heads)
    return None


def _left(x: np.ndarray, heads: int) -> np.ndarray:
    return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2).reshape(x.shape)


def shifted(evidence: Evidence) -> Found | None:
    """Each position has what another one has on the other side."""
    values = evidence.values
    axis = None if values is None or not values.is_whole else evidence.axis_of_positions(values.a.shape)
    if values is None or axis is None:
        return None
    size = values.a.shape[axis]
    for step in (1, 2):
        for ahead, first, second in (("A", values.a, values.b), ("B", values.b, values.a)):
            if size < step + 3:
                continue
            later = np.take(first, range(step, size), axis=axis)
            earlier = np.take(second, range(size - step), axis=axis)
            if distance(later, earlier) <= evidence.tolerance:
                behind = sides(ahead == "A")["other"]
                said = note("shifted-position", behind=behind, ahead=ahead, by=step)
                return verified(said, shift=step if behind == "B" else -step)
    return None


def permuted(evidence: Evidence) -> Found | None:
    """The indices of one axis stand in another order."""
    values = evidence.values
    if values is None:
        return _permuted_by_sums(evidence)
    if not values.is_whole or not 1 <= values.a.ndim <= 4 or values.a.size < _FEW_PARTS:
        return None
    axes = range(values.a.ndim) if evidence.role in PARAMETER_ROLES else range(values.a.ndim - 1, -1, -1)
    for axis in axes:
        order = _order_along(evidence, values, axis)
        if order is not None:
            return _permuted(_axis_name(evidence, values, axis), axis, order)
    return None


def _permuted(what: Note, axis: int, order: np.ndarray, by: str = "") -> Found:
    said = note("permuted", axis=what, order=_described(order))
    return verified(said, by=by, axis=axis, order=order.tolist()[:64])


def _permuted_by_sums(evidence: Evidence) -> Found | None:
    """The rows, or the columns, of one matrix have the sums of the other's in another order."""
    sums = _sums(evidence)
    if sums is None or len(sums[0]) > 2 or [len(each) for each in sums[0]] != [len(each) for each in sums[1]]:
        return None
    for axis, (a, b) in enumerate(zip(*sums, strict=True)):
        order = np.empty(len(a), np.int64)
        order[np.argsort(b, kind="stable")] = np.argsort(a, kind="stable")
        is_other = len(a) >= _FEW_PARTS and distance(a, b) > _CLEARLY * _ROUNDING
        if is_other and distance(a[order], b) <= _ROUNDING:  # sorted, the sums of any two weights agree to 1 %
            what = Note("elements" if len(sums[0]) == 1 else ("rows", "columns")[axis])
            return _permuted(what, axis, order, by=_BY_SUMS)
    return None


def _axis_name(evidence: Evidence, values: Values, axis: int) -> Note:
    indices = note("indices-of-axis", axis=axis)
    if evidence.role in PARAMETER_ROLES:
        return note("rows") if axis == 0 else note("columns") if axis == 1 else indices
    if axis == values.a.ndim - 1:
        return note("columns")
    return note("positions") if axis == evidence.axis_of_positions(values.a.shape) else indices


def _order_along(evidence: Evidence, values: Values, axis: int) -> np.ndarray | None:
    """Return which index of A each index of B has; None where it is no permutation that explains B."""
    size = values.a.shape[axis]
    if not 2 <= size <= _MOST_INDICES:
        return None
    a, b = (np.moveaxis(each, axis, 0).reshape(size, -1) for each in (values.a, values.b))
    x, y = a, b
    if a.shape[1] > _PROJECTIONS:
        directions = np.random.default_rng(0).standard_normal((a.shape[1], _PROJECTIONS))
        x, y = a @ directions, b @ directions
    apart = np.sum(y**2, axis=1)[:, None] - 2 * y @ x.T + np.sum(x**2, axis=1)
    order = apart.argmin(axis=1)
    if len(np.unique(order)) < size or np.array_equal(order, np.arange(size)):
        return None
    return order if distance(a[order], b) <= evidence.tolerance else None


def _described(order: np.ndarray) -> Note:
    """Say how a permutation goes."""
    size = len(order)
    if np.array_equal(order, np.arange(size)[::-1]):
        return note("last-first")
    for way, block, inner in _inner(order):
        if np.array_equal(order, (np.arange(0, size, block)[:, None] + inner).reshape(-1)):
            return way if block == size else note("inside-blocks", order=way, block=block)
    step = int(order[0])
    if np.array_equal(order, (np.arange(size) + step) % size):
        return note("moved-by", by=step)
    return _blocks(order)


def _inner(order: np.ndarray) -> Iterator[tuple[Note, int, np.ndarray]]:
    """Yield orders inside blocks that rotary embeddings and fused weights are stored in: (order in words, block, order)."""
    size = len(order)
    for block in (size // n for n in range(1, size // 4 + 1) if size % n == 0):
        if block % 2 == 0:
            pairs = np.arange(block).reshape(2, -1).T.reshape(-1)
            yield note("halves-for-pairs"), block, pairs
            yield note("pairs-for-halves"), block, np.argsort(pairs)
    for parts in (3, 4, 6, 8, 12, 16, 24, 32, 48, 64):
        if size % parts == 0 and size > parts:
            whole = np.arange(size)
            yield note("parts-not-interleaved", parts=parts), size, whole.reshape(parts, -1).T.reshape(-1)
            yield note("parts-interleaved", parts=parts), size, whole.reshape(-1, parts).T.reshape(-1)


def _blocks(order: np.ndarray) -> Note:
    """Say which blocks of equal size are swapped, or how many indices stand elsewhere."""
    size = len(order)
    cuts = np.flatnonzero(np.diff(order) != 1) + 1
    block = math.gcd(size, *map(int, cuts), *map(int, order[np.concatenate([[0], cuts])]))
    if block > 1:
        parts = (order[::block] // block).tolist()
        if len(parts) <= 3 * _FEW_PARTS:
            return note("parts-in-order", size=block, order=tuple(parts))
        moved = sum(part != at for at, part in enumerate(parts))
        return note("parts-elsewhere", moved=moved, parts=len(parts), size=block)
    moved = np.flatnonzero(order != np.arange(size))
    if len(moved) == 2:
        return note("two-swapped", one=int(moved[0]), other=int(moved[1]))
    return note("indices-elsewhere", moved=len(moved), size=size)
