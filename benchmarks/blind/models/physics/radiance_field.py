"""NeRF with volume rendering, exponential schedule."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal, squared, uniform


class Radiance(nn.Module):
    """A radiance field: positional encoding, skip connection, density and colour, volume rendering."""

    def __init__(self, width: int = 32, octaves: int = 4):
        super().__init__()
        self.register_buffer("octaves", 2.0 ** torch.arange(octaves))
        seen = 3 + 6 * octaves
        self.early = nn.Sequential(nn.Linear(seen, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
        self.late = nn.Sequential(nn.Linear(width + seen, width), nn.ReLU())
        self.density = nn.Linear(width, 1)
        self.colour = nn.Sequential(nn.Linear(width + 3, 16), nn.ReLU(), nn.Linear(16, 3), nn.Sigmoid())

    def encode(self, x):
        angle = (x[..., None] * self.octaves).flatten(-2)
        return torch.cat([x, angle.sin(), angle.cos()], -1)

    def render(self, density, colour, gaps):
        alpha = 1 - torch.exp(-F.relu(density) * gaps)
        clear = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10], 1), 1)[:, :-1]
        return ((alpha * clear)[..., None] * colour).sum(1)

    def forward(self, points, directions, gaps):
        seen = self.encode(points)
        h = self.late(torch.cat([self.early(seen), seen], -1))
        colour = self.colour(torch.cat([h, directions[:, None].expand(-1, h.shape[1], -1)], -1))
        return self.render(self.density(h)[..., 0], colour, gaps)


def radiance() -> Training:
    data = batches(
        lambda g: {
            "points": uniform(g, 6, 8, 3) * 2 - 1,
            "directions": F.normalize(normal(g, 6, 3), dim=-1),
            "gaps": uniform(g, 6, 8) * 0.3,
            "target": uniform(g, 6, 3),
        },
        "radiance",
    )
    return Training(
        lively(Radiance()),
        give("points", "directions", "gaps"),
        squared,
        data,
        schedule=lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.8),
    )


def _not_exclusive(self, density, colour, gaps):
    alpha = 1 - torch.exp(-F.relu(density) * gaps)
    return ((alpha * torch.cumprod(1 - alpha + 1e-10, 1))[..., None] * colour).sum(1)


def _interleaved(self, x):
    angle = (x[..., None, :] * self.octaves[:, None]).flatten(-2)
    return torch.cat([x, angle.sin(), angle.cos()], -1)


RADIANCE = Model(
    "radiance-field",
    radiance,
    "NeRF with volume rendering, exponential schedule",
    (
        Fault(
            "transmittance",
            "off-by-one",
            P.method("", "render", _not_exclusive),
            "",
            ("forward",),
            "the product of transparencies includes the point itself",
        ),
        Fault(
            "encoding-order",
            "order-of-axis",
            P.method("", "encode", _interleaved),
            "",
            ("forward",),
            "octaves before coordinates in the encoding",
        ),
        Fault(
            "octaves",
            "buffer",
            P.values("", "octaves", lambda o: math.pi * o),
            "",
            ("init",),
            "the octaves are multiplied by pi",
        ),
        Fault(
            "decay-rate",
            "schedule",
            P.scheduled(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)),
            "",
            ("update",),
            "the rate decays by 0.9 for 0.8",
            step=1,
            steps=2,
        ),
        Fault(
            "next-batch",
            "batch-order",
            lambda t: t.batches.insert(0, t.batches.pop(1)),
            "",
            ("forward", "inputs"),
            "the second batch comes first",
        ),
    ),
    (
        Clean(
            "by-logs",
            "transparency by a sum of logs",
            P.method("", "render", lambda self, d, c, gaps: _by_logs(self, d, c, gaps)),
        ),
        Clean(
            "skip-split",
            "the skip connection as two products",
            P.rewritten(
                "late.0",
                lambda self, x: (
                    F.linear(x[..., :32], self.weight[:, :32]) + F.linear(x[..., 32:], self.weight[:, 32:], self.bias)
                ),
            ),
        ),
    ),
)


def _by_logs(self, density, colour, gaps):
    thick = F.relu(density) * gaps
    clear = torch.exp(-(thick.cumsum(1) - thick))
    return (((1 - torch.exp(-thick)) * clear)[..., None] * colour).sum(1)
