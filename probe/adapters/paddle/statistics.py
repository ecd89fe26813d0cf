"""`probe.numbers.statistics.measure` for PaddlePaddle tensors: on their own memory, without an operation of PaddlePaddle.

Operations would follow the user's modes: gradients, automatic casts. On the CPU a tensor is read where it lies, by the
compiled loop of `probe.numbers.kernel` or by numpy; what lies on another device is copied first.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import paddle

from probe.adapters.shared import memory
from probe.numbers import buffers, kernel, statistics
from probe.numbers.packed import pack
from probe.records import HashKind

_FLOATS = ("float32", "float64", "bfloat16", "float16")


@functools.cache
def name_of(dtype: paddle.dtype) -> str:
    """Return a dtype's name as numpy and ml_dtypes have it."""
    return str(dtype).removeprefix("paddle.")


@functools.cache
def _numpy_dtype(dtype: paddle.dtype) -> np.dtype:
    return statistics.dtype_of(name_of(dtype))


def is_on_cpu(tensor: paddle.Tensor) -> bool:
    """Tell whether a tensor's memory can be read by this process."""
    place = tensor.place
    return place.is_cpu_place() or place.is_cuda_pinned_place()


def array_of(tensor: paddle.Tensor) -> np.ndarray:
    """Return a tensor's values as an array: its own memory on the CPU, a copy of it otherwise.

    Only its address, shape and strides are asked for.
    """
    if not is_on_cpu(tensor):
        tensor = tensor._copy_to(paddle.CPUPlace(), True)
    dtype = _numpy_dtype(tensor.dtype)
    shape = tuple(tensor.shape)
    if 0 in shape:
        return np.empty(shape, dtype)
    strides = tuple(tensor.get_strides())
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    raw = (ctypes.c_ubyte * (extent * dtype.itemsize)).from_address(tensor.data_ptr())
    raw.owner = tensor
    return np.ndarray(shape, dtype, raw, strides=tuple(stride * dtype.itemsize for stride in strides))


def copy_of(tensor: paddle.Tensor) -> np.ndarray:
    """Return a copy of a tensor's values, in C order."""
    values = array_of(tensor)
    array = buffers.empty(values.shape, values.dtype)
    array[...] = values
    return array


class _Place(NamedTuple):
    """Where a tensor in C order lies, as the compiled loop reads it; a complex one has a last axis of size 2."""

    address: int
    kind: int
    shape: tuple[int, ...]
    nbytes: int
    owner: object
    """while this lives, the memory is there"""


@functools.cache
def _loop_of(dtype: paddle.dtype) -> tuple[int | None, int, tuple[int, ...]]:
    """Return the number of a dtype in the compiled loop, None if it has none; its bytes; and what axes it adds."""
    plain = _numpy_dtype(dtype)
    real = np.empty(0, plain).real.dtype if plain.kind == "c" else plain
    return kernel.KINDS.get(real.name), plain.itemsize, (2,) if plain.kind == "c" else ()


def _place_of(tensor: paddle.Tensor) -> _Place | None:
    """Return where the compiled loop finds a tensor, in a copy if need be; None if there is no loop for it."""
    kind, size, more = _loop_of(tensor.dtype)
    if kind is None or not kernel.AVAILABLE:
        return None
    shape = tuple(tensor.shape)
    nbytes = math.prod(shape) * size
    if tensor.is_contiguous() and is_on_cpu(tensor):
        return _Place(tensor.data_ptr(), kind, shape + more, nbytes, tensor)
    array = np.ascontiguousarray(array_of(tensor))
    return _Place(array.ctypes.data, kind, shape + more, nbytes, array)


def measure(tensor: paddle.Tensor, order: Sequence[int] = (), known: bytes | None = None) -> bytes:
    """Return all statistics of a tensor, see `probe.numbers.statistics.measure`, packed."""
    place = _place_of(tensor)
    if place is None:
        return pack(statistics.measure(array_of(tensor), order))
    return memory.measure(place.address, place.kind, place.shape, place.nbytes, order, known)


def summarize(tensor: paddle.Tensor) -> bytes:
    """Do the same as `measure`, without the hash."""
    place = _place_of(tensor)
    if place is None:
        return pack(statistics.measure(array_of(tensor), (), HashKind.NONE))
    return kernel.measure(place.address, place.nbytes, place.kind, place.shape, (), HashKind.NONE)


def measure_update(
    after: paddle.Tensor, before: paddle.Tensor, order: Sequence[int]
) -> tuple[str, bytes, bytes | None]:
    """Return what `probe.adapters.base.Adapter.measure_update` does."""
    new, old = _place_of(after), _place_of(before)
    alike = after.dtype == before.dtype and after.shape == before.shape
    if new is None or old is None or not alike or name_of(after.dtype) not in _FLOATS:
        stats = statistics.measure_update(array_of(after), array_of(before), order)
        return "complex128" if name_of(after.dtype).startswith("complex") else "float64", pack(stats), None
    return "float64", *kernel.measure_update(new.address, old.address, new.nbytes, new.kind, new.shape, tuple(order))
