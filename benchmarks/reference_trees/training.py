"""A few steps of training, recorded."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

import probe
from benchmarks.reference_trees.sizes import IMAGE, Sizes, make_batch

LR, DECAY = 1e-3, 0.1


def loss_of(logits: Tensor, tokens: Tensor) -> Tensor:
    """Return the mean loss of the next tokens that are text."""
    wanted = tokens[:, 1:].masked_fill(tokens[:, 1:] == IMAGE, -100)
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), wanted.flatten())


def optimizer_of(model: nn.Module, *, decays_all: bool = False, vision_lr: float = LR) -> torch.optim.Optimizer:
    """Return AdamW, by which matrices decay, and vectors do not."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        lr = vision_lr if "image_encoder" in name or "visual" in name else LR
        groups.setdefault((DECAY if weight.dim() > 1 or decays_all else 0.0, lr), []).append(weight)
    return torch.optim.AdamW(
        [{"params": each, "weight_decay": decay, "lr": lr} for (decay, lr), each in groups.items()]
    )


def record(
    path: Path, model: nn.Module | list[nn.Module], sizes: Sizes, task: str, *, steps: int = 1, **settings: object
) -> Path:
    """Train for some steps and record them; ``settings`` are those of `optimizer_of`."""
    first = model[0] if isinstance(model, list) else model
    optimizer = optimizer_of(first, **settings)  # type: ignore[arg-type]
    with probe.capture(model, path, task=task):
        for batch in batches(sizes, steps):
            loss = loss_of(first(batch), batch.tokens)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def batches(sizes: Sizes, steps: int) -> Iterable[object]:
    """Yield the batch of each step."""
    return (make_batch(sizes, step) for step in range(steps))
