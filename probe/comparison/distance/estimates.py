"""How far two tensors are apart, from their sketches and statistics.

From sketches ‖A−B‖ and the cosine are estimated (``docs/reference/file-format.md``); norms are exact either way.
"""

from __future__ import annotations

import math

import numpy as np

from probe.comparison.fusion import packed
from probe.comparison.notes import note
from probe.comparison.steps.side import OVERFLOW, PLAIN, Metrics, Side, Status, Taken, clipped, kind_of, squeezed

PERMUTED = note("axes-may-be-swapped")
SKETCH_ALONE = note("sketches-do-not-correspond")
_NEAR = 0.5
"""share of a tensor beside another one up to which their norms tell the share along it better than sketches do"""
_OF_SUMS = 1e-14
"""what means of the same elements may differ by: float64 adds them up in another order"""
_ROUNDINGS = 8
"""unit roundoffs up to which an error is no other order of the elements"""
_PARALLEL = 1e-2
"""share of the difference of two sketches up to which it is no other direction than theirs"""


def compare_sketches(
    a: Side, i: int, b: Side, j: int, *, free_axes: bool, turned: tuple[int, ...] | None, taken: Taken = PLAIN
) -> Metrics:
    """Estimate the error of record j of B against record i of A; the parameters are those of `compare_values`."""
    counts = [tuple(side.columns[name][row] for name in ("nan", "posinf", "neginf")) for side, row in ((a, i), (b, j))]
    norm_a, norm_b = abs(taken.factor) * a.columns["norm"][i], b.columns["norm"][j]
    if counts[0] != counts[1]:
        return Metrics(Status.NONFINITE, math.inf, norm_a=norm_a, norm_b=norm_b, estimated=True,
                       why=note("nonfinite-counts", a=counts[0], b=counts[1]))  # fmt: skip
    sketch_a, sketch_b = a.sketch(i), b.sketch(j)
    if sketch_a is None or sketch_b is None or not _are_of_equal_sizes(a.shapes[i], b.shapes[j]):
        if any(math.isnan(side.columns["norm"][row]) and side.is_joined(row) for side, row in ((a, i), (b, j))):
            norm_a, norm_b = abs(taken.factor) * a.norm(i), b.norm(j)
            return Metrics(Status.NOT_COMPARABLE, norm_a=norm_a, norm_b=norm_b, estimated=True, why=SKETCH_ALONE)
        found = packed.vectors(a, i, b, j)
        return (
            _from_statistics(a, i, b, j, taken.factor) if found is None else _from_sums(a, i, b, j, found, taken.factor)
        )
    if kind_of(a.dtypes[i]) == "integer":
        share = _share_of_integers(a, i, b, j, turned, float(np.linalg.norm(sketch_a - sketch_b)))
        metrics = Metrics(Status.COMPARED, share, norm_a=norm_a, norm_b=norm_b, estimated=True, of_integers=True)
    else:
        if taken.factor != 1:
            sketch_a = taken.factor * sketch_a
        norm_a, norm_b = _norms(sketch_a, sketch_b, norm_a, norm_b)
        metrics = geometry(sketch_a, sketch_b, norm_a, norm_b)
    if free_axes and metrics.rel_l2 > least_reordered(a, i, b, j) and looks_permuted(a, i, b, j):
        return Metrics(Status.PERMUTED, norm_a=norm_a, norm_b=norm_b, estimated=True, why=PERMUTED)
    return metrics


def _are_of_equal_sizes(a: tuple[int, ...], b: tuple[int, ...]) -> bool:
    """Tell whether two shapes have the same axes in any order, those of size 1 left out."""
    return a == b or sorted(squeezed(a)) == sorted(squeezed(b))


def _norms(a: np.ndarray, b: np.ndarray, norm_a: float, norm_b: float) -> tuple[float, float]:
    """Return both norms where one or none is known: of a sum or a difference of tensors, the sketch alone is.

    An unknown one is taken to be to the known one as their sketches' lengths are: exact for a multiple, and so for equals.
    """
    if not math.isnan(norm_a) and not math.isnan(norm_b):
        return norm_a, norm_b
    length_a, length_b = length(a), length(b)
    if math.isnan(norm_a) and math.isnan(norm_b):
        return length_a, length_b
    if math.isnan(norm_a):
        return (norm_b * length_a / length_b if length_b else length_a), norm_b
    return norm_a, (norm_a * length_b / length_a if length_a else length_b)


def length(vector: np.ndarray) -> float:
    """Return the norm of a vector: `numpy.linalg.norm` takes four times as long for a short one."""
    return math.sqrt(vector @ vector)


def geometry(a: np.ndarray, b: np.ndarray, norm_a: float, norm_b: float) -> Metrics:
    """Return what two sketches and the norms of their tensors tell.

    Where one sketch is a multiple of the other, and the norms agree with that, so are the tensors: then nothing
    has to be estimated.
    """
    larger = max(norm_a, norm_b)
    if not math.isfinite(larger):
        return Metrics(Status.NOT_COMPARABLE, norm_a=norm_a, norm_b=norm_b, why=OVERFLOW)
    if not larger:
        return Metrics(Status.EQUAL, 0.0, 1.0, 0.0, norm_a, norm_b, estimated=True)
    with np.errstate(over="ignore"):
        apart, length_a, length_b = (length(each) for each in (b - a, a, b))
    factor = float(a @ b) / length_a**2 if length_a else 0.0
    beside = length(b - factor * a)  # what of B has another direction than A
    distance = min(max(apart, abs(norm_a - norm_b)), norm_a + norm_b)
    cosine = clipped(factor * length_a / length_b) if length_b else 0.0
    expected = norm_b * length_a / norm_a if norm_a else 0.0
    least = _PARALLEL * min(apart, length_b)  # of a B that is far shorter than A nothing would be beside A
    if apart and factor and expected and max(beside, abs(abs(factor) * length_a - expected)) <= least:
        cosine = math.copysign(1.0, factor)
        distance = abs(norm_b - cosine * norm_a)
    elif cosine > 0 and beside < _NEAR * norm_b:
        along = math.sqrt(norm_b**2 - beside**2)
        if beside < abs(along - norm_a):  # norms tell what is along A, and that is most of it
            distance, cosine = math.hypot(along - norm_a, beside), along / norm_b
    coherence = clipped((norm_b * cosine - norm_a) / distance) if norm_a and distance else 0.0
    return Metrics(Status.COMPARED, distance / larger, cosine, coherence, norm_a, norm_b, estimated=True)


