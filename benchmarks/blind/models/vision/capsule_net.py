"""Dynamic routing, margin loss, reconstruction."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, uniform


class Routing(nn.Module):
    """Capsules that agree are routed."""

    def __init__(self, inputs: int, size: int, outputs: int, out_size: int, rounds: int = 3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, out_size, size) * 0.3)
        self.rounds = rounds

    def forward(self, u):
        votes = torch.einsum("oijk,bik->boij", self.weight, u)
        logits = votes.new_zeros(votes.shape[:3])
        for number in range(self.rounds):
            v = squash((logits.softmax(1)[..., None] * votes).sum(2))
            if number < self.rounds - 1:
                logits = logits + (votes * v[:, :, None]).sum(-1)
        return v


def squash(x):
    square = x.square().sum(-1, keepdim=True)
    return square / (1 + square) * x / (square + 1e-8).sqrt()


class Capsules(nn.Module):
    """Convolution, primary capsules, routing; with a decoder."""

    def __init__(self):
        super().__init__()
        self.conv, self.primary = nn.Conv2d(1, 12, 5), nn.Conv2d(12, 16, 3, 2)
        self.routing = Routing(2 * 9, 8, 5, 6)
        self.decoder = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 121), nn.Sigmoid())

    def forward(self, x, y):
        h = self.primary(F.relu(self.conv(x)))
        u = squash(h.unflatten(1, (2, 8)).permute(0, 1, 3, 4, 2).flatten(1, 3))
        v = self.routing(u)
        kept = v * F.one_hot(y, 5)[..., None].to(v)
        return (v.square().sum(-1) + 1e-8).sqrt(), self.decoder(kept.flatten(1))


def capsules() -> Training:
    data = batches(lambda g: {"x": uniform(g, 6, 1, 11, 11), "y": ids(g, 6, below=5)}, "capsules")
    model = lively(Capsules())
    with torch.no_grad():
        model.routing.weight.mul_(12.0)
        model.primary.weight.mul_(3.0)
    return Training(model, give("x", "y"), capsule_loss(0.5), data)


def capsule_loss(down):
    def loss(output, batch):
        lengths, image = (x.float() for x in output)
        hot = F.one_hot(batch["y"], 5)
        wrong = hot * F.relu(0.9 - lengths).square() + down * (1 - hot) * F.relu(lengths - 0.1).square()
        return wrong.sum(-1).mean() + 0.05 * (image - batch["x"].float().flatten(1)).square().sum(-1).mean()

    return loss


def _over_inputs(self, u):
    votes = torch.einsum("oijk,bik->boij", self.weight, u)
    logits = votes.new_zeros(votes.shape[:3])
    for number in range(self.rounds):
        v = squash((logits.softmax(2)[..., None] * votes).sum(2))
        if number < self.rounds - 1:
            logits = logits + (votes * v[:, :, None]).sum(-1)
    return v


def _wrong_view(self, x, y):
    h = self.primary(F.relu(self.conv(x)))
    v = self.routing(squash(h.view(len(x), -1, 8)))
    kept = v * F.one_hot(y, 5)[..., None].to(v)
    return (v.square().sum(-1) + 1e-8).sqrt(), self.decoder(kept.flatten(1))


CAPSULES = Model(
    "capsule-net",
    capsules,
    "dynamic routing, margin loss, reconstruction",
    (
        Fault(
            "softmax-axis",
            "axis",
            P.rewritten("routing", _over_inputs),
            "routing",
            ("forward",),
            "couplings are normalised over inputs",
        ),
        Fault(
            "rounds",
            "off-by-one",
            P.setting("routing", rounds=2),
            "routing",
            ("forward",),
            "2 rounds for 3",
            dtype="bfloat16",
        ),
        Fault(
            "capsule-view",
            "wrong-split",
            P.rewritten("", _wrong_view),
            "",
            ("forward",),
            "capsules are cut out along the width",
        ),
        Fault("down-weight", "loss-weights", P.criterion(capsule_loss(0.6)), "", ("loss",), "absent classes weigh 0.6"),
        Fault(
            "target-label",
            "label",
            P.each_batch(lambda b: {**b, "y": b["y"].roll(1)}),
            "",
            ("forward", "inputs"),
            "labels are shifted by one sample",
        ),
    ),
    (
        Clean("votes-by-matmul", "votes by matmul", P.rewritten("routing", lambda self, u: _matmul_votes(self, u))),
        Clean("micro-batches", "two micro-batches for one batch", P.in_two, steps=2),
    ),
)


def _matmul_votes(self, u):
    votes = (self.weight @ u[:, None, :, :, None])[..., 0]
    logits = votes.new_zeros(votes.shape[:3])
    for number in range(self.rounds):
        v = squash((logits.softmax(1)[:, :, None] @ votes)[:, :, 0])
        if number < self.rounds - 1:
            logits = logits + (votes @ v[..., None])[..., 0]
    return v
