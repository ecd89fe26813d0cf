"""Retentive network, tied embeddings."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, next_token_loss


class Retention(nn.Module):
    """Multi-scale retention in its parallel form, with xPos-free rotation and group norm."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.qkv, self.gate, self.out = (
            nn.Linear(size, 3 * size, bias=False),
            nn.Linear(size, size),
            nn.Linear(size, size, bias=False),
        )
        self.norm = nn.GroupNorm(heads, size)
        self.register_buffer("decay", torch.log(1 - 2.0 ** (-2 - torch.arange(heads))))

    def turn(self, x):
        half = x.shape[-1] // 2
        angle = torch.arange(x.shape[2])[:, None] * 10000 ** (-torch.arange(half) / half)
        cos, sin = angle.cos().to(x), angle.sin().to(x)
        a, b = x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    def weights(self, length, like):
        away = torch.arange(length)[:, None] - torch.arange(length)
        return torch.where(away >= 0, torch.exp(self.decay[:, None, None].float() * away), 0.0).to(like)

    def forward(self, x):
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        scores = self.turn(q) @ self.turn(k).transpose(-1, -2) * q.shape[-1] ** -0.5
        kept = (scores * self.weights(x.shape[1], x)) @ v
        kept = kept.transpose(1, 2).flatten(2)
        kept = self.norm(kept.flatten(0, 1)).view_as(x)
        return self.out(F.silu(self.gate(x)) * kept)


class RetentionBlock(nn.Module):
    """Retention and a feed-forward, pre-norm."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.norm1, self.retention = nn.RMSNorm(size, eps=1e-6), Retention(size, heads)
        self.norm2, self.ff = (
            nn.RMSNorm(size, eps=1e-6),
            nn.Sequential(nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size)),
        )

    def forward(self, x):
        x = x + self.retention(self.norm1(x))
        return x + self.ff(self.norm2(x))


class Retentive(nn.Module):
    """A language model of retention blocks with tied embeddings."""

    def __init__(self, words: int = 40, size: int = 32, heads: int = 4):
        super().__init__()
        self.words = nn.Embedding(words, size)
        self.blocks = nn.ModuleList(RetentionBlock(size, heads) for _ in range(3))
        self.norm, self.head = nn.RMSNorm(size, eps=1e-6), nn.Linear(size, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) * math.sqrt(self.words.embedding_dim)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tokens(name: str, words: int, *shape: int):
    def make(g):
        seen = ids(g, *shape, below=words)
        return {"tokens": seen, "labels": seen}

    return batches(make, name)


def retentive() -> Training:
    return Training(lively(Retentive()), give("tokens"), next_token_loss, tokens("retnet", 40, 4, 14))


def _turn_only_query(self, x):
    q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
    scores = self.turn(q) @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    kept = ((scores * self.weights(x.shape[1], x)) @ v).transpose(1, 2).flatten(2)
    return self.out(F.silu(self.gate(x)) * self.norm(kept.flatten(0, 1)).view_as(x))


def _not_causal(self, length, like):
    away = (torch.arange(length)[:, None] - torch.arange(length)).abs()
    return torch.exp(self.decay[:, None, None].float() * away).to(like)


def _untied(training: Training) -> None:
    training.model.head.weight = nn.Parameter(training.model.words.weight.detach().clone())


RETENTIVE = Model(
    "retention-lm",
    retentive,
    "retentive network, tied embeddings",
    (
        Fault(
            "key-not-turned",
            "rotary",
            P.rewritten("blocks.1.retention", _turn_only_query),
            "blocks.1.retention",
            ("forward",),
            "only queries are rotated",
        ),
        Fault(
            "not-causal",
            "mask",
            P.method("blocks.0.retention", "weights", _not_causal),
            "blocks.0.retention",
            ("forward",),
            "the decay has no causal mask",
            dtype="bfloat16",
        ),
        Fault(
            "decay",
            "buffer",
            P.values("blocks.2.retention", "decay", lambda d: torch.log(1 - 2.0 ** (-3 - torch.arange(4)))),
            "blocks.2.retention",
            ("init",),
            "decays begin at 1 - 2^-3",
        ),
        Fault(
            "untied",
            "tied",
            _untied,
            "",
            ("gradient", "init", "backward", "update"),
            "the head's weight is a copy",
            also=("words", "head"),
        ),
        Fault(
            "embedding-scale",
            "scale",
            P.rewritten("", lambda self, t: _plain_scale(self, t)),
            "",
            ("forward",),
            "the embeddings are scaled by the number of heads' root",
            dtype="autocast",
        ),
        Fault(
            "rms-eps",
            "eps",
            P.setting("blocks.1.norm2", eps=1e-5),
            "blocks.1.norm2",
            ("forward",),
            "RMS norm eps 1e-5 for 1e-6",
        ),
        Fault(
            "nan",
            "nan",
            P.around("blocks.2.ff.1", lambda f, x: f(x) + torch.where(x == x.max(), torch.nan, 0.0)),
            "blocks.2.ff.1",
            ("forward",),
            "a NaN appears in an activation",
            also=("blocks.2.ff",),
        ),
    ),
    (
        Clean(
            "recurrent-form",
            "retention as a recurrence",
            P.rewritten("blocks.1.retention", lambda self, x: _recurrent(self, x)),
        ),
        Clean(
            "qkv-in-three",
            "the packed projection as three products",
            P.rewritten(
                "blocks.0.retention.qkv", lambda self, x: torch.cat([F.linear(x, w) for w in self.weight.chunk(3)], -1)
            ),
            dtype="bfloat16",
        ),
        Clean("micro-batches", "two micro-batches for one batch", P.in_two, steps=2),
    ),
)


def _plain_scale(self, tokens):
    x = self.words(tokens) * 2.0
    for block in self.blocks:
        x = block(x)
    return self.head(self.norm(x))


def _recurrent(self, x):
    q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
    q, k, state, kept = self.turn(q), self.turn(k), 0.0, []
    for time in range(x.shape[1]):
        state = self.decay.exp()[:, None, None] * state + k[:, :, time, :, None] * v[:, :, time, None]
        kept.append((q[:, :, time, None] @ state)[:, :, 0])
    kept = (torch.stack(kept, 1) * q.shape[-1] ** -0.5).flatten(2)
    return self.out(F.silu(self.gate(x)) * self.norm(kept.flatten(0, 1)).view_as(x))
