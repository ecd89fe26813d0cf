"""Classifier with a Runge-Kutta integration of a learned slope."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal


class Derivative(nn.Module):
    """dx/dt = f(t, x)."""

    def __init__(self, size: int = 6, width: int = 24):
        super().__init__()
        self.first = nn.Linear(size + 1, width)
        self.second = nn.Linear(width, size)

    def forward(self, t, x):
        return self.second(torch.tanh(self.first(torch.cat([x, t.expand(len(x), 1)], 1))))


class NeuralOde(nn.Module):
    """Encoder, a Runge-Kutta integration of fourth order, classifier."""

    def __init__(self, size: int = 6, steps: int = 4):
        super().__init__()
        self.encode = nn.Linear(9, size)
        self.slope = Derivative(size)
        self.classify = nn.Linear(size, 3)
        self.steps = steps

    def forward(self, x):
        x, h = self.encode(x), 1.0 / self.steps
        for number in range(self.steps):
            t = x.new_tensor(number * h)
            k1 = self.slope(t, x)
            k2 = self.slope(t + h / 2, x + h / 2 * k1)
            k3 = self.slope(t + h / 2, x + h / 2 * k2)
            k4 = self.slope(t + h, x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return self.classify(x)


def ode() -> Training:
    data = batches(lambda g: {"x": normal(g, 12, 9), "labels": torch.randint(0, 3, (12,), generator=g)}, "ode")
    return Training(
        lively(NeuralOde()), give("x"), lambda o, b: F.cross_entropy(o.float(), b["labels"]), data, clip=1.0
    )


def _midpoint_twice(self, x):
    x, h = self.encode(x), 1.0 / self.steps
    for number in range(self.steps):
        t = x.new_tensor(number * h)
        k1 = self.slope(t, x)
        k2 = self.slope(t + h / 2, x + h / 2 * k1)
        k3 = self.slope(t + h / 2, x + h / 2 * k2)
        k4 = self.slope(t + h, x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + k3 + 2 * k4)
    return self.classify(x)


def _time_fixed(self, x):
    x, h = self.encode(x), 1.0 / self.steps
    for _ in range(self.steps):
        t = x.new_tensor(0.0)
        k1 = self.slope(t, x)
        k2 = self.slope(t + h / 2, x + h / 2 * k1)
        k3 = self.slope(t + h / 2, x + h / 2 * k2)
        k4 = self.slope(t + h, x + h * k3)
        x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
    return self.classify(x)


ODE = Model(
    "neural-ode",
    ode,
    "classifier with a Runge-Kutta integration of a learned slope",
    (
        Fault(
            "weights-of-stages",
            "formula",
            P.rewritten("", _midpoint_twice),
            "",
            ("forward",),
            "the stages weigh 1, 2, 1, 2",
        ),
        Fault(
            "time-fixed",
            "off-by-one",
            P.rewritten("", _time_fixed),
            "",
            ("forward",),
            "the time starts at 0 in every step",
        ),
        Fault(
            "labels-shifted",
            "label",
            P.each_batch(lambda b: {**b, "labels": (b["labels"] + 1) % 3}),
            "",
            ("loss",),
            "labels begin at 1",
        ),
        Fault(
            "clip-value",
            "clip",
            P.several(
                P.clipped(None), P.after_backward(lambda t, n: nn.utils.clip_grad_value_(t.model.parameters(), 0.02))
            ),
            "",
            ("update",),
            "clipped by value, not by norm",
        ),
        Fault(
            "slope-detached",
            "detach",
            P.rewritten(
                "slope",
                lambda self, t, x: self.second(torch.tanh(self.first(torch.cat([x.detach(), t.expand(len(x), 1)], 1)))),
            ),
            "slope",
            ("backward",),
            "the slope does not pass a gradient to the state",
            also=("slope.first",),
        ),
    ),
    (
        Clean(
            "other-sum", "the stages are added in another order", P.rewritten("", lambda self, x: _other_sum(self, x))
        ),
        Clean("wrapped", "the model inside another module", lambda t: _wrapped(t)),
    ),
)


def _other_sum(self, x):
    x, h = self.encode(x), 1.0 / self.steps
    for number in range(self.steps):
        t = x.new_tensor(number * h)
        k1 = self.slope(t, x)
        k2 = self.slope(t + h / 2, x + h / 2 * k1)
        k3 = self.slope(t + h / 2, x + h / 2 * k2)
        k4 = self.slope(t + h, x + h * k3)
        x = ((h / 6) * k4 + (h / 3) * k3 + (h / 3) * k2 + (h / 6) * k1) + x
    return self.classify(x)


class Wrapper(nn.Module):
    """As a framework wraps a model."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self.module = module

    def forward(self, *args, **kwargs):
        return self.module(*args, **kwargs)


def _wrapped(training: Training) -> None:
    training.model = Wrapper(training.model)
