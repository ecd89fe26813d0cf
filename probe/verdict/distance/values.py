"""The error of recorded values, in the order of axes in which they fit best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

import numpy as np

from probe.numbers.pair_sums import READ, WIDEST, Sums
from probe.verdict.distance.error import Error, View
from probe.verdict.tensors import Shape, Tensor

_MOST_AXES = 5
"""of more axes only the recorded order is tried"""
FITS = 1e-2
"""error from which on further orders are tried"""


def can_be_laid(a: Shape, b: Shape) -> bool:
    """Return True if the axes are the same in any order, or one shape merges neighbouring axes of the other."""
    return sorted(a) == sorted(b) or is_merged(a, b)


def is_merged(a: Shape, b: Shape) -> bool:
    """Return True if one shape is the other with neighbouring axes merged: [b·s, h] and [b, s, h]."""
    ends = [set(itertools.accumulate(form, lambda x, y: x * y)) for form in (a, b)]
    return ends[0] <= ends[1] or ends[1] <= ends[0]


def from_values(a: Tensor, b: Tensor, may_permute: bool) -> Error:
    """Return the error of values, in the view in which it is smallest."""
    if a.is_stored and b.is_stored and a.form == b.form:
        found = _streamed(a, b)
        if found.size < FITS or len(set(a.form)) == len(a.form):
            return found
    x, y = a.values(), b.values()
    if a.kind == "integer":
        differing = min(float(np.mean(left != right)) for _, left, right in _views(x, y, may_permute))
        return Error(differing, a.norm, b.norm, view=View.INTEGERS)
    return _best(x, y, may_permute)[0]


def laid(a: Tensor, b: Tensor, may_permute: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of both as they are compared, flat, in the order of A."""
    if a.size != b.size:
        x, y = zip(*_shared(a, b, shared_error(a, b)[1]), strict=True)
        return np.concatenate(x), np.concatenate(y)
    _, x, y = _best(a.values(), b.values(), may_permute)
    return x.reshape(-1), y.reshape(-1)


def shared_error(a: Tensor, b: Tensor) -> tuple[Error, bool]:
    """Return the error of what both have of two tensors, one of which is longer, and whether it is longer in front."""
    found = _error(_shared(a, b, False)), False
    return found if found[0].size < FITS else min(found, (_error(_shared(a, b, True)), True), key=lambda of: of[0].size)


def _shared(a: Tensor, b: Tensor, is_last: bool) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield what both have at the first, or at the last, end of the axis along which one is longer, by some rows."""
    shape = tuple(map(min, a.form, b.form))
    rows = max(1, READ // max(1, math.prod(shape[1:]))) if a.is_stored and b.is_stored else shape[0]
    for at in range(0, shape[0], rows):
        wanted = [range(at, min(at + rows, shape[0])), *map(range, shape[1:])]
        left = [[size - kept if is_last else 0 for size, kept in zip(each.form, shape, strict=True)] for each in (a, b)]
        x, y = ([slice(r.start + n, r.stop + n) for r, n in zip(wanted, each, strict=True)] for each in left)
        yield a.part(x).reshape(-1), b.part(y).reshape(-1)


def _best(x: np.ndarray, y: np.ndarray, may_permute: bool) -> tuple[Error, np.ndarray, np.ndarray]:
    best: tuple[Error, np.ndarray, np.ndarray] | None = None
    for view, left, right in _views(x, y, may_permute):
        found = error_of(left, right)
        found = found if found.view is View.NON_FINITE else replace(found, view=view)
        best = (found, left, right) if best is None or found.size < best[0].size else best
        if best[0].size < FITS:
            break
    assert best is not None
    return best


def _views(x: np.ndarray, y: np.ndarray, may_permute: bool) -> Iterator[tuple[View, np.ndarray, np.ndarray]]:
    plain = tuple(range(y.ndim))
    is_found = False
    for order in itertools.permutations(plain) if y.ndim <= _MOST_AXES else (plain,):
        turned = y.transpose(order)
        if turned.shape == x.shape and (order == plain or x.shape != y.shape or may_permute):
            is_found = True
            yield (View.SAME if order == plain else View.PERMUTED), x, turned
    if is_found:
        return
    yield View.FLAT, x.reshape(-1), y.reshape(-1)
    for axis in range(min(x.ndim, y.ndim)):  # [b, s, h] and [s·b, h]: two axes of the longer one, exchanged and merged
        if x.ndim == y.ndim + 1:
            turned = x.swapaxes(axis, axis + 1).shape
            yield View.PERMUTED, x.reshape(-1), y.reshape(turned).swapaxes(axis, axis + 1).reshape(-1)
        elif y.ndim == x.ndim + 1:
            yield View.PERMUTED, x.reshape(-1), y.swapaxes(axis, axis + 1).reshape(-1)


def error_of(x: np.ndarray, y: np.ndarray) -> Error:
    """Return the error of one array against another, laid as they are."""
    return _error([(x, y)])


def _streamed(a: Tensor, b: Tensor) -> Error:
    """Return the error of tensors that are stored in one order, some elements at a time."""
    here, there = np.empty((2, READ * WIDEST), np.uint8)
    return _error(zip(a.stream(READ, here), b.stream(READ, there), strict=True))


def _error(pieces: Iterable[tuple[np.ndarray, np.ndarray]]) -> Error:
    sums = Sums()
    for x, y in pieces:
        sums.add(x, y)
    if sums.mismatched:
        return Error(math.inf, view=View.NON_FINITE)
    norm_a, norm_b, apart = (math.sqrt(each) for each in (sums.squares_a, sums.squares_b, sums.squared))
    mean = sums.absolute / sums.count if sums.count else 0.0
    along = sums.inner / (apart * norm_a) if apart and norm_a else 0.0
    size = apart / max(norm_a, norm_b) if apart else 0.0
    size = sums.max_rel if math.isnan(size) else size  # squares overflow
    return Error(size, norm_a, norm_b, along, View.SAME, False, sums.max_abs, sums.max_at, sums.max_rel, mean)
