"""The part of a tensor that an index asks for, where it is a box: what need be read for it, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any


def expanded(index: Any, rank: int) -> tuple[Any, ...]:
    """Return an index with one part for each axis of a tensor of ``rank`` axes; what numpy refuses is longer."""
    parts = index if isinstance(index, tuple) else (index,)
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    rest = parts[at + 1 :]
    return (*parts[:at], *[slice(None)] * (rank - at - len(rest)), *rest)


def box_of(index: Any, shape: Sequence[int]) -> tuple[slice, ...] | None:
    """Return the slices of step 1, one for each axis, that hold what an index of numbers and slices asks for.

    None if it asks for anything else (masks, lists, other steps, nothing at all) or is out of range: numpy knows what to say.
    """
    parts = expanded(index, len(shape))
    if len(parts) != len(shape) or all(size == 1 for size in shape):
        return None
    box = []
    for part, size in zip(parts, shape, strict=True):
        if isinstance(part, Integral) and not isinstance(part, bool) and -size <= part < size:
            box.append(slice(int(part) % size, int(part) % size + 1))
        elif isinstance(part, slice) and part.step in (None, 1) and len(range(*part.indices(size))):
            start, stop, _ = part.indices(size)
            box.append(slice(start, stop))
        else:
            return None
    return tuple(box)
