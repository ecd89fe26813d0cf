"""Dueling Q network on frames, Huber loss, RMSprop."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal, threads, uniform


class Dueling(nn.Module):
    """Q = V + A - mean(A), over stacked frames."""

    def __init__(self, actions: int = 5):
        super().__init__()
        self.frames = nn.Sequential(nn.Conv2d(4, 12, 4, 2), nn.ReLU(), nn.Conv2d(12, 16, 3, 1), nn.ReLU(), nn.Flatten())
        self.value = nn.Sequential(nn.Linear(16 * 25, 32), nn.ReLU(), nn.Linear(32, 1))
        self.advantage = nn.Sequential(nn.Linear(16 * 25, 32), nn.ReLU(), nn.Linear(32, actions))

    def forward(self, frames):
        seen = self.frames(frames)
        advantage = self.advantage(seen)
        return self.value(seen) + advantage - advantage.mean(1, keepdim=True)


def dueling() -> Training:
    model = lively(Dueling())
    data = batches(
        lambda g: {
            "frames": normal(g, 8, 4, 16, 16),
            "actions": ids(g, 8, below=5),
            "reward": normal(g, 8),
            "done": (uniform(g, 8) < 0.2).float(),
            "ahead": normal(g, 8, 5),
        },
        "dueling",
    )
    return Training(
        model, give("frames"), dqn_loss, data, optimize=lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3)
    )


def dqn_loss(q, batch):
    target = batch["reward"] + 0.99 * (1 - batch["done"]) * batch["ahead"].max(1).values
    return F.smooth_l1_loss(q.gather(1, batch["actions"][:, None])[:, 0].float(), target.float())


def _mean_over_batch(self, frames):
    seen = self.frames(frames)
    advantage = self.advantage(seen)
    return self.value(seen) + advantage - advantage.mean(0, keepdim=True)


def _value_detached(self, frames):
    seen = self.frames(frames)
    advantage = self.advantage(seen)
    return self.value(seen.detach()) + advantage - advantage.mean(1, keepdim=True)


def _no_done(q, batch):
    return dqn_loss(q, {**batch, "done": torch.zeros_like(batch["done"])})


def _no_mean(q, batch):
    target = batch["reward"] + 0.99 * (1 - batch["done"]) * batch["ahead"].max(1).values
    return F.smooth_l1_loss(q.gather(1, batch["actions"][:, None]).float(), target.float())


DUELING = Model(
    "dueling-dqn",
    dueling,
    "dueling Q network on frames, Huber loss, RMSprop",
    (
        Fault(
            "mean-axis",
            "axis",
            P.rewritten("", _mean_over_batch),
            "",
            ("forward",),
            "the advantage's mean is taken over the batch",
        ),
        Fault(
            "value-detached",
            "detach",
            P.rewritten("", _value_detached),
            "",
            ("backward",),
            "the value stream does not train the convolutions",
            also=("value", "value.0"),
        ),
        Fault(
            "done-ignored", "loss-term", P.criterion(_no_done), "", ("loss",), "bootstraps beyond the end of an episode"
        ),
        Fault(
            "broadcast-loss",
            "loss-shape",
            P.criterion(_no_mean),
            "",
            ("loss",),
            "[8, 1] against [8] broadcasts to [8, 8]",
        ),
        Fault("rmsprop-alpha", "betas", P.groups(alpha=0.9), "", ("update",), "alpha 0.9 for 0.99"),
        Fault(
            "frames-not-scaled",
            "input-scale",
            P.each_batch(lambda b: {**b, "frames": b["frames"] * 0.996}),
            "",
            ("forward", "inputs"),
            "frames divided by 256 for 255",
            dtype="autocast",
        ),
    ),
    (
        Clean("channels-last", "the frames and weights in channels_last", lambda t: _channels_last(t)),
        Clean(
            "rmsprop-loop",
            "RMSprop without foreach",
            P.optimizer(lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, foreach=False)),
            steps=2,
        ),
        Clean("two-threads", "on two threads", lambda t: setattr(t, "context", lambda: threads(2)), dtype="bfloat16"),
    ),
)


def _channels_last(training: Training) -> None:
    training.model.to(memory_format=torch.channels_last)
    training.batches = [
        [{k: v.contiguous(memory_format=torch.channels_last) if v.dim() == 4 else v for k, v in b.items()} for b in s]
        for s in training.batches
    ]
