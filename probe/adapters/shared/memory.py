"""`probe.numbers.statistics.measure` for tensors of frameworks whose memory can be read: where they lie, by the compiled loop of
`probe.numbers.kernel`, else by the numpy reference. No operation of a framework runs, which would follow the user's modes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from probe.numbers import kernel, statistics
from probe.numbers.packed import pack
from probe.records import HashKind

_FLOATS = ("float32", "float64", "bfloat16", "float16")
_KNOWN_SIZE = 4096
"""bytes from which on the statistics of a tensor are remembered by its place"""
_KNOWN_LIMIT = 4096
_SAMPLED = 64
"""elements by which writes to a tensor are seen"""

_known: dict[int, bytes] = {}
"""by address: what was there the last time. It is only a guess of what is there now, which the hash confirms or not"""


class Place(NamedTuple):
    """Where a tensor in C order lies, as the compiled loop reads it; a complex one has a last axis of size 2."""

    address: int
    dtype: str
    kind: int
    shape: tuple[int, ...]
    nbytes: int
    owner: object
    """while this lives, the memory is there"""


@functools.cache
def loop_of(dtype: np.dtype) -> tuple[int | None, tuple[int, ...]]:
    """Return the number of a dtype in the compiled loop, None if it has none, and what axes it adds."""
    is_complex = dtype.kind == "c"
    real = np.empty(0, dtype).real.dtype if is_complex else dtype
    return kernel.KINDS.get(real.name), (2,) if is_complex else ()


def place_of(array: np.ndarray) -> Place | None:
    """Return where the compiled loop finds an array; None where it cannot read it."""
    kind, more = loop_of(array.dtype)
    if kind is None or not array.flags.c_contiguous:
        return None
    address = array.__array_interface__["data"][0]
    return Place(address, array.dtype.name, kind, array.shape + more, array.nbytes, array)


class Measuring:
    """Statistics of a framework's tensors.

    ``place_of`` returns where the compiled loop finds a tensor, None where it cannot read it; ``array_of`` returns
    the values of any.
    """

    def __init__(self, place_of: Callable[[Any], Place | None], array_of: Callable[[Any], np.ndarray]) -> None:
        self._of, self._array_of = place_of, array_of

    def _place_of(self, tensor: Any) -> Place | None:
        return self._of(tensor) if kernel.AVAILABLE else None

    def measure(self, tensor: Any, axes: Sequence[int] = (), known: bytes | None = None) -> bytes:
        """Return all statistics of a tensor, packed."""
        place = self._place_of(tensor)
        if place is None:
            return pack(statistics.measure(self._array_of(tensor), axes))
        lies = place.address, place.nbytes, place.kind, place.shape, tuple(axes)
        if place.nbytes < _KNOWN_SIZE:
            return kernel.measure(*lies, known=known)
        if len(_known) >= _KNOWN_LIMIT:
            _known.clear()
        stats = _known[place.address] = kernel.measure(*lies, known=known or _known.get(place.address))
        return stats

    def summarize(self, tensor: Any) -> bytes:
        """Do the same as `measure`, without the hash."""
        place = self._place_of(tensor)
        if place is None:
            return pack(statistics.measure(self._array_of(tensor), (), HashKind.NONE))
        return kernel.measure(place.address, place.nbytes, place.kind, place.shape, (), HashKind.NONE)

    def measure_update(self, after: Any, before: Any, axes: Sequence[int]) -> tuple[str, bytes, bytes | None]:
        """Return what `probe.adapters.base.Adapter.measure_update` does."""
        new, old = self._place_of(after), self._place_of(before)
        if new and old and new.dtype in _FLOATS and (new.dtype, new.shape) == (old.dtype, old.shape):
            stats = kernel.measure_update(new.address, old.address, new.nbytes, new.kind, new.shape, tuple(axes))
            return "float64", *stats
        values = self._array_of(after)
        name = "complex128" if values.dtype.kind == "c" else "float64"
        return name, pack(statistics.measure_update(values, self._array_of(before), axes)), None


def sample(array: np.ndarray) -> bytes | None:
    """Return some elements of an array, by which writes to it are seen; None where they do not lie one behind the other."""
    if not array.size or not array.flags.c_contiguous:
        return None
    return array.reshape(-1)[:: max(1, array.size // _SAMPLED)].tobytes()
