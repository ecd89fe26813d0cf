"""Timing in pairs: a plain step, a recorded step, a plain step … in one process."""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable
from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Clock:
    """Wall and CPU time (of all threads) since it was made, in seconds."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        """Return (wall, CPU)."""
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Return (wall, CPU) seconds of some work."""
    clock = Clock()
    work()
    return clock.read()


def spread(values: list[float]) -> dict[str, float]:
    """Return median, smallest and largest."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def ratios(plain: list[float], recorded: list[float]) -> dict[str, float]:
    """Return the spread of recorded / plain, pair by pair."""
    return spread([b / a for a, b in zip(plain, recorded, strict=True)])


def forget_peak() -> None:
    """Begin to look for the peak of the resident memory anew (Linux only)."""
    if _CLEAR.exists():
        _CLEAR.write_text("5")


def peak_memory() -> int:
    """Return the largest resident memory since `forget_peak`, in bytes; 0 where the system does not tell."""
    found = re.search(r"VmHWM:\s*(\d+) kB", _STATUS.read_text()) if _STATUS.exists() else None
    return int(found[1]) * 1024 if found else 0
