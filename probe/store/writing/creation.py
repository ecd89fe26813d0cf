"""A new file: laid out where no signal handler runs."""

from __future__ import annotations

import contextlib
import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from probe.errors import StoreError
from probe.numbers.sketch import WIDTH
from probe.records import RunInfo
from probe.store import schema
from probe.store.reading.hdf5 import open_on
from probe.store.tree import storable_text
from probe.store.writing import system
from probe.store.writing.disk import PAGE, Disk
from probe.store.writing.queue import PAUSE
from probe.targets import already_there

_CHUNK = 8 * PAGE
"""bytes in a chunk of a table; the last one is written anew at every step"""
_CHECKSUM = 4
_LARGE = 2 * PAGE
"""bytes of a tensor that begins at the border of a page"""
_LAYOUT: dict[str, Any] = {
    "libver": ("v108", "v110"),
    "fs_strategy": "none",
    "alignment_threshold": _LARGE,
    "alignment_interval": PAGE,
    "rdcc_nbytes": 8 * _CHUNK,
}
"""chunks and tensors at the borders of pages; checksums over metadata; nothing that marks an open file

No free space is kept track of: HDF5 would remember the rest of a page behind every chunk as long as the file is open.
"""
_CACHE = 512 << 10
"""bytes of HDF5's metadata that are held; by itself it takes 2 to 32 MiB, three times that of memory, and is full after days"""
_BEGIN = 0.2
"""seconds within which a thread begins, if it was started at all"""


class Opening:
    """Something done in a thread of its own.

    Signal handlers run in the main thread alone: what one raises inside HDF5 (Ctrl-C) would come out as another error.
    """

    def __init__(self, work: Callable[[], None], path: Path) -> None:
        self.has_succeeded = False
        self._error: BaseException | None = None
        self._work, self._path = work, path
        self._has_begun = self._has_ended = self._is_cancelled = False
        self._thread = threading.Thread(target=self._run, name="probe-opening", daemon=True)

    def run(self) -> None:
        """Do it, and raise what it raises."""
        begin(self._thread, self._path)
        while not self._has_ended:
            time.sleep(PAUSE)
        if self._error is not None:
            raise self._error

    def cancel(self) -> None:
        """Wait for its end, once `run` was interrupted; what has not begun will not."""
        self._is_cancelled = True
        last = time.monotonic() + _BEGIN
        while not self._has_ended and (self._has_begun or time.monotonic() < last):
            time.sleep(PAUSE)

    def _run(self) -> None:
        self._has_begun = True
        try:
            if not self._is_cancelled:
                self._work()
                self.has_succeeded = True
        except BaseException as error:
            self._error = error
        finally:
            self._has_ended = True


def begin(thread: threading.Thread, path: Path) -> None:
    """Start a thread that is to write a file. Raises StoreError.

    An interrupt while Python waits for the thread may come out as an error of the lock that it waits with.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if error.__context__ is not None and not isinstance(error.__context__, Exception):
            raise error.__context__ from None
        text = f"cannot write {path}: {error}; the process needs more threads (ulimit -u) or memory"
        raise StoreError(text) from None


def create(path: Path, info: RunInfo) -> tuple[Disk, h5py.File]:
    """Create a file with empty tables. Raises ExistsError, StoreError."""
    try:
        disk = Disk(path)
    except FileExistsError:
        raise already_there(path) from None
    except OSError as error:
        text = f"cannot create {path}: {error.strerror}; is the folder there and writable?"
        raise StoreError(text) from None
    try:
        file = open_on(disk, "w", **_LAYOUT)
        try:
            _limit_cache(file)
            _lay_out(file, info)
            file.flush()
            disk.commit()
        except BaseException:
            disk.freeze()
            file.close()
            raise
    except BaseException as error:
        disk.freeze()
        with contextlib.suppress(OSError):
            disk.close()
        left = remove(path)
        if disk.error is None:
            _add(error, left)
            raise
        raise StoreError(_unwritten(path, disk.error, left)) from None
    return disk, file


def room_of(nbytes: int) -> int:
    """Return how many bytes a file grows by, about, for a tensor: before a large one stands what is known of it, and the rest of a page."""
    return nbytes + PAGE if nbytes >= _LARGE else nbytes


def _limit_cache(file: h5py.File) -> None:
    config = file.id.get_mdc_config()
    config.set_initial_size = True
    config.initial_size = config.min_size = config.max_size = _CACHE
    file.id.set_mdc_config(config)


def _unwritten(path: Path, error: OSError, left: str) -> str:
    return f"cannot write {path}: {error.strerror}; make room there, or give another place{left and f' ({left})'}"


def discard(path: Path, error: BaseException) -> None:
    """Remove the file of a recording that did not begin; where that fails too, ``error``, which ends it, says so."""
    _add(error, remove(path))


def remove(path: Path) -> str:
    """Remove a file; return what is to be said where it stays."""
    try:
        system.unlink(path)
    except FileNotFoundError:
        return ""
    except OSError as error:
        return f"{path} could not be removed: {error.strerror}; delete it"
    return ""


def _add(error: BaseException, text: str) -> None:
    if text:
        error.add_note(f"probe: {text}")


def _lay_out(file: h5py.File, info: RunInfo) -> None:
    attributes = {name: getattr(info, name) for name in info.__dataclass_fields__}
    file.attrs.update({"format": schema.FORMAT, "version": schema.VERSION})
    file.attrs.update({key: plain(value) for key, value in attributes.items()})
    texts = dict.fromkeys(("slots", "shapes"), h5py.string_dtype())
    for table, dtype in {**schema.TABLES, **texts}.items():
        _create_table(file, table, (), dtype)
    _create_table(file, "sketches", (WIDTH,), np.dtype("f8"))
    _create_table(file, "sums", (), np.dtype("f4"))
    file.create_dataset("tensors/blob", shape=(0,), maxshape=(None,), dtype="u1", chunks=(_CHUNK,))
    file.create_group("environment")


def _create_table(file: h5py.File, name: str, row: tuple[int, ...], dtype: np.dtype) -> None:
    """Create an empty table whose chunks have checksums: a flipped bit in a statistic would be a finding."""
    rows = (_CHUNK - _CHECKSUM) // (dtype.itemsize * math.prod(row))
    file.create_dataset(
        name, shape=(0, *row), maxshape=(None, *row), dtype=dtype, chunks=(rows, *row), fletcher32=not dtype.hasobject
    )  # fmt: skip


def plain(value: object) -> object:
    """Return a value as an attribute can hold it: text, a number, or JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    return storable_text(value) if isinstance(value, str) else as_json(value)


def as_json(value: object) -> str:
    """Return JSON of any value; what JSON cannot say is given as Python prints it."""
    try:
        return json.dumps(value, default=repr)
    except (TypeError, ValueError, RecursionError):  # keys that are no strings, a value that holds itself
        return json.dumps(repr(value))
