"""Small models of the numpy framework that really train, with faults to plant in them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import probe
from tests.toy import nn
from tests.toy.tensor import Tensor, cross_entropy, no_grad, operation, softmax

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


# The same model in another way


def _wide_linear(self: Any, x: Tensor) -> Tensor:
    """Add up in float64, from the other end: the same but for rounding."""
    w = self.weight.data.astype(np.float64)
    y = operation(
        (x.data.astype(np.float64)[..., ::-1] @ w.T[::-1]).astype(np.float32),
        (x, lambda g: (g.astype(np.float64) @ w).astype(np.float32)),
        (self.weight, lambda g: (_rows(g).T.astype(np.float64) @ _rows(x.data)).astype(np.float32)),
    )
    return y + self.bias if hasattr(self, "bias") else y


def _rows(array: np.ndarray) -> np.ndarray:
    return array.reshape(-1, array.shape[-1])


def rounding_otherwise(model: nn.Module) -> nn.Module:
    """Let every Linear of a model round in another way."""
    for path, found in list(model.modules()):
        if type(found) is nn.Linear:
            replaced(model, path, forward=_wide_linear)
    return model


def stored_in_out(model: nn.Module) -> nn.Module:
    """Store the weights of every Linear as [in, out], under the same class name."""
    for _, found in list(model.modules()):
        if type(found) is nn.Linear:
            found.__class__ = type("Linear", (nn.LinearInOut,), {})
            found.weight = nn.Parameter(np.ascontiguousarray(found.weight.data.T))
    return model


class SequenceFirst(nn.Module):
    """The same model as GPT with other names, another nesting, and activations as [sequence, batch, width]."""

    def __init__(self, model: GPT) -> None:
        layers = nn.ModuleList(*(_LayerSBH(layer) for layer in model.layers))
        super().__init__(embedding=nn.Module(words=model.embed), decoder=nn.Module(layers=layers, final=model.norm),
                         output=model.head)  # fmt: skip

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding.words(ids).swapaxes(0, 1)
        for layer in self.decoder.layers:
            x = layer(x)
        return self.output(self.decoder.final(x)).swapaxes(0, 1)


class _LayerSBH(nn.Module):
    def __init__(self, block: Block) -> None:
        super().__init__(
            before=block.norm1, self_attention=_AttentionSBH(block.attn), between=block.norm2, mlp=block.mlp
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attention(self.before(x))
        return x + self.mlp(self.between(x))


class _AttentionSBH(nn.Module):
    def __init__(self, attention: nn.Attention) -> None:
        super().__init__(query=attention.q, key=attention.k, value=attention.v, proj=attention.o, heads=attention.heads)

    def forward(self, x: Tensor) -> Tensor:
        length, count, width = x.shape
        q, k, v = (
            layer(x).swapaxes(0, 1).reshape(count, length, self.heads, -1).swapaxes(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        scores = q @ k.swapaxes(-1, -2) * (width / self.heads) ** -0.5
        mixed = softmax(scores + np.triu(np.full((length, length), -np.inf), 1)) @ v
        return self.proj(mixed.swapaxes(1, 2).reshape(count, length, width).swapaxes(0, 1))


TO_SEQUENCE_FIRST = {
    "GPT": {"embed": "embedding.words", "layers": "decoder.layers", "norm": "decoder.final", "head": "output"},
    "Block": {"norm1": "before", "attn": "self_attention", "norm2": "between"},
    "Attention": {"q": "query", "k": "key", "v": "value", "o": "proj"},
}
