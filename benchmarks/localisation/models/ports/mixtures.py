"""Mixtral in own code, with its experts in stacks."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.ports.blocks import THETA, Angles, PackedAttention, RMSNorm, Rotary, Sizes


class MixtureOutput(NamedTuple):
    """What a model with experts returns."""

    logits: Tensor
    aux_loss: Tensor


class StackedExperts(nn.Module):
    """Every expert computes every token; weights of zero leave out those that were not chosen."""

    def __init__(self, sizes: Sizes, count: int) -> None:
        super().__init__()
        self.w1, self.w3 = (nn.Parameter(torch.empty(count, sizes.inner, sizes.width)) for _ in range(2))
        self.w2 = nn.Parameter(torch.empty(count, sizes.width, sizes.inner))

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        gate, up = (torch.einsum("th,efh->tef", x, each) for each in (self.w1, self.w3))
        each = torch.einsum("tef,ehf->teh", F.silu(gate) * up, self.w2)
        return (each * weights[..., None].to(each.dtype)).sum(1)


class Experts(nn.Module):
    """A router and its experts; returns the router's logits as well."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.router, self.experts = nn.Linear(sizes.width, 4, bias=False), StackedExperts(sizes, 4)
        self.top, self.sums_to_one, self.softmax_first, self.moved = 2, True, True, 0

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        flat = hidden_states.flatten(0, 1)
        logits = self.router(flat)
        scores = F.softmax(logits.float(), -1) if self.softmax_first else logits.float().sigmoid()
        best, chosen = scores.topk(self.top, -1)
        if self.sums_to_one:
            best = best / best.sum(-1, keepdim=True)
        weights = torch.zeros_like(scores).scatter(1, (chosen + self.moved) % 4, best)
        return self.experts(flat, weights).unflatten(0, hidden_states.shape[:2]), logits


class ExpertLayer(nn.Module):
    """A layer of the decoder; returns the router's logits as well."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(sizes.width), RMSNorm(sizes.width)
        self.attention, self.moe = PackedAttention(sizes, 8**-0.5), Experts(sizes)

    def forward(self, hidden_states: Tensor, angles: Angles) -> tuple[Tensor, Tensor]:
        x = hidden_states + self.attention(self.norm1(hidden_states), angles)
        found, logits = self.moe(self.norm2(x))
        return x + found, logits


class OwnMixtral(nn.Module):
    """What `MixtralForCausalLM` computes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.words, self.rotary = nn.Embedding(sizes.vocabulary, sizes.width), Rotary(8, THETA)
        self.layers = nn.ModuleList(ExpertLayer(sizes) for _ in range(sizes.layers))
        self.norm, self.head = RMSNorm(sizes.width), nn.Linear(sizes.width, sizes.vocabulary, bias=False)

    def forward(self, input_ids: Tensor) -> MixtureOutput:
        x, routed = self.words(input_ids), []
        cos, sin = self.rotary(input_ids.shape[1])
        for layer in self.layers:
            x, logits = layer(x, (cos[:, None, None], sin[:, None, None]))
            routed.append(logits)
        return MixtureOutput(self.head(self.norm(x)), balance(torch.cat(routed)))


def balance(logits: Tensor) -> Tensor:
    """Return by how much the experts are used unequally: 2 (those that a token is given to) where they are not."""
    scores = F.softmax(logits, -1)
    given = F.one_hot(scores.topk(2, -1).indices, 4).sum(1).float().mean(0)
    return 4 * (given * scores.float().mean(0)).sum()
