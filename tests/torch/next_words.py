"""Two steps of training on next words, for models and their ports that are handed token numbers alone."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import probe


def record(model: nn.Module, path: Path, task: str, batch: int, length: int, words: int) -> Path:
    """Record two steps on tokens that are the same for all models."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path, task=task):
        for step in range(2):
            ids = probe.make_inputs({"ids": f"int64[{batch},{length}] < {words}"}, seed=step, to="torch")["ids"]
            loss = nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.roll(-1, 1).flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path
