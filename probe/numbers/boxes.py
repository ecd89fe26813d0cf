"""Which part of a stored tensor an index needs."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral
from typing import Any


def box_of(index: Any, shape: Sequence[int]) -> tuple[tuple[slice, ...], tuple[Any, ...]] | None:
    """Return the smallest box that holds what an index selects, and the index that selects it there.

    The box has one slice of step 1 for each axis. Returns None where the index has more than numbers, slices and ``...`` (masks,
    lists), is out of range, or selects nothing: numpy handles these.
    """
    parts = _expanded(index, len(shape))
    if len(parts) != len(shape):
        return None
    box: list[slice] = []
    rest: list[Any] = []
    for part, size in zip(parts, shape, strict=True):
        if isinstance(part, Integral) and not isinstance(part, bool) and -size <= int(part) < size:
            first = int(part) % size
            box.append(slice(first, first + 1))
            rest.append(0)
        elif isinstance(part, slice) and (chosen := range(*part.indices(size))):
            box.append(slice(min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1]) + 1))
            rest.append(slice(None, None, chosen.step))
        else:
            return None
    return tuple(box), tuple(rest)


def _expanded(index: Any, rank: int) -> tuple[Any, ...]:
    """Return an index with one part for each axis, the first ``...`` written out."""
    parts = index if isinstance(index, tuple) else (index,)
    at = next((i for i, part in enumerate(parts) if part is Ellipsis), len(parts))
    rest = parts[at + 1 :]
    return (*parts[:at], *[slice(None)] * (rank - at - len(rest)), *rest)
