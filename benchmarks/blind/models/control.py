"""Reinforcement learning: value networks, policies, critics."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .. import plant as P
from ..spec import HERE, model
from ..training import Training, batches, give, ids, lively, normal, sgd, threads, uniform

# Dueling Q network on frames, Huber loss, RMSprop.


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


DUELING = model(
    "dueling-dqn",
    dueling,
    {
        "mean-axis": P.rewritten("", _mean_over_batch),
        "value-detached": P.rewritten("", _value_detached),
        "done-ignored": P.criterion(_no_done),
        "broadcast-loss": P.criterion(_no_mean),
        "rmsprop-alpha": P.groups(alpha=0.9),
        "frames-not-scaled": P.each_batch(lambda b: {**b, "frames": b["frames"] * 0.996}),
        "channels-last": lambda t: _channels_last(t),
        "rmsprop-loop": P.optimizer(lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, foreach=False)),
        "two-threads": lambda t: setattr(t, "context", lambda: threads(2)),
    },
)


def _channels_last(training: Training) -> None:
    training.model.to(memory_format=torch.channels_last)
    training.batches = [
        [{k: v.contiguous(memory_format=torch.channels_last) if v.dim() == 4 else v for k, v in b.items()} for b in s]
        for s in training.batches
    ]


# PPO with an LSTM cell, clipped objective, value and entropy terms.


class Recurrent(nn.Module):
    """Policy and value over an LSTM cell that is reset at ends of episodes."""

    def __init__(self, seen: int = 10, hidden: int = 24, actions: int = 4):
        super().__init__()
        self.encode = nn.Linear(seen, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.cell = nn.LSTMCell(hidden, hidden)
        self.policy = nn.Linear(hidden, actions)
        self.value = nn.Linear(hidden, 1)

    def forward(self, observed, starts):
        h = c = observed.new_zeros(observed.shape[0], self.cell.hidden_size)
        logits, values = [], []
        for time in range(observed.shape[1]):
            keep = 1 - starts[:, time, None]
            h, c = self.cell(torch.tanh(self.norm(self.encode(observed[:, time]))), (h * keep, c * keep))
            logits.append(self.policy(h))
            values.append(self.value(h)[:, 0])
        return torch.stack(logits, 1), torch.stack(values, 1)


def recurrent() -> Training:
    data = batches(
        lambda g: {
            "observed": normal(g, 6, 5, 10),
            "starts": (uniform(g, 6, 5) < 0.3).float(),
            "actions": ids(g, 6, 5, below=4),
            "old": -uniform(g, 6, 5) - 1,
            "gain": normal(g, 6, 5),
            "returns": normal(g, 6, 5),
        },
        "recurrent",
    )
    return Training(lively(Recurrent()), give("observed", "starts"), ppo(), data, clip=0.5)


def ppo(low=0.8, high=1.2, entropy=0.01, value=0.5):
    def loss(output, batch):
        logits, values = (x.float() for x in output)
        log = logits.log_softmax(-1)
        ratio = (log.gather(-1, batch["actions"][..., None])[..., 0] - batch["old"].float()).exp()
        gain = batch["gain"].float()
        policy = -torch.minimum(ratio * gain, ratio.clamp(low, high) * gain).mean()
        return (
            policy
            + value * (values - batch["returns"].float()).square().mean()
            + entropy * (log.exp() * log).sum(-1).mean()
        )

    return loss


def _cell_not_reset(self, observed, starts):
    h = c = observed.new_zeros(observed.shape[0], self.cell.hidden_size)
    logits, values = [], []
    for time in range(observed.shape[1]):
        keep = 1 - starts[:, time, None]
        h, c = self.cell(torch.tanh(self.norm(self.encode(observed[:, time]))), (h * keep, c))
        logits.append(self.policy(h))
        values.append(self.value(h)[:, 0])
    return torch.stack(logits, 1), torch.stack(values, 1)


def _truncated(self, observed, starts):
    h = c = observed.new_zeros(observed.shape[0], self.cell.hidden_size)
    logits, values = [], []
    for time in range(observed.shape[1]):
        keep = 1 - starts[:, time, None]
        h, c = self.cell(torch.tanh(self.norm(self.encode(observed[:, time]))), (h.detach() * keep, c * keep))
        logits.append(self.policy(h))
        values.append(self.value(h)[:, 0])
    return torch.stack(logits, 1), torch.stack(values, 1)


def _reordered(tensor):
    i, f, g, o = tensor.chunk(4)
    return torch.cat([i, f, o, g])


RECURRENT = model(
    "recurrent-ppo",
    recurrent,
    {
        "cell-not-reset": P.rewritten("", _cell_not_reset),
        "bptt-cut": P.rewritten("", _truncated),
        "clip-range": P.criterion(ppo(high=1.1)),
        "entropy-sign": P.criterion(ppo(entropy=-0.01)),
        "gate-order": P.values(HERE, "weight_ih", _reordered),
        "clip-norm": P.clipped(0.55),
        "norm-eps": P.setting(HERE, eps=1e-4),
        "cell-by-hand": lambda t: _cell_by_hand(t),
        "micro-batches": P.in_two,
        "clip-loop": lambda t: _clip_loop(t),
    },
)


def _cell_by_hand(training: Training) -> None:
    def forward(self, x, state):
        h, c = state
        i, f, g, o = (x @ self.weight_ih.T + self.bias_ih + h @ self.weight_hh.T + self.bias_hh).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    P.rewritten("cell", forward)(training)


def _clip_loop(training: Training) -> None:
    training.clip = None
    act = P.after_backward(lambda t, n: torch.nn.utils.clip_grad_norm_(list(t.model.parameters()), 0.5, foreach=False))
    act(training)


# Actor, twin critics and their slow copies.


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


TWIN = model(
    "soft-actor-critic",
    twin,
    {
        "no-squash-correction": P.method("", "act", _no_squash),
        "mean-std-swapped": P.method("", "act", _swapped_head),
        "polyak-rate": _other_rate,
        "one-copy-moves": _one_copy,
        "copied-from-wrong": _copied,
        "for-loop": P.optimizer(
            lambda m: torch.optim.AdamW(
                [p for p in m.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.05, foreach=False
            )
        ),
        "fused": P.optimizer(
            lambda m: torch.optim.AdamW(
                [p for p in m.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.05, fused=True
            )
        ),
    },
)


# Distributional values with a noisy head, SGD.


class NoisyNet(nn.Module):
    """Categorical (C51) values with factorised noise that is given."""

    def __init__(self, seen: int = 12, actions: int = 3, atoms: int = 11):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(seen, 32), nn.ELU(), nn.Linear(32, 32), nn.ELU())
        self.mean = nn.Linear(32, actions * atoms)
        self.spread = nn.Linear(32, actions * atoms, bias=False)
        self.actions, self.atoms = actions, atoms
        self.register_buffer("support", torch.linspace(-2, 2, atoms))

    def forward(self, seen, noise):
        x = self.body(seen)
        logits = self.mean(x) + 0.1 * self.spread(x * noise)
        chances = logits.view(-1, self.actions, self.atoms).softmax(-1)
        return chances, (chances * self.support).sum(-1)


def noisy() -> Training:
    data = batches(
        lambda g: {
            "seen": normal(g, 8, 12),
            "noise": normal(g, 32),
            "actions": ids(g, 8, below=3),
            "wanted": uniform(g, 8, 11).softmax(-1),
        },
        "noisy",
    )
    return Training(lively(NoisyNet()), give("seen", "noise"), c51_loss, data, optimize=sgd)


def c51_loss(output, batch):
    chances = output[0].float()
    taken = chances[torch.arange(len(chances)), batch["actions"]]
    return -(batch["wanted"].float() * taken.clamp_min(1e-8).log()).sum(-1).mean()


def _over_actions(self, seen, noise):
    x = self.body(seen)
    logits = self.mean(x) + 0.1 * self.spread(x * noise)
    chances = logits.view(-1, self.atoms, self.actions).transpose(1, 2).softmax(-1)
    return chances, (chances * self.support).sum(-1)


NOISY = model(
    "categorical-dqn",
    noisy,
    {
        "atoms-actions": P.rewritten("", _over_actions),
        "support": P.values("", "support", lambda s: torch.linspace(-2, 2 - 4 / 11, 11)),
        "elu-alpha": P.setting(HERE, alpha=0.9),
        "momentum": P.groups(momentum=0.8),
        "nesterov": P.optimizer(
            lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
        ),
        "coupled-decay-head": P.frozen(HERE),
        "einsum": P.rewritten("mean", lambda self, x: torch.einsum("bi,oi->bo", x, self.weight) + self.bias),
        "sgd-loop": P.optimizer(
            lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, foreach=False)
        ),
    },
)

MODELS = (DUELING, RECURRENT, TWIN, NOISY)
