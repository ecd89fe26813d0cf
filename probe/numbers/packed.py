"""Statistics of one tensor as bytes: the columns of its record one behind the other, without gaps, and the sketch.

A recording makes thousands of them a step. As tuples with arrays in them they would be objects that Python's garbage collector
looks at again and again; what it then takes is many times what they cost themselves.
"""

from __future__ import annotations

import struct

import numpy as np

from probe.numbers.sketch import WIDTH
from probe.records import HashKind, TensorStats

_NUMBERS = struct.Struct("<5d4q2QB")
SIZE = _NUMBERS.size
"""bytes before the sketch"""
SKETCH = slice(SIZE, SIZE + 8 * WIDTH)
HASH = slice(SIZE - 17, SIZE)
"""the hash and its kind"""
HASH_KIND = SIZE - 1
NONFINITE = slice(40, 64)
"""how many elements are NaN, +Inf and −Inf"""
NONE = bytes(24)
"""what stands there when none is"""


def pack(stats: TensorStats) -> bytes:
    """Return statistics as bytes."""
    return _NUMBERS.pack(*stats[:-1]) + np.ascontiguousarray(stats.sketch, "<f8").tobytes()


def unpack(packed: bytes) -> TensorStats:
    """Return what `pack` was given; what follows behind the sketch is left."""
    *numbers, kind = _NUMBERS.unpack_from(packed)
    return TensorStats(*numbers, HashKind(kind), np.frombuffer(packed, "<f8", WIDTH, SIZE))


def hash_of(packed: bytes) -> tuple[int, int]:
    """Return (low, high) 64 bits of the hash."""
    low, high = struct.unpack_from("<2Q", packed, HASH.start)
    return low, high
