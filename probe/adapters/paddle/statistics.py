"""`probe.numbers.statistics.measure` for PaddlePaddle tensors: on their own memory, without an operation of PaddlePaddle.

Operations would follow the user's modes: gradients, automatic casts. On the CPU a tensor is read where it lies, by the
compiled loop of `probe.numbers.kernel` or by numpy; what lies on another device is copied first.
"""

from __future__ import annotations

import ctypes
import functools
import math

import numpy as np
import paddle

from probe.adapters.shared import memory
from probe.numbers import buffers, statistics


@functools.cache
def name_of(dtype: paddle.dtype) -> str:
    """Return a dtype's name as numpy and ml_dtypes have it."""
    return str(dtype).removeprefix("paddle.")


@functools.cache
def _numpy_dtype(dtype: paddle.dtype) -> np.dtype:
    return statistics.dtype_of(name_of(dtype))


def is_on_cpu(tensor: paddle.Tensor) -> bool:
    """Return True if a tensor's memory can be read by this process."""
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


def _place_of(tensor: paddle.Tensor) -> memory.Place | None:
    """Return where the compiled loop finds a tensor, in a copy if need be; None if there is no loop for it."""
    dtype = _numpy_dtype(tensor.dtype)
    kind, more = memory.loop_of(dtype)
    if kind is None:
        return None
    if not tensor.is_contiguous() or not is_on_cpu(tensor):
        return memory.place_of(np.asarray(array_of(tensor), order="C"))
    shape = tuple(tensor.shape)
    nbytes = math.prod(shape) * dtype.itemsize
    return memory.Place(tensor.data_ptr(), dtype.name, kind, shape + more, nbytes, tensor)


MEASURING = memory.Measuring(_place_of, array_of)
