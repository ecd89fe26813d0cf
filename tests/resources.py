"""What a process holds."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from pathlib import Path

import probe
from tests.limits import HANGS


def handles() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0


def resident() -> float:
    """Return the memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def settled() -> int:
    """Return the bytes that Python holds when the writer has nothing left to do."""
    writer = probe.session._current.run.writer
    written = threading.Event()
    writer._queue.put(written.set)
    assert written.wait(HANGS)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
