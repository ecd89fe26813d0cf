"""Statistics and sketch in one pass over a tensor in memory: a compiled loop, where it could be built.

`AVAILABLE` says whether it is there; without it adapters compute the same numbers with their framework's operations.
All integer formulas come from `probe.numbers.sketch`: the compiled part gets them as a plan, one per shape.
"""

from __future__ import annotations

import ctypes
import itertools
import math
import os
from typing import Any

import numpy as np

from probe.numbers.sketch import VALUE_SEED, WIDTH, Axis, axes_of
from probe.records import HashKind

try:
    from probe.numbers.kernel import _kernel
except ImportError:  # no compiler when probe was installed
    _kernel = None

AVAILABLE = _kernel is not None
INSTRUCTIONS = _kernel.instructions if AVAILABLE else ""
"""the best instruction set of this machine: ``avx512``, ``avx2`` or ``plain``"""

WITHOUT = (
    "the compiled loop is missing (no C compiler when probe was installed): the recording holds the same, but statistics of tensors on the "
    "CPU take several times as long. To build it, install a C compiler (gcc, clang), then probe again, with pip's options "
    "--force-reinstall --no-deps --no-cache-dir"
)
"""what is said once where it is not `AVAILABLE`"""

KINDS = {name: kind for kind, name in enumerate(
    ("float32", "float64", "bfloat16", "float16", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64",
     "uint64")
)} | {"bool": 5}  # fmt: skip
"""dtypes that the loop reads, by their number in it"""

_SHORT = 16
"""a last axis shorter than this is taken together with the one before it"""
_LANES = 8
_PERIOD = 2048
"""sums of a row that are kept apart, at most, so that they stay in the cache"""
_PLANS_LIMIT = 32 << 20
"""bytes of plans that are kept"""
_TABLED = 1 << 18
"""the signs of a row's axis longer than this are made by the loop as it goes"""


def use(instructions: str) -> bool:
    """Compute with another instruction set from now on, if the machine has it; for tests."""
    return _kernel.use(instructions)


def share(library: str) -> bool:
    """Measure large tensors in the threads of the OpenMP that a library of this process is linked with, from now on.

    As many as it computes with itself (``OMP_NUM_THREADS``, ``torch.set_num_threads``), unless they are more than there are cores. The
    numbers are the same in one thread.

    Parameters
    ----------
    library
        its path

    Returns
    -------
    bool
        whether it has them
    """
    if not AVAILABLE:
        return False
    try:
        linked = ctypes.CDLL(library, os.RTLD_LAZY | os.RTLD_NOLOAD)
        addresses = [ctypes.cast(getattr(linked, name), ctypes.c_void_p).value for name in _OPENMP]
        cores = len(os.sched_getaffinity(0))
    except (OSError, AttributeError):  # another system, another OpenMP
        return False
    return _kernel.share(*addresses, cores)


_OPENMP = ("GOMP_parallel", "omp_get_max_threads", "omp_in_parallel")


def _share_no_more() -> None:
    """A forked process has none of the threads."""
    _kernel.share(0, 0, 0, 0)


if AVAILABLE and hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_share_no_more)


class _NoAxis(Axis):
    """What takes the place of the row's axis where there is none: one element, with its own sign, in bucket 0."""

    stride = 1
    seed = np.uint64(0)

    def signs(self, start: int, stop: int) -> np.ndarray:
        return np.ones(stop - start)


_NOTHING = _NoAxis(1, 0)


def digest(address: int, nbytes: int) -> tuple[int, int]:
    """Return (low, high) 64 bits of the xxh3_128 hash of the bytes at an address."""
    return _kernel.digest(address, nbytes)


def measure(
    address: int, nbytes: int, kind: int, shape: tuple[int, ...], order: tuple[int, ...],
    hash_kind: HashKind = HashKind.XXH3_128, known: bytes | None = None, strides: tuple[int, ...] | None = None,
) -> bytes:  # fmt: skip
    """Pass over a tensor in memory; return the statistics of `probe.numbers.statistics.measure`, packed.

    Parameters
    ----------
    address, nbytes
        where it is
    kind
        its dtype, of `KINDS`
    shape, order
        as `probe.numbers.sketch.axes_of` takes them
    hash_kind
        ``XXH3_128`` or ``NONE``
    known
        what was returned of a tensor that is likely to be equal: then its hash alone is taken, and if that is the same, this is returned
    strides
        of each axis, in elements, none negative; None where it lies in C order
    """
    plan = _plans.get((shape, order)) or _plan(shape, order)
    return _kernel.measure(address, nbytes, kind, plan, VALUE_SEED, hash_kind, known, _layout(shape, strides))


