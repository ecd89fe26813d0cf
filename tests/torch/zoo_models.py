"""The models of ``zoo.py``: small, and each with something that hooks can trip over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


def batch(index: int, *shape: int) -> Tensor:
    """The index-th batch: the same in every run, and nothing drawn from the global generators."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(index))


def tokens(index: int, *shape: int, words: int = 16) -> Tensor:
    return torch.randint(words, shape, generator=torch.Generator().manual_seed(index))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))


class InPlaceCNN(nn.Module):
    """In-place everywhere: ReLU after BatchNorm, ReLU of a view, addition to a module's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4))
        self.drop = nn.Dropout(0.1, inplace=True)
        self.head = nn.Sequential(nn.Flatten(), nn.Hardtanh(inplace=True), nn.Linear(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y = self.drop(self.second(h))
        y += h
        return self.head(F.avg_pool2d(F.leaky_relu_(y, 0.1), 2) * 2)


class SharedLayer(nn.Module):
    """One layer under two names, called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.again = self.layer
        self.out = nn.ModuleList([self.layer, nn.Linear(6, 2)])

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.layer(x))
        for layer in (self.again, *self.out):
            x = layer(x) + x.mean()
        return x


class Reshape(nn.Module):
    """Returns views of its input: what comes after may write to them."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        halves = x.view(x.shape[0], 2, -1)
        return halves[:, 0], halves[:, 1].transpose(0, 1)


class Views(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.reshape, self.relu = nn.Linear(6, 8), Reshape(), nn.ReLU(inplace=True)
        self.flat, self.outer = nn.Flatten(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.inner(x)
        left, right = self.reshape(h)
        h[:, 0].mul_(0.5)
        right.add_(1)
        left = self.relu(left)
        right = right.expand(2, *right.shape)[0].t()
        flat = self.relu(self.flat((left * 1.5).view(-1, 2, 2)))
        return self.outer(flat) + self.outer(right).narrow(0, 0, left.shape[0])


@dataclass
class Pieces:
    first: Tensor
    second: Tensor | None
    label: str


class ManyOutputs(nn.Module):
    """Returns what it is told to: a dict, a dataclass, a tuple with None, nothing at all."""

    class Piece(nn.Module):
        def __init__(self, kind: str) -> None:
            super().__init__()
            self.kind, self.layer = kind, nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Any:
            y = self.layer(x)
            match self.kind:
                case "dict":
                    return {"a/b": y, "nested": [{"c.d": y * 2}, 3], 5: None}
                case "dataclass":
                    return Pieces(y, None, "text")
                case "tuple":
                    return y, None, (y.detach(), "text", 1.5)
                case _:
                    self.kept = y

    def __init__(self) -> None:
        super().__init__()
        self.pieces = nn.ModuleDict({kind: self.Piece(kind) for kind in ("dict", "dataclass", "tuple", "none")})

    def forward(self, x: Tensor) -> dict[str, Any]:
        found = self.pieces["dict"](x)
        x = found["a/b"] + found["nested"][0]["c.d"]
        x = self.pieces["dataclass"](x).first.tanh()
        x, _, (constant, *_) = self.pieces["tuple"](x)
        self.pieces["none"](x + constant)
        return {"out": self.pieces["none"].__dict__.pop("kept"), "nothing": None}


class KeywordOnly(nn.Module):
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, *, states: Tensor, mask: Tensor | None = None, scale: float = 1.0) -> Tensor:
            states = self.layer(states) * scale
            return states if mask is None else states.masked_fill(mask, 0.0)

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self.Inner(), self.Inner()

    def forward(self, *, inputs: dict[str, Tensor]) -> Tensor:
        return self.second(states=self.first(states=inputs["x"], mask=inputs["mask"]), scale=2.0)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(4, 5, num_layers=2, dropout=0.2, bidirectional=True)
        self.cell, self.head = nn.LSTMCell(10, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, [5, 3, 2])
        out, _ = self.rnn(packed)
        padded, _ = nn.utils.rnn.pad_packed_sequence(out)
        state = None
        for at in padded:
            state = self.cell(at, state)
        return self.head(state[0])


class Attention(nn.Module):
    """query is key is value, and a second call where they are not."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.norm = nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        out, weights = self.attention(x, key=x * 2, value=x)
        return out * weights.mean()


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros(x.shape[:2], dtype=torch.bool)
        mask[0, -1] = not torch.is_grad_enabled()
        return self.encoder(x, src_key_padding_mask=mask)


class Checkpointed(nn.Module):
    """Three blocks, recomputed in backward; the middle one inside another checkpoint."""

    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.embed, self.head = nn.Linear(6, 6), nn.Linear(6, 2)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.2), nn.Tanh()) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=self.reentrant)
        pair = checkpoint(lambda y: (self.blocks[0](y), self.blocks[1](y)), x, use_reentrant=self.reentrant)
        return self.head(pair[0] * pair[1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(16, 6), nn.Linear(6, 6)
        self.head = nn.Linear(6, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, words: Tensor) -> Tensor:
        return F.cross_entropy(self.head(self.body(self.embed(words))).flatten(0, 1), words.flatten())


class SometimesRaises(nn.Module):
    """Its inner module raises on every third call, before or after its layer ran."""

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(6, 6), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls % 3 == 1:
                raise ValueError("planted, before")
            x = self.layer(x)
            if self.calls % 3 == 2:
                raise ValueError("planted, after")
            return x

    def __init__(self) -> None:
        super().__init__()
        self.before, self.inner = nn.Linear(6, 6), self.Inner()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.before(x))


class ManyOrNever(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.often, self.never = nn.Linear(6, 6), nn.Linear(6, 6)
        self.unused, self.seldom = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: Tensor, index: int) -> Tensor:
        for _ in range(1 + 5 * index):
            x = torch.tanh(self.often(x))
        self.unused(x)
        return self.seldom(x) if index % 3 == 0 else x


class OwnParameter(nn.Module):
    """Returns its parameter and its buffer themselves; a frozen layer; a gradient made by hand."""

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(6))
            self.register_buffer("offset", torch.randn(6))

        def forward(self) -> tuple[Tensor, Tensor]:
            return self.weight, self.offset

    class Scale(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
            return x * 2, x.detach().clone()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor, other: Tensor | None) -> Tensor:
            return gradient * 2.5

    def __init__(self) -> None:
        super().__init__()
        self.table, self.frozen, self.layer = (self.Table(), nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        weight, offset = self.table()
        return self.layer(self.Scale.apply(self.frozen(x * weight + offset))[0])


class Penalised(nn.Sequential):
    """Keeps its input, one leaf for the whole training."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.x = batch(0, 4, 6).requires_grad_()


def qwen2(attention: str) -> nn.Module:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        attention_dropout=0.1,
        attn_implementation=attention,
    )
    return Qwen2ForCausalLM(config).train()
