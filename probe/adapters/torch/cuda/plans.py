"""What the device's kernel needs to know of a tensor's shape: where its elements lie, and by which keys they are sketched."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from probe.numbers.sketch import WIDTH, Axis, axes_of, splitmix64

_COALESCED = 32
"""elements of an axis whose elements lie side by side from which on the lanes go along it"""
_AXES = (1, 3, 7)
"""axes beside the lanes' that the kernel is compiled for"""
_MOST = (1 << 31) - (1 << 16)
"""groups of lanes, and elements along an axis, that are counted in 32 bits"""
_NOTHING = Axis(1, 0)


class Plan(NamedTuple):
    """How the kernel goes over tensors of one shape."""

    words: np.ndarray
    """int64: of the lanes' axis its size, stride, stride in C order, seed, stride of the subtracted tensor, and 0; of each further one, the
    innermost first, size, stride, stride in C order, seed, stride of the subtracted tensor, and by how many lanes its index moves"""
    axes: int
    """how many further ones"""
    groups: int
    """of up to 61 elements along the lanes' axis"""
    bucket: np.ndarray
    """of each lane"""


@functools.lru_cache(maxsize=4096)
def plan_of(
    shape: tuple[int, ...], strides: tuple[int, ...], order: tuple[int, ...], subtracted: tuple[int, ...] = ()
) -> Plan | None:
    """Return the plan of a shape; None where the kernel knows none: of more than eight axes, of more than 2³¹ groups.

    Strides are in elements, the order is as `probe.numbers.sketch.axes_of` takes it; ``subtracted`` are the strides
    of a tensor of the same shape that is taken away.
    """
    places = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    taken = subtracted or (0,) * len(shape)
    described = [each for each in zip(shape, strides, places, taken, strict=True) if each[0] != 1]
    axes = list(zip(axes_of(shape, order), described, strict=True))
    lanes = max(range(len(axes)), key=lambda at: _rank(axes[at][1], at), default=-1)
    along, (size, stride, place, other) = axes.pop(lanes) if axes else (_NOTHING, (1, 0, 0, 0))
    count = next((most for most in _AXES if len(axes) <= most), 0)
    groups = -(-size // WIDTH) * math.prod(axis.size for axis, _ in axes)
    if not count or max(groups, *shape, 1) > _MOST:
        return None
    back = pow(along.stride, -1, WIDTH)
    head = [size, stride, place, _signed(along.seed) if size != 1 else _NO_SIGN, other, 0]
    rows = [
        [axis.size, stride, place, _signed(axis.seed), other, axis.stride * back % WIDTH]
        for axis, (_, stride, place, other) in reversed(axes)
    ]
    rows += [[1, 0, 0, _NO_SIGN, 0, 0]] * (count - len(rows))
    words = np.array([*head, *(word for row in rows for word in row)], np.int64)
    return Plan(words, count, groups, np.arange(WIDTH) * along.stride % WIDTH)


def _rank(described: tuple[int, ...], at: int) -> tuple[bool, int, int]:
    """Order axes by how well the lanes go along them."""
    size, stride = described[:2]
    return stride == 1 and size >= _COALESCED, size, at


def _signed(word: np.uint64) -> int:
    return int(word) - (1 << 64) if int(word) >> 63 else int(word)


_NO_SIGN = next(seed for seed in range(64) if not int(splitmix64(np.uint64(seed))) & 1)
"""gives index 0 the sign 1: of axes that are not there"""
