"""`probe.numbers.statistics.measure` for MindSpore tensors: by the compiled loop of `probe.numbers.kernel`, or by the numpy reference.

Values are read where they lie: on the CPU `Tensor.asnumpy` copies nothing. No operation of MindSpore runs.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import ml_dtypes
import numpy as np
from mindspore import Tensor, dtype

from probe.adapters.shared import memory
from probe.numbers import kernel, statistics
from probe.numbers.packed import pack
from probe.records import HashKind

_FLOATS = {"float32", "float64", "bfloat16", "float16"}
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


def measure(tensor: Tensor, order: Sequence[int], known: bytes | None = None) -> bytes:
    """Return all statistics of a tensor, packed."""
    array = array_of(tensor)
    plain = _plain(array)
    if plain is None:
        return pack(statistics.measure(array, order))
    kind, address, shape, nbytes = plain
    return memory.measure(address, kind, shape, nbytes, order, known)


def summarize(tensor: Tensor) -> bytes:
    """Do the same as `measure`, without the hash."""
    array = array_of(tensor)
    plain = _plain(array)
    if plain is None:
        return pack(statistics.measure(array, (), HashKind.NONE))
    kind, address, shape, nbytes = plain
    return kernel.measure(address, nbytes, kind, shape, (), HashKind.NONE)


def measure_update(after: Tensor, before: Tensor, order: Sequence[int]) -> tuple[str, bytes, bytes | None]:
    """Return what `probe.adapters.base.Adapter.measure_update` does."""
    array, other = array_of(after), array_of(before)
    name = "complex128" if array.dtype.kind == "c" else "float64"
    one, two = _plain(array), _plain(other)
    alike = array.dtype == other.dtype and array.shape == other.shape and array.dtype.name in _FLOATS
    if one is None or two is None or not alike:
        return name, pack(statistics.measure_update(array, other, order)), None
    kind, address, shape, nbytes = one
    return name, *kernel.measure_update(address, two[1], nbytes, kind, shape, tuple(order))


def _plain(array: np.ndarray) -> tuple[int, int, tuple[int, ...], int] | None:
    """Return (kind, address, shape, bytes) as the compiled loop takes them, or None where it cannot read an array."""
    if array.dtype.kind == "c":
        array = array.reshape(-1).view(array.real.dtype).reshape(*array.shape, 2) if array.flags.c_contiguous else array
    kind = kernel.KINDS.get(array.dtype.name)
    if kind is None or not kernel.AVAILABLE or not array.flags.c_contiguous:
        return None
    return kind, array.__array_interface__["data"][0], array.shape, array.nbytes
