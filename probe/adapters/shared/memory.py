"""Statistics of CPU tensors where they lie in memory, by the compiled loop of `probe.numbers.kernel`: equal bytes are passed over once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe.numbers import kernel
from probe.numbers.statistics import update_hash
from probe.records import HashKind, TensorStats

_KNOWN_SIZE = 4096
"""bytes from which on a tensor's statistics are remembered by its hash"""
_KNOWN_LIMIT = 4096
_SAMPLED = 64
"""elements by which writes to a tensor are seen"""
_XXH3 = HashKind.XXH3_128

_known: dict[tuple[object, ...], TensorStats] = {}


def measure(address: int, kind: int, shape: tuple[int, ...], nbytes: int, order: Sequence[int]) -> TensorStats:
    """Return all statistics of a contiguous tensor; for the parameters see `probe.numbers.kernel.stats`."""
    order = tuple(order)
    digest = kernel.digest(address, nbytes)
    if nbytes < _KNOWN_SIZE:
        return kernel.stats(address, kind, shape, order, digest, _XXH3)
    key = (digest, kind, shape, order)
    stats = _known.get(key)
    if stats is None:
        if len(_known) >= _KNOWN_LIMIT:
            _known.clear()
        stats = _known[key] = kernel.stats(address, kind, shape, order, digest, _XXH3)
    return stats


def measure_update(
    after: int, before: int, kind: int, shape: tuple[int, ...], nbytes: int, order: Sequence[int]
) -> TensorStats:
    """Return the statistics of after − before, two tensors of floats of one kind and shape, given by their addresses."""
    stats = kernel.stats(after, kind, shape, tuple(order), bytes(16), HashKind.NONE, before)
    return update_hash(stats, hash_of(after, nbytes), hash_of(before, nbytes), _XXH3)


def hash_of(address: int, nbytes: int) -> tuple[int, int]:
    """Return (low, high) 64 bits of the hash of the bytes at an address."""
    digest = int.from_bytes(kernel.digest(address, nbytes), "big")
    return digest & 0xFFFF_FFFF_FFFF_FFFF, digest >> 64


def sample(array: np.ndarray) -> bytes | None:
    """Return some elements of an array, by which writes to it are seen; None where they do not lie one behind the other."""
    if not array.size or not array.flags.c_contiguous:
        return None
    return array.reshape(-1)[:: max(1, array.size // _SAMPLED)].tobytes()
