"""What several of these models share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ...training import Training

ROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}


def ported(
    build: Callable[[], Training], own: nn.Module, rename: Callable[[dict], dict], predict: Any = None
) -> Training:
    """Side B: the same data and loss, with another model that gets the first one's weights."""
    training = build()
    own.load_state_dict(rename(training.model.state_dict()))
    return dataclasses.replace(training, model=own.train(), predict=predict or training.predict)


class Rms(nn.Module):
    """RMS norm in float32."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        h = x.float()
        return (h * torch.rsqrt(h.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype) * self.scale


def turn(x, theta: float = 10000.0):
    """Rotary positions for [batch, heads, time, size]."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2]).float()[:, None] * (
        1.0 / theta ** (torch.arange(0, 2 * half, 2).float() / (2 * half))
    )
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class OwnBlock(nn.Module):
    """Pre-norm block."""

    def __init__(self, attn: nn.Module, ffn: nn.Module, size: int, eps: float):
        super().__init__()
        self.norm_a, self.attn, self.norm_b, self.ffn = Rms(size, eps), attn, Rms(size, eps), ffn

    def forward(self, x):
        x = x + self.attn(self.norm_a(x))
        return x + self.ffn(self.norm_b(x))


class OwnLm(nn.Module):
    """Embedding, blocks, norm, output."""

    def __init__(self, words: int, size: int, blocks: list[nn.Module], eps: float):
        super().__init__()
        self.tok, self.blocks = nn.Embedding(words, size), nn.ModuleList(blocks)
        self.final, self.out = Rms(size, eps), nn.Linear(size, words, bias=False)

    def forward(self, tokens):
        x = self.tok(tokens)
        for block in self.blocks:
            x = block(x)
        return self.out(self.final(x))