def _share_of_integers(a: Side, i: int, b: Side, j: int, turned: tuple[int, ...] | None, distance: float) -> float:
    """Estimate the share of integers that differ.

    A sketch holds ±1 by value: elements that differ contribute 4 each, in half of the cases. The means give a lower
    bound, and where the hashes differ at least one element does.
    """
    count = max(1, math.prod(a.shapes[i]))
    share = min(1.0, distance**2 / (2 * count))
    if not _same_statistics(a, i, b, j) or (turned is None and same_layout(a, i, b, j) and _same_hash_kind(a, i, b, j)):
        low = min(a.columns["min"][i], b.columns["min"][j])
        high = max(a.columns["max"][i], b.columns["max"][j])
        gap = abs(a.columns["mean"][i] - b.columns["mean"][j]) / (high - low) if high > low else 0.0
        share = max(share, 1 / count, min(1.0, gap))
    return share


def same_layout(a: Side, i: int, b: Side, j: int) -> bool:
    """Tell whether equal bytes of two records are equal tensors."""
    x, y = a.shapes[i], b.shapes[j]
    return a.dtypes[i] == b.dtypes[j] and (x == y or squeezed(x) == squeezed(y))


def _same_hash_kind(a: Side, i: int, b: Side, j: int) -> bool:
    return bool(a.columns["hash_kind"][i] == b.columns["hash_kind"][j])


def _from_statistics(a: Side, i: int, b: Side, j: int, factor: float) -> Metrics:
    """Compare what does not depend on how the elements are arranged: a lower bound of the error.

    The norm of a difference is no less than the difference of the norms, than that of the largest or the smallest elements, and than that of
    the means times the root of how many finite elements there are.
    """
    mine = [factor * a.columns[name][i] for name in ("min", "max", "mean")]
    theirs = [b.columns[name][j] for name in ("min", "max", "mean")]
    if factor < 0:
        mine[0], mine[1] = mine[1], mine[0]
    norm_a, norm_b = abs(factor) * a.columns["norm"][i], b.columns["norm"][j]
    size = max(norm_a, norm_b)
    if not size or math.isnan(size):
        return Metrics(Status.EQUAL, 0.0, norm_a=norm_a, norm_b=norm_b, estimated=True)
    if math.isinf(size):
        return Metrics(Status.NOT_COMPARABLE, norm_a=norm_a, norm_b=norm_b, why=OVERFLOW)
    count = math.prod(a.shapes[i]) - sum(a.columns[name][i] for name in ("nan", "posinf", "neginf"))
    weights = 1.0, 1.0, math.sqrt(max(0, count))
    gaps = [weight * abs(x - y) for weight, x, y in zip(weights, mine, theirs, strict=True)]
    gap = max(*gaps, abs(norm_a - norm_b)) / size
    if gap < _OF_SUMS:
        gap = 0.0
    return Metrics(Status.COMPARED, gap, norm_a=norm_a, norm_b=norm_b, estimated=True, is_lower_bound=True)


def _from_sums(a: Side, i: int, b: Side, j: int, sums: tuple[np.ndarray, np.ndarray], factor: float) -> Metrics:
    """Compare weights of which sums along their axes are known; what the sums' own rounding hides, statistics may show."""
    metrics = geometry(factor * sums[0], sums[1], abs(factor) * a.columns["norm"][i], b.columns["norm"][j])
    return metrics if metrics.rel_l2 > packed.ROUNDING else _from_statistics(a, i, b, j, factor)


def _same_statistics(a: Side, i: int, b: Side, j: int) -> bool:
    return all(_same(a.columns[name][i], b.columns[name][j]) for name in ("min", "max", "mean", "rms", "zeros"))


def _same(x: float, y: float) -> bool:
    return x == y or (x != x and y != y)


def least_reordered(a: Side, i: int, b: Side, j: int) -> float:
    """Return the error from which on a tensor's elements may stand in another order.

    That of a few roundings is one of elements in their places, whose ends may agree: 16 bits have few numbers, and a norm makes
    root mean squares equal.
    """
    return max(1e-3, _ROUNDINGS * a.roundoffs[i], _ROUNDINGS * b.roundoffs[j])


def looks_permuted(a: Side, i: int, b: Side, j: int) -> bool:
    """Tell whether two tensors could be the same with axes of the same size swapped."""
    sizes = squeezed(a.shapes[i])
    return len(set(sizes)) < len(sizes) and same_content(a, i, b, j)


def same_content(a: Side, i: int, b: Side, j: int, within: float = 1e-5, rms_within: float = 1e-5) -> bool:
    """Tell whether all that does not depend on the order of the elements agrees, up to a relative error."""
    if math.isnan(a.columns["norm"][i]) or math.isnan(b.columns["norm"][j]):  # a sum: nothing says that it does not
        return True
    return all(
        math.isclose(a.columns[name][i], b.columns[name][j], rel_tol=error, abs_tol=1e-12)
        for name, error in (("min", within), ("max", within), ("rms", rms_within))
    )
