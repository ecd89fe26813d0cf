"""Faults and clean differences of the training loop that every model may have; each takes what fits its model."""

from __future__ import annotations

import dataclasses

import torch

from ..blind import plant as P
from . import frame as S
from .frame import C, F

FAULTS = {
    "lr": lambda **k: F("lr", "setting", "update", "", P.groups(lr=1.2e-3), "a learning rate of 1.2e-3 for 1e-3", **k),
    "betas": lambda **k: F(
        "betas", "setting", "update", "", P.groups(betas=(0.9, 0.95)), "beta2 0.95 for 0.999", steps=2, **k
    ),
    "decay": lambda **k: F(
        "decay", "setting", "update", "", P.groups(weight_decay=0.5), "weight decay 0.5 for 0.05", **k
    ),
    "coupled": lambda **k: F(
        "coupled",
        "optimizer",
        "update",
        "",
        S.optimizer_of("Adam", lr=1e-3, weight_decay=0.05),
        "Adam with L2 for AdamW",
        **k,
    ),
    "amsgrad": lambda **k: F(
        "not-adam",
        "optimizer",
        "update",
        "",
        S.optimizer_of("RAdam", lr=1e-3, weight_decay=0.05),
        "RAdam for AdamW",
        **k,
    ),
    "nesterov": lambda **k: F(
        "nesterov",
        "optimizer",
        "update",
        "",
        P.groups(nesterov=True),
        "Nesterov's momentum on one side",
        changes=S.optimizer_of("SGD", lr=0.05, momentum=0.9),
        **k,
    ),
    "rms-eps": lambda **k: F(
        "rms-eps",
        "optimizer",
        "update",
        "",
        P.groups(eps=1e-4),
        "RMSprop's eps 1e-4 for 1e-8",
        changes=S.optimizer_of("RMSprop", lr=1e-3),
        **k,
    ),
    "adagrad": lambda **k: F(
        "adagrad-start",
        "optimizer",
        "update",
        "",
        S.optimizer_of("Adagrad", lr=1e-2, initial_accumulator_value=0.1),
        "Adagrad starts from 0.1 as elsewhere, not from 0",
        changes=S.optimizer_of("Adagrad", lr=1e-2),
        **k,
    ),
    "clip": lambda **k: F(
        "clip", "setting", "update", "", P.clipped(0.2), "gradients clipped to 0.2 for 0.1", changes=P.clipped(0.1), **k
    ),
    "no-clip": lambda **k: F(
        "no-clip",
        "setting",
        "update",
        "",
        P.clipped(None),
        "gradients are not clipped",
        changes=P.several(P.clipped(0.1), S.optimizer_of("SGD", lr=0.05)),
        **k,
    ),
    "not-zeroed": lambda **k: F(
        "not-zeroed",
        "later",
        "gradient",
        "",
        lambda t: setattr(t, "zero", False),
        "zero_grad is missing",
        step=1,
        steps=2,
        **k,
    ),
    "micro-sum": lambda **k: F(
        "micro-sum",
        "accumulation",
        "backward loss gradient",
        "",
        S.scaled_backward(2.0),
        "the gradients of two micro-batches are added, not averaged",
        changes=S.in_parts(2),
        **k,
    ),
    "warmup": lambda **k: F(
        "warmup",
        "schedule",
        "update",
        "",
        S.warmup(late=1),
        "the warm-up starts a step early",
        changes=S.warmup(),
        steps=2,
        **k,
    ),
    "schedule-late": lambda **k: F(
        "schedule-late",
        "schedule",
        "update",
        "",
        S.cosine(3),
        "the cosine ends after 3 steps",
        changes=S.cosine(6),
        step=1,
        steps=3,
        **k,
    ),
    "state-lost": lambda **k: F(
        "state-lost",
        "later",
        "update",
        "",
        P.before_step(S.forgotten),
        "the optimizer's state is lost before step 1",
        step=1,
        steps=3,
        **k,
    ),
    "skipped": lambda **k: F(
        "lr-later",
        "later",
        "update",
        "",
        P.before_step(lambda t, n: [g.update(lr=2e-3) for g in t.optimizer.param_groups] if n == 2 else None),
        "another learning rate from step 2 on",
        step=2,
        steps=3,
        **k,
    ),
    "bf16-weights": lambda **k: F(
        "bf16-weights", "precision", "update", "", P.after_step(S.rounded), "the weights are kept in bfloat16", **k
    ),
}
"""the name of each is the key with which a model asks for it"""

