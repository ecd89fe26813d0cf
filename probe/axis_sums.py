"""Sums along the axes of a weight: one number for each of its rows, and for each of its columns.

They tell in which order rows lie, which the statistics of a tensor do not, and so whether the parts of a packed weight (q, k and
v, gate and up, experts) lie where another model has them. The sum of a row is that of its elements, each with the sign of its
column, as in the sketch (`probe.sketch`): the norm of all of them has the size of the weight's own, and where two weights differ
by e, so do their sums, about. This module is the reference; ``docs/file-format.md`` states it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from probe.sketch import Axis
from probe.statistics import is_float

_AXES_OF_STACK = 3
"""axes of matrices that are stacked, as those of experts: there, what is beside an axis is two axes, else it is read as one"""
_AT_ONCE = 1 << 19
"""elements that are widened at a time"""


def axis_sums(values: np.ndarray, order: Sequence[int] = ()) -> tuple[np.ndarray, ...]:
    """Return the sums along the axes of an array of floats.

    Parameters
    ----------
    values
        any shape and floating-point dtype
    order
        the axes in canonical order when that is another one, see `probe.sketch.axes_of`

    Returns
    -------
    float32; of a vector its elements; of a matrix (n, m) n sums of rows and m of columns; of three axes one array for each; of
    more, as convolutions have, one for the first and one for the second. Axes of size 1 are left out. Nothing where there is no
    axis, or an element is not finite.
    """
    if not is_float(values.dtype):
        return ()
    turned = values.transpose([*order, *range(len(order), values.ndim)])
    wide = np.dtype(np.float64 if values.dtype == np.float64 else np.float32)
    return sums_of(
        turned.reshape(squeezed(turned.shape)),
        widen=lambda block: block.astype(wide, copy=False),
        signs_as=lambda signs: signs.astype(wide),
        turn=np.transpose,
        result=lambda sums: np.asarray(sums, np.float32),
    )


def sums_of(
    x: Any, *, widen: Callable[[Any], Any], signs_as: Callable[[np.ndarray], Any], turn: Callable[[Any, list[int]], Any],
    result: Callable[[Any], np.ndarray],
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Do the same to a framework's tensor, its axes in canonical order and those of size 1 left out."""
    shape = tuple(x.shape)
    if not shape or 0 in shape:
        return ()
    if len(shape) == 1:
        found = (result(widen(x)),)
    else:
        found = _of_blocks(
            x, [(axis, beside(shape, axis)) for axis in axes_with_sums(shape)], widen, signs_as, turn, result
        )
    return found if all(bool(np.isfinite(sums).all()) for sums in found) else ()


def _of_blocks(
    x: Any, axes: Sequence[tuple[int, np.ndarray]], widen: Callable[[Any], Any], signs_as: Callable[[np.ndarray], Any],
    turn: Callable[[Any, list[int]], Any], result: Callable[[Any], np.ndarray],
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Go over blocks of the first axis: each has the sums of its own rows, and a share of those of another axis."""
    size, ndim = x.shape[0], len(x.shape)
    rows = max(1, _AT_ONCE // math.prod(x.shape[1:]))
    found: list[list[Any]] = [[] for _ in axes]
    orders = [[axis, *(other for other in range(ndim) if other != axis)] for axis, _ in axes]
    signs = [signs_as(each) for _, each in axes]
    for start in range(0, size, rows):
        block = widen(x[start : start + rows])
        for (axis, _), order, mine, sums in zip(axes, orders, signs, found, strict=True):
            of_block = mine if axis == 0 else mine[start : start + rows]
            part = turn(block, order).reshape(x.shape[axis] if axis else len(block), -1) @ of_block.reshape(-1)
            if axis == 0 or not sums:
                sums.append(part)
            else:
                sums[0] += part
    return tuple(np.concatenate([result(part) for part in sums]) for sums in found)


def reordered(sums: tuple[np.ndarray, ...], order: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Return the sums of the same tensor with its axes in another order; nothing where they cannot be told from those there are.

    Parameters
    ----------
    order
        of the tensor's axes, none of which may have been left out
    """
    sizes = [len(each) for each in sums]
    is_told = len(order) == len(sizes) and (
        len(sizes) < _AXES_OF_STACK or len(set(sizes)) == len(sizes) == _AXES_OF_STACK
    )
    return tuple(sums[axis] for axis in order) if is_told else ()


def axes_with_sums(shape: Sequence[int]) -> range:
    """Return of which axes there are sums, given a shape without axes of size 1."""
    return range(len(shape) if len(shape) <= _AXES_OF_STACK else 2)


def beside(shape: Sequence[int], axis: int) -> np.ndarray:
    """Return the signs ±1 of what is summed for one index of an axis, shaped as the other axes."""
    rest = [size for other, size in enumerate(shape) if other != axis]
    if len(shape) != _AXES_OF_STACK:
        return signs_of(math.prod(rest)).reshape(rest)
    return np.outer(signs_of(rest[0], int(rest[0] == rest[1])), signs_of(rest[1]))


def signs_of(size: int, rank: int = 0) -> np.ndarray:
    """Return the signs of the indices of an axis as float64, shape (size,); ``rank`` is 1 for the first of two equal ones."""
    return Axis(size, rank).signs(0, size)


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without its axes of size 1."""
    return tuple(size for size in shape if size != 1)
