"""The file under HDF5: what was committed is not touched until the next commit, and no write ever fails.

HDF5 updates its metadata in place. Where a write is refused in the middle of that (disk full, quota), it
leaves a file that cannot be read, and crashes the process at its exit. So it is given this object instead of
a descriptor.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import operator
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from probe.store import journal
from probe.store.writing import system, uncached

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
    """A file, as `h5py.File` takes it, whose bytes below the last commit change only at the next one.

    What lies behind the last commit may be written at any time: nothing refers to it yet. What would overwrite
    committed bytes is held in memory: metadata, and the last chunk of every table. After a failure of whatever call,
    and in a process that was forked, everything is held, so that HDF5 can go on and be closed, and the file stays as
    it is.

    The file must not exist yet, unless the ``flags`` by which it is opened are others: then everything in it counts
    as committed.
    """

    def __init__(self, path: Path, flags: int = system.NEW) -> None:
        self.error: OSError | None = None
        self._frozen = False
        self._process = os.getpid()
        self._held: dict[int, bytes | bytearray] = {}
        self._on_disk: dict[int, bytes | bytearray] = {}
        """committed pages as they are, those that are likely to be written again"""
        self._same: set[int] = set()
        self._committed_pages = self._committed_size = 0
        self._begun: tuple[list[tuple[int, bytes]], int] | None = None
        """what a commit began to overwrite and has not ended, and the size of the file behind it"""
        self._size = self._position = self._written = 0
        self._descriptor = system.open(path, flags, 0o666)
        self._uncached = uncached.Uncached(path)
        if flags != system.NEW:
            self._take_over()

    def commit(self) -> None:
        """Write what is held, all or nothing. Raises OSError if this or any call before it failed."""
        if self._may_write():
            try:
                self._write_held(self._committed_pages)
                self._replace(list(self._runs(0)))
            except OSError as error:
                self._fail(error)
        if self.error is not None:
            raise self.error

    def _take_over(self) -> None:
        try:
            self._size = self._written = self._committed_size = system.fstat(self._descriptor).st_size
        except OSError:
            self.close()
            raise
        self._committed_pages = -(-self._size // PAGE)

    @property
    def size(self) -> int:
        """Bytes of the file, as of the next commit."""
        return self._size

    def freeze(self) -> None:
        """Leave the file from now on as it is on disk."""
        self._frozen = True

    def close(self) -> None:
        """Close the file as the last commit left it; give back the space of what was not committed.

        Raises OSError if the system says of the closing that it failed; closed it is all the same.
        """
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor < 0:
            return
        with contextlib.ExitStack() as both:
            both.callback(self._uncached.close)
            both.callback(system.close, descriptor)
            if self._frozen and os.getpid() == self._process:
                with contextlib.suppress(OSError):  # then the journal, or what was not committed, stays behind the end
                    self._end_overwriting(descriptor)
                    system.ftruncate(descriptor, self._committed_size)

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
                self._supersede(offset, data)
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

    def _supersede(self, offset: int, data: memoryview) -> None:
        """Drop held pages whose bytes are about to be written; of those that hold metadata beside them, change theirs."""
        stop = offset + len(data)
        self._forget(offset, stop)
        for page in {offset // PAGE, (stop - 1) // PAGE} & self._held.keys():
            start, end = max(offset, page * PAGE), min(stop, (page + 1) * PAGE)
            self._hold(data[start - offset : end - offset], start)

    def _forget(self, start: int, stop: int) -> None:
        """Drop held pages all of whose bytes are about to be written."""
        pages = range(-(-start // PAGE), stop // PAGE)
        for page in [page for page in self._held if page in pages]:
            del self._held[page]

    def _replace(self, runs: list[tuple[int, bytes]]) -> None:
        """Overwrite committed bytes, after they were written down behind the end.

        Whichever call fails: until the journal is whole the file is as the last commit left it, from then on as this one
        does. So nothing that was committed is cut off or written over before, and nothing of the new is cut off after.
        """
        end = max(self._size, self._committed_size)
        if system.fstat(self._descriptor).st_size != end:  # the journal is found by its place at the very end
            system.ftruncate(self._descriptor, end)
        if runs and self._committed_pages:
            self._to_disk(journal.parts(runs), end)
        self._begun = runs, self._size
        self._end_overwriting(self._descriptor)
        known = {**{page: self._on_disk[page] for page in self._same}, **self._held}
        self._on_disk = {page: data for page, data in known.items() if (page + 1) * PAGE <= self._size}
        self._same, self._held = set(), {}
        system.ftruncate(self._descriptor, self._size)
        self._written = self._size

    def _end_overwriting(self, descriptor: int) -> None:
        """Overwrite what a commit has written down. That it was not done at once can be made good at any time."""
        if self._begun is not None:
            runs, size = self._begun
            _write_at_once(descriptor, runs)
            self._begun, self._committed_pages, self._committed_size = None, -(-size // PAGE), size

    def _may_write(self) -> bool:
        return not self._frozen and os.getpid() == self._process

    def _fail(self, error: OSError) -> None:
        """Write no more. Of the error no frames are kept: those of h5py hold what crashes a process that ends with it."""
        self.error, self._frozen = self.error or error.with_traceback(None), True

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
        return _write(self._descriptor, parts[: next(large, _PARTS)], offset)

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
        if held is not None:
            return held
        try:
            return _read(self._descriptor, PAGE, page * PAGE).ljust(PAGE, b"\0")
        except OSError as error:  # HDF5 must be able to go on; from now on nothing that it makes of this is written
            self._fail(error)
            return bytes(PAGE)


def _read(descriptor: int, size: int, offset: int) -> bytes:
    """Read bytes at an offset: fewer than asked for at the end of the file only."""
    data = system.pread(descriptor, size, offset)
    while 0 < len(data) < size and (more := system.pread(descriptor, size - len(data), offset + len(data))):
        data += more
    return data


def _write(descriptor: int, parts: list[memoryview], offset: int) -> int:
    """Write parts that follow each other; return how many bytes of them, at least one."""
    done = system.pwritev(descriptor, parts, offset)
    if done <= 0:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return done


def _write_at_once(descriptor: int, runs: list[tuple[int, bytes]]) -> None:
    """Overwrite parts of the file within the shortest time: programs that read it meanwhile find it damaged.

    Nothing but the system calls runs between the first and the last of them. Where one of them writes a part only, is
    interrupted or fails, all are made again, one by one: what is written down already can only be completed.
    """
    offsets, parts = [offset for offset, _ in runs], [part for _, part in runs]
    sizes = [len(part) for part in parts]
    written = map(system.overwrite, itertools.repeat(descriptor), parts, sizes, offsets)
    if all(map(operator.eq, written, sizes)):
        return
    for offset, data in runs:
        left = memoryview(data)
        while left:
            done = _write(descriptor, [left], offset)
            left, offset = left[done:], offset + done


def _pages(offset: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield (page, first byte in it, first byte of the data, number of bytes) of a range."""
    done = 0
    while done < size:
        page, start = divmod(offset + done, PAGE)
        count = min(PAGE - start, size - done)
        yield page, start, done, count
        done += count
