"""Record a training once: what exists stays."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import probe


def recorded(path: Path, make: Callable[[], Any], steps: int, task: str) -> Path:
    """Return the recording at `path`; where there is none, train what `make` returns and record that.

    It has a ``step`` and a ``model``, or ``parts`` that are trained together.
    """
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    training = make()
    parts = getattr(training, "parts", [training.model])
    unfinished = path.with_suffix(f".{os.getpid()}.h5")
    probe.start(parts if len(parts) > 1 else parts[0], unfinished, task=task, overwrite=True, quiet=True)
    try:
        for index in range(steps):
            probe.step(loss=training.step(index))
    finally:
        probe.stop()
    unfinished.rename(path)
    return path
