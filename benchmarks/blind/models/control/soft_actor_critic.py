"""Actor, twin critics and their slow copies."""

from __future__ import annotations

import torch
from torch import nn

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal, uniform


class Twin(nn.Module):
    """Squashed Gaussian actor, two critics and their slow copies in one module."""

    def __init__(self, seen: int = 8, acted: int = 3, hidden: int = 32):
        super().__init__()

        def net(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(
                nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, outputs)
            )

        self.actor = net(seen, 2 * acted)
        self.first, self.second = net(seen + acted, 1), net(seen + acted, 1)
        self.slow_first, self.slow_second = net(seen + acted, 1), net(seen + acted, 1)
        for slow in (self.slow_first, self.slow_second):
            slow.requires_grad_(False)

    def act(self, seen, noise):
        mean, log_std = self.actor(seen).chunk(2, -1)
        log_std = log_std.clamp(-5, 2)
        raw = mean + log_std.exp() * noise
        action = raw.tanh()
        log = (-0.5 * noise.square() - log_std - 0.919).sum(-1) - torch.log(1 - action.square() + 1e-6).sum(-1)
        return action, log

    def forward(self, seen, acted, ahead, noise, noise_ahead):
        now = torch.cat([seen, acted], -1)
        first, second = self.first(now), self.second(now)
        with torch.no_grad():
            action, log = self.act(ahead, noise_ahead)
            both = torch.cat([ahead, action], -1)
            target = torch.minimum(self.slow_first(both), self.slow_second(both))[:, 0] - 0.2 * log
        action, log = self.act(seen, noise)
        both = torch.cat([seen, action], -1)
        good = torch.minimum(self.first(both), self.second(both))[:, 0]
        return first[:, 0], second[:, 0], target, good, log


def twin() -> Training:
    data = batches(
        lambda g: {
            "seen": normal(g, 8, 8),
            "acted": uniform(g, 8, 3) * 2 - 1,
            "ahead": normal(g, 8, 8),
            "noise": normal(g, 8, 3),
            "noise_ahead": normal(g, 8, 3),
            "reward": normal(g, 8),
        },
        "twin",
    )
    model = lively(Twin())
    model.slow_first.load_state_dict(model.first.state_dict())
    model.slow_second.load_state_dict(model.second.state_dict())
    training = Training(model, give("seen", "acted", "ahead", "noise", "noise_ahead"), sac_loss, data)
    P.after_step(lambda t, n: soften(t, 0.05))(training)
    return training


def sac_loss(output, batch):
    first, second, target, good, log = (x.float() for x in output)
    wanted = batch["reward"].float() + 0.97 * target
    return (first - wanted).square().mean() + (second - wanted).square().mean() + (0.2 * log - good).mean()


def soften(training: Training, rate: float, names=("first", "second")) -> None:
    with torch.no_grad():
        for name in names:
            pairs = zip(training.at("slow_" + name).parameters(), training.at(name).parameters(), strict=True)
            for slow, fast in pairs:
                slow.lerp_(fast, rate)


def _no_squash(self, seen, noise):
    mean, log_std = self.actor(seen).chunk(2, -1)
    log_std = log_std.clamp(-5, 2)
    action = (mean + log_std.exp() * noise).tanh()
    return action, (-0.5 * noise.square() - log_std - 0.919).sum(-1)


def _swapped_head(self, seen, noise):
    log_std, mean = self.actor(seen).chunk(2, -1)
    log_std = log_std.clamp(-5, 2)
    action = (mean + log_std.exp() * noise).tanh()
    log = (-0.5 * noise.square() - log_std - 0.919).sum(-1) - torch.log(1 - action.square() + 1e-6).sum(-1)
    return action, log


def _other_rate(training: Training) -> None:
    training.after_step.clear()
    P.after_step(lambda t, n: soften(t, 0.06))(training)


def _one_copy(training: Training) -> None:
    training.after_step.clear()
    P.after_step(lambda t, n: soften(t, 0.05, ("first",)))(training)


def _copied(training: Training) -> None:
    training.at("slow_second").load_state_dict(training.at("first").state_dict())


TWIN = Model(
    "soft-actor-critic",
    twin,
    "actor, twin critics and their slow copies",
    (
        Fault(
            "no-squash-correction",
            "formula",
            P.method("", "act", _no_squash),
            "",
            ("forward",),
            "the log probability lacks the tanh term",
        ),
        Fault(
            "mean-std-swapped",
            "wrong-split",
            P.method("", "act", _swapped_head),
            "",
            ("forward",),
            "the halves of the actor's head are swapped",
        ),
        Fault(
            "polyak-rate",
            "average",
            _other_rate,
            "",
            ("update",),
            "slow copies move by 0.06 for 0.05",
            also=("slow_first*", "slow_second*"),
        ),
        Fault(
            "one-copy-moves",
            "average",
            _one_copy,
            "slow_second",
            ("update",),
            "the second slow critic never moves",
            steps=2,
        ),
        Fault(
            "copied-from-wrong",
            "init",
            _copied,
            "slow_second",
            ("init",),
            "the second slow critic starts as a copy of the first",
        ),
    ),
    (
        Clean(
            "for-loop",
            "AdamW without foreach",
            P.optimizer(
                lambda m: torch.optim.AdamW(
                    [p for p in m.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.05, foreach=False
                )
            ),
            steps=3,
        ),
        Clean(
            "fused",
            "AdamW's fused kernel",
            P.optimizer(
                lambda m: torch.optim.AdamW(
                    [p for p in m.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.05, fused=True
                )
            ),
            steps=2,
        ),
    ),
)
