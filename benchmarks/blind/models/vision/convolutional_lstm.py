"""Convolutional LSTM with peepholes, tight clipping."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal, squared


class ConvLstm(nn.Module):
    """A convolutional LSTM that forecasts frames."""

    def __init__(self, width: int = 10):
        super().__init__()
        self.gates = nn.Conv2d(1 + width, 4 * width, 3, padding=1)
        self.peep = nn.Parameter(torch.randn(3, width, 1, 1) * 0.2)
        self.out = nn.Conv2d(width, 1, 1)
        self.width = width

    def cell(self, x, h, c):
        i, f, g, o = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        i, f = torch.sigmoid(i + self.peep[0] * c), torch.sigmoid(f + self.peep[1] * c)
        c = f * c + i * torch.tanh(g)
        return torch.sigmoid(o + self.peep[2] * c) * torch.tanh(c), c

    def forward(self, frames):
        h = c = frames.new_zeros(len(frames), self.width, *frames.shape[-2:])
        for time in range(frames.shape[1]):
            h, c = self.cell(frames[:, time], h, c)
        return self.out(h)


def convlstm() -> Training:
    data = batches(lambda g: {"frames": normal(g, 4, 4, 1, 8, 8), "target": normal(g, 4, 1, 8, 8)}, "convlstm")
    return Training(lively(ConvLstm()), give("frames"), squared, data, clip=0.05)


def _old_peep(self, x, h, c):
    i, f, g, o = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
    i, f, o = (
        torch.sigmoid(i + self.peep[0] * c),
        torch.sigmoid(f + self.peep[1] * c),
        torch.sigmoid(o + self.peep[2] * c),
    )
    c = f * c + i * torch.tanh(g)
    return o * torch.tanh(c), c


def _hidden_first(self, x, h, c):
    i, f, g, o = self.gates(torch.cat([h, x], 1)).chunk(4, 1)
    i, f = torch.sigmoid(i + self.peep[0] * c), torch.sigmoid(f + self.peep[1] * c)
    c = f * c + i * torch.tanh(g)
    return torch.sigmoid(o + self.peep[2] * c) * torch.tanh(c), c


CONVLSTM = Model(
    "convolutional-lstm",
    convlstm,
    "convolutional LSTM with peepholes, tight clipping",
    (
        Fault(
            "old-cell",
            "order-of-operations",
            P.method("", "cell", _old_peep),
            "",
            ("forward",),
            "the output gate peeps at the old cell",
        ),
        Fault(
            "concatenation",
            "order-of-axis",
            P.method("", "cell", _hidden_first),
            "",
            ("forward",),
            "hidden state before input",
        ),
        Fault("no-clip", "clip", P.clipped(None), "", ("update",), "gradients are not clipped"),
        Fault(
            "per-parameter-clip",
            "clip",
            P.several(
                P.clipped(None),
                P.after_backward(lambda t, n: [nn.utils.clip_grad_norm_([p], 0.05) for p in t.model.parameters()]),
            ),
            "",
            ("update",),
            "each parameter is clipped for itself",
            also=("gates",),
        ),
        Fault(
            "last-frame",
            "off-by-one",
            P.rewritten("", lambda self, f: _skip_last(self, f)),
            "",
            ("forward",),
            "the last frame is not seen",
        ),
    ),
    (
        Clean(
            "two-convolutions",
            "the gates of input and state apart",
            P.rewritten(
                "gates",
                lambda self, x: (
                    F.conv2d(x[:, :1], self.weight[:, :1], self.bias, padding=1)
                    + F.conv2d(x[:, 1:], self.weight[:, 1:], padding=1)
                ),
            ),
        ),
        Clean("scripted-loop", "clipping by hand", lambda t: _clip_by_hand(t), steps=2),
    ),
)


def _skip_last(self, frames):
    h = c = frames.new_zeros(len(frames), self.width, *frames.shape[-2:])
    for time in range(frames.shape[1] - 1):
        h, c = self.cell(frames[:, time], h, c)
    return self.out(h)


def _clip_by_hand(training: Training) -> None:
    training.clip = None

    def act(t, number):
        total = sum(p.grad.square().sum() for p in t.model.parameters()).sqrt()
        for p in t.model.parameters():
            p.grad.mul_(min(1.0, 0.05 / (total.item() + 1e-6)))

    P.after_backward(act)(training)
