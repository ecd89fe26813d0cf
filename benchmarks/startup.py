"""`python -m benchmarks.startup`: the CPU time of `import probe`, of `--help` and of a small comparison from the shell.

Each is a whole process, in turn with one that imports what probe is built on: A B A B. CPU time is user and system time of all
threads of the process. A ratio is taken pair by pair. The compiled modules of Python (`.pyc`) are there, as after `pip install`;
``--uncached`` shows what it costs where Python keeps none (PYTHONDONTWRITEBYTECODE).
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

import click

from probe.demo import FOLDER, MAPPING, RECORDINGS

A, B = (str(FOLDER / name) for name in RECORDINGS)
BASE = ("python -c 'import numpy, h5py, click, rich'", ("-c", "import numpy, h5py, click, rich"))
COMPARE = ("-c", "from probe.commands.cli import compare_main; compare_main()")
"""what the console script `probe-compare` runs"""


@dataclass(frozen=True)
class Row:
    """A process to be measured, and what it must not exceed."""

    name: str
    arguments: tuple[str, ...]
    ratio: float | None = None
    """of the base"""
    seconds: float | None = None


ROWS = [
    Row("python -c 'import probe'", ("-c", "import probe"), ratio=1.25),
    Row("probe-compare --help", (*COMPARE, "--help"), ratio=1.25),
    Row("probe --help", ("-m", "probe", "--help"), ratio=1.25),
    Row(f"probe-compare A B -lm {MAPPING}", (*COMPARE, A, B, "-lm", MAPPING), seconds=0.7),
    Row("probe-compare A B", (*COMPARE, A, B), seconds=0.7),
]


def cpu_time(arguments: Sequence[str], environment: dict[str, str]) -> float:
    """Run Python with these arguments; return the CPU time of the process in seconds."""
    silent = [(os.POSIX_SPAWN_OPEN, number, os.devnull, os.O_WRONLY, 0) for number in (1, 2)]
    child = os.posix_spawn(sys.executable, [sys.executable, *arguments], environment, file_actions=silent)
    _, _, usage = os.wait4(child, 0)
    return usage.ru_utime + usage.ru_stime


def measure(row: Row, pairs: int, environment: dict[str, str]) -> tuple[list[float], list[float]]:
    """Return the CPU times of the base and of a row, measured in turn."""
    cpu_time(row.arguments, environment)  # the compiled modules are written, the files are in the system's cache
    times = [(cpu_time(BASE[1], environment), cpu_time(row.arguments, environment)) for _ in range(pairs)]
    base, own = zip(*times, strict=True)
    return list(base), list(own)


def ranged(values: Sequence[float], digits: int = 2) -> str:
    """Write the median, and in brackets the smallest and the largest."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def line(row: Row, base: Sequence[float], own: Sequence[float]) -> str:
    """Return a line of the table."""
    ratios = [mine / other for mine, other in zip(own, base, strict=True)]
    if row.ratio is not None:
        limit, is_held = f"≤ {row.ratio} ×", statistics.median(ratios) <= row.ratio
    else:
        limit, is_held = f"≤ {row.seconds} s", statistics.median(own) <= (row.seconds or 0)
    return f"| `{row.name}` | {ranged(ratios)} | {ranged(own)} | {limit} | {'yes' if is_held else '**no**'} |"


@click.command()
@click.option("--pairs", default=15, show_default=True, type=click.IntRange(1), help="Pairs of processes for each row.")
@click.option("--uncached", is_flag=True, help="Without compiled modules of probe (PYTHONDONTWRITEBYTECODE=1).")
def main(pairs: int, uncached: bool) -> None:
    """Print a table: ratios to importing numpy, h5py, click and rich; medians, and smallest and largest in brackets."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        environment["PYTHONPYCACHEPREFIX"] = folder
        if uncached:
            environment["PYTHONDONTWRITEBYTECODE"] = "1"
            del environment["PYTHONPYCACHEPREFIX"]
        cpu_time(BASE[1], environment)
        click.echo(f"Python {sys.version.split()[0]}, {pairs} pairs; base: `{BASE[0]}`\n")
        click.echo("| process | × base | CPU s | limit | held |\n|---|---|---|---|---|")
        everything = []
        for row in ROWS:
            base, own = measure(row, pairs, environment)
            everything += base
            click.echo(line(row, base, own))
        click.echo(f"\nThe base took {ranged(everything)} s.")


if __name__ == "__main__":
    main()
