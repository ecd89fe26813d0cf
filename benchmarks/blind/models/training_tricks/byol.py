"""Self-distillation with a slow target."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal


class Projector(nn.Module):
    """Two layers with batch norm."""

    def __init__(self, inputs: int, hidden: int, outputs: int):
        super().__init__()
        self.first, self.norm, self.second = (
            nn.Linear(inputs, hidden),
            nn.BatchNorm1d(hidden),
            nn.Linear(hidden, outputs),
        )

    def forward(self, x):
        return self.second(F.relu(self.norm(self.first(x))))


class Byol(nn.Module):
    """Online encoder, projector and predictor; a slow target."""

    def __init__(self, width: int = 24):
        super().__init__()
        self.online = nn.Sequential(
            nn.Conv2d(2, 8, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(8, 12, 3, 2, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            Projector(12, width, 10),
        )
        self.predictor = Projector(10, width, 10)
        self.target = copy.deepcopy(self.online).requires_grad_(False)

    def forward(self, one, two):
        p1, p2 = self.predictor(self.online(one)), self.predictor(self.online(two))
        with torch.no_grad():
            t1, t2 = self.target(one), self.target(two)
        return p1, p2, t1, t2


def byol_loss(stop=True):
    def loss(output, batch):
        p1, p2, t1, t2 = (x.float() for x in output)
        return 4 - 2 * F.cosine_similarity(p1, t2).mean() - 2 * F.cosine_similarity(p2, t1).mean()

    return loss


def byol() -> Training:
    data = batches(lambda g: {"one": normal(g, 8, 2, 10, 10), "two": normal(g, 8, 2, 10, 10)}, "byol")
    model = Byol()
    lively(model.online), lively(model.predictor)
    model.target.load_state_dict(model.online.state_dict())
    training = Training(
        model,
        give("one", "two"),
        byol_loss(),
        data,
        optimize=lambda m: torch.optim.SGD([p for p in m.parameters() if p.requires_grad], lr=0.05, momentum=0.9),
    )
    P.after_step(lambda t, n: follow(t, 0.9))(training)
    return training


def follow(training: Training, keep: float) -> None:
    with torch.no_grad():
        for slow, fast in zip(training.at("target").parameters(), training.at("online").parameters(), strict=True):
            slow.mul_(keep).add_(fast, alpha=1 - keep)


def _reversed_average(training: Training) -> None:
    training.after_step.clear()
    P.after_step(lambda t, n: follow(t, 0.1))(training)


def _same_view(self, one, two):
    p1, p2 = self.predictor(self.online(one)), self.predictor(self.online(two))
    with torch.no_grad():
        t1, t2 = self.target(one), self.target(two)
    return p1, p2, t2, t1


BYOL = Model(
    "byol",
    byol,
    "self-distillation with a slow target",
    (
        Fault(
            "average-reversed",
            "average",
            _reversed_average,
            "target",
            ("update",),
            "the average keeps 0.1 for 0.9",
            also=("target.*",),
        ),
        Fault(
            "target-before",
            "order-of-operations",
            lambda t: (t.after_step.clear(), P.after_backward(lambda u, n: follow(u, 0.9))(t)) and None,
            "target",
            ("update",),
            "the target follows before the optimizer's step",
            also=("target.*",),
            steps=2,
        ),
        Fault(
            "views-swapped",
            "order-of-operations",
            P.rewritten("", _same_view),
            "",
            ("forward",),
            "targets of the two views are swapped",
        ),
        Fault(
            "target-eval",
            "train-eval",
            lambda t: t.at("target").eval() and None,
            "target.5.norm",
            ("forward",),
            "the target's batch norm is in eval mode",
            also=("target.5", "target"),
            dtype="autocast",
        ),
        Fault(
            "predictor-rate",
            "groups",
            lambda t: setattr(
                t,
                "optimize",
                lambda m: torch.optim.SGD(
                    [{"params": m.online.parameters()}, {"params": m.predictor.parameters(), "lr": 0.5}],
                    lr=0.05,
                    momentum=0.9,
                ),
            ),
            "predictor",
            ("update",),
            "the predictor learns ten times as fast",
            also=("predictor.*",),
        ),
    ),
    (
        Clean(
            "lerp",
            "the average by lerp",
            lambda t: (t.after_step.clear(), P.after_step(lambda u, n: _lerp(u))(t)) and None,
            steps=2,
        ),
        Clean(
            "norm-by-hand",
            "batch norm in float64",
            P.rewritten(
                "predictor.norm",
                lambda self, x: F.batch_norm(
                    x.double(),
                    self.running_mean.double(),
                    self.running_var.double(),
                    self.weight.double(),
                    self.bias.double(),
                    True,
                    self.momentum,
                    self.eps,
                ).to(x),
            ),
            steps=1,
        ),
        Clean(
            "both-views-at-once",
            "SGD without foreach",
            P.optimizer(
                lambda m: torch.optim.SGD(
                    [p for p in m.parameters() if p.requires_grad], lr=0.05, momentum=0.9, foreach=False
                )
            ),
            steps=2,
        ),
    ),
)


def _lerp(training: Training) -> None:
    with torch.no_grad():
        slow = [*training.at("target").parameters()]
        torch._foreach_lerp_(slow, [*training.at("online").parameters()], 0.1)
