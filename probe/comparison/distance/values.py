"""How far two tensors are apart, from their values: one pass over both, by parts that stay in the cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from probe.comparison.distance.estimates import PERMUTED, least_reordered, looks_permuted, same_content
from probe.comparison.notes import note
from probe.comparison.steps.side import OVERFLOW, PLAIN, Metrics, Side, Status, Taken, clipped, kind_of, squeezed
from probe.numbers.sketch import CHUNK
from probe.numbers.statistics import as_real

_PART = 1 << 13
"""elements that are taken in at a time: they stay in the cache, and BLAS starts no threads for so few"""
_BLOCK = 8 * CHUNK
"""elements that are read at a time where the axes stand in another order"""
_READ = 8 * _PART
"""elements that are read at a time where they stand in the same order: what is read stays in the cache too"""
_WIDEST = 16
"""bytes of the widest dtype, complex128"""
_TINY = np.full(_PART, np.finfo(np.float64).tiny)
"""as many as are taken in at a time: numpy takes twice as long for a single number"""
_NEARLY = 1 - 1e-12
"""what a quotient may be off by, in this direction"""
_SMALL = 4 << 20
"""elements up to which a tensor is read whole to try other orders of its axes"""
_SAME = 1e-5
"""relative difference of the norms, and of the ends, of the same elements in another order"""
_NONE = 1e-12
"""what is as good as zero"""
_REGROUPED = note("elements-may-be-reordered")


def compare_values(
    a: Side, i: int, b: Side, j: int, *, free_axes: bool, turned: tuple[int, ...] | None, taken: Taken = PLAIN
) -> Metrics:
    """Compare the stored values of record i of A and record j of B.

    Parameters
    ----------
    free_axes
        axes of the same size may stand in another order in B
    turned
        which axis of B (those of size 1 left out) is each of A's, where their layouts are known to differ
    taken
        how the elements are taken
    """
    request = Request(i, j, free_axes, turned, taken)
    key = key_of(a, b, request)
    found = a.measured.get(key)
    if found is None and a.to_measure is not None:
        a.to_measure[key] = request
        return Metrics(Status.COMPARED)
    if found is None:
        found = a.measured[key] = _read(a, i, b, j, free_axes, turned, taken)
    return found


class Request(NamedTuple):
    """Two rows whose values are to be compared, and how."""

    row_a: int
    row_b: int
    free_axes: bool
    turned: tuple[int, ...] | None
    taken: Taken


def key_of(a: Side, b: Side, request: Request) -> tuple[object, ...]:
    """Return what is the same for pairs of the same stored tensors that are compared in the same way."""
    i, j, *how = request
    return id(b), a.columns["tensor"][i], b.columns["tensor"][j], a.shapes[i], b.shapes[j], *how


def aligned_values(
    a: Side, i: int, b: Side, j: int, *, free_axes: bool, turned: tuple[int, ...] | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the stored values of record i of A, and those of record j of B in the order of axes in which they are compared."""
    orders = [turned] if turned is not None else _orders(a.shapes[i], b.shapes[j], free_axes)
    integer = kind_of(a.dtypes[i]) == "integer"
    sums = {order: _summed(a, i, b, j, order, integer, PLAIN) for order in orders}
    best = min(orders, key=lambda order: (sums[order].squared, sums[order].differing))
    x, y = a.values(i), b.values(j)
    if best is not None:
        y = y.reshape(squeezed(y.shape)).transpose(best)
    return as_real(x), as_real(y.reshape(x.shape))


def _read(a: Side, i: int, b: Side, j: int, free_axes: bool, turned: tuple[int, ...] | None, taken: Taken) -> Metrics:
    shape_a, shape_b = a.shapes[i], b.shapes[j]
    integer = kind_of(a.dtypes[i]) == "integer" or taken.as_masks
    best: _Sums | None = None
    for order in [turned] if turned is not None else _orders(shape_a, shape_b, free_axes):
        sums = _summed(a, i, b, j, order, integer, taken)
        if best is None or (sums.squared, sums.differing) < (best.squared, best.differing):
            best = sums
        if best.squared <= 1e-4 * best.squares_a and not best.differing * integer:
            break
    assert best is not None
    norm_a, norm_b = a.columns["norm"][i], b.columns["norm"][j]
    if integer:
        share = best.differing / max(1, best.count)
        metrics = Metrics(
            Status.COMPARED if share else Status.EQUAL, share, norm_a=norm_a, norm_b=norm_b, of_integers=True
        )
    else:
        metrics = _finished(best, shape_a)
    is_sum = math.isnan(norm_a) or math.isnan(norm_b)
    if free_axes and least_reordered(a, i, b, j) < metrics.rel_l2 < math.inf and turned is None:
        if is_sum and taken.factor == 1 and not _have_same_elements(a, i, b, j, best):
            return metrics
        if sorted(squeezed(shape_a)) != sorted(squeezed(shape_b)) and same_content(a, i, b, j):
            return Metrics(Status.PERMUTED, norm_a=norm_a, norm_b=norm_b, why=_REGROUPED)
        if math.prod(shape_a) > _SMALL and squeezed(shape_a) != squeezed(shape_b) and looks_permuted(a, i, b, j):
            return Metrics(Status.PERMUTED, norm_a=norm_a, norm_b=norm_b, why=PERMUTED)
    return metrics


