"""Train one of the five models in one of three frameworks for some steps, and record it.

Example: python docs/examples/frameworks/train.py paddle bert --weights weights.npz --out b.h5
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

import numpy as np
from batches import batch

import probe

FRAMEWORKS = ("torch", "paddle", "mindspore")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("framework", choices=FRAMEWORKS)
    parser.add_argument("model", choices=("mlp", "cnn", "lstm", "encoder", "bert"))
    parser.add_argument("--weights", type=Path, required=True, help="arrays by name, as numpy.savez writes them")
    parser.add_argument("--out", type=Path, required=True, help="the recording")
    parser.add_argument("--optimizer", choices=("sgd", "adam"), default="sgd")
    parser.add_argument("--task", choices=("statistics", "tensor"), default="statistics")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()

    framework = importlib.import_module(f"{options.framework}_models")
    model = framework.MODELS[options.model]()
    framework.load(model, dict(np.load(options.weights)))
    optimizer = framework.optimizer_of(model, options.optimizer)
    probe.start(model, options.out, task=options.task)
    for step in range(options.steps):
        loss = framework.train_step(model, optimizer, *batch(options.model, step), "mean")
        probe.step(loss=loss)
        print(f"step {step}  loss {loss:.6f}")
    probe.stop()


if __name__ == "__main__":
    main()
