"""Mixtures of experts: models of transformers, and a hand-written decoder with attention sinks."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.architecture import SPLIT, Architecture
from benchmarks.localisation.models.batches import next_ids


def eager_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float, **kwargs: Any
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attend with a learned score for each head that takes weight and gives nothing: a sink."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scaling + attention_mask
    sinks = module.sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    weights = F.softmax(torch.cat([scores, sinks], -1), dim=-1, dtype=torch.float32)[..., :-1].to(value.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class RootMeanSquare(nn.Module):
    """RMSNorm as written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


class SinkAttention(nn.Module):
    """Causal attention within a window, linear biases of distance, scores that are capped, and a sink."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(32, 32), nn.Linear(32, 16)
        self.v_proj, self.o_proj = nn.Linear(32, 16), nn.Linear(32, 32)
        self.sinks = nn.Parameter(torch.zeros(4))
        self.scaling = 8**-0.5

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        parts = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (each(hidden_states).unflatten(-1, (-1, 8)).transpose(1, 2) for each in parts)
        mixed, _ = eager_attention_forward(self, query, key, value, attention_mask, self.scaling)
        return self.o_proj(mixed.flatten(2))


class ClampedExperts(nn.Module):
    """Four experts with a gate of their own form; the two best of each token are mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(32, 4)
        self.gate_up = nn.Parameter(torch.zeros(4, 48, 32))
        self.down = nn.Parameter(torch.zeros(4, 32, 24))
        self.alpha, self.top_k = 1.702, 2

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = self.router(x).topk(self.top_k, -1)
        weights = torch.zeros_like(x[..., :4]).scatter(-1, chosen, F.softmax(scores, -1).to(x.dtype))
        gate, up = torch.einsum("bld,ehd->bleh", x, self.gate_up.to(x.dtype)).chunk(2, -1)
        hidden = gate * torch.sigmoid(self.alpha * gate) * (up + 1)
        return (torch.einsum("bleh,edh->bled", hidden, self.down.to(x.dtype)) * weights[..., None]).sum(2)


class SinkLayer(nn.Module):
    """Attention, then experts, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RootMeanSquare(), RootMeanSquare()
        self.attention, self.experts = SinkAttention(), ClampedExperts()

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        x = hidden_states + self.attention(self.norm1(hidden_states), attention_mask=attention_mask)
        return x + self.experts(self.norm2(x))


class SinkStack(nn.Module):
    """The layers, with the mask that they share."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SinkLayer() for _ in range(3))

    def build_alibi_tensor(self, length: int) -> Tensor:
        """Return what is added to the scores of four heads."""
        slopes = 2.0 ** (-2 * torch.arange(1, 5))
        distances = torch.arange(length)[None] - torch.arange(length)[:, None]
        return slopes[:, None, None] * distances

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((x.shape[1], x.shape[1]), -1e4).triu(1) + self.build_alibi_tensor(x.shape[1])
        for layer in self.layers:
            x = layer(x, mask[None].to(x.dtype))
        return x


class SinkDecoder(nn.Module):
    """A decoder with sinks, linear biases and experts; its head shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 32)
        self.stack = SinkStack()
        self.norm = RootMeanSquare()
        self.head = nn.Linear(32, 96, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.stack(self.embedding(ids))))


MIXTURES: dict[str, Architecture] = {
    "sinks": Architecture(lambda setup: SinkDecoder(), next_ids, SPLIT, True),
}  # fmt: skip