def _have_same_elements(a: Side, i: int, b: Side, j: int, sums: _Sums) -> bool:
    """Tell whether two tensors may have the same elements in another order; of a sum of tensors only the values tell."""
    if not math.isclose(math.sqrt(sums.squares_a), math.sqrt(sums.squares_b), rel_tol=_SAME):
        return False
    if not 0 < math.prod(a.shapes[i]) <= _SMALL:
        return True
    x, y = as_real(a.values(i)), as_real(b.values(j))
    return all(math.isclose(end(x), end(y), rel_tol=_SAME, abs_tol=_NONE) for end in (np.nanmin, np.nanmax))


def largest_share(
    a: Side, i: int, b: Side, j: int, *, free_axes: bool, turned: tuple[int, ...] | None, factor: float, atol: float,
    rtol: float,
) -> float:  # fmt: skip
    """Return the largest |a − b| / (atol + rtol·|a|), in the order of B's axes in which that is smallest."""
    best = math.inf
    for order in [turned] if turned is not None else _orders(a.shapes[i], b.shapes[j], free_axes):
        largest = 0.0
        for x, y in _aligned_chunks(a, i, b, j, order):
            first, second = (as_real(each).astype(np.float64).reshape(-1) for each in (x, y))
            first *= factor
            same = (first == second) | (np.isnan(first) & np.isnan(second))
            with np.errstate(all="ignore"):
                shares = np.where(same, 0.0, np.abs(second - first) / (atol + rtol * np.abs(first)))
            found = float(np.nan_to_num(shares, nan=math.inf, posinf=math.inf).max(initial=0.0))
            largest = max(largest, found)
        best = min(best, largest)
        if best <= 1:
            break
    return best


def _summed(a: Side, i: int, b: Side, j: int, order: tuple[int, ...] | None, integer: bool, taken: Taken) -> _Sums:
    """Take in all pairs of elements, B's axes in an order."""
    sums = _Sums()
    for x, y in _aligned_chunks(a, i, b, j, order):
        if taken.as_masks:
            sums.differing += int(np.count_nonzero((x != 0) != ((y == 0) if taken.inverted else (y != 0))))
            sums.count += x.size
        elif integer:
            sums.differing += int(np.count_nonzero(x != y))
            sums.count += x.size
        elif taken.factor != 1:
            sums.add(as_real(x).astype(np.float64) * taken.factor, as_real(y))
        else:
            sums.add(as_real(x), as_real(y))
    return sums


@dataclass
class _Sums:
    """Sums over pairs of elements, taken in by chunks."""

    squared: float = 0.0
    squares_a: float = 0.0
    squares_b: float = 0.0
    inner: float = 0.0
    absolute: float = 0.0
    count: int = 0
    differing: int = 0
    mismatched: int = 0
    """elements that are not finite in the same way"""
    max_abs: float = 0.0
    max_at: int = 0
    max_rel: float = 0.0
    buffers: np.ndarray = field(default_factory=lambda: np.empty((3, _PART)), repr=False)

    def add(self, a: np.ndarray, b: np.ndarray) -> None:
        """Add a chunk of A (flat, in A's order) and what stands there in B."""
        first, second = a.reshape(-1), b.reshape(-1)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for start in range(0, first.size, _PART):
                self._add(first[start : start + _PART], second[start : start + _PART])

    def _add(self, a: np.ndarray, b: np.ndarray) -> None:
        x, y, error = self.buffers[:, : a.size]
        x[...], y[...] = a, b
        np.subtract(y, x, out=error)
        squared = float(error @ error)
        if not math.isfinite(squared):
            self._leave_out_nonfinite(x, y)
            np.subtract(y, x, out=error)
            squared = float(error @ error)
        self.squared += squared
        self.squares_a += float(x @ x)
        self.squares_b += float(y @ y)
        self.inner += float(x @ error)
        size = np.abs(error, out=error)
        at = int(size.argmax())
        largest = float(size[at])
        if largest > self.max_abs:
            self.max_abs, self.max_at = largest, self.count + at
        self.count += a.size
        if largest:
            self.absolute += float(np.add.reduce(size))
            self._take_largest_share(x, y, size, is_narrow=max(a.itemsize, b.itemsize) < size.itemsize)

    def _take_largest_share(self, x: np.ndarray, y: np.ndarray, size: np.ndarray, *, is_narrow: bool) -> None:
        """Keep the largest of |x − y| / max(|x|, |y|), where ``size`` is |x − y|; what is given is overwritten.

        Behind the first part few elements can have a larger one, and |x| alone tells which. Of float64 the product may underflow.
        """
        np.abs(x, out=x)
        if self.max_rel and is_narrow:
            may_be_larger = np.flatnonzero(size > x * (self.max_rel * _NEARLY))
            if not may_be_larger.size:
                return
            if may_be_larger.size < size.size // 8:
                x, y, size = x[may_be_larger], y[may_be_larger], size[may_be_larger]
        larger = np.maximum(x, np.abs(y, out=y), out=x)
        np.maximum(larger, _TINY[: larger.size], out=larger)
        self.max_rel = max(self.max_rel, float(np.maximum.reduce(np.divide(size, larger, out=size))))

    def _leave_out_nonfinite(self, x: np.ndarray, y: np.ndarray) -> None:
        """Count the elements that are not finite in the same way, and put zeros where one of a pair is not finite."""
        finite = np.isfinite(x) & np.isfinite(y)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        self.mismatched += int((~finite & ~same).sum())
        x[~finite] = y[~finite] = 0.0


