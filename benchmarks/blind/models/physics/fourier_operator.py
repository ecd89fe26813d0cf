"""Fourier neural operator in one dimension."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal


class Spectrum(nn.Module):
    """Multiplies the lowest Fourier modes by complex weights."""

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.real = nn.Parameter(torch.randn(width, width, modes) / width)
        self.imaginary = nn.Parameter(torch.randn(width, width, modes) / width)
        self.modes = modes

    def forward(self, x):
        seen = torch.fft.rfft(x)
        kept = torch.einsum("bix,iox->box", seen[..., : self.modes], torch.complex(self.real, self.imaginary))
        return torch.fft.irfft(F.pad(kept, (0, seen.shape[-1] - self.modes)), n=x.shape[-1])


class FourierBlock(nn.Module):
    """Spectral path and pointwise path, added."""

    def __init__(self, width: int, modes: int):
        super().__init__()
        self.spectrum = Spectrum(width, modes)
        self.point = nn.Conv1d(width, width, 1)
        self.norm = nn.InstanceNorm1d(width, affine=True)

    def forward(self, x):
        return F.gelu(self.norm(self.spectrum(x) + self.point(x)))


class FourierOperator(nn.Module):
    """Lift, Fourier blocks, project."""

    def __init__(self, width: int = 12):
        super().__init__()
        self.lift = nn.Conv1d(2, width, 1)
        self.blocks = nn.ModuleList(FourierBlock(width, m) for m in (6, 6, 5))
        self.project = nn.Sequential(nn.Conv1d(width, 24, 1), nn.GELU(), nn.Conv1d(24, 1, 1))

    def forward(self, x):
        grid = torch.linspace(0, 1, x.shape[-1], device=x.device, dtype=x.dtype).expand(len(x), 1, -1)
        x = self.lift(torch.cat([x, grid], 1))
        for block in self.blocks:
            x = block(x)
        return self.project(x)


def operator() -> Training:
    data = batches(lambda g: {"x": normal(g, 5, 1, 24), "target": normal(g, 5, 1, 24)}, "operator")
    return Training(lively(FourierOperator()), give("x"), relative, data)


def relative(output, batch):
    away = (output.float() - batch["target"]).flatten(1).norm(dim=1)
    return (away / batch["target"].flatten(1).norm(dim=1)).mean()


def _grid_open(self, x):
    grid = (torch.arange(x.shape[-1], dtype=x.dtype) / x.shape[-1]).expand(len(x), 1, -1)
    x = self.lift(torch.cat([x, grid], 1))
    for block in self.blocks:
        x = block(x)
    return self.project(x)


def _transposed_modes(self, x):
    seen = torch.fft.rfft(x)
    kept = torch.einsum("bix,oix->box", seen[..., : self.modes], torch.complex(self.real, self.imaginary))
    return torch.fft.irfft(F.pad(kept, (0, seen.shape[-1] - self.modes)), n=x.shape[-1])


def _orthogonal(self, x):
    seen = torch.fft.rfft(x, norm="ortho")
    kept = torch.einsum("bix,iox->box", seen[..., : self.modes], torch.complex(self.real, self.imaginary))
    return torch.fft.irfft(F.pad(kept, (0, seen.shape[-1] - self.modes)), n=x.shape[-1])


OPERATOR = Model(
    "fourier-operator",
    operator,
    "Fourier neural operator in one dimension",
    (
        Fault(
            "modes",
            "off-by-one",
            P.rewritten("blocks.1.spectrum", lambda self, x: _fewer_modes(self, x)),
            "blocks.1.spectrum",
            ("forward",),
            "the highest mode is left out",
        ),
        Fault(
            "in-out",
            "transposed-weight",
            P.rewritten("blocks.2.spectrum", _transposed_modes),
            "blocks.2.spectrum",
            ("forward",),
            "the complex weights are read as [out, in]",
        ),
        Fault(
            "fft-norm",
            "scale",
            P.rewritten("blocks.0.spectrum", _orthogonal),
            "blocks.0.spectrum",
            ("forward",),
            "orthonormal transform forward, plain one back",
        ),
        Fault("grid", "off-by-one", P.rewritten("", _grid_open), "", ("forward",), "the grid ends one point early"),
        Fault(
            "squared-loss",
            "loss-kind",
            P.criterion(lambda o, b: F.mse_loss(o, b["target"])),
            "",
            ("loss",),
            "mean squares for the relative norm",
        ),
        Fault(
            "imaginary-gradient",
            "wrong-gradient",
            P.parameter_gradient("blocks.1.spectrum", "imaginary", torch.neg),
            "blocks.1.spectrum",
            ("gradient", "backward"),
            "conjugate gradient of the imaginary part",
        ),
        Fault(
            "norm-affine",
            "frozen",
            P.frozen("blocks.2.norm"),
            "blocks.2.norm",
            ("update",),
            "an instance norm is not trained",
        ),
    ),
    (
        Clean(
            "matrix-dft",
            "the transform as a matrix product",
            P.rewritten("blocks.1.spectrum", lambda self, x: _by_matrix(self, x)),
        ),
        Clean("checkpointed", "blocks under activation checkpointing", lambda t: _checkpointed(t)),
    ),
)


def _fewer_modes(self, x):
    seen = torch.fft.rfft(x)
    last = self.modes - 1
    kept = torch.einsum("bix,iox->box", seen[..., :last], torch.complex(self.real, self.imaginary)[..., :last])
    return torch.fft.irfft(F.pad(kept, (0, seen.shape[-1] - last)), n=x.shape[-1])


def _by_matrix(self, x):
    length = x.shape[-1]
    angle = 2 * math.pi * torch.arange(length)[:, None] * torch.arange(self.modes) / length
    low, high = x @ angle.cos().to(x), -(x @ angle.sin().to(x))
    re = torch.einsum("bix,iox->box", low, self.real) - torch.einsum("bix,iox->box", high, self.imaginary)
    im = torch.einsum("bix,iox->box", low, self.imaginary) + torch.einsum("bix,iox->box", high, self.real)
    weight = torch.full((self.modes,), 2.0).index_fill(0, torch.tensor([0]), 1.0) / length
    return (re * weight) @ angle.cos().T.to(x) - (im * weight) @ angle.sin().T.to(x)


def _checkpointed(training: Training) -> None:
    from torch.utils.checkpoint import checkpoint

    for block in training.model.blocks:
        forward = block.forward
        block.forward = lambda x, forward=forward: checkpoint(forward, x, use_reentrant=False)
