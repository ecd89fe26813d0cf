"""All trainings of one framework: `python -m benchmarks.frameworks.worker FRAMEWORK FOLDER TASK`.

Paddle's and MindSpore's weights come from PyTorch's by `probe.convert_weights`; so PyTorch must run first.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import numpy as np

import probe
from benchmarks.frameworks.faults import PLANT, planted_weights
from benchmarks.frameworks.truth import FAULTS, MAPPINGS, MODELS, OPTIMIZERS

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples" / "frameworks"
STEPS = 3
"""of which the last two follow an update"""


def main(framework: str, folder: Path, task: str) -> None:
    """Record every clean training, and every faulty one of a framework that is no baseline."""
    sys.path.insert(0, str(EXAMPLES))
    models = importlib.import_module(f"{framework}_models")
    if framework == "torch":
        import torch

        for name in MODELS:
            torch.manual_seed(0)
            state = models.MODELS[name]().state_dict()
            np.savez(folder / f"{name}.npz", **{key: value.numpy() for key, value in state.items()})
    for name in MODELS:
        for optimizer in OPTIMIZERS:
            train(models, framework, name, folder, f"{name}-{optimizer}", optimizer, task)
    if framework in PLANT:
        for fault, planted in FAULTS.items():
            train(models, framework, planted.model, folder, f"fault-{fault}", "sgd", task, fault)


def train(
    models: object, framework: str, name: str, folder: Path, label: str, optimizer: str, task: str, fault: str = ""
) -> None:
    """Record some steps of a model."""
    from batches import batch

    model = models.MODELS[name]()
    weights = dict(np.load(folder / f"{name}.npz"))
    if framework != "torch":
        mapping = MAPPINGS.get(framework, {}).get(name)
        source = folder / f"torch-{name}-sgd.h5"
        weights = {k: v for k, v in weights.items() if "num_batches_tracked" not in k}
        weights = probe.convert_weights(weights, mapping, to=framework, source=source, like=model)
        weights = planted_weights(fault, weights)
    models.load(model, weights)
    if fault:
        PLANT[framework](fault, model)
    decay = 0.01 if fault == "decay" else 0.0
    used = models.optimizer_of(model, optimizer, decay)
    reduction = "sum" if fault == "reduction" else "mean"
    with probe.capture(model, folder / f"{framework}-{label}.h5", task=task):
        for step in range(STEPS):
            loss = models.train_step(model, used, *batch(name, step), reduction)
            probe.step(loss=loss)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
