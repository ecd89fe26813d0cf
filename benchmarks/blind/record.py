"""Record every side of every pair once with values and once with statistics only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from . import catalogue
from .run import training_of
from .spec import Pair, Side, pairs_of

TASKS = {"values": "tensor", "statistics": "statistics"}


def file_of(folder: Path, side: Side, kind: str) -> Path:
    """Where a side's recording lies."""
    return folder / kind / f"{side.key}.{side.dtype}.{side.steps}.h5"


def record(folder: Path, name: str) -> None:
    """Record the sides of one model, in this process; what exists stays."""
    import probe

    for pair in pairs_of(catalogue.model(name)):
        for side in (pair.a, pair.b):
            for kind, task in TASKS.items():
                path = file_of(folder, side, kind)
                if path.exists():
                    continue
                path.parent.mkdir(parents=True, exist_ok=True)
                training = training_of(side)
                half = path.with_suffix(".part.h5")
                probe.start(training.model, half, task=task, overwrite=True, quiet=True)
                try:
                    for number in range(side.steps):
                        probe.step(loss=training.step(number))
                finally:
                    probe.stop()
                half.rename(path)


def record_all(folder: Path) -> None:
    """Record all models, each in a process of its own."""
    for name in catalogue.names():
        command = [sys.executable, "-W", "ignore", "-m", "benchmarks.blind", "--record", name, "--folder", str(folder)]
        if subprocess.run(command, check=False).returncode:
            print(f"{name}: not recorded in full", file=sys.stderr)


def recorded(folder: Path, pair: Pair, kind: str) -> tuple[Path, Path] | None:
    """The two recordings of a pair, if they are there."""
    a, b = file_of(folder, pair.a, kind), file_of(folder, pair.b, kind)
    return (a, b) if a.exists() and b.exists() else None