CLEANS = {
    "bf16": lambda **k: C("bf16", "both sides in bfloat16", dtype="bfloat16", **k),
    "fp16": lambda **k: C("fp16", "both sides in float16", dtype="float16", **k),
    "autocast": lambda **k: C("autocast", "both sides under autocast", dtype="autocast", **k),
    "fp32-bf16": lambda **k: C("fp32-bf16", "float32 against bfloat16", dtype_b="bfloat16", **k),
    "fp32-autocast": lambda **k: C("fp32-autocast", "float32 against autocast", dtype_b="autocast", **k),
    "fp32-fp64": lambda **k: C("fp32-fp64", "float32 against float64", dtype_b="float64", **k),
    "three-steps": lambda **k: C("three-steps", "three steps", steps=3, **k),
    "in-two": lambda **k: C("in-two", "two micro-batches on both sides", None, S.in_parts(2), **k),
    "one-two": lambda **k: C("one-two", "one batch against two micro-batches", S.in_parts(2), **k),
    "sdpa": lambda **k: C("sdpa", "fused attention on B", S.kernels("sdpa"), **k),
    "sdpa-bf16": lambda **k: C("sdpa-bf16", "fused attention on B, bfloat16", S.kernels("sdpa"), dtype="bfloat16", **k),
    "checkpointed": lambda **k: C("checkpointed", "activation checkpointing on B", S.checkpointed, **k),
    "threads": lambda **k: C("threads", "two threads on B", S.threads(2), **k),
    "channels-last": lambda **k: C("channels-last", "channels last on B", S.channels_last, **k),
    "clip-by-hand": lambda **k: C(
        "clip-by-hand", "B clips with code of its own", S.by_hand(0.1), base=P.clipped(0.1), steps=2, **k
    ),
    "warmup": lambda **k: C(
        "warmup", "a schedule against rates set by hand", S.lr_set_by_hand(), base=S.warmup(), steps=3, **k
    ),
    "sgd": lambda **k: C(
        "sgd",
        "SGD with momentum, two steps",
        None,
        S.optimizer_of("SGD", lr=0.05, momentum=0.9, weight_decay=1e-4),
        steps=2,
        **k,
    ),
    "adagrad": lambda **k: C("adagrad", "Adagrad, two steps", None, S.optimizer_of("Adagrad", lr=1e-2), steps=2, **k),
    "rmsprop": lambda **k: C(
        "rmsprop",
        "RMSprop with momentum, two steps",
        None,
        S.optimizer_of("RMSprop", lr=1e-3, momentum=0.5),
        steps=2,
        **k,
    ),
    "nadam": lambda **k: C("nadam", "NAdam, two steps", None, S.optimizer_of("NAdam", lr=1e-3), steps=2, **k),
    "adafactor": lambda **k: C(
        "adafactor", "Adafactor, two steps", None, S.optimizer_of("Adafactor", lr=1e-2), steps=2, **k
    ),
    "muon": lambda **k: C(
        "muon", "Muon for matrices, AdamW for the rest, two steps", None, P.optimizer(muon), steps=2, **k
    ),
    "fused": lambda **k: C(
        "fused",
        "AdamW fused on B, a loop on A",
        S.optimizer_of("AdamW", lr=1e-3, fused=True),
        base=S.optimizer_of("AdamW", lr=1e-3, foreach=False),
        steps=2,
        **k,
    ),
    "groups": lambda **k: C(
        "groups",
        "decay for matrices only; B has the groups the other way round",
        P.optimizer(lambda m: grouped(m, True)),
        base=P.optimizer(lambda m: grouped(m, False)),
        steps=2,
        **k,
    ),
    "outliers": lambda **k: C("outliers", "norms with channels far above the rest", None, S.outliers(), **k),
    "outliers-bf16": lambda **k: C(
        "outliers-bf16", "norms with channels far above the rest, bfloat16", None, S.outliers(), dtype="bfloat16", **k
    ),
}


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


def faults(names: str, **options) -> tuple:
    """Some of these faults."""
    return tuple(FAULTS[name](**options) for name in names.split())


def cleans(names: str, change: P.Plant | None = None, **options) -> tuple:
    """Some of these clean pairs; of a port, `name+` gets the mapping; `change` is done to B besides."""
    made = (
        CLEANS[name.rstrip("+")](**options | ({"mapped": True} if name.endswith("+") else {})) for name in names.split()
    )
    if change is None:
        return tuple(made)
    return tuple(dataclasses.replace(one, change=P.several(*(c for c in (one.change, change) if c))) for one in made)
