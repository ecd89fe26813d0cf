"""Build the program of a side."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from . import catalogue
from .spec import Side

ROOT = Path(__file__).resolve().parents[2]


def python_of(name: str) -> str:
    """The Python that can run a model: the public packages have an environment of their own."""
    own = ROOT / ".venv-blind/bin/python"
    return str(own) if catalogue.is_public(name) and own.exists() else sys.executable


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
