"""`probe.statistics.measure` for PaddlePaddle tensors: on their own memory, without an operation of PaddlePaddle.

Operations would follow the user's modes: gradients, automatic casts. On the CPU a tensor is read where it lies, by the
compiled loop of `probe.kernel` or by numpy; what lies on another device is copied first.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence

import ml_dtypes
import numpy as np
import paddle

from probe import buffers, kernel, statistics
from probe.records import HashKind, TensorStats

_KNOWN_SIZE = 4096
"""bytes from which on a tensor's statistics are remembered by its hash: equal bytes are passed over once"""
_KNOWN_LIMIT = 4096
_FLOATS = ("float32", "float64", "bfloat16", "float16")

_known: dict[tuple[object, ...], TensorStats] = {}


@functools.cache
def name_of(dtype: paddle.dtype) -> str:
    """Return a dtype's name as numpy and ml_dtypes have it."""
    return str(dtype).removeprefix("paddle.")


def is_on_cpu(tensor: paddle.Tensor) -> bool:
    """Tell whether a tensor's memory can be read by this process."""
    place = tensor.place
    return place.is_cpu_place() or place.is_cuda_pinned_place()


def array_of(tensor: paddle.Tensor) -> np.ndarray:
    """Return a tensor's values as an array: its own memory on the CPU, which must be read before the tensor goes.

    Only its address, shape and strides are asked for.
    """
    if not is_on_cpu(tensor):
        tensor = tensor._copy_to(paddle.CPUPlace(), True)
    dtype = np.dtype(getattr(ml_dtypes, name_of(tensor.dtype), None) or name_of(tensor.dtype))
    shape = tuple(tensor.shape)
    if 0 in shape:
        return np.empty(shape, dtype)
    strides = tuple(tensor.get_strides())
    extent = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    memory = (ctypes.c_ubyte * (extent * dtype.itemsize)).from_address(tensor.data_ptr())
    return np.ndarray(shape, dtype, memory, strides=tuple(stride * dtype.itemsize for stride in strides))


def copy_of(tensor: paddle.Tensor) -> np.ndarray:
    """Return a copy of a tensor's values, in C order."""
    values = array_of(tensor)
    array = buffers.empty(values.shape, values.dtype)
    array[...] = values
    return array


def measure(tensor: paddle.Tensor, order: Sequence[int] = (), *, hashed: bool = True) -> TensorStats:
    """Return all statistics of a tensor, see `probe.statistics.measure`; without the hash if so asked."""
    values = np.ascontiguousarray(array_of(tensor)).reshape(tensor.shape)
    real = values
    if values.dtype.kind == "c":
        real = values.reshape(-1).view(values.real.dtype).reshape(*values.shape, 2)
    kind = kernel.KINDS.get(real.dtype.name)
    if not kernel.AVAILABLE or kind is None:
        return statistics.measure(values, order, HashKind.XXH3_128 if hashed else HashKind.NONE)
    address, shape, order = real.ctypes.data, real.shape, tuple(order)
    if not hashed:
        return kernel.stats(address, kind, shape, (), bytes(16), HashKind.NONE)
    digest = kernel.digest(address, real.nbytes)
    if real.nbytes < _KNOWN_SIZE:
        return kernel.stats(address, kind, shape, order, digest, HashKind.XXH3_128)
    key = (digest, kind, shape, order)
    stats = _known.get(key)
    if stats is None:
        if len(_known) >= _KNOWN_LIMIT:
            _known.clear()
        stats = _known[key] = kernel.stats(address, kind, shape, order, digest, HashKind.XXH3_128)
    return stats


def measure_update(after: paddle.Tensor, before: paddle.Tensor, order: Sequence[int]) -> tuple[str, TensorStats]:
    """Return the dtype of after − before and its statistics, see `probe.statistics.measure_update`."""
    new, old = (np.ascontiguousarray(array_of(each)).reshape(each.shape) for each in (after, before))
    name = "complex128" if new.dtype.kind == "c" else "float64"
    alike = new.dtype == old.dtype and new.shape == old.shape
    if not (kernel.AVAILABLE and alike and new.dtype.name in _FLOATS):
        return name, statistics.measure_update(new, old, order)
    stats = kernel.stats(
        new.ctypes.data, kernel.KINDS[new.dtype.name], new.shape, tuple(order), bytes(16), HashKind.NONE,
        old.ctypes.data,
    )  # fmt: skip
    return name, statistics.update_hash(stats, _hash(new), _hash(old), HashKind.XXH3_128)


def _hash(values: np.ndarray) -> tuple[int, int]:
    digest = int.from_bytes(kernel.digest(values.ctypes.data, values.nbytes), "big")
    return digest & 0xFFFF_FFFF_FFFF_FFFF, digest >> 64