def measure_update(
    after: int, before: int, nbytes: int, kind: int, shape: tuple[int, ...], order: tuple[int, ...],
    strides: tuple[int, ...] | None = None, strides_before: tuple[int, ...] | None = None,
) -> tuple[bytes, bytes]:  # fmt: skip
    """Pass over two tensors of floats of one kind and shape; return the statistics of after − before, and of ``after``."""
    plan = _plans.get((shape, order)) or _plan(shape, order)
    layouts = _layout(shape, strides), _layout(shape, strides_before)
    return _kernel.measure_update(after, before, nbytes, kind, plan, VALUE_SEED, HashKind.XXH3_128, *layouts)


def sum_pairs(a: int, kind_a: int, b: int, kind_b: int, count: int, share: float) -> tuple[Any, ...]:
    """Return sums over the pairs of elements of two arrays of floats in memory, in C order; other threads may run meanwhile.

    Parameters
    ----------
    a, b
        their addresses
    kind_a, kind_b
        their dtypes, of `KINDS`
    share
        the largest share of the pairs before

    Returns
    -------
    tuple
        the sums of (b − a)², a², b², a·(b − a) and abs(b − a); the largest abs(b − a); the largest share, which is that over the larger of abs(a) and abs(b);
        at which pair the largest stands; how many pairs are not finite in the same way. Where one of a pair is not finite, it counts nowhere else.
    """
    return _kernel.sum_pairs(a, kind_a, b, kind_b, count, share)


def _layout(shape: tuple[int, ...], strides: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """Return what packing.h reads."""
    return None if strides is None else (*shape, *strides)


_plans: dict[tuple[tuple[int, ...], tuple[int, ...]], bytes] = {}
_numbers = itertools.count(1)


def _plan(shape: tuple[int, ...], order: tuple[int, ...]) -> bytes:
    plan = _make_plan(shape, order)
    if len(plan) + sum(map(len, _plans.values())) > _PLANS_LIMIT:
        _plans.clear()
    _plans[tuple(shape), order] = plan
    return plan


def _make_plan(shape: tuple[int, ...], order: tuple[int, ...]) -> bytes:
    """Return what the loop needs to know of a shape, in the layout that kernel.c reads.

    A row is the last axis, with the inner block of shorter axes behind it; the axes before it are counted by an
    odometer. Element j of a row is added to sum j mod period, which belongs to one bucket: the period is a multiple
    of 61 times the size of the inner block.
    """
    axes = list(axes_of(shape, order))
    row = axes.pop() if axes else _NOTHING
    inner_signs, inner_buckets = np.ones(1), np.zeros(1, np.int64)
    while axes and row.size < _SHORT and inner_signs.size * row.size <= WIDTH:
        inner_signs = np.multiply.outer(row.signs(0, row.size), inner_signs).reshape(-1)
        inner_buckets = np.add.outer(row.buckets(0, row.size), inner_buckets).reshape(-1) % WIDTH
        row = axes.pop()
    inner = inner_signs.size
    period = WIDTH * inner
    if period * _LANES <= _PERIOD:
        period *= _LANES
    period = min(period, max(row.size * inner, 1))
    tabled = row.size <= _TABLED
    rows = math.prod(axis.size for axis in axes) if row.size else 0
    parts = [
        np.array([row.size * inner, rows, len(axes), inner, period, row.stride, tabled], np.int64),
        np.array([row.seed], np.uint64),
        np.array([next(_numbers)], np.int64),
        np.array([axis.size for axis in axes], np.int64),
        np.multiply.outer(row.signs(0, row.size), inner_signs).astype(np.float32) if tabled else np.empty(0),
        inner_signs.astype(np.float32),
        inner_buckets.astype(np.uint8),
    ]
    back = pow(row.stride, -1, WIDTH)  # a shift of s buckets is one of s / stride (mod 61) indices of the row's axis
    for axis in axes:
        parts.append(axis.signs(0, axis.size).astype(np.int8))
        parts.append((axis.buckets(0, axis.size) * back % WIDTH).astype(np.uint8))
    return b"".join(part.tobytes() for part in parts)
