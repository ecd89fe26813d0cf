"""Values of a tensor, so many at a time: what is read of a large one needs no more memory than that."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from probe.store.journal import Readable
from probe.store.places import opened_raw


@dataclass(frozen=True, slots=True)
class Piece:
    """Where the bytes of a tensor lie one behind the other in a file: they can be read beside HDF5, by any thread."""

    path: Path
    offset: int
    count: int
    """of elements"""
    dtype: np.dtype
    digest: int | None
    """xxh3_128 of the bytes; None where it is not known"""

    def parts(self, chunk: int, into: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the values as `read` does; raise OSError behind the last of them if these are not the bytes that were recorded."""
        digest = xxhash.xxh3_128()
        yield from hashed(read(self.path, self.offset, self.count, self.dtype, chunk, into), digest)
        if self.digest not in (None, digest.intdigest()):
            raise OSError("other bytes than were recorded")


def hashed(parts: Iterator[np.ndarray], digest: xxhash.xxh3_128) -> Iterator[np.ndarray]:
    """Pass values on, and their bytes to a hash."""
    for part in parts:
        digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
        yield part


def split(array: np.ndarray, chunk: int) -> Iterator[np.ndarray]:
    """Yield an array flat, ``chunk`` elements at a time; as it is if 0."""
    if not chunk:
        yield array
        return
    flat = array.reshape(-1)
    for start in range(0, flat.size, chunk):
        yield flat[start : start + chunk]


def read(
    path: Path, offset: int, count: int, dtype: np.dtype, chunk: int, into: np.ndarray | None
) -> Iterator[np.ndarray]:
    """Read values ``chunk`` at a time, straight from their bytes in the file."""
    with opened_raw(path) as raw:
        raw.seek(offset)
        while count:
            size = min(chunk, count)
            part = np.empty(size, dtype) if into is None else into[: size * dtype.itemsize].view(dtype)
            _fill(raw, memoryview(part.view(np.uint8)))
            count -= size
            yield part


def cut(
    runs: Iterator[np.ndarray], count: int, dtype: np.dtype, chunk: int, into: np.ndarray | None
) -> Iterator[np.ndarray]:
    """Yield values ``chunk`` at a time that come in runs of other lengths."""
    run = np.empty(0, dtype)
    while count:
        size, done = min(chunk, count), 0
        part = np.empty(size, dtype) if into is None else into[: size * dtype.itemsize].view(dtype)
        while done < size:
            run = run if run.size else next(runs)
            taken, run = run[: size - done], run[size - done :]
            part[done : done + taken.size] = taken
            done += taken.size
        count -= size
        yield part


def _fill(raw: Readable, wanted: memoryview) -> None:
    """Read as many bytes as there is room for."""
    while wanted:
        got = raw.readinto(wanted)  # type: ignore[union-attr]
        if not got:
            raise OSError("the file ends too early")
        wanted = wanted[got:]
