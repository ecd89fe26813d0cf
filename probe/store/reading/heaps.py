"""The collections in which HDF5 keeps texts, looked at before HDF5 walks through them: over a damaged one it walks for ever."""

from __future__ import annotations

import io
import os
import struct
from collections.abc import Iterable

from probe.damage import Damaged
from probe.store.journal import Readable

_SIGNATURE = b"GCOL"
_HEAD = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHIQ")


def check(file: Readable, places: Iterable[int], size: int) -> None:
    """Raise Damaged where what begins at a place of a file of so many bytes is no collection."""
    for place in places:
        file.seek(place)
        head = file.read(_HEAD.size)
        signature, version, length = _HEAD.unpack(head) if len(head) == _HEAD.size else (b"", 0, 0)
        if signature != _SIGNATURE or version != 1 or not _HEAD.size < length <= size - place:
            raise Damaged(f"there are no texts at byte {place}")
        _walk(file.read(length - _HEAD.size), place)


def _walk(body: bytes, place: int) -> None:
    """Raise Damaged where the objects of a collection do not follow one another to its end."""
    at = 0
    while at + _OBJECT.size <= len(body):
        index, _, _, length = _OBJECT.unpack_from(body, at)
        step = _OBJECT.size + (length + 7) // 8 * 8 if index else length  # 0: what is free, its own head included
        if step < _OBJECT.size or at + step > len(body):
            raise Damaged(f"the texts at byte {place} do not follow one another")
        at += step


class Watched(io.RawIOBase):
    """A file as `h5py.File` takes it in place of a path, of which no damaged collection is handed out."""

    def __init__(self, file: Readable, size: int) -> None:
        self._file, self._size = file, size

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset."""
        return self._file.seek(offset, whence)

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        """Fill a buffer from the offset, once the collections in it were looked at."""
        view = memoryview(buffer).cast("B")
        start = self._file.tell()
        first = max(start - len(_SIGNATURE), 0)  # a part of it may have been read before
        self._file.seek(first)
        around = self._file.read(start - first + len(view) + len(_SIGNATURE))
        found = around.find(_SIGNATURE)
        while found >= 0:
            check(self._file, [first + found], self._size)
            found = around.find(_SIGNATURE, found + 1)
        data = around[start - first : start - first + len(view)]
        view[: len(data)] = data
        self._file.seek(start + len(data))
        return len(data)
