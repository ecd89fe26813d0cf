"""NT-Xent with a learned temperature, AMSGrad."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal


class Contrast(nn.Module):
    """Two views through one encoder, projected and normalised; a learned temperature."""

    def __init__(self, size: int = 16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(14, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, size))
        self.project = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, 8))
        self.temperature = nn.Parameter(torch.tensor(math.log(1 / 0.2)))

    def forward(self, one, two):
        z = F.normalize(self.project(self.encoder(torch.cat([one, two]))), dim=-1)
        return z @ z.T * self.temperature.exp()


def contrast_loss(diagonal=True):
    def loss(output, batch):
        number = len(output) // 2
        scores = output.float()
        if diagonal:
            scores = scores.masked_fill(torch.eye(2 * number, dtype=torch.bool), -torch.inf)
        return F.cross_entropy(scores, torch.arange(2 * number).roll(number))

    return loss


def contrast() -> Training:
    data = batches(lambda g: {"one": normal(g, 8, 14), "two": normal(g, 8, 14)}, "contrast")
    model = lively(Contrast())
    return Training(
        model,
        give("one", "two"),
        contrast_loss(),
        data,
        optimize=lambda m: torch.optim.Adam(m.parameters(), lr=2e-3, amsgrad=True),
        clip=1.0,
    )


CONTRAST = Model(
    "simclr",
    contrast,
    "NT-Xent with a learned temperature, AMSGrad",
    (
        Fault(
            "itself-counts",
            "loss-mask",
            P.criterion(contrast_loss(False)),
            "",
            ("loss",),
            "a sample is its own negative",
        ),
        Fault(
            "not-normalised",
            "formula",
            P.rewritten("", lambda self, a, b: _unnormalised(self, a, b)),
            "",
            ("forward",),
            "the projections are not normalised",
        ),
        Fault(
            "views-apart",
            "norm-setting",
            P.rewritten("", lambda self, a, b: _views_apart(self, a, b)),
            "",
            ("forward",),
            "batch norm sees each view for itself",
            also=("encoder", "encoder.*"),
            dtype="autocast",
        ),
        Fault("rate", "lr", P.groups(lr=2.02e-3), "", ("update",), "a learning rate of 2.02e-3 for 2e-3"),
        Fault(
            "temperature-frozen",
            "frozen",
            lambda t: t.model.temperature.requires_grad_(False) and None,
            "",
            ("gradient", "backward", "update", "init"),
            "the temperature is not trained",
        ),
    ),
    (
        Clean("einsum", "scores by einsum", P.rewritten("", lambda self, a, b: _einsum(self, a, b))),
        Clean(
            "loss-by-logsumexp", "the loss by log-sum-exp", P.criterion(lambda o, b: _logsumexp(o)), dtype="bfloat16"
        ),
    ),
)


def _unnormalised(self, one, two):
    z = self.project(self.encoder(torch.cat([one, two])))
    return z @ z.T * self.temperature.exp()


def _views_apart(self, one, two):
    z = F.normalize(torch.cat([self.project(self.encoder(one)), self.project(self.encoder(two))]), dim=-1)
    return z @ z.T * self.temperature.exp()


def _einsum(self, one, two):
    z = F.normalize(self.project(self.encoder(torch.cat([one, two]))), dim=-1)
    return torch.einsum("id,jd->ij", z * self.temperature.exp(), z)


def _logsumexp(output):
    number, scores = len(output) // 2, output.float()
    rest = scores.masked_fill(torch.eye(2 * number, dtype=torch.bool), -torch.inf).logsumexp(1)
    return (rest - scores[torch.arange(2 * number), torch.arange(2 * number).roll(number)]).mean()
