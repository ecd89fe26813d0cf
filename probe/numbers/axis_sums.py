"""Sums along the axes of a weight: one number for each of its rows, and for each of its columns.

They tell in which order rows lie, which the statistics of a tensor do not, and so whether the parts of a packed weight (q, k and
v, gate and up, experts) lie where another model has them. The sum of a row is that of its elements, each with the sign of its
column, as in the sketch (`probe.numbers.sketch`): the norm of all of them has the size of the weight's own, and where two weights differ
by e, so do their sums, about. This module is the reference; ``docs/reference/file-format.md`` states it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from probe.numbers.sketch import Axis
from probe.numbers.statistics import is_float

_AT_ONCE = 1 << 18
"""elements that are taken as float64 at a time"""
_MOST, _SHARE = 1 << 16, 1 << 8
"""no more sums than that, or than one for so many elements: long vectors have none"""

Signs = Callable[[int, int], Any]


def axis_sums(values: np.ndarray, order: Sequence[int] = ()) -> tuple[np.ndarray, ...]:
    """Return the sums along the axes of an array of floats.

    Parameters
    ----------
    values
        any shape and floating-point dtype
    order
        the axes in canonical order when that is another one, see `probe.numbers.sketch.axes_of`

    Returns
    -------
    float32; of a vector its elements; of a matrix (n, m) n sums of rows and m of columns; of three axes one array for each; of
    more, as convolutions have, one for the first. Axes of size 1 are left out. Nothing where there is no axis, where there would be
    too many, or an element is not finite.
    """
    if not is_float(values.dtype):
        return ()
    turned = values.transpose([*order, *range(len(order), values.ndim)])
    with np.errstate(all="ignore"):
        return sums_of(
            turned.reshape(squeezed(turned.shape)),
            signs=signs_of,
            widen=lambda block: block.astype(np.float64),
            zeros=np.zeros,
            fetched=lambda parts: [part.astype(np.float32) for part in parts],
        )


def sums_of(
    x: Any, *, signs: Signs, widen: Callable[[Any], Any], zeros: Callable[[int], Any],
    fetched: Callable[[list[Any]], list[np.ndarray]],
) -> tuple[np.ndarray, ...]:  # fmt: skip
    """Do the same to a framework's tensor, its axes in canonical order and those of size 1 left out.

    Parameters
    ----------
    signs, zeros
        `signs_of` and `numpy.zeros`, as float64 where the tensor is
    widen
        a block of the tensor as float64
    fetched
        sums as float32, in the memory of the CPU
    """
    shape = tuple(x.shape)
    if not shape or 0 in shape or sum(shape[axis] for axis in axes_with_sums(shape)) > _most(shape):
        return ()
    if len(shape) == 1:
        parts = [widen(x)]
    else:
        stacked = x if len(shape) == 3 else x.reshape(1, shape[0], -1)
        parts = _of_matrices(stacked, signs, widen, zeros)[int(len(shape) != 3) :]
    found = fetched(parts[: len(axes_with_sums(shape))])
    return tuple(found) if all(bool(np.isfinite(sums).all()) for sums in found) else ()


def _of_matrices(x: Any, signs: Signs, widen: Callable[[Any], Any], zeros: Callable[[int], Any]) -> list[Any]:
    """Return the sums for each matrix of a stack, for each row and for each column."""
    count, rows, columns = x.shape
    found = [zeros(size) for size in (count, rows, columns)]
    by_row, by_column = signs(rows, 0), signs(columns, 0)
    by_row_of_one = signs(rows, int(rows == columns))
    of_rows, of_columns = (
        (signs(count, int(count == size)) if count > 1 else zeros(1) + 1) for size in (columns, rows)
    )
    for here, down, across in _blocks(x.shape):
        block = widen(x[here, down, across])
        along = block @ by_column[across]
        found[0][here] += along @ by_row_of_one[down]
        found[1][down] += of_rows[here] @ along
        found[2][across] += of_columns[here] @ (by_row[down] @ block)
    return found


def _blocks(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yield the places of blocks of a stack of matrices, none of which has more elements than are taken at a time."""
    left, sizes = _AT_ONCE, []
    for size in reversed(shape):
        sizes.append(max(1, min(size, left)))
        left //= sizes[-1]
    starts = (range(0, size, step) for size, step in zip(shape, reversed(sizes), strict=True))
    for first in itertools.product(*starts):
        yield tuple(slice(start, start + step) for start, step in zip(first, reversed(sizes), strict=True))


def _most(shape: Sequence[int]) -> int:
    return max(_MOST, math.prod(shape) // _SHARE)


def reordered(sums: tuple[np.ndarray, ...], order: Sequence[int]) -> tuple[np.ndarray, ...]:
    """Return the sums of the same tensor with its axes in another order; nothing where they cannot be told from those there are.

    Parameters
    ----------
    order
        of the tensor's axes, none of which may have been left out
    """
    sizes = [len(each) for each in sums]
    is_told = len(order) == len(sizes) and (len(sizes) < 3 or len(set(sizes)) == 3)
    return tuple(sums[axis] for axis in order) if is_told else ()


def axes_with_sums(shape: Sequence[int]) -> range:
    """Return of which axes there are sums, given a shape without axes of size 1."""
    return range(len(shape) if len(shape) <= 3 else 1)


def signs_of(size: int, rank: int = 0) -> np.ndarray:
    """Return the signs of the indices of an axis as float64, shape (size,); ``rank`` is 1 for the first of two equal ones."""
    return Axis(size, rank).signs(0, size)


def squeezed(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape without its axes of size 1."""
    return tuple(size for size in shape if size != 1)
