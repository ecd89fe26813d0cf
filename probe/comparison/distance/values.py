"""How far two tensors are apart, from their values: one pass over both, by parts that stay in the cache."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from probe.comparison.distance.estimates import PERMUTED, least_reordered, looks_permuted, same_content
from probe.comparison.distance.sums import READ, WIDEST, Sums
from probe.comparison.notes import note
from probe.comparison.steps.side import (
    OVERFLOW,
    PLAIN,
    Metrics,
    Side,
    Status,
    SumsKey,
    Taken,
    clipped,
    kind_of,
    squeezed,
)
from probe.numbers.sketch import CHUNK
from probe.numbers.statistics import as_real

_BLOCK = 8 * CHUNK
"""elements that are read at a time where the axes stand in another order"""
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


def is_summed_as_it_lies(a: Side, b: Side, request: Request) -> bool:
    """Tell whether what is compared first are sums over the elements of both tensors as they lie, one behind the other."""
    i, j, free_axes, turned, taken = request
    is_plain = turned is None and taken == PLAIN and kind_of(a.dtypes[i]) != "integer"
    return is_plain and _orders(a.shapes[i], b.shapes[j], free_axes)[0] is None


def key_of_sums(a: Side, i: int, b: Side, j: int) -> SumsKey:
    """Return what is the same for records of the same two stored tensors."""
    return id(b), a.columns["tensor"][i], b.columns["tensor"][j]


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
    best: Sums | None = None
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


def _have_same_elements(a: Side, i: int, b: Side, j: int, sums: Sums) -> bool:
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


def _summed(a: Side, i: int, b: Side, j: int, order: tuple[int, ...] | None, integer: bool, taken: Taken) -> Sums:
    """Take in all pairs of elements, B's axes in an order."""
    if order is None and not integer and taken == PLAIN and i not in a.combined and j not in b.combined:
        ahead = a.summed_ahead.get(key_of_sums(a, i, b, j))
        if ahead is not None and (found := ahead()) is not None:
            return found
    sums = Sums()
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


def _finished(sums: Sums, shape: tuple[int, ...]) -> Metrics:
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
        here, there = np.empty((2, READ * WIDEST), np.uint8)
        yield from zip(a.stream(i, READ, here), b.stream(j, READ, there), strict=True)
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
