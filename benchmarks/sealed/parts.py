"""What several ports are made of."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F


def rms(x: torch.Tensor, gain: torch.Tensor, eps: float) -> torch.Tensor:
    """RMS norm in float32."""
    wide = x.float()
    return gain * (wide * (wide.square().mean(-1, keepdim=True) + eps).rsqrt()).to(x.dtype)


class Rms(nn.Module):
    """RMS norm as a module of its own."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.gain, self.eps = nn.Parameter(torch.ones(size)), eps

    def forward(self, x):
        return rms(x, self.gain, self.eps)


def heads(x: torch.Tensor, number: int) -> torch.Tensor:
    """[batch, time, size] as [batch, heads, time, size of a head]."""
    return x.unflatten(-1, (number, -1)).transpose(1, 2)


def attend(q, k, v, scale: float | None = None, causal: bool = False, bias=None, drop=None):
    """Attention written out; heads are joined again."""
    scores = (q @ k.mT) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if bias is not None:
        scores = scores + bias
    if causal:
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(hidden, float("-inf"))
    return (scores.float().softmax(-1).to(q.dtype) @ v).transpose(1, 2).flatten(2)


def rotated(x: torch.Tensor, base: float = 10000.0, offset: int = 0) -> torch.Tensor:
    """Rotary positions, the halves of a head paired."""
    half = x.shape[-1] // 2
    angle = torch.arange(offset, offset + x.shape[-2]).float()[:, None] / base ** (torch.arange(half).float() / half)
    cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    left, right = x.chunk(2, -1)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], -1)


def norm(x: torch.Tensor, weight, bias, eps: float) -> torch.Tensor:
    """Layer norm over the last axis."""
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def weights(**shapes: tuple[int, ...]) -> nn.ParameterDict:
    """Bare parameters by name."""
    return nn.ParameterDict({name: torch.zeros(shape) for name, shape in shapes.items()})
