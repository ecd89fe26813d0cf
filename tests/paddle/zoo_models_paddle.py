"""The models of ``zoo_paddle.py``: small, and each with something that hooks can trip over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import paddle
from paddle import Tensor, nn
from paddle.distributed.fleet.utils import recompute
from paddle.nn import functional as F


def batch(index: int, *shape: int) -> Tensor:
    """The index-th batch: the same in every run, and nothing drawn from the global generators."""
    return paddle.to_tensor(np.random.default_rng(index).standard_normal(shape).astype(np.float32))


def tokens(index: int, *shape: int, words: int = 16) -> Tensor:
    return paddle.to_tensor(np.random.default_rng(index).integers(0, words, shape))


def mlp() -> nn.Layer:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.2), nn.Linear(8, 3))


class ReluInPlace(nn.Layer):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu_(x)


class InPlaceCNN(nn.Layer):
    """In-place everywhere: ReLU after BatchNorm, ReLU of a view, addition to a layer's output."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2D(2, 4, 3, padding=1), nn.BatchNorm2D(4), ReluInPlace())
        self.second = nn.Sequential(nn.Conv2D(4, 4, 3, padding=1), nn.BatchNorm2D(4))
        self.head = nn.Sequential(nn.Flatten(), ReluInPlace(), nn.Linear(64, 3))

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        y = self.second(h)
        y.add_(h)
        return self.head(F.avg_pool2d(F.leaky_relu_(y, 0.1), 2) * 2)


class SharedLayer(nn.Layer):
    """One layer under two names, called three times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.again = self.layer
        self.out = nn.LayerList([self.layer, nn.Linear(6, 2)])

    def forward(self, x: Tensor) -> Tensor:
        x = paddle.tanh(self.layer(x))
        for layer in (self.again, *self.out):
            x = layer(x) + x.mean()
        return x


class Halves(nn.Layer):
    """Returns views of its input: what comes after may write to them."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        halves = x.reshape([x.shape[0], 2, -1])
        return halves[:, 0], halves[:, 1].transpose([1, 0])


class Views(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.halves, self.relu = nn.Linear(6, 8), Halves(), ReluInPlace()
        self.flat, self.outer = nn.Flatten(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.halves(self.inner(x))
        right.add_(paddle.ones_like(right))
        left = self.relu(left)
        flat = self.relu(self.flat((left * 1.5).reshape([-1, 2, 2])))
        return self.outer(flat) + self.outer(right.t())


@dataclass
class Pieces:
    first: Tensor
    second: Tensor | None
    label: str


class Piece(nn.Layer):
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
                return None


class ManyOutputs(nn.Layer):
    """Returns what it is told to: a dict, a dataclass, a tuple with None, nothing at all."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces = nn.LayerDict({kind: Piece(kind) for kind in ("dict", "dataclass", "tuple", "none")})

    def forward(self, x: Tensor) -> dict[str, Any]:
        found = self.pieces["dict"](x)
        x = found["a/b"] + found["nested"][0]["c.d"]
        x = self.pieces["dataclass"](x).first.tanh()
        x, _, (constant, *_) = self.pieces["tuple"](x)
        self.pieces["none"](x)
        return {"out": x * constant, "none": None}


class Joined(nn.Layer):
    """Its first operation takes a list of tensors: a hook on such a node would end the process."""

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return paddle.concat([x, y, x], axis=1)


class Stacked(nn.Layer):
    def forward(self, x: Tensor) -> Tensor:
        return paddle.stack([x, x * 2]).sum(0) + paddle.add_n([x, x])


class Concatenated(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.joined, self.stacked = nn.Linear(6, 4), Joined(), Stacked()
        self.outer = nn.Linear(12, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.inner(x)
        return self.outer(self.joined(self.stacked(x), x))


class Recurrent(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTM(4, 6, num_layers=2, direction="bidirect"), nn.GRU(12, 5)
        self.head = nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        x, (h, c) = self.lstm(x)
        return self.head(self.gru(x)[0]) + (h.mean() + c.mean())


class Attention(nn.Layer):
    """Query, key and value are one object."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm = nn.MultiHeadAttention(8, 2), nn.LayerNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.attention(x, x, x))


def encoder() -> nn.Layer:
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1), 2)


class Recomputed(nn.Layer):
    def __init__(self, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.first = nn.Linear(6, 8)
        self.blocks = nn.LayerList([nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Tanh()) for _ in range(2)])
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = recompute(block, x, use_reentrant=self.reentrant)
        return self.last(x)


class Tied(nn.Layer):
    """The embedding's weights are those of the output."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.mix = nn.Embedding(16, 6), nn.Linear(6, 6)

    def forward(self, ids: Tensor) -> Tensor:
        logits = self.mix(self.embed(ids)) @ self.embed.weight.t()
        return F.cross_entropy(logits.reshape([-1, 16]), ids.reshape([-1]))


class Doubling(paddle.autograd.PyLayer):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 2


class Doubles(nn.Layer):
    def forward(self, x: Tensor) -> Tensor:
        return Doubling.apply(x)


class WithPyLayer(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.doubles, self.outer = nn.Linear(6, 4), Doubles(), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.doubles(self.inner(x)))


class SometimesRaises(nn.Layer):
    class Picky(nn.Layer):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.calls = nn.Linear(4, 4), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            x = self.layer(x)
            if self.calls % 3 == 0:
                raise ValueError("planted")
            return x

    def __init__(self) -> None:
        super().__init__()
        self.before, self.picky = nn.Linear(6, 4), self.Picky()

    def forward(self, x: Tensor) -> Tensor:
        return self.picky(self.before(x))


def with_compiled_part() -> nn.Layer:
    part = paddle.jit.to_static(nn.Sequential(nn.Linear(6, 4), nn.Tanh()), full_graph=True)
    return nn.Sequential(part, nn.Linear(4, 2))
