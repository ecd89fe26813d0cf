"""What a comparison costs as a process of its own, from the shell: CPU time, wall time, largest memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

COMPARE = ("-c", "from probe.commands.cli import compare_main; compare_main()")
"""what the console script `probe-compare` runs"""
ALIGNED, DIVERGED = 0, 1
"""exit statuses"""


@dataclass(frozen=True)
class Cost:
    """What a process cost: medians, and the range of CPU time."""

    cpu: float
    """user and system time of all its threads, in seconds"""
    least: float
    most: float
    wall: float
    peak: float
    """MiB"""


def compared(a: Path, b: Path, repeats: int, fault: str = "") -> Cost:
    """Compare two recordings some times over.

    Parameters
    ----------
    fault
        the path of the module that the answer has to name; none where the recordings agree

    Raises
    ------
    RuntimeError
        the answer is wrong
    """
    found = [_once(a, b, fault) for _ in range(repeats)]
    cpu, wall, peak = (tuple(each) for each in zip(*found, strict=True))
    return Cost(*map(statistics.median, (cpu,)), min(cpu), max(cpu), statistics.median(wall), statistics.median(peak))


def _once(a: Path, b: Path, fault: str) -> tuple[float, float, float]:
    with tempfile.TemporaryFile() as output:
        actions = [(os.POSIX_SPAWN_DUP2, output.fileno(), number) for number in (1, 2)]
        began = time.perf_counter()
        # this process holds little: what it holds would count for the child (`ru_maxrss`)
        child = os.posix_spawn(
            sys.executable, [sys.executable, *COMPARE, str(a), str(b)], dict(os.environ), file_actions=actions
        )
        _, status, usage = os.wait4(child, 0)
        wall = time.perf_counter() - began
        output.seek(0)
        text = output.read().decode()
    expected = DIVERGED if fault else ALIGNED
    if os.waitstatus_to_exitcode(status) != expected or fault not in text.partition("inputs agree")[0]:
        raise RuntimeError(f"{a}, {b}: expected {fault or 'that they agree'}, got\n{text}")
    return usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024


def with_compiled_modules(folder: Path) -> None:
    """Let Python keep the compiled modules of what is measured in a folder, as `pip install` leaves them."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)


def python(*arguments: str) -> str:
    """Run Python with these arguments; return what it printed last."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
    return _last(done.stdout.splitlines())


def _last(lines: Sequence[str]) -> str:
    return lines[-1] if lines else ""
