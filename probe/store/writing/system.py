"""The system calls by which a recording is written. Its writer makes no others: here a test lets each of them fail.

Where the system has no call for writing at an offset (Windows), it is sought first: a file has one writer.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Sequence

NEW = os.O_RDWR | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
"""how a file is opened that must not be there yet"""
CHANGED = os.O_RDWR | getattr(os, "O_BINARY", 0)
"""how one is opened that is to be changed"""
LOOKED_AT = os.O_RDONLY | getattr(os, "O_BINARY", 0)
"""how one is opened that is to be looked at"""

open = os.open
fstat = os.fstat
stat = os.stat
ftruncate = os.ftruncate
rename = os.rename
unlink = os.unlink


def close(descriptor: int) -> None:
    """Close a file; one whose closing is interrupted is closed."""
    with contextlib.suppress(InterruptedError):
        os.close(descriptor)


def _seek_and_read(descriptor: int, size: int, offset: int) -> bytes:
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, size)


def _seek_and_write(descriptor: int, data: bytes | memoryview, size: int, offset: int) -> int:
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


def _write_first(descriptor: int, parts: Sequence[bytes | memoryview], offset: int) -> int:
    return _seek_and_write(descriptor, parts[0], len(parts[0]), offset)


def _overwriting() -> Callable[[int, bytes, int, int], int]:
    """Return a function (descriptor, bytes, how many, offset) → how many were written: the C library's, if it has one.

    It keeps the interpreter's lock. `os.pwrite` would give other threads their turn, which can take milliseconds.
    """
    try:
        library = ctypes.PyDLL(None, use_errno=True)
        function = getattr(library, "pwrite64", None) or library.pwrite
    except (TypeError, OSError, AttributeError):  # TypeError: Windows has no handle of the program itself
        return _seek_and_write
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_size_t, ctypes.c_int64)
    function.restype = ctypes.c_ssize_t
    return function


pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_and_read)
pwrite: Callable[[int, memoryview, int], int] | None = getattr(os, "pwrite", None)
pwritev: Callable[[int, Sequence[bytes | memoryview], int], int] = getattr(os, "pwritev", _write_first)
overwrite = _overwriting()
