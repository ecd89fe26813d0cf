"""Operator network, Adadelta."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal, squared, uniform


class DeepOnet(nn.Module):
    """Branch and trunk; the operator's value is their inner product."""

    def __init__(self, sensors: int = 20, width: int = 32, terms: int = 12):
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(sensors, width), nn.Tanh(), nn.Linear(width, terms))
        self.trunk = nn.Sequential(
            nn.Linear(2, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, terms), nn.Tanh()
        )
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, sensed, points):
        return torch.einsum("bt,pt->bp", self.branch(sensed), self.trunk(points)) + self.bias


def deeponet() -> Training:
    data = batches(
        lambda g: {"sensed": normal(g, 6, 20), "points": uniform(g, 9, 2), "target": normal(g, 6, 9)}, "deeponet"
    )
    return Training(
        lively(DeepOnet()),
        give("sensed", "points"),
        squared,
        data,
        optimize=lambda m: torch.optim.Adadelta(m.parameters(), lr=0.5),
    )


DEEPONET = Model(
    "deeponet",
    deeponet,
    "operator network, Adadelta",
    (
        Fault(
            "normalised",
            "scale",
            P.rewritten(
                "", lambda self, s, p: torch.einsum("bt,pt->bp", self.branch(s), self.trunk(p)) / 12 + self.bias
            ),
            "",
            ("forward",),
            "the mean over terms for their sum",
        ),
        Fault(
            "last-tanh",
            "activation",
            P.exchanged("trunk.5", lambda m: nn.Identity()),
            "trunk.5",
            ("forward",),
            "no tanh behind the trunk",
            also=("trunk",),
        ),
        Fault(
            "loss-huber",
            "loss-kind",
            P.criterion(lambda o, b: F.smooth_l1_loss(o.float(), b["target"].float())),
            "",
            ("loss",),
            "Huber loss for squares",
        ),
        Fault(
            "trunk-frozen",
            "detach",
            P.around("trunk", lambda f, p: f(p).detach()),
            "trunk",
            ("backward", "gradient"),
            "the trunk's output is detached",
            also=("", "trunk.*"),
        ),
        Fault("rho", "betas", P.groups(rho=0.95), "", ("update",), "Adadelta's rho 0.95 for 0.9"),
        Fault(
            "bias-missing",
            "missing-bias",
            P.several(P.values("branch.0", "bias", torch.zeros_like)),
            "branch.0",
            ("init",),
            "the first bias is not loaded",
            dtype="bfloat16",
        ),
    ),
    (
        Clean(
            "by-matmul",
            "the inner product by matmul",
            P.rewritten("", lambda self, s, p: self.branch(s) @ self.trunk(p).T + self.bias),
        ),
        Clean(
            "elementwise",
            "the inner product by a sum, in bfloat16",
            P.rewritten(
                "",
                lambda self, s, p: (
                    (self.branch(s)[:, None].float() * self.trunk(p).float()).sum(-1).to(s.dtype) + self.bias
                ),
            ),
            dtype="bfloat16",
        ),
    ),
)
