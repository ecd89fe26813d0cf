"""Statistics of CPU tensors where they lie in memory, by the compiled loop of `probe.numbers.kernel`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from probe.numbers import kernel

_KNOWN_SIZE = 4096
"""bytes from which on the statistics of a tensor are remembered by its place"""
_KNOWN_LIMIT = 4096
_SAMPLED = 64
"""elements by which writes to a tensor are seen"""

_known: dict[int, bytes] = {}
"""by address: what was there the last time. It is only a guess of what is there now, which the hash confirms or not"""


def measure(
    address: int, kind: int, shape: tuple[int, ...], nbytes: int, order: Sequence[int], known: bytes | None = None
) -> bytes:
    """Return all statistics of a contiguous tensor; for the parameters see `probe.numbers.kernel.measure`."""
    if nbytes < _KNOWN_SIZE:
        return kernel.measure(address, nbytes, kind, shape, tuple(order), known=known)
    if len(_known) >= _KNOWN_LIMIT:
        _known.clear()
    stats = _known[address] = kernel.measure(
        address, nbytes, kind, shape, tuple(order), known=known or _known.get(address)
    )
    return stats


def sample(array: np.ndarray) -> bytes | None:
    """Return some elements of an array, by which writes to it are seen; None where they do not lie one behind the other."""
    if not array.size or not array.flags.c_contiguous:
        return None
    return array.reshape(-1)[:: max(1, array.size // _SAMPLED)].tobytes()
