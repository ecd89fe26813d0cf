"""Speaker embedding with snake activations, attentive statistics and an angular margin."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal


class Snake(nn.Module):
    """x + sin(ax)^2 / a."""

    def __init__(self, channels: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels, 1))

    def forward(self, x):
        return x + torch.sin(self.alpha * x).square() / (self.alpha + 1e-9)


class Speaker(nn.Module):
    """Frames through snake convolutions, attentive statistics, a margin classifier."""

    def __init__(self, bands: int = 10, width: int = 20, speakers: int = 6):
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv1d(bands, width, 5, padding=2),
            Snake(width),
            nn.BatchNorm1d(width),
            nn.Conv1d(width, width, 3, padding=2, dilation=2),
            Snake(width),
            nn.BatchNorm1d(width),
        )
        self.attend = nn.Sequential(nn.Conv1d(width, 8, 1), nn.Tanh(), nn.Conv1d(8, width, 1))
        self.embed = nn.Linear(2 * width, 16)
        self.centres = nn.Parameter(torch.randn(speakers, 16))

    def pool(self, h):
        weights = self.attend(h).softmax(-1)
        mean = (weights * h).sum(-1)
        spread = (weights * h.square()).sum(-1) - mean.square()
        return torch.cat([mean, spread.clamp_min(1e-6).sqrt()], -1)

    def forward(self, sound):
        embedded = self.embed(self.pool(self.frames(sound)))
        return F.normalize(embedded, dim=-1) @ F.normalize(self.centres, dim=-1).T


def speaker() -> Training:
    data = batches(lambda g: {"sound": normal(g, 8, 10, 24), "labels": ids(g, 8, below=6)}, "speaker")
    return Training(
        lively(Speaker()),
        give("sound"),
        margin(0.2, 16.0),
        data,
        optimize=lambda m: torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3),
    )


def margin(width, scale):
    def loss(output, batch):
        angle = torch.acos(output.float().clamp(-1 + 1e-6, 1 - 1e-6))
        hot = F.one_hot(batch["labels"], output.shape[-1])
        return F.cross_entropy(scale * torch.cos(angle + width * hot), batch["labels"])

    return loss


def _no_mean(self, h):
    weights = self.attend(h).softmax(-1)
    mean = (weights * h).sum(-1)
    spread = (weights * h.square()).sum(-1)
    return torch.cat([mean, spread.clamp_min(1e-6).sqrt()], -1)


def _channel_softmax(self, h):
    weights = self.attend(h).softmax(1)
    mean = (weights * h).sum(-1)
    spread = (weights * h.square()).sum(-1) - mean.square()
    return torch.cat([mean, spread.clamp_min(1e-6).sqrt()], -1)


SPEAKER = Model(
    "speaker-encoder",
    speaker,
    "speaker embedding with snake activations, attentive statistics and an angular margin",
    (
        Fault(
            "second-moment",
            "variance",
            P.method("", "pool", _no_mean),
            "",
            ("forward",),
            "the second moment for the variance",
        ),
        Fault(
            "softmax-channels",
            "axis",
            P.method("", "pool", _channel_softmax),
            "",
            ("forward",),
            "attention is normalised over channels",
            dtype="bfloat16",
        ),
        Fault(
            "snake-unsquared",
            "activation",
            P.rewritten("frames.4", lambda self, x: x + torch.sin(self.alpha * x) / (self.alpha + 1e-9)),
            "frames.4",
            ("forward",),
            "the sine is not squared",
            also=("frames",),
        ),
        Fault(
            "snake-gradient",
            "wrong-gradient",
            P.parameter_gradient("frames.1", "alpha", lambda g: g * 0.5),
            "frames.1",
            ("gradient", "backward"),
            "alpha's gradient misses a factor 2",
        ),
        Fault("margin", "loss-scale", P.criterion(margin(0.3, 16.0)), "", ("loss",), "margin 0.3 for 0.2"),
        Fault(
            "eval-norm",
            "train-eval",
            lambda t: t.at("frames.2").eval() and None,
            "frames.2",
            ("forward",),
            "a batch norm is in eval mode",
            also=("frames",),
        ),
        Fault("decay-coupled", "decay", P.groups(weight_decay=1e-2), "", ("update",), "weight decay 1e-2 for 1e-3"),
    ),
    (
        Clean("norms-eps-order", "normalisation written out", P.rewritten("", lambda self, s: _written(self, s))),
        Clean(
            "fused-sgd",
            "SGD's fused kernel",
            P.optimizer(
                lambda m: torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3, fused=True)
            ),
            steps=2,
        ),
    ),
)


def _written(self, sound):
    embedded = self.embed(self.pool(self.frames(sound)))
    dots = embedded @ self.centres.T
    return dots / embedded.norm(dim=-1, keepdim=True) / self.centres.norm(dim=-1)
