"""The file under HDF5: what was committed is not touched until the next commit, and no write ever fails.

HDF5 updates its metadata in place. Where a write is refused in the middle of that (disk full, quota), it
leaves a file that cannot be read, and crashes the process at its exit. So it is given this object instead of
a descriptor.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import itertools
import operator
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from probe.store import journal, uncached

_libc = ctypes.PyDLL(None, use_errno=True)
_pwrite = getattr(_libc, "pwrite64", _libc.pwrite)
_pwrite.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
_pwrite.restype = ctypes.c_ssize_t

PAGE = 4096
"""bytes that are held or written together; HDF5 is told to lay the file out in the same"""
_DIRECT = 2 * PAGE
"""writes of this size go to the disk at once where they can"""
_HOLE = 1 << 20
"""holes up to this size are filled: a file without them grows faster"""
_PARTS = 512
"""parts that are written by one call"""
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
        self._process = os.getpid()
        self._held: dict[int, bytes | bytearray] = {}
        self._on_disk: dict[int, bytes | bytearray] = {}
        """committed pages as they are, those that are likely to be written again"""
        self._same: set[int] = set()
        self._committed_pages = self._committed_size = 0
        self._torn = False
        self._size = self._position = self._written = 0
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        self._uncached = uncached.Uncached(path)

    def commit(self) -> None:
        """Write what is held, all or nothing. Raises OSError if this or any write before it failed."""
        if self._may_write():
            try:
                self._write_held(self._committed_pages)
                self._replace(list(self._runs(0)))
            except OSError as error:
                self._fail(error)
        if self.error is not None:
            raise self.error
        self._committed_pages, self._committed_size = -(-self._size // PAGE), self._size

    def freeze(self) -> None:
        """Leave the file from now on as it is on disk."""
        self._frozen = True

    def close(self) -> None:
        """Close the file as it is on disk; give back the space of what was not committed."""
        if self._descriptor >= 0:
            if self._frozen and not self._torn and os.getpid() == self._process:
                with contextlib.suppress(OSError):
                    os.ftruncate(self._descriptor, self._committed_size)
            os.close(self._descriptor)
            self._descriptor = -1
            self._uncached.close()

    def write_many(self, parts: Iterable[tuple[int, memoryview]]) -> None:
        """Write tensors, past HDF5, at ascending offsets; in one piece what comes behind the end of the file."""
        piece: list[memoryview] = []
        end = self._written
        for offset, data in parts:
            if not end <= offset <= end + _HOLE or len(piece) >= _PARTS:
                self._append(piece)
                piece, end = [], self._written
            if end <= offset <= end + _HOLE:
                piece += [memoryview(bytes(offset - end)), data]
                end = offset + len(data)
                self._forget(offset, end)
            else:
                self.write_at(offset, data)
                end = self._written
        self._append(piece)

    def _append(self, piece: list[memoryview]) -> None:
        """Write behind the end of the file. Nobody reads tensors back: where it fails they are not held."""
        self._size = max(self._size, self._written + sum(map(len, piece)))
        try:
            if self._may_write():
                self._to_disk(piece, self._written)
        except OSError as error:
            self._fail(error)

    def write_at(self, offset: int, data: memoryview) -> None:
        """Write bytes at an offset, past HDF5: to the disk, or to memory where they may not go there yet."""
        self._size = max(self._size, offset + len(data))
        start, stop = self._direct_part(offset, len(data))
        try:
            if self._may_write() and (start < stop or len(self._held) > _SPILL):
                if start < stop:
                    self._forget(start, stop)
                    self._to_disk([data[start - offset : stop - offset]], start)
                    self._hold(data[: start - offset], offset)
                    self._hold(data[stop - offset :], stop)
                else:
                    self._write_held(self._committed_pages)
                    self._hold(data, offset)
                return
        except OSError as error:
            self._fail(error)
        self._hold(data, offset)

    def _direct_part(self, offset: int, size: int) -> tuple[int, int]:
        """Return (start, stop) of the bytes that need not be held; equal when all have to be."""
        start = max(-(-offset // PAGE), self._committed_pages) * PAGE
        stop = offset + size
        if stop // PAGE in self._held:
            stop -= stop % PAGE
        return (start, stop) if stop - start >= _DIRECT else (offset, offset)

    def _forget(self, start: int, stop: int) -> None:
        """Drop held pages whose bytes are about to be written."""
        pages = range(start // PAGE, -(-stop // PAGE))
        for page in [page for page in self._held if page in pages]:
            del self._held[page]

    def _replace(self, runs: list[tuple[int, bytes]]) -> None:
        """Overwrite committed bytes, after they were written down behind the end."""
        if os.fstat(self._descriptor).st_size < self._size:
            os.ftruncate(self._descriptor, self._size)
        if runs and self._committed_pages:
            self._to_disk(journal.parts(runs), self._size)
        self._torn = True
        _write_at_once(self._descriptor, runs)
        self._torn = False
        self._on_disk = {**{page: self._on_disk[page] for page in self._same}, **self._held}
        self._same, self._held = set(), {}
        os.ftruncate(self._descriptor, self._size)
        self._written = self._size

    def _may_write(self) -> bool:
        return not self._frozen and os.getpid() == self._process

    def _fail(self, error: OSError) -> None:
        self.error, self._frozen = error, True

    def _write_held(self, first: int) -> None:
        """Write the held pages from ``first`` on."""
        for start, data in self._runs(first):
            self._to_disk([data], start)
        self._held = {page: data for page, data in self._held.items() if page < first}

    def _runs(self, first: int) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, bytes) of held pages that follow each other; last comes the run with the superblock."""
        run: list[bytes | bytearray] = []
        for page in sorted((page for page in self._held if page >= first), reverse=True):
            run.append(self._held[page])
            if page - 1 < first or page - 1 not in self._held:
                start = page * PAGE
                yield start, b"".join(reversed(run))[: max(self._size - start, 0)]
                run = []

    def _to_disk(self, parts: Iterable[bytes | memoryview], offset: int) -> None:
        """Write parts that follow each other."""
        left = [memoryview(part) for part in parts if len(part)]
        while left:
            done = self._uncached.write(left[0], offset) or self._write_cached(left, offset)
            offset += done
            self._written = max(self._written, offset)
            while left and done >= len(left[0]):
                done -= len(left.pop(0))
            if done:
                left[0] = left[0][done:]

    def _write_cached(self, parts: list[memoryview], offset: int) -> int:
        """Write the first part, and those behind it up to the next that may go past the cache."""
        large = (place for place in range(1, min(len(parts), _PARTS)) if len(parts[place]) >= uncached.LEAST)
        return os.pwritev(self._descriptor, parts[: next(large, _PARTS)], offset)

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
        """Write at the offset."""
        view = memoryview(data).cast("B")
        if len(view):
            self.write_at(self._position, view)
            self._position += len(view)
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
            if count == PAGE:
                self._hold_page(page, bytes(data[place : place + PAGE]))
                continue
            held = bytearray(self._page(page))
            held[start : start + count] = data[place : place + count]
            self._held[page] = held

    def _hold_page(self, page: int, data: bytes) -> None:
        """Hold a page, unless it is on disk as it is: HDF5 writes the whole last chunk for one new row."""
        if self._on_disk.get(page) == data:
            self._same.add(page)
            self._held.pop(page, None)
        else:
            self._held[page] = data

    def _page(self, page: int) -> bytes | bytearray:
        held = self._held.get(page, self._on_disk.get(page))
        return os.pread(self._descriptor, PAGE, page * PAGE).ljust(PAGE, b"\0") if held is None else held


def _write_at_once(descriptor: int, runs: list[tuple[int, bytes]]) -> None:
    """Overwrite parts of the file within the shortest time: programs that read it meanwhile find it damaged.

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
        page, start = divmod(offset + done, PAGE)
        count = min(PAGE - start, size - done)
        yield page, start, done, count
        done += count
