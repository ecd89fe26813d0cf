"""A model that is recorded in a process of its own: two frameworks may not bear each other in one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.errors import ConfigError, RecordingError

_LAST = 2000
"""letters of what a failed process said last"""


def record_elsewhere(
    model: str, micros: Sequence[Mapping[str, Any]], loss: Any, update: Any, steps: int, backward: bool, path: Path,
    modules: list[str] | None, begun: Path | None,
) -> None:  # fmt: skip
    """Record a model that is named in a new process.

    Raises
    ------
    ConfigError
        what it is to be given cannot be sent there
    RecordingError
        the process failed
    """
    for what, name in (("loss_fns", loss), ("optimizers", update)):
        if name is not None and not isinstance(name, str):
            raise ConfigError(
                f"{what}: that of a model which is named must be named too (module:function), as it runs elsewhere"
            )
    names = []
    for number, micro in enumerate(micros):
        arrays = {name: value for name, value in micro.items() if isinstance(value, np.ndarray)}
        plain = {name: value for name, value in micro.items() if name not in arrays}
        np.savez(path.with_suffix(f".{number}.npz"), **arrays)
        names.append((str(path.with_suffix(f".{number}.npz")), plain))
    job = {"model": model, "micros": names, "loss": loss, "update": update, "steps": steps, "backward": backward,
           "path": str(path), "modules": modules, "begun": None if begun is None else str(begun)}  # fmt: skip
    try:
        text = json.dumps(job)
    except TypeError:
        raise ConfigError(
            "inputs of a model that is named must be numpy arrays or plain values, as it runs elsewhere"
        ) from None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-m", "probe.replaying.two_models.worker"], input=text, capture_output=True, text=True,
                          env=environment)  # fmt: skip
    for name, _ in names:
        Path(name).unlink(missing_ok=True)
    if done.returncode:
        raise RecordingError(f"{model} could not be recorded in a process of its own: {done.stderr.strip()[-_LAST:]}")
