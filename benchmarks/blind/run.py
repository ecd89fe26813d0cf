"""Build the program of a side."""

from __future__ import annotations

import torch

from .spec import Side
from .training import Training


def training_of(side: Side) -> Training:
    """The training of a side, ready to run."""
    torch.set_num_threads(1)
    torch.manual_seed(side.model.seed)
    build = side.model.port if side.side == "b" and side.model.port else side.model.build
    training = build()
    if side.dtype != "float32":
        training.as_dtype(side.dtype)
    for change in side.changes:
        change(training)
    return training
