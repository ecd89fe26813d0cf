"""A new file: laid out where no signal handler runs."""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from probe.errors import ExistsError, StoreError
from probe.records import RunInfo
from probe.sketch import WIDTH
from probe.store import schema
from probe.store.disk import PAGE, Disk
from probe.store.queue import PAUSE
from probe.store.tree import storable_text

_CHUNK = 8 * PAGE
"""bytes in a chunk of a table; the last one is written anew at every step"""
_CHECKSUM = 4
_LAYOUT: dict[str, Any] = {
    "libver": ("v108", "v110"),
    "fs_strategy": "page",
    "fs_page_size": PAGE,
    "page_buf_size": 1 << 20,
    "rdcc_nbytes": 8 * _CHUNK,
}
"""metadata in pages of their own, tensors at their borders; checksums over metadata; nothing that marks an open file"""
_BEGIN = 0.2
"""seconds within which a thread begins, if it was started at all"""


class Opening:
    """Something done in a thread of its own.

    Signal handlers run in the main thread alone: what one raises inside HDF5 (Ctrl-C) would come out as another error.
    """

    def __init__(self, work: Callable[[], None]) -> None:
        self.has_succeeded = False
        self._error: BaseException | None = None
        self._work = work
        self._has_begun = self._has_ended = self._is_cancelled = False
        self._thread = threading.Thread(target=self._run, name="probe-opening", daemon=True)

    def run(self) -> None:
        """Do it, and raise what it raises."""
        self._thread.start()
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


def create(path: Path, info: RunInfo) -> tuple[Disk, h5py.File]:
    """Create a file with empty tables. Raises ExistsError, StoreError."""
    try:
        disk = Disk(path)
    except FileExistsError as error:
        text = f"{path} exists already; probe never overwrites: delete it or give another name"
        raise ExistsError(text) from error
    except OSError as error:
        text = f"cannot create {path}: {error.strerror}; is the folder there and writable?"
        raise StoreError(text) from error
    file = h5py.File(disk, "w", **_LAYOUT)
    try:
        _lay_out(file, info)
        file.flush()
        disk.commit()
    except BaseException as error:
        disk.freeze()
        file.close()
        disk.close()
        path.unlink()
        if error is not disk.error:
            raise
        raise StoreError(f"cannot write {path}: {disk.error.strerror}") from error
    return disk, file


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
