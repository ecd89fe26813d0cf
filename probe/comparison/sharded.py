"""Weights of which one rank holds a part, against a run that holds them whole, or in fewer parts."""

from __future__ import annotations

from probe.store.reader import Reader


def side_with_parts(a: Reader, b: Reader, size_a: int, size_b: int) -> str:
    """Return the side, ``A`` or ``B``, that may hold a part of what the other side has, by its number of ranks; empty if none may.

    Parameters
    ----------
    a, b
        the two recordings
    size_a, size_b
        how large something is in each
    """
    for name, reader, other, size, whole in (("A", a, b, size_a, size_b), ("B", b, a, size_b, size_a)):
        ranks, theirs = reader.info.world_size, other.info.world_size
        if ranks > theirs and 0 < size < whole and whole % size == 0 and ranks % (whole // size) == 0:
            return name
    return ""
