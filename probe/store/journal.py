"""What a commit is about to overwrite, written down behind the end of the file until it is done.

A process that is killed between two writes of a commit leaves the old bytes in some places and the new ones in
others. The journal has the new ones: with it over them, the file is as the commit would have left it.
"""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, TypeAlias

import xxhash

from probe.damage import said_of
from probe.errors import FormatError
from probe.store.places import opened_raw, place_of

_RUN = struct.Struct("<QQ")
_END = struct.Struct("<8sQQ")
_MAGIC = b"probeJNL"
Readable: TypeAlias = io.RawIOBase | IO[bytes]


def parts(runs: Iterable[tuple[int, bytes]]) -> list[bytes]:
    """Return a journal of (offset, bytes), in parts that follow each other."""
    found = [part for offset, data in runs for part in (_RUN.pack(offset, len(data)), data)]
    digest = xxhash.xxh3_64()
    for part in found:
        digest.update(part)
    return [*found, _END.pack(_MAGIC, sum(map(len, found)), digest.intdigest())]


def pending(path: str | Path) -> list[tuple[int, bytes]]:
    """Return what a commit was writing, as (offset, bytes), when it was cut off; empty when none was."""
    with place_of(path).open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - _END.size, 0))
        end = file.read(_END.size)  # it may have grown meanwhile
        if len(end) < _END.size:
            return []
        magic, length, digest = _END.unpack(end)
        if magic != _MAGIC or length > size - _END.size:
            return []
        file.seek(size - _END.size - length)
        body = file.read(length)
    if xxhash.xxh3_64_intdigest(body) != digest:
        return []
    try:
        return list(_runs(body, size - _END.size - length))
    except (struct.error, ValueError) as error:
        raise FormatError(said_of(path, "its journal", error)) from None


def _runs(body: bytes, size: int) -> Iterator[tuple[int, bytes]]:
    """Yield the runs of a journal, which has the right hash: whoever wrote it may have meant harm all the same."""
    place = 0
    while place < len(body):
        offset, length = _RUN.unpack_from(body, place)
        place += _RUN.size + length
        if place > len(body) or offset + length > size:
            raise ValueError(f"{length} bytes at {offset} in a file of {size}")
        yield offset, body[place - length : place]


def readable(path: str | Path) -> Readable:
    """Return what `h5py.File` is to read: the file as its last commit would have left it."""
    file, runs = opened_raw(place_of(path)), pending(path)
    return Overlay(file, runs) if runs else file


def repair(path: str | Path) -> None:
    """Complete a commit that was cut off. Nobody may be writing the file."""
    runs = pending(path)
    if not runs:
        return
    with open(path, "r+b") as file:
        for offset, data in runs:
            file.seek(offset)
            file.write(data)
        file.seek(-_END.size, os.SEEK_END)
        _, length, _ = _END.unpack(file.read())
        file.truncate(file.tell() - _END.size - length)


class Overlay(io.RawIOBase):
    """A file to read, with other bytes in some places; `h5py.File` takes it in place of a path."""

    def __init__(self, file: Readable, runs: list[tuple[int, bytes]]) -> None:
        self._file = file
        self._runs = runs

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset."""
        return self._file.seek(offset, whence)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer from the offset."""
        view = memoryview(buffer).cast("B")
        start = self._file.tell()
        count = self._file.readinto(view)
        for offset, data in self._runs:
            first, last = max(offset, start), min(offset + len(data), start + count)
            if first < last:
                view[first - start : last - start] = data[first - offset : last - offset]
        return count

    def close(self) -> None:
        """Close the file."""
        self._file.close()
