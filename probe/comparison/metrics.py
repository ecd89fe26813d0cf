"""How far two recorded tensors are apart: from their values where both are stored, else from their sketches.

The relative error is e = ‖A−B‖ / max(‖A‖, ‖B‖).
"""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import replace

import numpy as np

from probe.comparison.estimates import compare_sketches, same_layout
from probe.comparison.side import OVERFLOW, PLAIN, Metrics, Side, Status, Taken, kind_of, squeezed
from probe.comparison.values import aligned_values, compare_values, largest_share

_MASKING = -1e3
"""what an additive mask puts on a score is at most this"""
_AS_MASKS = Taken(as_masks=True)


def measure_pair(a: Side, i: int, b: Side, j: int, *, free_axes: bool = True, factor: float = 1.0) -> Metrics:
    """Compare record i of A with record j of B.

    Parameters
    ----------
    free_axes
        axes of the same size may stand in another order in B ([s, b, h] against [b, s, h] with s = b); never allow
        it for weights, where a square one that was not transposed is a fault
    factor
        what A's elements are multiplied by before
    """
    shape_a, shape_b = a.shapes[i], b.shapes[j]
    if kind_of(a.dtypes[i]) != kind_of(b.dtypes[j]):
        return Metrics(Status.NOT_COMPARABLE, reason=f"{a.dtypes[i]} against {b.dtypes[j]}")
    if math.prod(shape_a) != math.prod(shape_b):
        return Metrics(Status.NOT_COMPARABLE, reason=f"shape {list(shape_a)} against {list(shape_b)}")
    digest = a.digest(i)
    if digest is None or b.digest(j) is None:
        return Metrics(Status.NOT_COMPARABLE, reason="no statistics were recorded")
    turned = _turned(shape_a, a.axes(i), shape_b, b.axes(j))
    if turned is None and factor == 1 and same_layout(a, i, b, j) and digest == b.digest(j):
        norm_a, norm_b = a.norm(i), b.norm(j)
        return Metrics(Status.EQUAL, 0.0, 1.0, 0.0, norm_a, norm_b, 0.0, None, 0.0, 0.0)
    masked = _mask_value(a, i), _mask_value(b, j)
    if masked[0] and masked[1] and masked[0] != masked[1]:
        return _compare_masks(a, i, b, j, free_axes, turned, (masked[0], masked[1]))
    taken = Taken(factor) if factor != 1 else PLAIN
    can_be_read = a.has_values(i) and b.has_values(j)
    if can_be_read and (sorted(squeezed(shape_a)) == sorted(squeezed(shape_b)) or are_merged(shape_a, shape_b)):
        return compare_values(a, i, b, j, free_axes=free_axes, turned=turned, taken=taken)
    return compare_sketches(a, i, b, j, free_axes=free_axes, turned=turned, taken=taken)


def worst_share(
    a: Side, i: int, b: Side, j: int, *, free_axes: bool, factor: float, atol: float, rtol: float
) -> float:  # fmt: skip
    """Return the largest |a − b| / (atol + rtol·|a|) over the stored values of record i of A and record j of B."""
    turned = _turned(a.shapes[i], a.axes(i), b.shapes[j], b.axes(j))
    return largest_share(a, i, b, j, free_axes=free_axes, turned=turned, factor=factor, atol=atol, rtol=rtol)


def values_of_pair(a: Side, i: int, b: Side, j: int, *, free_axes: bool = True) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the values of both records as `measure_pair` holds them against each other; None where they are not stored."""
    shape_a, shape_b = a.shapes[i], b.shapes[j]
    fits = sorted(squeezed(shape_a)) == sorted(squeezed(shape_b)) or are_merged(shape_a, shape_b)
    if not fits or not (a.has_values(i) and b.has_values(j)):
        return None
    turned = _turned(shape_a, a.axes(i), shape_b, b.axes(j))
    return aligned_values(a, i, b, j, free_axes=free_axes, turned=turned)


def _turned(
    shape_a: tuple[int, ...], axes_a: tuple[int, ...], shape_b: tuple[int, ...], axes_b: tuple[int, ...]
) -> tuple[int, ...] | None:
    """Return which axis of B (those of size 1 left out) is each of A's where their layouts differ, else None."""
    if axes_a == axes_b or len(axes_a) != len(axes_b):
        return None
    order = [axes_b[axes_a.index(axis)] for axis in range(len(axes_a))]
    if tuple(shape_b[axis] for axis in order) != shape_a:
        return None
    kept = [axis for axis, size in enumerate(shape_b) if size != 1]
    found = tuple(kept.index(axis) for axis in order if shape_b[axis] != 1)
    return None if found == tuple(range(len(kept))) else found


def are_merged(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Tell whether one shape is the other with neighbouring axes merged: [b·s, h] and [b, s, h]."""
    ends = [set(itertools.accumulate(squeezed(shape), operator.mul)) for shape in (a, b)]
    return ends[0] <= ends[1] or ends[1] <= ends[0]


# Masks that are added to scores: 0, or the lowest number of the dtype, which another dtype does not have


def _mask_value(side: Side, row: int) -> float | None:
    """Return what a mask puts where nothing may be looked at; None when a tensor is no mask.

    Every element is 0 or that number; -inf is counted apart. The squares of float64's lowest number overflow.
    """
    columns = side.columns
    infinite, lowest, highest = (columns["neginf"][row], columns["min"][row], columns["max"][row])
    if kind_of(side.dtypes[row]) != "float" or columns["nan"][row] or columns["posinf"][row]:
        return None
    if infinite and (math.isnan(highest) or lowest == highest == 0):
        return -math.inf
    finite = math.prod(side.shapes[row]) - columns["zeros"][row] - infinite
    if infinite or not finite or not lowest <= _MASKING or highest not in (0.0, lowest):
        return None
    norm = columns["norm"][row]
    return lowest if math.isinf(norm) or math.isclose(norm, -lowest * math.sqrt(finite), rel_tol=1e-6) else None


def _compare_masks(
    a: Side, i: int, b: Side, j: int, free_axes: bool, turned: tuple[int, ...] | None, lowest: tuple[float, float]
) -> Metrics:
    """Compare where two masks are not 0."""
    reason = f"two masks, {lowest[0]:.3g} in A and {lowest[1]:.3g} in B: compared by where they mask"
    counts = [math.prod(side.shapes[row]) - side.columns["zeros"][row] for side, row in ((a, i), (b, j))]
    if a.has_values(i) and b.has_values(j):
        found = compare_values(a, i, b, j, free_axes=free_axes, turned=turned, taken=_AS_MASKS)
    elif all(math.isfinite(side.columns["norm"][row]) and value > -math.inf
             for side, row, value in ((a, i, lowest[0]), (b, j, lowest[1]))):  # fmt: skip
        found = compare_sketches(a, i, b, j, free_axes=False, turned=turned, taken=Taken(lowest[1] / lowest[0]))
    else:  # a sketch leaves out what is not finite
        error = abs(counts[0] - counts[1]) / max(counts)
        found = Metrics(Status.COMPARED, error, estimated=True)
    known = Status.COMPARED if found.status is Status.EQUAL else found.status
    return replace(found, status=known, norm_a=math.sqrt(counts[0]), norm_b=math.sqrt(counts[1]), reason=reason)


__all__ = [
    "OVERFLOW",
    "Metrics",
    "Side",
    "Status",
    "are_merged",
    "kind_of",
    "measure_pair",
    "squeezed",
    "values_of_pair",
    "worst_share",
]
