"""Induced set attention, Adagrad."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal


class SetAttention(nn.Module):
    """Multihead attention block of a set transformer."""

    def __init__(self, size: int, heads: int = 4):
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(size, size) for _ in range(4))
        self.norm0, self.norm1, self.heads = nn.LayerNorm(size), nn.LayerNorm(size), heads

    def forward(self, x, y):
        q, k, v = self.query(x), self.key(y), self.value(y)
        a, b, c = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
        mixed = ((a @ b.transpose(-1, -2)) / math.sqrt(q.shape[-1])).softmax(-1) @ c
        o = self.norm0(q + mixed.transpose(1, 2).flatten(2))
        return self.norm1(o + F.relu(self.out(o)))


class Induced(nn.Module):
    """Attention through learned inducing points."""

    def __init__(self, size: int, points: int):
        super().__init__()
        self.points = nn.Parameter(torch.randn(1, points, size))
        self.gather, self.spread = SetAttention(size), SetAttention(size)

    def forward(self, x):
        return self.spread(x, self.gather(self.points.expand(len(x), -1, -1), x))


class SetTransformer(nn.Module):
    """Induced blocks, pooling by attention with seeds, a head."""

    def __init__(self, size: int = 24, seeds: int = 2):
        super().__init__()
        self.into = nn.Linear(2, size)
        self.encode = nn.ModuleList(Induced(size, 4) for _ in range(2))
        self.seeds, self.pool = nn.Parameter(torch.randn(1, seeds, size)), SetAttention(size)
        self.head = nn.Linear(seeds * size, 6)

    def forward(self, x):
        x = self.into(x)
        for block in self.encode:
            x = block(x)
        return self.head(self.pool(self.seeds.expand(len(x), -1, -1), x).flatten(1))


def set_transformer() -> Training:
    data = batches(lambda g: {"x": normal(g, 8, 11, 2), "labels": ids(g, 8, below=6)}, "sets")
    return Training(
        lively(SetTransformer()),
        give("x"),
        lambda o, b: F.cross_entropy(o.float(), b["labels"]),
        data,
        optimize=lambda m: torch.optim.Adagrad(m.parameters(), lr=5e-3),
    )


def _head_scale(self, x, y):
    q, k, v = self.query(x), self.key(y), self.value(y)
    a, b, c = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
    mixed = ((a @ b.transpose(-1, -2)) / math.sqrt(a.shape[-1])).softmax(-1) @ c
    o = self.norm0(q + mixed.transpose(1, 2).flatten(2))
    return self.norm1(o + F.relu(self.out(o)))


def _residual_of_input(self, x, y):
    q, k, v = self.query(x), self.key(y), self.value(y)
    a, b, c = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
    mixed = ((a @ b.transpose(-1, -2)) / math.sqrt(q.shape[-1])).softmax(-1) @ c
    o = self.norm0(x + mixed.transpose(1, 2).flatten(2))
    return self.norm1(o + F.relu(self.out(o)))


def _not_transposed(self, x, y):
    q, k, v = self.query(x), self.key(y), self.value(y)
    a, b, c = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
    mixed = ((a @ b.transpose(-1, -2)) / math.sqrt(q.shape[-1])).softmax(-1) @ c
    o = self.norm0(q + mixed.reshape(q.shape))
    return self.norm1(o + F.relu(self.out(o)))


SETS = Model(
    "set-transformer",
    set_transformer,
    "induced set attention, Adagrad",
    (
        Fault(
            "scale-of-head",
            "scale",
            P.rewritten("encode.0.gather", _head_scale),
            "encode.0.gather",
            ("forward",),
            "scaled by the head's size, not the model's",
            also=("encode.0",),
        ),
        Fault(
            "residual-of-input",
            "residual",
            P.rewritten("encode.1.spread", _residual_of_input),
            "encode.1.spread",
            ("forward",),
            "the residual is the input, not the query",
            dtype="bfloat16",
        ),
        Fault(
            "heads-not-joined",
            "heads",
            P.rewritten("pool", _not_transposed),
            "pool",
            ("forward",),
            "heads are joined without a transpose",
            dtype="autocast",
        ),
        Fault(
            "norm-in-half",
            "dtype-of-operation",
            P.rewritten(
                "encode.1.gather.norm0",
                lambda self, x: F.layer_norm(
                    x.bfloat16(), self.normalized_shape, self.weight.bfloat16(), self.bias.bfloat16(), self.eps
                ).float(),
            ),
            "encode.1.gather.norm0",
            ("forward",),
            "a norm is computed in bfloat16",
        ),
        Fault("adagrad-eps", "adam-eps", P.groups(eps=1e-6), "", ("update",), "Adagrad's eps 1e-6 for 1e-10"),
        Fault(
            "seeds-detached",
            "detach",
            P.rewritten("", lambda self, x: _seeds_detached(self, x)),
            "",
            ("gradient", "backward"),
            "the pooling seeds get no gradient",
            also=("pool", "pool.query"),
        ),
    ),
    (
        Clean(
            "sdpa",
            "attention by the fused function",
            P.rewritten("encode.0.spread", lambda self, x, y: _sdpa(self, x, y)),
        ),
        Clean(
            "sdpa-bfloat16",
            "attention by the fused function, bfloat16",
            P.rewritten("encode.0.spread", lambda self, x, y: _sdpa(self, x, y)),
            dtype="bfloat16",
        ),
        Clean(
            "adagrad-loop",
            "Adagrad without foreach",
            P.optimizer(lambda m: torch.optim.Adagrad(m.parameters(), lr=5e-3, foreach=False)),
            steps=2,
        ),
    ),
)


def _seeds_detached(self, x):
    x = self.into(x)
    for block in self.encode:
        x = block(x)
    return self.head(self.pool(self.seeds.detach().expand(len(x), -1, -1), x).flatten(1))


def _sdpa(self, x, y):
    q, k, v = self.query(x), self.key(y), self.value(y)
    a, b, c = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in (q, k, v))
    mixed = F.scaled_dot_product_attention(a, b, c, scale=q.shape[-1] ** -0.5)
    o = self.norm0(q + mixed.transpose(1, 2).flatten(2))
    return self.norm1(o + F.relu(self.out(o)))
