"""Memory for copies of tensors: taken from the system once, used again and again, given back when a recording ends.

What the C library frees of large blocks that one thread takes and another one returns stays with the process, and
grows. Memory that was used before also costs less than fresh memory, which the system must find and clear.
"""

from __future__ import annotations

import math
import mmap
import weakref
from collections import deque

import numpy as np

_LARGE = 1 << 18
"""bytes from which on an array is worth a block of its own"""
_ROUND = 1 << 16
_LIMIT = 256 << 20
"""bytes of unused blocks that are kept"""

_PRIVATE = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_ANONYMOUS") else {}
"""a forked process must not write into what its parent copied"""

_unused: dict[int, deque[mmap.mmap]] = {}


def empty(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Return an uninitialised array in C order."""
    nbytes = math.prod(shape) * dtype.itemsize
    if nbytes < _LARGE:
        return np.empty(shape, dtype)
    size = -(-nbytes // _ROUND) * _ROUND
    try:
        block = _unused[size].pop()
    except (KeyError, IndexError):
        try:
            block = mmap.mmap(-1, size, **_PRIVATE)
        except OSError:  # no more blocks are to be had; there may be memory all the same
            return np.empty(shape, dtype)
    raw = np.frombuffer(block, np.uint8, nbytes)
    # every view of it holds this array: when it goes, nobody sees the block any more
    weakref.finalize(raw, _keep, block, size).atexit = False
    return raw.view(dtype).reshape(shape)


def _keep(block: mmap.mmap, size: int) -> None:
    if size + sum(each * len(blocks) for each, blocks in list(_unused.items())) <= _LIMIT:
        _unused.setdefault(size, deque()).append(block)


def release() -> None:
    """Give what is not in use back to the system."""
    _unused.clear()
