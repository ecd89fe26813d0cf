"""HiFi-GAN generator under weight norm, L1 loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal


class Vocoder(nn.Module):
    """A HiFi-GAN generator: transposed convolutions and residual stacks of several kernels under weight norm."""

    def __init__(self, mels: int = 10, width: int = 16):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(mels, width, 7, padding=3))
        self.ups = nn.ModuleList(
            [weight_norm(nn.ConvTranspose1d(width, 8, 4, 2, 1)), weight_norm(nn.ConvTranspose1d(8, 4, 4, 2, 1))]
        )
        self.blocks = nn.ModuleList(nn.ModuleList([Residual(c, 3), Residual(c, 5)]) for c in (8, 4))
        self.post = weight_norm(nn.Conv1d(4, 1, 7, padding=3))

    def forward(self, mel):
        x = self.pre(mel)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.post(F.leaky_relu(x)))


class Residual(nn.Module):
    """Two dilated convolutions, each with a residual."""

    def __init__(self, channels: int, kernel: int):
        super().__init__()
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding=(kernel - 1) * d // 2))
            for d in (1, 3)
        )

    def forward(self, x):
        for conv in self.convs:
            x = x + conv(F.leaky_relu(x, 0.1))
        return x


def vocoder() -> Training:
    data = batches(lambda g: {"mel": normal(g, 3, 10, 12), "target": normal(g, 3, 1, 48).clamp(-1, 1)}, "vocoder")
    return Training(lively(Vocoder()), give("mel"), lambda o, b: (o.float() - b["target"].float()).abs().mean(), data)


def _summed(self, mel):
    x = self.pre(mel)
    for up, blocks in zip(self.ups, self.blocks, strict=True):
        x = up(F.leaky_relu(x, 0.1))
        x = sum(block(x) for block in blocks)
    return torch.tanh(self.post(F.leaky_relu(x)))


def _last_slope(self, mel):
    x = self.pre(mel)
    for up, blocks in zip(self.ups, self.blocks, strict=True):
        x = up(F.leaky_relu(x, 0.1))
        x = sum(block(x) for block in blocks) / len(blocks)
    return torch.tanh(self.post(F.leaky_relu(x, 0.1)))


def _no_residual(self, x):
    x = x + self.convs[0](F.leaky_relu(x, 0.1))
    return self.convs[1](F.leaky_relu(x, 0.1))


VOCODER = Model(
    "vocoder",
    vocoder,
    "HiFi-GAN generator under weight norm, L1 loss",
    (
        Fault(
            "blocks-summed",
            "scale",
            P.rewritten("", _summed),
            "",
            ("forward",),
            "the kernels' results are summed, not averaged",
        ),
        Fault(
            "last-slope", "activation", P.rewritten("", _last_slope), "", ("forward",), "the last slope is 0.1 for 0.01"
        ),
        Fault(
            "residual-missing",
            "residual",
            P.rewritten("blocks.0.1", _no_residual),
            "blocks.0.1",
            ("forward",),
            "one residual is missing",
        ),
        Fault(
            "output-padding",
            "roll",
            P.around("ups.1", lambda f, x: f(x).roll(1, -1)),
            "ups.1",
            ("forward",),
            "the transposed convolution is cropped one sample off",
        ),
        Fault(
            "norm-not-learned",
            "frozen-parametrization",
            lambda t: t.at("post").parametrizations.weight.original0.requires_grad_(False) and None,
            "post",
            ("gradient", "backward", "update"),
            "the gain of weight norm is not trained",
            also=("post.*",),
        ),
        Fault(
            "lr-warmup",
            "schedule",
            P.scheduled(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.99)),
            "",
            ("update",),
            "the rate decays after every step instead of every epoch",
            step=1,
            steps=2,
        ),
    ),
    (
        Clean(
            "mean-of-stack", "the average as mean of a stack", P.rewritten("", lambda self, mel: _stacked(self, mel))
        ),
        Clean(
            "no-mkldnn",
            "convolutions without oneDNN",
            lambda t: setattr(t, "context", lambda: torch.backends.mkldnn.flags(enabled=False)),
            steps=2,
        ),
    ),
)


def _stacked(self, mel):
    x = self.pre(mel)
    for up, blocks in zip(self.ups, self.blocks, strict=True):
        x = up(F.leaky_relu(x, 0.1))
        x = torch.stack([block(x) for block in blocks]).mean(0)
    return torch.tanh(self.post(F.leaky_relu(x)))
