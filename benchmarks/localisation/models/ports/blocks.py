"""What several ports are built from: sizes, rotary angles, norms and attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.pairs.pair import Setup

Angles = tuple[Tensor, Tensor]
"""cosines and sines, by position and place in the head"""

THETA = 1e5


@dataclass(frozen=True)
class Sizes:
    """How large a port is; six heads, of which three share keys and values."""

    width: int
    inner: int
    layers: int
    vocabulary: int = 96
    heads: int = 6
    shared: int = 2

    @property
    def head(self) -> int:
        """The width of a head."""
        return self.width // self.heads


def sizes_of(setup: Setup, layers: int) -> Sizes:
    """Return the sizes of a setup, with so many layers where it does not say how many."""
    return Sizes(48 * setup.width, 80 * setup.width, setup.layers or layers)


class Rotary(nn.Module):
    """The angles of the first positions: cosines and sines, (length, width of a head)."""

    def __init__(self, width: int, theta: float) -> None:
        super().__init__()
        self.width, self.theta, self.first = width, theta, 0

    def forward(self, length: int) -> Angles:
        positions = torch.arange(self.first, self.first + length).float()
        angles = torch.outer(positions, self.theta ** (-torch.arange(0, self.width, 2) / self.width))
        angles = torch.cat([angles, angles], -1)
        return angles.cos(), angles.sin()


def rotate(x: Tensor, angles: Angles) -> Tensor:
    """Turn the halves of each head."""
    cos, sin = (each.to(x.dtype) for each in angles)
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


class RMSNorm(nn.Module):
    """PyTorch's own function; ``offset`` is added to the weight, as Gemma has it."""

    def __init__(self, width: int, eps: float = 1e-6, offset: float = 0.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps, self.offset = eps, offset

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight.float() + self.offset
        return F.rms_norm(x.float(), weight.shape, weight, self.eps).to(x.dtype)


class CoreAttention(nn.Module):
    """Attention between projections, sequence first: (length, samples, heads, width) in, (length, samples, all) out."""

    def __init__(self, scale: float, causal: bool = True, cap: float = 0.0, window: int = 0) -> None:
        super().__init__()
        self.scale, self.causal, self.cap, self.window = scale, causal, cap, window
        self.ahead, self.in_turn, self.dtype = 0, False, torch.float32
        self.attention_dropout = nn.Dropout(0.0)

    def forward(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None = None) -> Tensor:
        groups = query.shape[2] // key.shape[2]
        if self.in_turn:
            key, value = (each.repeat(1, 1, groups, 1) for each in (key, value))
        else:
            key, value = (each.repeat_interleave(groups, 2) for each in (key, value))
        scores = torch.einsum("qbhd,kbhd->bhqk", query, key) * self.scale
        if self.cap:
            scores = torch.tanh(scores / self.cap) * self.cap
        hides = self.hidden(len(query), len(key))
        hides = hides if hidden is None else hides | hidden
        scores = scores.masked_fill(hides, torch.finfo(scores.dtype).min)
        weights = F.softmax(scores, -1, dtype=self.dtype).to(value.dtype)
        return torch.einsum("bhqk,kbhd->qbhd", self.attention_dropout(weights), value).flatten(2)

    def hidden(self, queries: int, keys: int) -> Tensor:
        """Tell which keys a query must not see."""
        apart = torch.arange(queries)[:, None] - torch.arange(keys)
        hides = apart < -self.ahead if self.causal else torch.zeros_like(apart, dtype=torch.bool)
        return hides | (apart >= self.window) if self.window else hides


class PackedAttention(nn.Module):
    """Attention with one matrix for queries, keys and values, one after the other; softmax in its own code."""

    def __init__(self, sizes: Sizes, scale: float, cap: float = 0.0, window: int = 0) -> None:
        super().__init__()
        self.parts, self.width = [sizes.heads, sizes.shared, sizes.shared], 8
        self.qkv_proj = nn.Linear(sizes.width, sum(self.parts) * 8, bias=False)
        self.core = CoreAttention(scale, cap=cap, window=window)
        self.o_proj = nn.Linear(sizes.heads * 8, sizes.width, bias=False)

    def forward(self, x: Tensor, angles: Angles) -> Tensor:
        mixed = self.qkv_proj(x).unflatten(-1, (-1, 8)).transpose(0, 1)
        query, key, value = mixed.split(self.parts, 2)
        return self.o_proj(self.core(rotate(query, angles), rotate(key, angles), value).transpose(0, 1))


def attend(query: Tensor, key: Tensor, value: Tensor, **options: object) -> Tensor:
    """Return PyTorch's attention of (samples, heads, length, width), with the heads side by side."""
    return F.scaled_dot_product_attention(query, key, value, **options).transpose(1, 2).flatten(2)


def by_head(x: Tensor, heads: int) -> Tensor:
    """Return (samples, length, all) as (samples, heads, length, width)."""
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)
