"""Record every side of every pair, with values and with statistics; what exists stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from ..blind.record import TASKS, file_of
from ..blind.run import training_of
from ..blind.spec import Pair
from . import catalogue
from .confirm import confirmed


def record_all(folder: Path, files: tuple[str, ...]) -> None:
    """Record all files of models, each in a process of its own."""
    for file in files:
        command = [sys.executable, "-W", "ignore", "-m", __package__, "--record-one", file, str(folder)]
        if subprocess.run(command, check=False).returncode:
            print(f"{file}: not recorded in full", file=sys.stderr)


def record_pairs(folder: Path, pairs: list[Pair]) -> None:
    """Record the confirmed ones of these pairs, in this process."""
    import probe

    sure = confirmed()
    for side in (side for pair in pairs if pair.name in sure for side in (pair.a, pair.b)):
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


def record_file(folder: Path, file: str) -> None:
    """Record the pairs of one file of models."""
    record_pairs(folder, catalogue.pairs((file,)))
