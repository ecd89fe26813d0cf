"""The collections in which HDF5 keeps texts, looked at before HDF5 walks through them."""

from __future__ import annotations

import io
import struct

import pytest

from probe.damage import Damaged
from probe.store.reading import heaps


def collection(*objects: tuple[int, int, bytes]) -> io.BytesIO:
    """Return a file of one collection: index, length and bytes of each object, as they stand there."""
    body = b"".join(struct.pack("<HHIQ", index, 1, 0, length) + data for index, length, data in objects)
    return io.BytesIO(struct.pack("<4sB3xQ", b"GCOL", 1, 16 + len(body)) + body)


def test_a_collection_that_ends_where_it_should() -> None:
    file = collection((1, 3, b"abc" + bytes(5)), (2, 8, b"x" * 8), (0, 16, b""))
    heaps.check(file, [0], len(file.getvalue()))


@pytest.mark.parametrize(
    "objects, place",
    [([(1, 99, b"x" * 8)], 0), ([(1, 2**64 - 1, b"x" * 8)], 0), ([(0, 17, b"")], 0), ([(1, 8, b"x" * 8)], 1), ([(1, 8, b"x" * 8)], 10**6)],
    ids=["longer", "as long as it gets", "more free than there is", "elsewhere", "behind the end"],
)  # fmt: skip
def test_a_collection_that_does_not(objects: list[tuple[int, int, bytes]], place: int) -> None:
    file = collection(*objects)
    with pytest.raises(Damaged):
        heaps.check(file, [place], len(file.getvalue()))
