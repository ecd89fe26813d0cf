"""S4D with complex kernels, two groups of the optimizer."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal


class DiagonalKernel(nn.Module):
    """The convolution kernel of a diagonal state space (S4D)."""

    def __init__(self, channels: int, states: int = 8):
        super().__init__()
        self.log_dt = nn.Parameter(torch.rand(channels) * 2 - 3)
        self.log_real = nn.Parameter(torch.full((channels, states), math.log(0.5)))
        self.imaginary = nn.Parameter(math.pi * torch.arange(states).float().repeat(channels, 1))
        self.c = nn.Parameter(torch.randn(channels, states, 2) * states**-0.5)

    def forward(self, length: int):
        a = torch.complex(-self.log_real.exp(), self.imaginary)
        dta = a * self.log_dt.exp()[:, None]
        c = torch.view_as_complex(self.c) * (dta.exp() - 1) / a
        powers = (dta[..., None] * torch.arange(length)).exp()
        return 2 * torch.einsum("cn,cnl->cl", c, powers).real


class DiagonalLayer(nn.Module):
    """Convolution by FFT, skip, GELU, gated output."""

    def __init__(self, channels: int):
        super().__init__()
        self.kernel, self.skip = DiagonalKernel(channels), nn.Parameter(torch.ones(channels))
        self.out = nn.Linear(channels, 2 * channels)

    def convolve(self, x, kernel):
        length = x.shape[-1]
        return torch.fft.irfft(torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length), n=2 * length)[
            ..., :length
        ]

    def forward(self, x):
        x = x.transpose(1, 2)
        y = self.convolve(x, self.kernel(x.shape[-1])) + x * self.skip[:, None]
        return F.glu(self.out(F.gelu(y).transpose(1, 2)))


class StateSpace(nn.Module):
    """S4D classifier of sequences."""

    def __init__(self, seen: int = 3, channels: int = 16, classes: int = 5):
        super().__init__()
        self.into = nn.Linear(seen, channels)
        self.layers = nn.ModuleList(DiagonalLayer(channels) for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for _ in range(3))
        self.head = nn.Linear(channels, classes)

    def forward(self, x):
        x = self.into(x)
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = norm(x + layer(x))
        return self.head(x.mean(1))


def classify(output, batch):
    return F.cross_entropy(output.float(), batch["labels"])


def state_space() -> Training:
    data = batches(lambda g: {"x": normal(g, 6, 20, 3), "labels": ids(g, 6, below=5)}, "s4d")

    def grouped(model):
        slow = [p for n, p in model.named_parameters() if "kernel" in n]
        rest = [p for n, p in model.named_parameters() if "kernel" not in n]
        return torch.optim.AdamW(
            [{"params": rest}, {"params": slow, "lr": 1e-3, "weight_decay": 0.0}], lr=4e-3, weight_decay=0.05
        )

    model = StateSpace()
    lively(model.into), lively(model.head)
    return Training(model, give("x"), classify, data, optimize=grouped)


def _zero_order(self, length):
    a = torch.complex(-self.log_real.exp(), self.imaginary)
    dta = a * self.log_dt.exp()[:, None]
    c = torch.view_as_complex(self.c) * self.log_dt.exp()[:, None]
    return 2 * torch.einsum("cn,cnl->cl", c, (dta[..., None] * torch.arange(length)).exp()).real


def _one_half(self, length):
    a = torch.complex(-self.log_real.exp(), self.imaginary)
    dta = a * self.log_dt.exp()[:, None]
    c = torch.view_as_complex(self.c) * (dta.exp() - 1) / a
    return torch.einsum("cn,cnl->cl", c, (dta[..., None] * torch.arange(length)).exp()).real


def _circular(self, x, kernel):
    length = x.shape[-1]
    return torch.fft.irfft(torch.fft.rfft(x) * torch.fft.rfft(kernel), n=length)


def _all_alike(model):
    return torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.05)


def _prenorm(self, x):
    x = self.into(x)
    for layer, norm in zip(self.layers, self.norms, strict=True):
        x = x + layer(norm(x))
    return self.head(x.mean(1))


STATE_SPACE = Model(
    "diagonal-state-space",
    state_space,
    "S4D with complex kernels, two groups of the optimizer",
    (
        Fault(
            "discretisation",
            "formula",
            P.rewritten("layers.1.kernel", _zero_order),
            "layers.1.kernel",
            ("forward",),
            "Euler's discretisation for zero-order hold",
            also=("layers.1",),
        ),
        Fault(
            "factor-two",
            "scale",
            P.rewritten("layers.0.kernel", _one_half),
            "layers.0.kernel",
            ("forward",),
            "the conjugate half of the states is forgotten",
            also=("layers.0",),
        ),
        Fault(
            "circular",
            "padding",
            P.method("layers.2", "convolve", _circular),
            "layers.2",
            ("forward",),
            "the FFT is not padded: a circular convolution",
        ),
        Fault(
            "pre-norm",
            "norm-order",
            P.rewritten("", _prenorm),
            "",
            ("forward",),
            "pre-norm for post-norm",
            also=("norms.0", "layers.0"),
        ),
        Fault(
            "one-group",
            "groups",
            P.optimizer(_all_alike),
            "",
            ("update",),
            "the kernels' parameters have the learning rate of the others",
            also=("layers.*.kernel",),
        ),
        Fault(
            "mean-max",
            "pooling",
            P.rewritten("", lambda self, x: _last_step(self, x)),
            "",
            ("forward",),
            "the last step for the mean",
            swapped=True,
        ),
    ),
    (
        Clean(
            "direct-convolution",
            "the convolution without FFT",
            P.method(
                "layers.1",
                "convolve",
                lambda self, x, k: F.conv1d(F.pad(x, (k.shape[-1] - 1, 0)), k.flip(-1)[:, None], groups=k.shape[0]),
            ),
        ),
        Clean("one-kernel-loop", "AdamW without foreach", lambda t: _loop_of(t), steps=2),
    ),
)


def _loop_of(training: Training) -> None:
    usual = training.optimize

    def make(model):
        held = usual(model)
        for group in held.param_groups:
            group["foreach"] = False
        return held

    training.optimize = make


def _last_step(self, x):
    x = self.into(x)
    for layer, norm in zip(self.layers, self.norms, strict=True):
        x = norm(x + layer(x))
    return self.head(x[:, -1])
