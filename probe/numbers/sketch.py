"""The tensor sketch: 61 numbers from which ‖A−B‖ of two tensors can be estimated.

It is a count sketch (Charikar, Chen, Farach-Colton 2002) of the tensor with the product hash of the tensor
sketch (Pham, Pagh 2013). Every axis has a key, so the sketch depends on neither memory layout nor the order
of the axes. This module holds the integer formulas, which every framework's adapter shares, and a plain numpy
implementation, which is the reference. ``docs/reference/file-format.md`` states them with test vectors.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WIDTH = 61
"""numbers in a sketch"""
CHUNK = 249_856
"""elements that are turned to float64 at a time (4096 · 61); it decides the last bits of every sum"""

VALUE_SEED = 0x70726F62652021
"""mixed with an integer's value; 0 and 1 get different signs"""

_CACHED_AXIS = 1 << 18


def splitmix64(x: np.ndarray | np.uint64) -> np.ndarray:
    """Mix 64-bit integers (Steele, Lea, Flood 2014); wraps modulo 2**64."""
    with np.errstate(over="ignore"):
        z = np.asarray(x, dtype=np.uint64) + np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


@dataclass(frozen=True)
class Axis:
    """One axis of a tensor: its size, and its rank among the axes of that size."""

    size: int
    rank: int

    @functools.cached_property
    def seed(self) -> np.uint64:
        """The 64-bit seed of this axis' signs and buckets."""
        return np.uint64(splitmix64(np.uint64((self.size << 8) | self.rank)))

    @functools.cached_property
    def stride(self) -> int:
        """c in 1…60: index i falls into bucket c·i mod 61."""
        return 1 + int(splitmix64(self.seed) % np.uint64(WIDTH - 1))

    def signs(self, start: int, stop: int) -> np.ndarray:
        """Return the signs of the indices start…stop−1 as float64 ±1."""
        if self.size <= _CACHED_AXIS:
            return _all_signs(self)[start:stop]
        return _signs(self.seed, start, stop)

    def buckets(self, start: int, stop: int) -> np.ndarray:
        """Return the buckets of the indices start…stop−1 as int64."""
        return np.arange(start, stop, dtype=np.int64) % WIDTH * self.stride % WIDTH


def _signs(seed: np.uint64, start: int, stop: int) -> np.ndarray:
    odd = splitmix64(np.arange(start, stop, dtype=np.uint64) ^ seed) & np.uint64(1)
    return 1.0 - 2.0 * odd.astype(np.float64)


@functools.lru_cache(maxsize=256)
def _all_signs(axis: Axis) -> np.ndarray:
    signs = _signs(axis.seed, 0, axis.size)
    signs.setflags(write=False)
    return signs


@functools.lru_cache(maxsize=4096)
def axes_of(shape: tuple[int, ...], order: tuple[int, ...] = ()) -> tuple[Axis, ...]:
    """Return the axes of a shape, without those of size 1.

    Parameters
    ----------
    shape
        the sizes as they lie in the tensor
    order
        the axes in canonical order when that is another one (a Linear weight that is stored as [in, out] has
        ``(1, 0)``): ranks among equal sizes are counted in this order; axes behind those it names, such as the
        (real, imaginary) one of a complex tensor, follow
    """
    seen: dict[int, int] = {}
    ranks: dict[int, int] = {}
    for dim in (*order, *range(len(order), len(shape))):
        ranks[dim] = seen.get(shape[dim], 0)
        seen[shape[dim]] = ranks[dim] + 1
    return tuple(Axis(size, ranks[dim]) for dim, size in enumerate(shape) if size != 1)


def integer_signs(values: np.ndarray) -> np.ndarray:
    """Return the ±1 (float64) that stands for each integer's value in a sketch of integers."""
    odd = splitmix64(values.astype(np.int64).view(np.uint64) ^ np.uint64(VALUE_SEED)) & np.uint64(1)
    return 1.0 - 2.0 * odd.astype(np.float64)


@np.errstate(over="ignore", invalid="ignore")
def sketch(values: np.ndarray, order: Sequence[int] = ()) -> np.ndarray:
    """Return the sketch of an array of floats, integers or bools (reference implementation).

    Parameters
    ----------
    values
        any shape; non-finite elements count as zero. Integers and bools are sketched as ±1 by value.
    order
        see `axes_of`

    Returns
    -------
    float64, shape (61,)
    """
    axes = axes_of(values.shape, tuple(order))
    flat = values.reshape(-1)
    sizes = [axis.size for axis in axes]
    result = np.zeros(WIDTH)
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK]
        if part.dtype.kind in "biu":
            signed = integer_signs(part)
        else:
            signed = part.astype(np.float64)
            signed[~np.isfinite(signed)] = 0.0
        bucket = np.zeros(part.size, dtype=np.int64)
        if axes:
            indices = np.unravel_index(np.arange(start, start + part.size), sizes)
            for axis, index in zip(axes, indices, strict=True):
                signed *= axis.signs(0, axis.size)[index]
                bucket += axis.stride * index
        result += np.bincount(bucket % WIDTH, weights=signed, minlength=WIDTH)
    return result


def combined(sketches: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sketch of a sum of tensors: sketches add."""
    return np.sum(np.asarray(sketches), axis=0)


def along(axis: Axis, values: np.ndarray) -> np.ndarray:
    """Return the sketch of a vector as it lies along an axis of a larger tensor."""
    weights = axis.signs(0, axis.size) * values
    return np.bincount(axis.buckets(0, axis.size), weights=weights, minlength=WIDTH)


def outer(sketches: Sequence[np.ndarray]) -> np.ndarray:
    """Return the sketch of an outer product of tensors: buckets add modulo 61, so their sketches are convolved (Pham, Pagh 2013).

    Parameters
    ----------
    sketches
        of the factors, each with the keys that its axes have in the product
    """
    return np.fft.ifft(np.prod(np.fft.fft(np.asarray(sketches)), axis=0)).real
