"""What an input may cost, and which files may be opened for it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

SECONDS = 2.0
"""of the processor, beyond what the valid input takes"""
FACTOR, MEMORY = 4, 300 << 20
"""bytes that may be taken: so many times the input's, and so many more"""
_AT_MOST = 6 << 30
"""address space beyond the worker's own: the machine's other work goes on"""
_IN_OPEN, _NONBLOCK = 0x20, os.O_NONBLOCK
_EVENT = struct.Struct("iIII")
_CODE = (".py", ".pyc", ".so")
_PARTS = re.compile(r"/site-packages/|/layer_mappings/|/probe/[a-z_/]+\.(yaml|ini)$")


class TooSlow(BaseException):
    """An input took too long."""


class TooLarge(Exception):
    """An input took too much memory."""


class OpenedAnother(Exception):
    """A file was opened that nobody named."""


class Watch:
    """Sees what one input after the other does to a process.

    Parameters
    ----------
    folder
        whose files may be opened
    canary
        a folder of which no file may be opened, by HDF5 neither, of whose calls Python knows nothing
    """

    def __init__(self, folder: Path, canary: Path) -> None:
        self._folder, self._opened = str(folder), list[str]()
        self._armed = False
        library = ctypes.CDLL(None, use_errno=True)
        self._events = library.inotify_init1(_NONBLOCK)
        library.inotify_add_watch(self._events, str(canary).encode(), _IN_OPEN)
        sys.addaudithook(self._audit)
        signal.signal(signal.SIGPROF, self._too_slow)
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + _AT_MOST, resource.RLIM_INFINITY))

    @contextlib.contextmanager
    def watching(self, size: int, own: float) -> Iterator[None]:
        """Raise what an input of so many bytes does wrong; the valid one took ``own`` seconds."""
        _reset_peak()
        before, began = _memory("VmRSS"), time.process_time()
        self._opened.clear()
        self._armed = True
        signal.setitimer(signal.ITIMER_PROF, own + SECONDS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._armed = False
        if time.process_time() - began > own + SECONDS:
            raise TooSlow
        taken = _memory("VmHWM") - before
        if taken > FACTOR * size + MEMORY:
            raise TooLarge(f"{taken >> 20} MiB for {size} bytes")
        if self._opened or self._touched():
            raise OpenedAnother(", ".join(self._opened) or "the canary")

    def _audit(self, event: str, arguments: tuple[object, ...]) -> None:
        if self._armed and event == "open" and isinstance(arguments[0], (str, bytes)):
            path = os.fsdecode(arguments[0])
            is_ours = (
                path.startswith((self._folder, "/proc/self/", sys.base_prefix))
                or path.endswith(_CODE)
                or _PARTS.search(path)
            )
            self._opened += [] if is_ours else [path]

    def _touched(self) -> bool:
        try:
            return bool(os.read(self._events, 4096))
        except BlockingIOError:
            return False

    def _too_slow(self, number: int, frame: FrameType | None) -> None:
        raise TooSlow


def _reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _memory(name: str) -> int:
    """Return bytes that the process has (VmRSS), or had at most since its peak was reset (VmHWM)."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(f"{name}:"))
