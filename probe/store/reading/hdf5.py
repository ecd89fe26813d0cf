"""Opening HDF5 on an object of Python in place of a file."""

from __future__ import annotations

import atexit
import weakref
from typing import Any

import h5py

_being_read: weakref.WeakSet[h5py.File] = weakref.WeakSet()


def open_on(source: Any, mode: str, **options: Any) -> h5py.File:
    """Open it as `h5py.File` does; what it raises has no frames of h5py.

    These hold what HDF5 calls Python for when it is given back: where an error lives until the process ends, and be it in
    the context of `SystemExit`, there is no Python left then, and the process crashes. A file that is still being read is closed before.
    """
    try:
        file = h5py.File(source, mode, **options)
    except Exception as error:
        raise error.with_traceback(None) from None
    if mode == "r":
        _being_read.add(file)
    return file


@atexit.register
def _close_all() -> None:
    for file in list(_being_read):
        file.close()
