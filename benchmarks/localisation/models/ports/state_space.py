"""Mamba in own code: its scan is a module, and the input and its gate have a matrix each."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.ports.blocks import RMSNorm, Sizes


class Scan(nn.Module):
    """The recurrence alone: (samples, length, channels) in and out."""

    def forward(self, x: Tensor, step: Tensor, decay: Tensor, enters: Tensor, leaves: Tensor) -> Tensor:
        state = torch.zeros(x.shape[0], x.shape[2], decay.shape[1])
        kept, found = torch.exp(step[..., None] * decay), []
        added = (step * x)[..., None].float() * enters[:, :, None].float()
        for place in range(x.shape[1]):
            state = kept[:, place] * state + added[:, place]
            found.append((state * leaves[:, place, None].float()).sum(-1))
        return torch.stack(found, 1)


class Selective(nn.Module):
    """A mixer."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width, inner, self.rank = sizes.width, 2 * sizes.width, math.ceil(sizes.width / 16)
        self.in_x, self.in_z = nn.Linear(width, inner, bias=False), nn.Linear(width, inner, bias=False)
        self.conv = nn.Conv1d(inner, inner, 4, groups=inner, padding=3)
        self.to_steps, self.steps = nn.Linear(inner, self.rank + 16, bias=False), nn.Linear(self.rank, inner)
        self.log_decay, self.skip = nn.Parameter(torch.zeros(inner, 8)), nn.Parameter(torch.ones(inner))
        self.scan, self.out = Scan(), nn.Linear(inner, width, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = self.in_x(hidden_states).transpose(1, 2)
        x = F.silu(self.conv(x)[..., : x.shape[2]]).transpose(1, 2)
        step, enters, leaves = self.to_steps(x).split([self.rank, 8, 8], -1)
        decay = -torch.exp(self.log_decay.float())
        mixed = self.scan(x, F.softplus(self.steps(step)), decay, enters, leaves) + x * self.skip
        return self.out((mixed * F.silu(self.in_z(hidden_states))).to(hidden_states.dtype))


class MambaLayer(nn.Module):
    """A layer whose residual is kept in fp32."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.ln, self.ssm = RMSNorm(sizes.width, eps=1e-5), Selective(sizes)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return hidden_states.float() + self.ssm(self.ln(hidden_states.to(self.ln.weight.dtype)))


class OwnMamba(nn.Module):
    """What `MambaForCausalLM` computes."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = nn.Embedding(sizes.vocabulary, sizes.width)
        self.stack = nn.ModuleList(MambaLayer(sizes) for _ in range(sizes.layers))
        self.ln_f, self.head = RMSNorm(sizes.width, eps=1e-5), nn.Linear(sizes.width, sizes.vocabulary, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.stack:
            x = layer(x)
        return self.head(self.ln_f(x).to(self.head.weight.dtype)).float()