def _finished(sums: _Sums, shape: tuple[int, ...]) -> Metrics:
    norm_a, norm_b = math.sqrt(sums.squares_a), math.sqrt(sums.squares_b)
    distance = math.sqrt(sums.squared)
    parts = sums.count // max(1, math.prod(shape))  # a complex number counts as two
    index = np.unravel_index(sums.max_at // parts, shape) if sums.count else ()
    at = tuple(int(k) for k in index) or None
    larger = max(norm_a, norm_b)
    if not math.isfinite(larger):
        return Metrics(Status.NOT_COMPARABLE, norm_a=norm_a, norm_b=norm_b, why=OVERFLOW)
    status = Status.COMPARED if distance else Status.EQUAL
    error = distance / larger if larger else 0.0
    why = None
    if sums.mismatched:
        status, error = Status.NONFINITE, math.inf
        why = note("nonfinite-on-one-side", count=sums.mismatched)
    return Metrics(
        status, error,
        clipped((sums.squares_a + sums.inner) / (norm_a * norm_b)) if norm_a and norm_b else float(not larger),
        clipped(sums.inner / (norm_a * distance)) if norm_a and distance else 0.0,
        norm_a, norm_b, sums.max_abs, at, sums.max_rel, sums.absolute / max(1, sums.count), why=why,
    )  # fmt: skip


def _orders(a: tuple[int, ...], b: tuple[int, ...], free_axes: bool) -> list[tuple[int, ...] | None]:
    """Return the orders of B's axes (those of size 1 left out) to try; None is B's own, flat.

    The axes of a size are tried in every order only where the tensor is small and has at most four of them.
    """
    sizes_a, sizes_b = squeezed(a), squeezed(b)
    if sizes_a == sizes_b:
        repeated = free_axes and len(set(sizes_a)) < len(sizes_a) <= 4 and math.prod(a) <= _SMALL
        others = _permutations(sizes_a, sizes_b) if repeated else []
        return [None, *[order for order in others if order != tuple(range(len(sizes_b)))]]
    if sorted(sizes_a) == sorted(sizes_b):
        found = _permutations(sizes_a, sizes_b)
        return list(found) if free_axes and math.prod(a) <= _SMALL else [found[0]]
    return [None]


def _permutations(a: tuple[int, ...], b: tuple[int, ...]) -> list[tuple[int, ...]]:
    if len(b) > 6:
        return [tuple(sorted(range(len(b)), key=lambda k: a.index(b[k])))]
    return [order for order in itertools.permutations(range(len(b))) if tuple(b[k] for k in order) == a]


def _aligned_chunks(
    a: Side, i: int, b: Side, j: int, order: tuple[int, ...] | None
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the elements of A, flat by chunks, and those of B that stand there, B's axes taken in ``order``."""
    if order is None:
        here, there = np.empty((2, _READ * _WIDEST), np.uint8)
        yield from zip(a.stream(i, _READ, here), b.stream(j, _READ, there), strict=True)
        return
    for box in _boxes(squeezed(a.stored_shape(i)), _BLOCK):
        x = a.block(i, box)
        y = b.block(j, [box[order.index(axis)] for axis in range(len(order))]).transpose(order)
        yield x.reshape(-1), y.reshape(-1)


def _boxes(sizes: tuple[int, ...], limit: int) -> Iterator[tuple[slice, ...]]:
    """Cut a shape into boxes of at most ``limit`` elements that follow each other in C order."""
    axis, inner = len(sizes) - 1, 1
    while axis > 0 and inner * sizes[axis] <= limit:
        inner *= sizes[axis]
        axis -= 1
    rows = max(1, limit // max(1, inner))
    for outer in itertools.product(*(range(size) for size in sizes[:axis])):
        for start in range(0, sizes[axis], rows):
            stop = min(sizes[axis], start + rows)
            rest = (slice(0, size) for size in sizes[axis + 1 :])
            yield (*(slice(at, at + 1) for at in outer), slice(start, stop), *rest)
