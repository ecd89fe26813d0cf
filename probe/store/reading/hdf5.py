"""Opening HDF5 on an object of Python in place of a file."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import h5py


def open_on(source: Any, mode: str, **options: Any) -> h5py.File:
    """Open it as `h5py.File` does; what it raises has no frames of h5py.

    These hold what HDF5 calls Python for when it is given back: where an error lives until the process ends, and be it in
    the context of `SystemExit`, there is no Python left then, and the process crashes.
    """
    try:
        return h5py.File(source, mode, **options)
    except Exception as error:
        raise error.with_traceback(None) from None


class _Collecting:
    """How many are reading, in all threads, and whether garbage was collected before the first of them."""

    lock = threading.Lock()
    readers = 0
    was_enabled = False


@contextmanager
def without_collecting() -> Iterator[None]:
    """Let no garbage be collected while HDF5 reads by calling Python.

    Garbage may hold objects of HDF5. Collected in such a call, they would be closed in the middle of what HDF5 does, which it is not made
    for: what it reads then is not what the file holds.
    """
    with _Collecting.lock:
        if not _Collecting.readers:
            _Collecting.was_enabled = gc.isenabled()
            gc.disable()
        _Collecting.readers += 1
    try:
        yield
    finally:
        with _Collecting.lock:
            _Collecting.readers -= 1
            if not _Collecting.readers and _Collecting.was_enabled:
                gc.enable()
