"""A network that writes another one's weights, NAdam."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal, squared


class Hyper(nn.Module):
    """A hyper-network that writes the weights of a small network for each task."""

    def __init__(self, tasks: int = 5, inner: int = 12):
        super().__init__()
        self.tasks = nn.Embedding(tasks, 10)
        self.trunk = nn.Linear(10, 24)
        self.first = nn.Linear(24, inner * 3 + inner)
        self.second = nn.Linear(24, inner * 1 + 1)
        self.inner = inner

    def forward(self, task, x):
        h = F.gelu(self.trunk(self.tasks(task)))
        first, second = self.first(h), self.second(h)
        w, b = first[:, : -self.inner].unflatten(-1, (self.inner, 3)), first[:, -self.inner :]
        y = torch.sin(torch.einsum("bnc,bic->bni", x, w) + b[:, None])
        return torch.einsum("bni,bi->bn", y, second[:, :-1]) + second[:, -1:]


def hyper() -> Training:
    data = batches(lambda g: {"task": ids(g, 4, below=5), "x": normal(g, 4, 7, 3), "target": normal(g, 4, 7)}, "hyper")
    return Training(
        lively(Hyper()), give("task", "x"), squared, data, optimize=lambda m: torch.optim.NAdam(m.parameters(), lr=2e-3)
    )


def _transposed(self, task, x):
    h = F.gelu(self.trunk(self.tasks(task)))
    first, second = self.first(h), self.second(h)
    w, b = first[:, : -self.inner].unflatten(-1, (3, self.inner)).transpose(1, 2), first[:, -self.inner :]
    y = torch.sin(torch.einsum("bnc,bic->bni", x, w) + b[:, None])
    return torch.einsum("bni,bi->bn", y, second[:, :-1]) + second[:, -1:]


HYPER = Model(
    "hyper-network",
    hyper,
    "a network that writes another one's weights, NAdam",
    (
        Fault(
            "weights-transposed",
            "transposed-weight",
            P.rewritten("", _transposed),
            "",
            ("forward",),
            "the written weights are read as [in, out]",
        ),
        Fault(
            "gelu-tanh",
            "gelu",
            P.rewritten("", lambda self, task, x: _tanh_gelu(self, task, x)),
            "",
            ("forward",),
            "GELU by tanh",
        ),
        Fault(
            "trunk-gradient",
            "wrong-gradient",
            P.around("trunk", lambda f, x: P.wrong_gradient(f(x), lambda g: g * 0.99)),
            "trunk",
            ("backward", "gradient"),
            "the trunk's backward loses 1 %",
        ),
        Fault(
            "loss-sum",
            "reduction",
            P.criterion(lambda o, b: F.mse_loss(o.float(), b["target"].float(), reduction="sum") / len(o)),
            "",
            ("loss",),
            "summed over points, averaged over tasks",
        ),
        Fault(
            "nadam-decay",
            "optimizer-variant",
            P.groups(momentum_decay=0.04),
            "",
            ("update",),
            "momentum decay 0.04 for 0.004",
        ),
    ),
    (
        Clean(
            "matmul", "the inner network by matmul", P.rewritten("", lambda self, task, x: _by_matmul(self, task, x))
        ),
        Clean("unit-batch", "four micro-batches of one task", lambda t: (P.in_two(t), P.in_two(t)) and None),
    ),
)


def _tanh_gelu(self, task, x):
    h = F.gelu(self.trunk(self.tasks(task)), approximate="tanh")
    first, second = self.first(h), self.second(h)
    w, b = first[:, : -self.inner].unflatten(-1, (self.inner, 3)), first[:, -self.inner :]
    y = torch.sin(torch.einsum("bnc,bic->bni", x, w) + b[:, None])
    return torch.einsum("bni,bi->bn", y, second[:, :-1]) + second[:, -1:]


def _by_matmul(self, task, x):
    h = F.gelu(self.trunk(self.tasks(task)))
    first, second = self.first(h), self.second(h)
    w, b = first[:, : -self.inner].unflatten(-1, (self.inner, 3)), first[:, -self.inner :]
    y = torch.sin(torch.baddbmm(b[:, None], x, w.transpose(1, 2)))
    return torch.baddbmm(second[:, -1:, None], y, second[:, :-1, None])[..., 0]
