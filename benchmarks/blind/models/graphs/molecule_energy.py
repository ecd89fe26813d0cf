"""Continuous-filter convolutions on molecules."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal, squared, threads


class Filter(nn.Module):
    """Continuous-filter convolution (SchNet) with a cosine cutoff."""

    def __init__(self, size: int, bases: int, cutoff: float):
        super().__init__()
        self.filter = nn.Sequential(nn.Linear(bases, size), nn.Softplus(), nn.Linear(size, size))
        self.before, self.after, self.last = (
            nn.Linear(size, size, bias=False),
            nn.Linear(size, size),
            nn.Linear(size, size),
        )
        self.cutoff = cutoff

    def forward(self, x, away, bases):
        fade = 0.5 * (torch.cos(away * math.pi / self.cutoff) + 1) * (away < self.cutoff)
        weights = self.filter(bases) * fade[..., None]
        gathered = torch.einsum("bijd,bjd->bid", weights, self.before(x))
        return self.last(F.softplus(self.after(gathered)) - math.log(2))


class Molecule(nn.Module):
    """Energy of a molecule from atoms and distances."""

    def __init__(self, atoms: int = 8, size: int = 20, bases: int = 12, cutoff: float = 3.0):
        super().__init__()
        self.atoms = nn.Embedding(atoms, size)
        self.register_buffer("centres", torch.linspace(0, cutoff, bases))
        self.blocks = nn.ModuleList(Filter(size, bases, cutoff) for _ in range(3))
        self.energy = nn.Sequential(nn.Linear(size, 10), nn.Softplus(), nn.Linear(10, 1))
        self.gamma = 10.0

    def forward(self, kinds, places):
        away = (places[:, :, None] - places[:, None]).square().sum(-1).add(1e-8).sqrt()
        bases = torch.exp(-self.gamma * (away[..., None] - self.centres).square())
        away = away + 1e3 * torch.eye(away.shape[1])
        x = self.atoms(kinds)
        for block in self.blocks:
            x = x + block(x, away, bases)
        return self.energy(x)[..., 0].sum(1)


def molecule() -> Training:
    data = batches(
        lambda g: {"kinds": ids(g, 4, 7, below=8), "places": normal(g, 4, 7, 3), "target": normal(g, 4)}, "molecule"
    )
    plateau = lambda o: torch.optim.lr_scheduler.StepLR(o, 1, 0.5)  # noqa: E731
    return Training(lively(Molecule()), give("kinds", "places"), squared, data, schedule=plateau)


def _itself_too(self, kinds, places):
    away = (places[:, :, None] - places[:, None]).square().sum(-1).add(1e-8).sqrt()
    bases = torch.exp(-self.gamma * (away[..., None] - self.centres).square())
    x = self.atoms(kinds)
    for block in self.blocks:
        x = x + block(x, away, bases)
    return self.energy(x)[..., 0].sum(1)


def _no_fade(self, x, away, bases):
    weights = self.filter(bases) * (away < self.cutoff)[..., None]
    gathered = torch.einsum("bijd,bjd->bid", weights, self.before(x))
    return self.last(F.softplus(self.after(gathered)) - math.log(2))


MOLECULE = Model(
    "molecule-energy",
    molecule,
    "continuous-filter convolutions on molecules",
    (
        Fault("itself", "mask", P.rewritten("", _itself_too), "", ("forward",), "an atom is its own neighbour"),
        Fault(
            "no-cutoff", "formula", P.rewritten("blocks.1", _no_fade), "blocks.1", ("forward",), "the cutoff is a step"
        ),
        Fault(
            "softplus-shift",
            "constant",
            P.rewritten(
                "blocks.2",
                lambda self, x, a, b: self.last(
                    F.softplus(
                        self.after(
                            torch.einsum(
                                "bijd,bjd->bid",
                                self.filter(b)
                                * (0.5 * (torch.cos(a * math.pi / self.cutoff) + 1) * (a < self.cutoff))[..., None],
                                self.before(x),
                            )
                        )
                    )
                    - 0.69
                ),
            ),
            "blocks.2",
            ("forward",),
            "0.69 for log 2",
        ),
        Fault(
            "mean-atoms",
            "pooling",
            P.rewritten("", lambda self, k, p: _mean_atoms(self, k, p)),
            "",
            ("forward",),
            "the mean over atoms",
        ),
        Fault("gamma", "constant", P.setting("", gamma=10.01), "", ("forward",), "the bases' width 10.01 for 10"),
        Fault(
            "step-size",
            "schedule",
            P.scheduled(lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5)),
            "",
            ("update",),
            "the rate is halved every second step",
            step=1,
            steps=3,
        ),
    ),
    (
        Clean("cdist", "distances by cdist", P.rewritten("", lambda self, k, p: _cdist(self, k, p))),
        Clean("two-threads", "on two threads", lambda t: setattr(t, "context", lambda: threads(2))),
    ),
)


def _mean_atoms(self, kinds, places):
    away = (places[:, :, None] - places[:, None]).square().sum(-1).add(1e-8).sqrt()
    bases = torch.exp(-self.gamma * (away[..., None] - self.centres).square())
    away = away + 1e3 * torch.eye(away.shape[1])
    x = self.atoms(kinds)
    for block in self.blocks:
        x = x + block(x, away, bases)
    return self.energy(x)[..., 0].mean(1)


def _cdist(self, kinds, places):
    away = torch.cdist(places, places, compute_mode="donot_use_mm_for_euclid_dist").square().add(1e-8).sqrt()
    bases = torch.exp(-self.gamma * (away[..., None] - self.centres).square())
    away = away + 1e3 * torch.eye(away.shape[1])
    x = self.atoms(kinds)
    for block in self.blocks:
        x = block(x, away, bases) + x
    return self.energy(x)[..., 0].sum(1)
