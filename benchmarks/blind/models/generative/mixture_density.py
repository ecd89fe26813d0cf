"""Mixture density network, Adamax."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal


class Mixture(nn.Module):
    """Mixture density network."""

    def __init__(self, seen: int = 5, parts: int = 4, size: int = 2):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(seen, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.weights = nn.Linear(32, parts)
        self.means = nn.Linear(32, parts * size)
        self.widths = nn.Linear(32, parts)
        self.shape = (parts, size)

    def forward(self, x):
        h = self.body(x)
        return (
            self.weights(h).log_softmax(-1),
            self.means(h).unflatten(-1, self.shape),
            F.softplus(self.widths(h)) + 1e-3,
        )


def mixture() -> Training:
    data = batches(lambda g: {"x": normal(g, 16, 5), "target": normal(g, 16, 2)}, "mixture")
    return Training(
        lively(Mixture()),
        give("x"),
        mixture_loss(2),
        data,
        optimize=lambda m: torch.optim.Adamax(m.parameters(), lr=2e-3),
    )


def mixture_loss(size):
    def loss(output, batch):
        log, means, widths = (x.float() for x in output)
        away = (batch["target"].float()[:, None] - means).square().sum(-1)
        parts = log - 0.5 * away / widths.square() - size * (widths.log() + 0.5 * math.log(2 * math.pi))
        return -parts.logsumexp(-1).mean()

    return loss


MIXTURE = Model(
    "mixture-density",
    mixture,
    "mixture density network, Adamax",
    (
        Fault(
            "one-dimensional",
            "formula",
            P.criterion(mixture_loss(1)),
            "",
            ("loss",),
            "the density is normalised as of one dimension",
        ),
        Fault(
            "softplus",
            "activation",
            P.rewritten("", lambda self, x: _exponential(self, x)),
            "",
            ("forward",),
            "exp for softplus",
        ),
        Fault(
            "floor",
            "constant",
            P.rewritten("", lambda self, x: _no_floor(self, x)),
            "",
            ("forward",),
            "the width's floor is 2e-3 for 1e-3",
        ),
        Fault(
            "adamax-betas",
            "betas",
            P.groups(betas=(0.9, 0.99)),
            "",
            ("update",),
            "beta2 0.99: seen in the second step",
            step=1,
            steps=2,
        ),
        Fault(
            "tanh-in-half",
            "dtype-of-operation",
            P.rewritten("body.1", lambda self, x: x.half().tanh().float()),
            "body.1",
            ("forward",),
            "tanh computed in float16",
            also=("body",),
        ),
    ),
    (
        Clean(
            "sigmoid-for-tanh",
            "tanh as 2 sigmoid(2x) - 1",
            P.rewritten("body.3", lambda self, x: 2 * torch.sigmoid(2 * x) - 1),
        ),
        Clean(
            "adamax-loop",
            "Adamax without foreach",
            P.optimizer(lambda m: torch.optim.Adamax(m.parameters(), lr=2e-3, foreach=False)),
            steps=3,
        ),
        Clean("micro-batches", "two micro-batches for one batch", P.in_two, dtype="autocast"),
    ),
)


def _exponential(self, x):
    h = self.body(x)
    return self.weights(h).log_softmax(-1), self.means(h).unflatten(-1, self.shape), self.widths(h).exp() + 1e-3


def _no_floor(self, x):
    h = self.body(x)
    return self.weights(h).log_softmax(-1), self.means(h).unflatten(-1, self.shape), F.softplus(self.widths(h)) + 2e-3
