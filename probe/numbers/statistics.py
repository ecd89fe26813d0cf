"""Statistics of one tensor: the definition, and the numpy reference implementation.

An adapter computes the same numbers where its tensors live; `probe.testing` checks that they agree.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import xxhash

from probe.numbers.sketch import CHUNK, sketch, splitmix64
from probe.records import HashKind, TensorStats

_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def dtype_of(name: str) -> np.dtype:
    """Return the numpy dtype of a recorded dtype's name, with bfloat16 and the float8 family.

    Those are ml_dtypes' own whatever else may have told numpy what the name means (MindSpore does).
    """
    return np.dtype(getattr(ml_dtypes, name, name))


def is_float(dtype: np.dtype) -> bool:
    """Return True if a dtype holds real floating-point numbers, ml_dtypes' included."""
    try:
        ml_dtypes.finfo(dtype)
    except (ValueError, TypeError, KeyError):
        return False
    return dtype.kind != "c"


@functools.cache
def is_integer(name: str) -> bool:
    """Return True if a recorded dtype's name is one of integers or bools; what numpy does not know is none."""
    try:
        return dtype_of(name).kind in "biu"
    except TypeError:
        return False


@functools.cache
def unit_roundoff(name: str) -> float:
    """Return u, half the distance from 1 to the next number; 0 for integers and bools.

    2**-24 for float32, 2**-11 for float16, 2**-8 for bfloat16 (design, verdict study).
    """
    dtype = dtype_of(name)
    if dtype.kind == "c":
        dtype = np.empty(0, dtype).real.dtype
    if not is_float(dtype):
        return 0.0
    return float(ml_dtypes.finfo(dtype).eps) / 2


@functools.cache
def smallest_rounding(name: str) -> float:
    """Return half the smallest distance between two numbers, which is that around 0; 0 for integers and bools.

    2**-25 for float16: below 2**-14 its numbers are no longer as dense as their size.
    """
    dtype = dtype_of(name)
    return float(ml_dtypes.finfo(dtype).smallest_subnormal) / 2 if is_float(dtype) else 0.0


def as_real(values: np.ndarray) -> np.ndarray:
    """Return a complex array as a real one with a last axis of size 2; others as they are."""
    if values.dtype.kind != "c":
        return values
    return np.stack([values.real, values.imag], axis=-1)


@np.errstate(over="ignore", invalid="ignore")
def measure(values: np.ndarray, order: Sequence[int] = (), hash_kind: HashKind = HashKind.XXH3_128) -> TensorStats:
    """Return all statistics of an array.

    Parameters
    ----------
    values
        any shape, any of the supported dtypes
    order
        canonical order of the axes, see `probe.numbers.sketch.axes_of`
    hash_kind
        the hash to compute
    """
    real = as_real(values)
    low, high = math.inf, -math.inf
    total = squares = 0.0
    nan = posinf = neginf = zeros = 0
    flat = real.reshape(-1)
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK].astype(np.float64)
        finite = np.isfinite(part)
        if not finite.all():
            nan += int(np.isnan(part).sum())
            posinf += int((part == math.inf).sum())
            neginf += int((part == -math.inf).sum())
            part = part[finite]
        if part.size:
            low, high = min(low, float(part.min())), max(high, float(part.max()))
            total += float(part.sum())
            squares += float(np.dot(part, part))
            zeros += int(part.size - np.count_nonzero(part))
    count = flat.size - nan - posinf - neginf
    lo, hi = hash_bits(values, hash_kind)
    return finish(count, low, high, total, squares, (nan, posinf, neginf, zeros), (lo, hi, hash_kind),
                  sketch(real, order))  # fmt: skip


def measure_update(after: np.ndarray, before: np.ndarray, order: Sequence[int] = ()) -> TensorStats:
    """Return the statistics of after − before, taken in float64 (complex128).

    Its hash is `update_hash`: that of the two tensors, whose difference is never stored.
    """
    wide = np.complex128 if after.dtype.kind == "c" else np.float64
    stats = measure(after.astype(wide) - before.astype(wide), order, HashKind.NONE)
    return update_hash(stats, hash_bits(after), hash_bits(before), HashKind.XXH3_128)


def update_hash(stats: TensorStats, after: tuple[int, int], before: tuple[int, int], kind: HashKind) -> TensorStats:
    """Return statistics with the hash of an update, given the (low, high) 64 bits of both tensors' hashes."""
    digest = xxhash.xxh3_128_intdigest(struct.pack("<4Q", *before, *after))
    return stats._replace(hash_lo=digest & 0xFFFF_FFFF_FFFF_FFFF, hash_hi=digest >> 64, hash_kind=kind)


def finish(
    count: int,
    low: float,
    high: float,
    total: float,
    squares: float,
    counts: tuple[int, int, int, int],
    digest: tuple[int, int, HashKind],
    sketched: np.ndarray,
) -> TensorStats:
    """Make `TensorStats` from the sums over ``count`` finite elements."""
    if not count:
        low = high = mean = rms = math.nan
    else:
        mean, rms = total / count, math.sqrt(squares / count)
    return TensorStats(low, high, mean, rms, math.sqrt(squares), *counts, *digest, sketched)


def hash_bits(values: np.ndarray, kind: HashKind = HashKind.XXH3_128) -> tuple[int, int]:
    """Return (low, high) 64 bits of the hash over the contiguous bytes of an array."""
    flat = np.ascontiguousarray(values).reshape(-1)
    if kind is HashKind.XXH3_128:
        digest = xxhash.xxh3_128_intdigest(flat.view(np.uint8).data if flat.size else b"")
        return digest & 0xFFFF_FFFF_FFFF_FFFF, digest >> 64
    if kind is HashKind.WSUM64:
        return _weighted_sums(flat)
    return 0, 0


def _weighted_sums(flat: np.ndarray) -> tuple[int, int]:
    """Sum the bit patterns, weighted by position, modulo 2**64; twice, with two families of odd weights."""
    if flat.dtype.kind == "c":
        flat = flat.view(flat.real.dtype)
    words = flat.view(_WORDS[flat.dtype.itemsize])
    sums = [0, 0]
    for start in range(0, words.size, CHUNK):
        bits = words[start : start + CHUNK].astype(np.uint64)
        place = np.arange(start, start + bits.size, dtype=np.uint64) * np.uint64(2)
        for family in (0, 1):
            weights = splitmix64(place + np.uint64(family)) | np.uint64(1)
            sums[family] += int((bits * weights).sum(dtype=np.uint64))
    return sums[0] % 2**64, sums[1] % 2**64
