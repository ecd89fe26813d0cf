"""The file under HDF5: what was committed is not touched until the next commit, and no write ever fails.

HDF5 updates its metadata in place. Where a write is refused in the middle of that (disk full, quota), it
leaves a file that cannot be read, and crashes the process at its exit. So it is given this object instead of
a descriptor.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import operator
import os
from collections.abc import Iterator
from pathlib import Path

_libc = ctypes.PyDLL(None, use_errno=True)
_pwrite = getattr(_libc, "pwrite64", _libc.pwrite)
_pwrite.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
_pwrite.restype = ctypes.c_ssize_t

_PAGE = 4096
_DIRECT = 16 * _PAGE
"""writes of this size go to the disk at once where they can"""
_SPILL = 2048
"""pages that are held before those that can be are written"""


class Disk:
    """A new file, as `h5py.File` takes it, whose bytes below the last commit change only at the next one.

    What lies behind the last commit may be written at any time: nothing refers to it yet. What would
    overwrite committed bytes is held in memory: metadata, and the last chunk of every table. After a failure,
    and in a process that was forked, everything is held, so that HDF5 can go on and be closed, and the file
    stays as it is.

    Parameters
    ----------
    path
        must not exist yet
    """

    def __init__(self, path: Path) -> None:
        self.error: OSError | None = None
        self._frozen = False
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        self._process = os.getpid()
        self._held: dict[int, bytearray] = {}
        self._committed_pages = 0
        self._size = self._position = 0

    def commit(self) -> None:
        """Write what is held, the superblock last. Raises OSError if this or any write before it failed."""
        if self._may_write():
            try:
                self._write_held(self._committed_pages)
                if os.fstat(self._descriptor).st_size < self._size:
                    os.ftruncate(self._descriptor, self._size)
                _write_at_once(self._descriptor, list(self._runs(0)))
                self._held.clear()
                os.ftruncate(self._descriptor, self._size)
            except OSError as error:
                self._fail(error)
        if self.error is not None:
            raise self.error
        self._committed_pages = -(-self._size // _PAGE)

    def freeze(self) -> None:
        """Leave the file from now on as it is on disk."""
        self._frozen = True

    def close(self) -> None:
        """Close the file as it is on disk."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _may_write(self) -> bool:
        return not self._frozen and os.getpid() == self._process

    def _fail(self, error: OSError) -> None:
        self.error, self._frozen = error, True

    def _write_held(self, first: int) -> None:
        """Write the held pages from ``first`` on."""
        for start, data in self._runs(first):
            self._to_disk(memoryview(data), start)
        self._held = {page: data for page, data in self._held.items() if page < first}

    def _runs(self, first: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of held pages that follow each other; last comes the run with the superblock."""
        run: list[bytearray] = []
        for page in sorted((page for page in self._held if page >= first), reverse=True):
            run.append(self._held[page])
            if page - 1 < first or page - 1 not in self._held:
                start = page * _PAGE
                yield start, b"".join(reversed(run))[: max(self._size - start, 0)]
                run = []

    def _to_disk(self, data: memoryview, offset: int) -> None:
        while data:
            done = os.pwrite(self._descriptor, data, offset)
            data, offset = data[done:], offset + done

    # What h5py calls

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to an offset."""
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    def tell(self) -> int:
        """Return the offset."""
        return self._position

    def flush(self) -> None:
        """Do nothing: `commit` does."""

    def truncate(self, size: int | None = None) -> int:
        """Set the size, as of the next commit."""
        self._size = self._position if size is None else size
        return self._size

    def write(self, data: bytes | memoryview) -> int:
        """Write at the offset, to memory or to the disk."""
        view, offset = memoryview(data).cast("B"), self._position
        if not len(view):
            return 0
        self._position += len(view)
        self._size = max(self._size, self._position)
        held = min(max(self._committed_pages * _PAGE - offset, 0), len(view))
        if len(view) - held < _DIRECT:
            held = len(view)
        try:
            if self._may_write() and (held < len(view) or len(self._held) > _SPILL):
                self._write_held(self._committed_pages)
                self._to_disk(view[held:], offset + held)
                self._hold(view[:held], offset)
                return len(view)
        except OSError as error:
            self._fail(error)
        self._hold(view, offset)
        return len(view)

    def read(self, size: int) -> bytes:
        """Return the next bytes."""
        data = bytearray(size)
        self.readinto(memoryview(data))
        return bytes(data)

    def readinto(self, buffer: memoryview) -> int:
        """Fill a buffer from the offset."""
        view = memoryview(buffer).cast("B")
        for page, start, place, count in _pages(self._position, len(view)):
            view[place : place + count] = memoryview(self._page(page))[start : start + count]
        self._position += len(view)
        return len(view)

    def _hold(self, data: memoryview, offset: int) -> None:
        for page, start, place, count in _pages(offset, len(data)):
            if page not in self._held:
                self._held[page] = self._page(page) if count < _PAGE else bytearray(_PAGE)
            self._held[page][start : start + count] = data[place : place + count]

    def _page(self, page: int) -> bytearray:
        held = self._held.get(page)
        if held is None:
            held = bytearray(os.pread(self._descriptor, _PAGE, page * _PAGE))
            held.extend(bytes(_PAGE - len(held)))
        return held


def _write_at_once(descriptor: int, runs: list[tuple[int, bytes]]) -> None:
    """Overwrite parts of the file within the shortest time: a process that is killed meanwhile leaves it damaged.

    Nothing but the system calls runs between the first and the last of them. `os.pwrite` would give other threads
    their turn after each, which can take milliseconds.
    """
    offsets, parts = [offset for offset, _ in runs], [part for _, part in runs]
    sizes = [len(part) for part in parts]
    written = map(_pwrite, itertools.repeat(descriptor), parts, sizes, offsets)
    if not all(map(operator.eq, written, sizes)):
        number = ctypes.get_errno() or errno.ENOSPC
        raise OSError(number, os.strerror(number))


def _pages(offset: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (page, first byte in it, first byte of the data, number of bytes) of a range."""
    done = 0
    while done < size:
        page, start = divmod(offset + done, _PAGE)
        count = min(_PAGE - start, size - done)
        yield page, start, done, count
        done += count
