"""Projection discriminator with spectral norm, conditional batch norm, hinge loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, normal


class Spectral(nn.Module):
    """A projection discriminator under spectral norm, and a generator with conditional batch norm."""

    def __init__(self, classes: int = 4, width: int = 12):
        super().__init__()
        self.seed = nn.Linear(8, width * 9)
        self.gains, self.shifts = nn.Embedding(classes, width), nn.Embedding(classes, width)
        self.norm = nn.BatchNorm2d(width, affine=False)
        self.grow = nn.ConvTranspose2d(width, 1, 4, 2, 1)
        self.look = nn.ModuleList(
            [spectral_norm(nn.Conv2d(1, width, 3, 2, 1)), spectral_norm(nn.Conv2d(width, 16, 3, 2, 1))]
        )
        self.judge = spectral_norm(nn.Linear(16, 1))
        self.project = nn.Embedding(classes, 16)

    def make(self, z, y):
        h = self.norm(self.seed(z).view(len(z), -1, 3, 3))
        h = F.relu(h * (1 + self.gains(y)[..., None, None]) + self.shifts(y)[..., None, None])
        return torch.tanh(self.grow(h))

    def score(self, x, y):
        for conv in self.look:
            x = F.leaky_relu(conv(x), 0.2)
        x = x.sum((2, 3))
        return self.judge(x)[:, 0] + (self.project(y) * x).sum(-1)

    def forward(self, z, y, real):
        fake = self.make(z, y)
        return self.score(real, y), self.score(fake.detach(), y), self.score(fake, y)


def spectral() -> Training:
    data = batches(lambda g: {"z": normal(g, 8, 8), "y": ids(g, 8, below=4), "real": normal(g, 8, 1, 6, 6)}, "spectral")
    model = Spectral()
    with torch.no_grad():
        model.gains.weight.mul_(0.3)
    return Training(
        model,
        give("z", "y", "real"),
        hinge(),
        data,
        optimize=lambda m: torch.optim.Adam(m.parameters(), lr=2e-3, betas=(0.5, 0.9)),
    )


def hinge(margin=1.0):
    def loss(output, batch):
        real, fake, wish = (x.float() for x in output)
        return F.relu(margin - real).mean() + F.relu(margin + fake).mean() - wish.mean()

    return loss


def _mean_pool(self, x, y):
    for conv in self.look:
        x = F.leaky_relu(conv(x), 0.2)
    x = x.mean((2, 3))
    return self.judge(x)[:, 0] + (self.project(y) * x).sum(-1)


def _slope(self, x, y):
    for conv in self.look:
        x = F.leaky_relu(conv(x), 0.01)
    x = x.sum((2, 3))
    return self.judge(x)[:, 0] + (self.project(y) * x).sum(-1)


def _not_detached(self, z, y, real):
    fake = self.make(z, y)
    return self.score(real, y), self.score(fake, y), self.score(fake, y)


SPECTRAL = Model(
    "projection-gan",
    spectral,
    "projection discriminator with spectral norm, conditional batch norm, hinge loss",
    (
        Fault("mean-pool", "pooling", P.method("", "score", _mean_pool), "", ("forward",), "mean for sum pooling"),
        Fault("slope", "activation", P.method("", "score", _slope), "", ("forward",), "leaky slope 0.01 for 0.2"),
        Fault(
            "fake-not-detached",
            "missing-detach",
            P.rewritten("", _not_detached),
            "",
            ("backward",),
            "the generator is also trained by the discriminator's loss",
            also=("look.0", "look.0.*", "grow"),
        ),
        Fault(
            "betas",
            "betas",
            P.groups(betas=(0.5, 0.999)),
            "",
            ("update",),
            "beta2 0.999 for 0.9: its state differs at once, the weights from the second step on",
            steps=2,
        ),
        Fault(
            "norm-momentum",
            "running",
            P.setting("norm", momentum=0.01),
            "norm",
            ("update", "forward"),
            "running statistics move by 0.01 for 0.1",
        ),
        Fault(
            "stride",
            "conv-setting",
            P.setting("look.0", padding=(0, 0)),
            "look.0",
            ("forward",),
            "no padding in the first convolution",
        ),
    ),
    (
        Clean(
            "adam-capturable",
            "Adam without foreach",
            P.optimizer(lambda m: torch.optim.Adam(m.parameters(), lr=2e-3, betas=(0.5, 0.9), foreach=False)),
            steps=2,
        ),
        Clean("norm-written-out", "batch norm written out", P.rewritten("norm", lambda self, x: _batch_norm(self, x))),
    ),
)


def _batch_norm(self, x):
    mean, spread = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
    with torch.no_grad():
        count = x.numel() / x.shape[1]
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(spread * count / (count - 1), self.momentum)
        self.num_batches_tracked += 1
    return (x - mean[:, None, None]) * torch.rsqrt(spread[:, None, None] + self.eps)
