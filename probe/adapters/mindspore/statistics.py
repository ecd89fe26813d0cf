"""`probe.numbers.statistics.measure` for MindSpore tensors: by the compiled loop of `probe.numbers.kernel`, or by the numpy reference.

Values are read where they lie: on the CPU `Tensor.asnumpy` copies nothing. No operation of MindSpore runs.
"""

from __future__ import annotations

import functools
from typing import Any

import ml_dtypes
import numpy as np
from mindspore import Tensor, dtype

from probe.adapters.shared import memory
from probe.numbers import kernel

_FLOATS_8 = {"float8_e4m3fn", "float8_e5m2"}
"""what ``asnumpy`` cannot hand out"""

DTYPES = set(kernel.KINDS) | _FLOATS_8 | {"complex64", "complex128"}
"""dtypes that can be recorded"""


@functools.cache
def name_of(kind: Any) -> str:
    """Return the name of a dtype as numpy and ml_dtypes have it."""
    name = str(kind).lower()
    return {"float8e4m3fn": "float8_e4m3fn", "float8e5m2": "float8_e5m2", "bool_": "bool"}.get(name, name)


def array_of(tensor: Tensor) -> np.ndarray:
    """Return the values of a tensor in its own memory where that is possible: to be read at once, never written to."""
    name = name_of(tensor.dtype)
    if name in _FLOATS_8:
        raw = np.frombuffer(tensor.get_bytes() if tensor.size else b"", np.uint8)
        return raw.view(getattr(ml_dtypes, name)).reshape(tuple(tensor.shape))
    array = tensor.asnumpy()
    return array.view(np.uint16).view(ml_dtypes.bfloat16) if name == "bfloat16" else array


def tensor_of(array: np.ndarray) -> Tensor:
    """Return a tensor of an array that nobody else writes to."""
    plain = np.ascontiguousarray(array).reshape(array.shape)
    if array.dtype.name in _FLOATS_8:
        return Tensor(Tensor.convert_bytes_to_tensor(plain.tobytes(), plain.shape, getattr(dtype, array.dtype.name)))
    return Tensor.from_numpy(plain)


MEASURING = memory.Measuring(lambda tensor: memory.place_of(array_of(tensor)), array_of)
