"""Masked autoregressive flow."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal, threads


class Masked(nn.Linear):
    """A linear layer whose weight is masked."""

    def __init__(self, inputs: int, outputs: int, mask: torch.Tensor):
        super().__init__(inputs, outputs)
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


class Made(nn.Module):
    """Masked autoencoder that gives shift and log scale of every variable from those before it."""

    def __init__(self, size: int, hidden: int = 24):
        super().__init__()
        order, middle = torch.arange(size), torch.arange(hidden) % (size - 1)
        self.first = Masked(size, hidden, (middle[:, None] >= order).float())
        self.second = Masked(hidden, hidden, (middle[:, None] >= middle).float())
        self.last = Masked(hidden, 2 * size, (order.repeat(2)[:, None] > middle).float())

    def forward(self, x):
        shift, log = self.last(torch.relu(self.second(torch.relu(self.first(x))))).chunk(2, -1)
        log = 2 * torch.tanh(log / 2)
        return (x - shift) * torch.exp(-log), -log.sum(-1)


class Autoregressive(nn.Module):
    """Several MADEs with the order reversed between them."""

    def __init__(self, size: int = 6, depth: int = 3):
        super().__init__()
        self.steps = nn.ModuleList(Made(size) for _ in range(depth))

    def forward(self, x):
        total = 0.0
        for made in self.steps:
            x, log = made(x)
            total = total + log
            x = x.flip(-1)
        return x, total


def autoregressive() -> Training:
    return Training(lively(Autoregressive()), give("x"), flow_loss, batches(lambda g: {"x": normal(g, 16, 6)}, "maf"))


def flow_loss(output, batch):
    z, log = output
    return (0.5 * z.float().square().sum(-1) + 3 * math.log(2 * math.pi) - log.float()).mean()


def _no_flip(self, x):
    total = 0.0
    for number, made in enumerate(self.steps):
        x, log = made(x)
        total = total + log
        if number:
            x = x.flip(-1)
    return x, total


def _sign(self, x):
    shift, log = self.last(torch.relu(self.second(torch.relu(self.first(x))))).chunk(2, -1)
    log = 2 * torch.tanh(log / 2)
    return (x - shift) * torch.exp(-log), log.sum(-1)


def _interleaved(self, x):
    shift, log = self.last(torch.relu(self.second(torch.relu(self.first(x))))).unflatten(-1, (-1, 2)).unbind(-1)
    log = 2 * torch.tanh(log / 2)
    return (x - shift) * torch.exp(-log), -log.sum(-1)


AUTOREGRESSIVE = Model(
    "made-flow",
    autoregressive,
    "masked autoregressive flow",
    (
        Fault(
            "no-flip",
            "order-of-axis",
            P.rewritten("", _no_flip),
            "",
            ("forward",),
            "no reversal after the first step",
            also=("steps.1",),
        ),
        Fault(
            "jacobian-sign",
            "formula",
            P.rewritten("steps.1", _sign),
            "steps.1",
            ("forward",),
            "the log determinant has the wrong sign",
        ),
        Fault(
            "interleaved",
            "wrong-split",
            P.rewritten("steps.2", _interleaved),
            "steps.2",
            ("forward",),
            "shift and scale are interleaved in the head",
        ),
        Fault(
            "mask-strict",
            "mask",
            P.values(
                "steps.0.second", "mask", lambda m: (torch.arange(24)[:, None] % 5 > torch.arange(24) % 5).float()
            ),
            "steps.0.second",
            ("init",),
            "the hidden mask is strict",
        ),
        Fault(
            "mask-after",
            "wrong-gradient",
            P.parameter_gradient("steps.1.first", "weight", lambda g: g * 1.002),
            "steps.1.first",
            ("gradient", "backward"),
            "that weight's gradient is 0.2 % too large",
        ),
    ),
    (
        Clean(
            "log-scale-order",
            "the sum of logs from the last to the first",
            P.method("", "forward", lambda self, x: _from_last(self, x)),
        ),
        Clean(
            "bfloat16-threads", "on two threads", lambda t: setattr(t, "context", lambda: threads(2)), dtype="bfloat16"
        ),
        Clean(
            "masked-in-advance",
            "the mask multiplied in by an in-place copy",
            P.rewritten("steps.1.second", lambda self, x: x @ (self.mask * self.weight).T + self.bias),
        ),
    ),
)


def _from_last(self, x):
    logs = []
    for made in self.steps:
        x, log = made(x)
        logs.insert(0, log)
        x = x.flip(-1)
    return x, torch.stack(logs).sum(0)
