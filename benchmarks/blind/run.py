"""Build the program of a side."""

from __future__ import annotations

import os
from typing import Any

from .spec import Side


def training_of(side: Side) -> Any:
    """The training of a side, ready to run."""
    if side.framework == "torch":
        import torch

        torch.set_num_threads(1)
        torch.manual_seed(side.model.seed)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    build = side.model.port if side.side == "b" and side.model.port else side.model.build
    training = build()
    if side.dtype != "float32":
        training.as_dtype(side.dtype)
    for change in side.changes:
        change(training)
    return training
