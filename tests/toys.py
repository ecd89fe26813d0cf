"""Small models of the numpy framework that really train, with faults to plant in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import probe
from probe.adapters import numpy_nn as nn
from probe.adapters.numpy_tensor import Tensor, cross_entropy, no_grad, operation

VOCABULARY, WIDTH, HEADS, LAYERS = 19, 16, 2, 3
BATCH, LENGTH = 2, 6


class MLP(nn.Module):
    """down(act(gate x) · up x)."""

    def __init__(self, width: int) -> None:
        super().__init__(gate=nn.Linear(width, 2 * width), up=nn.Linear(width, 2 * width),
                         down=nn.Linear(2 * width, width), act=nn.SiLU())  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__(norm1=nn.RMSNorm(width), attn=nn.Attention(width, heads), norm2=nn.RMSNorm(width),
                         mlp=MLP(width))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """A language model."""

    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__(embed=nn.Embedding(VOCABULARY, WIDTH),
                         layers=nn.ModuleList(*(Block(WIDTH, HEADS) for _ in range(layers))),
                         norm=nn.RMSNorm(WIDTH), head=nn.Linear(WIDTH, VOCABULARY, bias=False))  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


def gpt(seed: int = 0, layers: int = LAYERS) -> GPT:
    """Make a model with weights that depend on the seed alone; drawn norms and biases too."""
    nn.manual_seed(seed)
    model = GPT(layers)
    rng = np.random.default_rng(seed)
    for parameter in model.parameters():
        if parameter.data.ndim == 1:
            parameter.data += (0.1 * rng.standard_normal(parameter.shape)).astype(parameter.dtype)
    return model


def module(model: nn.Module, path: str) -> Any:
    """Return the module at a path."""
    for name in path.split("."):
        model = getattr(model, name)
    return model


def batch(seed: int = 0) -> Tensor:
    """Return token ids."""
    return Tensor(np.random.default_rng(100 + seed).integers(0, VOCABULARY, (BATCH, LENGTH)))


def loss_of(logits: Tensor, ids: Tensor) -> Tensor:
    """Return the cross entropy with the next token."""
    return cross_entropy(logits[:, :-1], Tensor(ids.data[:, 1:]))


Step = Callable[[nn.Module, nn.Optimizer, int], Any]


def plain_step(model: nn.Module, optimizer: nn.Optimizer, step: int) -> Tensor:
    """Make one training step as anybody would."""
    loss = loss_of(model(batch(step)), batch(step))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def record(
    path: Path,
    model: nn.Module | None = None,
    *,
    steps: int = 1,
    step: Step = plain_step,
    optimizer: nn.Optimizer | None = None,
    **options: Any,
) -> Path:
    """Train a model, by default the clean one, while it is recorded."""
    model = gpt() if model is None else model
    optimizer = optimizer or nn.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path, **options):
        for number in range(steps):
            probe.step(loss=step(model, optimizer, number))
    return path


def evaluate(model: nn.Module, optimizer: nn.Optimizer, step: int) -> float:
    """Run a forward without gradients."""
    with no_grad():
        return float(loss_of(model(batch(step)), batch(step)).data)


def replaced(model: nn.Module, path: str, **methods: Callable[..., Any]) -> Any:
    """Give one module of a model other methods, under the same class name; return it."""
    found = module(model, path)
    found.__class__ = type(type(found).__name__, (type(found),), methods)
    return found


def scaled_gradient(x: Tensor, factor: float) -> Tensor:
    """Return x as it is; its gradient is multiplied."""
    return operation(x.data, (x, lambda g: g * np.asarray(factor, g.dtype)))
