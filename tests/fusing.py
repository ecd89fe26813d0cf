"""The toy GPT with q, k and v in one projection and gate and up in another, and the same numbers in both forms."""

from __future__ import annotations

from typing import Any

import numpy as np

from probe.numbers import fused
from probe.numbers.fused import Fusion
from tests.toy import nn
from tests.toy.tensor import Tensor, softmax
from tests.toys import GPT, HEADS, LAYERS, WIDTH, gpt, module

KEYS = WIDTH // 2
"""k and v are half as wide as q: two query heads share one"""


class Apart(nn.Module):
    """Causal self-attention with a projection each for q, k and v."""

    def __init__(self) -> None:
        super().__init__(q=nn.Linear(WIDTH, WIDTH), k=nn.Linear(WIDTH, KEYS), v=nn.Linear(WIDTH, KEYS),
                         o=nn.Linear(WIDTH, WIDTH))  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.o(attended(self.q(x), self.k(x), self.v(x)))


def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend with two query heads for each key and value head."""
    batch, length, _ = q.shape
    heads = q.reshape(batch, length, HEADS, 2, -1).swapaxes(1, 3)  # [b, 2, heads, s, d]
    keys, values = (each.reshape(batch, length, 1, HEADS, -1).swapaxes(1, 3).swapaxes(1, 2) for each in (k, v))
    scores = heads @ keys.swapaxes(-1, -2) * (WIDTH / HEADS / 2) ** -0.5
    mixed = softmax(scores + np.triu(np.full((length, length), -np.inf), 1)) @ values
    return mixed.swapaxes(1, 3).reshape(batch, length, WIDTH)


class Together(nn.Module):
    """The same with one projection, whose rows go group by group: its query heads, its key, its value."""

    def __init__(self, groups: int = HEADS) -> None:
        super().__init__(qkv=nn.Linear(WIDTH, WIDTH + 2 * KEYS), o=nn.Linear(WIDTH, WIDTH), groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        y = self.qkv(x).reshape(batch, length, self.groups, -1)
        ends = WIDTH // self.groups, (WIDTH + KEYS) // self.groups
        parts = y[..., : ends[0]], y[..., ends[0] : ends[1]], y[..., ends[1] :]
        return self.o(attended(*(part.reshape(batch, length, -1) for part in parts)))


class TogetherMLP(nn.Module):
    """down(act(gate) · up), gate and up in one."""

    def __init__(self) -> None:
        super().__init__(gate_up=nn.Linear(WIDTH, 4 * WIDTH), down=nn.Linear(2 * WIDTH, WIDTH), act=nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        y = self.gate_up(x)
        return self.down(self.act(y[..., : 2 * WIDTH]) * y[..., 2 * WIDTH :])


def apart(seed: int = 0) -> GPT:
    """Make the model with q, k and v, gate and up apart."""
    model = gpt(seed)
    for number in range(LAYERS):
        module(model, f"layers.{number}").attn = Apart()
    return model


def together(groups: int = HEADS, model: GPT | None = None) -> GPT:
    """Make the same model with one projection for each, with the same numbers."""
    parts = apart() if model is None else model
    whole = apart()
    for mine, theirs in zip(whole.parameters(), parts.parameters(), strict=True):
        mine.data[...] = theirs.data
    for number in range(LAYERS):
        block = module(whole, f"layers.{number}")
        attn, mlp = Together(groups), TogetherMLP()
        for slot in ("weight", "bias"):
            for one, into, names, how in (
                (block.attn, attn.qkv, "qkv", groups),
                (block.mlp, mlp.gate_up, ("gate", "up"), 1),
            ):
                values = [[getattr(getattr(one, name), slot).data for name in names]]
                setattr(into, slot, nn.Parameter(fused.fuse(values, Fusion(0, how))))
        attn.o, mlp.down = block.attn.o, block.mlp.down
        block.attn, block.mlp = attn, mlp
    return whole


def mapping(groups: int = HEADS) -> dict[str, Any]:
    """Return the mapping, written from the model with one projection for each."""
    return {
        "Together": {"qkv": {"to": ["q", "k", "v"], "split": {"groups": groups}}},
        "TogetherMLP": {"gate_up": ["gate", "up"]},
    }


def mapping_from_parts(groups: int = HEADS) -> dict[str, Any]:
    """Return the same, written from the model with the parts."""
    return {
        "Apart": {"qkv": {"from": ["q", "k", "v"], "split": {"groups": groups}}},
        "MLP": {"gate_up": {"from": ["gate", "up"]}},
    }
