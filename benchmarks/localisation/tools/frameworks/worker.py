"""Recordings of one framework: `python -m benchmarks.localisation.tools.frameworks.worker FRAMEWORK FOLDER < TASKS`."""

from __future__ import annotations

import importlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import probe
from benchmarks.localisation.pairs.pair import Planted, Setup
from benchmarks.localisation.tools.frameworks.training import MODELS, model_of


def run_of(setup: Setup, folder: Path) -> Any:
    """Return the training of a setup; weights and the source of their conversion lie in the folder."""
    side = importlib.import_module(f"benchmarks.localisation.tools.frameworks.{setup.framework}_side")
    name = model_of(setup.architecture)
    weights = dict(np.load(folder / f"{name}.npz"))
    return getattr(side, f"{setup.framework.capitalize()}Run")(setup, weights, folder / f"{name}.h5")


def record(setup: Setup, mode: str, path: Path, folder: Path) -> None:
    """Write a recording."""
    unfinished = path.with_suffix(f".{os.getpid()}.h5")
    run = run_of(setup, folder)
    with probe.capture(run.model, unfinished, task=mode):
        for index in range(setup.steps):
            probe.step(loss=run.step(index))
    unfinished.rename(path)


def prepare(folder: Path) -> None:
    """Write the weights that all sides of a model begin with, and a recording of each model in PyTorch."""
    from benchmarks.localisation.tools.frameworks.torch_side import initial

    folder.mkdir(parents=True, exist_ok=True)
    for name in MODELS:
        np.savez(folder / f"{name}.npz", **initial(name))
        record(Setup(f"port-{name}", optimizer="sgd"), "statistics", folder / f"{name}.h5", folder)


def main(framework: str, folder: Path) -> None:
    """Make the recordings that are asked for on standard input; what all begin with lies in the folder."""
    warnings.simplefilter("ignore")
    if framework == "torch" and not (folder / f"{MODELS[-1]}.h5").exists():
        prepare(folder)
    for fields, mode, path in json.load(sys.stdin):
        planted = tuple(Planted(**each) for each in fields.pop("planted"))
        record(Setup(**fields, planted=planted), mode, Path(path), folder)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
