"""Frozen multi-query transformer with low-rank adapters."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, next_token_loss


class Adapted(nn.Module):
    """A frozen linear layer with a low-rank correction."""

    def __init__(self, size: int, out: int, rank: int = 3, alpha: float = 6.0):
        super().__init__()
        self.base = nn.Linear(size, out).requires_grad_(False)
        self.down, self.up = nn.Linear(size, rank, bias=False), nn.Linear(rank, out, bias=False)
        self.scale = alpha / rank

    def forward(self, x):
        return self.base(x) + self.scale * self.up(self.down(x))


class LoraBlock(nn.Module):
    """Post-norm attention block (multi-query) with adapters on queries and values."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.value = Adapted(size, size), Adapted(size, size // heads)
        self.key, self.out = (
            nn.Linear(size, size // heads).requires_grad_(False),
            nn.Linear(size, size).requires_grad_(False),
        )
        self.norm1, self.norm2 = nn.LayerNorm(size), nn.LayerNorm(size)
        self.ff = nn.Sequential(nn.Linear(size, 2 * size), nn.Mish(), nn.Linear(2 * size, size)).requires_grad_(False)

    def forward(self, x):
        q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = self.key(x)[:, None], self.value(x)[:, None]
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, torch.finfo(scores.dtype).min).softmax(-1) @ v
        x = self.norm1(x + self.out(mixed.transpose(1, 2).flatten(2)))
        return self.norm2(x + self.ff(x))


class Lora(nn.Module):
    """A frozen language model with adapters."""

    def __init__(self, words: int = 36, size: int = 32):
        super().__init__()
        self.words, self.places = nn.Embedding(words, size), nn.Embedding(16, size)
        self.blocks = nn.ModuleList(LoraBlock(size, 4) for _ in range(2))
        self.head = nn.Linear(size, words, bias=False)
        for part in (self.words, self.places, self.head):
            part.requires_grad_(False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def lora() -> Training:
    def make(g):
        seen = ids(g, 4, 12, below=36)
        return {"tokens": seen, "labels": seen}

    return Training(lively(Lora()), give("tokens"), next_token_loss, batches(make, "lora"))


def _places_from_one(self, tokens):
    x = self.words(tokens) + self.places(torch.arange(tokens.shape[1]) + 1)
    for block in self.blocks:
        x = block(x)
    return self.head(x)


def _base_trained(training: Training) -> None:
    training.at("blocks.1.query.base").requires_grad_(True)


LORA = Model(
    "lora-multi-query",
    lora,
    "frozen multi-query transformer with low-rank adapters",
    (
        Fault(
            "scale",
            "scale",
            P.setting("blocks.0.query", scale=6.0),
            "blocks.0.query",
            ("forward",),
            "alpha for alpha / rank",
        ),
        Fault(
            "adapter-of-frozen",
            "detach",
            P.rewritten("blocks.1.value", lambda self, x: self.base(x) + self.scale * self.up(self.down(x).detach())),
            "blocks.1.value",
            ("backward", "gradient"),
            "the inner product is detached: `down` does not learn",
            also=("blocks.1.value.down", "blocks.1.value.*"),
        ),
        Fault(
            "base-trained",
            "not-frozen",
            _base_trained,
            "blocks.1.query.base",
            ("gradient", "update", "backward", "init"),
            "one base layer is trained",
            also=("blocks.1.query",),
        ),
        Fault(
            "places-from-one",
            "off-by-one",
            P.rewritten("", _places_from_one),
            "",
            ("forward",),
            "positions begin at 1",
            also=("places",),
        ),
        Fault(
            "mish",
            "activation",
            P.rewritten("blocks.0.ff.1", lambda self, x: F.silu(x)),
            "blocks.0.ff.1",
            ("forward",),
            "SiLU for Mish",
            also=("blocks.0.ff",),
            dtype="bfloat16",
        ),
        Fault(
            "norm-decays",
            "decay",
            P.decaying(lambda n, p: p.dim() >= 2),
            "",
            ("update",),
            "norms don't decay",
            also=("blocks.*.norm*",),
        ),
        Fault(
            "up-not-zero",
            "init",
            P.values("blocks.1.query.up", "weight", lambda w: w.flip(1)),
            "blocks.1.query.up",
            ("init",),
            "the ranks of one factor are reversed",
            also=("blocks.1.query",),
            dtype="autocast",
        ),
    ),
    (
        Clean(
            "merged",
            "the adapter multiplied into the weight",
            P.rewritten(
                "blocks.0.query",
                lambda self, x: F.linear(
                    x, self.base.weight + self.scale * self.up.weight @ self.down.weight, self.base.bias
                ),
            ),
        ),
        Clean(
            "sdpa",
            "attention by the fused function",
            P.rewritten("blocks.1", lambda self, x: _sdpa(self, x)),
            dtype="bfloat16",
        ),
        Clean(
            "norms-in-own-group",
            "a group of its own, with the same options, for the norms",
            P.optimizer(lambda m: _same_groups(m)),
            steps=2,
        ),
    ),
)


def _same_groups(model):
    norms = [p for n, p in model.named_parameters() if p.requires_grad and "norm" in n]
    rest = [p for n, p in model.named_parameters() if p.requires_grad and "norm" not in n]
    return torch.optim.AdamW([{"params": rest}, {"params": norms}], lr=1e-3, weight_decay=0.05)


def _sdpa(self, x):
    q = self.query(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
    k, v = self.key(x)[:, None].expand(-1, self.heads, -1, -1), self.value(x)[:, None].expand(-1, self.heads, -1, -1)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = self.norm1(x + self.out(mixed.transpose(1, 2).flatten(2)))
    return self.norm2(x + self.ff(x))
