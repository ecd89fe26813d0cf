"""How far two recorded tensors are apart: from their values where both are stored, else from their sketches.

The relative error is e = ‖A−B‖ / max(‖A‖, ‖B‖).
"""

from __future__ import annotations

import itertools
import math
import operator
from dataclasses import replace

import numpy as np

from probe.comparison.distance.estimates import compare_sketches, same_layout
from probe.comparison.distance.masks import compare_masks
from probe.comparison.distance.values import aligned_values, compare_values, largest_share
from probe.comparison.notes import note
from probe.comparison.steps.side import OVERFLOW, PLAIN, Metrics, Side, Status, Taken, kind_of, squeezed
from probe.errors import FormatError
from probe.records import Role

NO_STATISTICS = note("no-statistics")
_OF_VALUES = ("nan", "posinf", "neginf", "norm")
"""columns that equal values have alike; what counts as zero depends on whether subnormal numbers are flushed"""
_SUMMED = 1e-3
"""relative difference of norms of the same values, summed up by other programs"""


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
    if math.prod(shape_a) != math.prod(shape_b):
        return Metrics(Status.NOT_COMPARABLE, why=note("shapes-differ", a=tuple(shape_a), b=tuple(shape_b)))
    digest = a.digest(i)
    if digest is None or b.digest(j) is None:
        return Metrics(Status.NOT_COMPARABLE, why=a.why_unknown(i) or b.why_unknown(j) or NO_STATISTICS)
    turned = _turned(shape_a, a.axes(i), shape_b, b.axes(j))
    if turned is None and factor == 1 and same_layout(a, i, b, j) and digest == b.digest(j):
        norm_a, norm_b = a.norm(i), b.norm(j)
        _check_statistics(a, i, b, j)
        return Metrics(Status.EQUAL, 0.0, 1.0, 0.0, norm_a, norm_b, 0.0, None, 0.0, 0.0)
    can_be_read = a.has_values(i) and b.has_values(j) and _fits(shape_a, shape_b)
    masks = compare_masks(a, i, b, j, free_axes=free_axes, turned=turned, can_be_read=can_be_read)
    if masks is not None:
        return masks
    if kind_of(a.dtypes[i]) != kind_of(b.dtypes[j]):
        return Metrics(Status.NOT_COMPARABLE, why=note("kinds-differ", a=a.dtypes[i], b=b.dtypes[j]))
    taken = Taken(factor) if factor != 1 else PLAIN
    compared = compare_values if can_be_read else compare_sketches
    metrics = compared(a, i, b, j, free_axes=free_axes, turned=turned, taken=taken)
    if metrics.status is Status.EQUAL and turned is None and factor == 1 and _differ_in_bits(a, i, b, j):
        return replace(metrics, other_zeros=True)
    return metrics


def _check_statistics(a: Side, i: int, b: Side, j: int) -> None:
    """Raise FormatError where tensors of one hash have other statistics: a file is damaged."""
    x, y = ({name: side.columns[name][row] for name in _OF_VALUES} for side, row in ((a, i), (b, j)))
    if x != y and not all(map(_are_alike, x.values(), y.values())):
        where = f"{Role(a.columns['role'][i]).label} {a.slots[i]} of step {a.step}"
        raise FormatError(
            f"{a.reader.path} or {b.reader.path} is damaged: {where} has the same hash in both, but other statistics: "
            f"{_text(x)}, and {_text(y)}; record it again"
        )


def _are_alike(x: float, y: float) -> bool:
    return x == y or math.isnan(x) or math.isnan(y) or math.isclose(x, y, rel_tol=_SUMMED)


def _text(statistics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in statistics.items())


def _differ_in_bits(a: Side, i: int, b: Side, j: int) -> bool:
    """Tell whether tensors of the same numbers, zeros among them, have other bits though they are of one dtype and shape."""
    x, y = a.digest(i), b.digest(j)
    is_of_one_kind = x is not None and y is not None and x[-1] == y[-1] and same_layout(a, i, b, j)
    return is_of_one_kind and x != y and a.columns["zeros"][i] > 0


def worst_share(
    a: Side, i: int, b: Side, j: int, *, free_axes: bool, factor: float, atol: float, rtol: float
) -> float:  # fmt: skip
    """Return the largest |a − b| / (atol + rtol·|a|) over the stored values of record i of A and record j of B."""
    turned = _turned(a.shapes[i], a.axes(i), b.shapes[j], b.axes(j))
    return largest_share(a, i, b, j, free_axes=free_axes, turned=turned, factor=factor, atol=atol, rtol=rtol)


def values_of_pair(a: Side, i: int, b: Side, j: int, *, free_axes: bool = True) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the values of both records as `measure_pair` holds them against each other; None where they are not stored."""
    shape_a, shape_b = a.shapes[i], b.shapes[j]
    if not _fits(shape_a, shape_b) or not (a.has_values(i) and b.has_values(j)):
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


def _fits(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Tell whether elements of tensors of these shapes correspond to each other."""
    return sorted(squeezed(a)) == sorted(squeezed(b)) or are_merged(a, b)


def are_merged(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Tell whether one shape is the other with neighbouring axes merged: [b·s, h] and [b, s, h]."""
    ends = [set(itertools.accumulate(squeezed(shape), operator.mul)) for shape in (a, b)]
    return ends[0] <= ends[1] or ends[1] <= ends[0]


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
