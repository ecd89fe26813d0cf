"""Noise-conditional score matching with FiLM and dilated convolutions."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal, uniform


class Score(nn.Module):
    """Noise-conditional score network with Fourier features of the noise level and FiLM."""

    def __init__(self, channels: int = 16):
        super().__init__()
        self.register_buffer("frequencies", torch.linspace(0.5, 8, channels // 2))
        self.embed = nn.Sequential(nn.Linear(channels, 32), nn.SiLU(), nn.Linear(32, 32))
        self.inward = nn.Conv2d(1, channels, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=d, dilation=d) for d in (1, 2, 1))
        self.films = nn.ModuleList(nn.Linear(32, 2 * channels) for _ in range(3))
        self.outward = nn.Conv2d(channels, 1, 3, padding=1)

    def level(self, sigma):
        angle = 2 * math.pi * sigma.log()[:, None] * self.frequencies
        return self.embed(torch.cat([angle.sin(), angle.cos()], -1))

    def forward(self, x, sigma):
        level, h = self.level(sigma), self.inward(x)
        for norm, conv, film in zip(self.norms, self.convs, self.films, strict=True):
            scale, shift = film(level)[..., None, None].chunk(2, 1)
            h = h + conv(F.silu(norm(h) * (1 + scale) + shift))
        return self.outward(h) / sigma[:, None, None, None]


def score() -> Training:
    def make(g):
        sigma, clean, noise = uniform(g, 6) + 0.3, normal(g, 6, 1, 12, 12), normal(g, 6, 1, 12, 12)
        return {"x": clean + sigma[:, None, None, None] * noise, "sigma": sigma, "noise": noise}

    return Training(lively(Score()), give("x", "sigma"), score_loss(2), batches(make, "score"))


def score_loss(power):
    def loss(output, batch):
        sigma = batch["sigma"][:, None, None, None].float()
        return ((output.float() + batch["noise"].float() / sigma).square() * sigma**power).sum((1, 2, 3)).mean() / 2

    return loss


def _sine_first(self, sigma):
    angle = 2 * math.pi * sigma.log()[:, None] * self.frequencies
    return self.embed(torch.cat([angle.cos(), angle.sin()], -1))


def _no_one(self, x, sigma):
    level, h = self.level(sigma), self.inward(x)
    for norm, conv, film in zip(self.norms, self.convs, self.films, strict=True):
        scale, shift = film(level)[..., None, None].chunk(2, 1)
        h = h + conv(F.silu(norm(h) * (1 + scale + shift)))
    return self.outward(h) / sigma[:, None, None, None]


SCORE = Model(
    "score-network",
    score,
    "noise-conditional score matching with FiLM and dilated convolutions",
    (
        Fault(
            "cos-sin",
            "order-of-axis",
            P.method("", "level", _sine_first),
            "",
            ("forward",),
            "cosine before sine in the Fourier features",
        ),
        Fault("film-shift", "formula", P.rewritten("", _no_one), "", ("forward",), "the shift is added to the scale"),
        Fault(
            "dilation",
            "conv-setting",
            P.setting("convs.1", dilation=(1, 1), padding=(1, 1)),
            "convs.1",
            ("forward",),
            "dilation 1 for 2",
        ),
        Fault(
            "groups",
            "norm-setting",
            P.setting("norms.2", num_groups=8),
            "norms.2",
            ("forward",),
            "8 groups for 4",
            dtype="bfloat16",
        ),
        Fault(
            "loss-weight", "loss-scale", P.criterion(score_loss(1)), "", ("loss",), "weighted by sigma for its square"
        ),
        Fault(
            "circular",
            "padding",
            P.setting("outward", padding_mode="circular", _reversed_padding_repeated_twice=[1, 1, 1, 1]),
            "outward",
            ("forward",),
            "circular padding",
        ),
    ),
    (
        Clean(
            "no-mkldnn",
            "convolutions without oneDNN",
            lambda t: setattr(t, "context", lambda: torch.backends.mkldnn.flags(enabled=False)),
        ),
        Clean("norm-by-hand", "group norm written out", P.rewritten("norms.0", lambda self, x: _group_norm(self, x))),
        Clean(
            "no-mkldnn-cast",
            "convolutions without oneDNN, autocast",
            lambda t: setattr(t, "context", lambda: torch.backends.mkldnn.flags(enabled=False)),
            dtype="autocast",
        ),
    ),
)


def _group_norm(self, x):
    parts = x.unflatten(1, (self.num_groups, -1)).flatten(2)
    mean = parts.mean(-1, keepdim=True)
    spread = (parts - mean).square().mean(-1, keepdim=True)
    normed = ((parts - mean) / (spread + self.eps).sqrt()).view_as(x)
    return normed * self.weight[:, None, None] + self.bias[:, None, None]
