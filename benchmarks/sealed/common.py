"""Faults and clean differences of the training loop that every model may have."""

from __future__ import annotations

import torch

from ..blind import plant as P
from ..blind.spec import Sides
from . import frame as S

FAULTS = {
    "lr": P.groups(lr=1.2e-3),
    "betas": P.groups(betas=(0.9, 0.95)),
    "decay": P.groups(weight_decay=0.5),
    "coupled": S.optimizer_of("Adam", lr=1e-3, weight_decay=0.05),
    "not-adam": S.optimizer_of("RAdam", lr=1e-3, weight_decay=0.05),
    "nesterov": Sides(P.groups(nesterov=True), both=S.optimizer_of("SGD", lr=0.05, momentum=0.9)),
    "rms-eps": Sides(P.groups(eps=1e-4), both=S.optimizer_of("RMSprop", lr=1e-3)),
    "adagrad-start": Sides(
        S.optimizer_of("Adagrad", lr=1e-2, initial_accumulator_value=0.1), both=S.optimizer_of("Adagrad", lr=1e-2)
    ),
    "clip": Sides(P.clipped(0.2), both=P.clipped(0.1)),
    "no-clip": Sides(P.clipped(None), both=P.several(P.clipped(0.1), S.optimizer_of("SGD", lr=0.05))),
    "not-zeroed": lambda t: setattr(t, "zero", False),
    "micro-sum": Sides(S.scaled_backward(2.0), both=S.in_parts(2)),
    "warmup": Sides(S.warmup(late=1), both=S.warmup()),
    "schedule-late": Sides(S.cosine(3), both=S.cosine(6)),
    "state-lost": P.before_step(S.forgotten),
    "lr-later": P.before_step(lambda t, n: [g.update(lr=2e-3) for g in t.optimizer.param_groups] if n == 2 else None),
    "bf16-weights": P.after_step(S.rounded),
}
"""what plants the faults of ``[common]`` in truths.txt"""

CLEANS = {
    "in-two": Sides(both=S.in_parts(2)),
    "one-two": S.in_parts(2),
    "sdpa": S.kernels("sdpa"),
    "sdpa-bf16": S.kernels("sdpa"),
    "checkpointed": S.checkpointed,
    "threads": S.threads(2),
    "channels-last": S.channels_last,
    "clip-by-hand": Sides(S.by_hand(0.1), P.clipped(0.1)),
    "warmup": Sides(S.lr_set_by_hand(), S.warmup()),
    "sgd": Sides(both=S.optimizer_of("SGD", lr=0.05, momentum=0.9, weight_decay=1e-4)),
    "adagrad": Sides(both=S.optimizer_of("Adagrad", lr=1e-2)),
    "rmsprop": Sides(both=S.optimizer_of("RMSprop", lr=1e-3, momentum=0.5)),
    "nadam": Sides(both=S.optimizer_of("NAdam", lr=1e-3)),
    "adafactor": Sides(both=S.optimizer_of("Adafactor", lr=1e-2)),
    "muon": Sides(both=P.optimizer(lambda model: muon(model))),
    "fused": Sides(S.optimizer_of("AdamW", lr=1e-3, fused=True), S.optimizer_of("AdamW", lr=1e-3, foreach=False)),
    "groups": Sides(P.optimizer(lambda m: grouped(m, True)), P.optimizer(lambda m: grouped(m, False))),
    "outliers": Sides(both=S.outliers()),
    "outliers-bf16": Sides(both=S.outliers()),
}
"""what its clean pairs change; those in another precision change nothing else"""


class Both:
    """Two optimizers as one."""

    def __init__(self, *held: torch.optim.Optimizer):
        self.held = held
        self.param_groups = [group for one in held for group in one.param_groups]

    @property
    def state(self) -> dict:
        """Of both."""
        return {k: v for one in self.held for k, v in one.state.items()}

    def zero_grad(self) -> None:
        """Of both."""
        for one in self.held:
            one.zero_grad()

    def step(self) -> None:
        """One after the other."""
        for one in self.held:
            one.step()


def muon(model: torch.nn.Module) -> Both:
    """Muon for matrices, AdamW for the rest."""
    held = [p for p in model.parameters() if p.requires_grad]
    return Both(
        torch.optim.Muon([p for p in held if p.dim() == 2], lr=2e-3),
        torch.optim.AdamW([p for p in held if p.dim() != 2], lr=1e-3),
    )


def grouped(model: torch.nn.Module, reverse: bool) -> torch.optim.Optimizer:
    """AdamW with and without decay."""
    held = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in held if p.squeeze().dim() > 1], "weight_decay": 0.1},
        {"params": [p for p in held if p.squeeze().dim() <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups[::-1] if reverse else groups, lr=1e-3)
