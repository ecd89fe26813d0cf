"""The error of recorded values, in the order of axes in which they fit best."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

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
    x, y = a.values(), b.values()
    if a.kind == "integer":
        y = y if x.shape == y.shape else y.reshape(x.shape) if is_merged(a.form, b.form) else y.T
        differing = 1.0 if x.shape != y.shape else float(np.mean(x != y)) if x.size else 0.0
        return Error(differing, a.norm, b.norm, view=View.INTEGERS)
    return _best(x, y, may_permute)[0]


def laid(a: Tensor, b: Tensor, may_permute: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the values of both as they are compared, flat, in the order of A."""
    _, x, y = _best(a.values(), b.values(), may_permute)
    return x.reshape(-1), y.reshape(-1)


def _best(x: np.ndarray, y: np.ndarray, may_permute: bool) -> tuple[Error, np.ndarray, np.ndarray]:
    best: tuple[Error, np.ndarray, np.ndarray] | None = None
    for view, left, right in _views(x, y, may_permute):
        found = replace(error_of(left, right), view=view)
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
            yield View.PERMUTED, x.swapaxes(axis, axis + 1).reshape(-1), y.reshape(-1)
        elif y.ndim == x.ndim + 1:
            yield View.PERMUTED, x.reshape(-1), y.swapaxes(axis, axis + 1).reshape(-1)


def error_of(x: np.ndarray, y: np.ndarray) -> Error:
    """Return the error of one array against another, laid as they are."""
    x, y = x.reshape(-1), y.reshape(-1)
    known = np.isfinite(x) & np.isfinite(y)
    if not known.all():
        if not np.array_equal(x[~known], y[~known], equal_nan=True):
            return Error(math.inf, view=View.NON_FINITE)
        x, y = x[known], y[known]
    norm_a, norm_b = math.sqrt(x @ x), math.sqrt(y @ y)
    difference = y - x
    apart = math.sqrt(difference @ difference)
    if not apart:
        return Error(0.0, norm_a, norm_b, max_abs=0.0)
    largest = max(float(difference.max()), -float(difference.min()))
    along = float(difference @ x) / (apart * norm_a) if norm_a else 0.0
    return Error(apart / max(norm_a, norm_b), norm_a, norm_b, along, max_abs=largest)
