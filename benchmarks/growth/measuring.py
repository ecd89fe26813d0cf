"""What a comparison costs as a process of its own, from the shell: CPU time, wall time, largest memory."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

COMPARE = ("-c", "from probe.commands.cli import compare_main; compare_main()")
"""what the console script `probe-compare` runs"""
BASE = "numpy, h5py, click, rich"
"""what probe is built on"""
OURS = f"{BASE}, probe.commands.cli, probe.comparing, probe.report.text"
"""what a comparison imports, but for what explains a finding"""
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
    """Compare two recordings some times over; where that is more than once, the first, which fills caches, does not count.

    Parameters
    ----------
    fault
        the path of the module that the answer has to name; none where the recordings agree

    Raises
    ------
    RuntimeError
        the answer is wrong
    """
    if repeats > 1:
        _once(a, b, fault)
    cpu, wall, peak = zip(*(_once(a, b, fault) for _ in range(repeats)), strict=True)
    return Cost(statistics.median(cpu), min(cpu), max(cpu), statistics.median(wall), statistics.median(peak))


def _once(a: Path, b: Path, fault: str) -> tuple[float, float, float]:
    status, text, cost = _run(*COMPARE, str(a), str(b))
    if status != (DIVERGED if fault else ALIGNED) or fault not in text.partition("inputs agree")[0]:
        raise RuntimeError(f"{a}, {b}: expected {fault or 'that they agree'}, got\n{text}")
    return cost


def started(modules: str, repeats: int) -> float:
    """Return the CPU seconds of a process that imports some modules and nothing else, without threads of OpenBLAS as a comparison is."""
    code = f"import os; os.environ['OPENBLAS_NUM_THREADS'] = '1'; import {modules}"
    return statistics.median(_run("-c", code)[2][0] for _ in range(repeats))


def _run(*arguments: str) -> tuple[int, str, tuple[float, float, float]]:
    """Run Python with these arguments; return exit status, what was printed, and CPU seconds, seconds and MiB."""
    with tempfile.TemporaryFile() as output:
        actions = [(os.POSIX_SPAWN_DUP2, output.fileno(), number) for number in (1, 2)]
        began = time.perf_counter()
        # this process holds little: what it holds would count for the child (`ru_maxrss`)
        child = os.posix_spawn(sys.executable, [sys.executable, *arguments], dict(os.environ), file_actions=actions)
        _, status, usage = os.wait4(child, 0)
        wall = time.perf_counter() - began
        output.seek(0)
        text = output.read().decode()
    cost = usage.ru_utime + usage.ru_stime, wall, usage.ru_maxrss / 1024
    return os.waitstatus_to_exitcode(status), text, cost


def with_compiled_modules(folder: Path) -> None:
    """Let Python keep the compiled modules of what is measured in a folder, as `pip install` leaves them."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder)


def python(*arguments: str) -> str:
    """Run Python with these arguments; return what it printed last."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
    return done.stdout.splitlines()[-1]
