"""Writing past the system's cache: large pieces cost no processor time and no memory that way."""

from __future__ import annotations

import contextlib
import errno
import os
import time
from pathlib import Path

import numpy as np

from probe.store.writing import system

ALIGNMENT = 4096
"""of offsets, sizes and addresses; no file system asks for more"""
LEAST = 1 << 18
"""bytes from which on it is worth a call of its own"""
_TRIAL = 64 << 20
_FAST = 400e6
"""bytes a second: of slower disks the system's cache takes a burst in, so that the training need not wait for them"""


class Uncached:
    """A second descriptor of a file, for pieces that the system is not to keep a copy of.

    Where the file system does not have it, and once the disk has shown to be slow, `write` writes nothing.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = -1
        self._bytes, self._seconds = 0, 0.0
        flag = getattr(os, "O_DIRECT", 0)
        if flag:
            with contextlib.suppress(OSError):
                self._descriptor = system.open(path, os.O_WRONLY | flag)

    def write(self, data: memoryview, offset: int) -> int:
        """Write the beginning of a piece; return how many bytes, mostly all but a last odd part, or 0."""
        size = len(data) - len(data) % ALIGNMENT
        if self._descriptor < 0 or size < LEAST or offset % ALIGNMENT or _address(data) % ALIGNMENT:
            return 0
        began = time.perf_counter()
        try:
            done = system.pwrite(self._descriptor, data[:size], offset)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self.close()  # the file system took the flag and does not do it
            return 0
        self._seconds += time.perf_counter() - began
        self._bytes += done
        if self._bytes > _TRIAL and self._bytes < _FAST * self._seconds:
            self.close()
        return done

    def close(self) -> None:
        """Write nothing more."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            system.close(descriptor)


def _address(data: memoryview) -> int:
    return np.frombuffer(data, np.uint8).ctypes.data
