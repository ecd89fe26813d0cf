"""Reinforcement learning: value networks, policies, critics."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .. import plant as P
from ..spec import Clean, Fault, Model
from ..training import Training, batches, give, ids, lively, normal, sgd, threads, uniform


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
    return Training(model, give("frames"), dqn_loss, data, optimize=lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3))


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
        Fault("mean-axis", "axis", P.rewritten("", _mean_over_batch), "", ("forward",), "the advantage's mean is taken over the batch"),
        Fault(
            "value-detached",
            "detach",
            P.rewritten("", _value_detached),
            "",
            ("backward",),
            "the value stream does not train the convolutions",
            also=("value", "value.0"),
        ),
        Fault("done-ignored", "loss-term", P.criterion(_no_done), "", ("loss",), "bootstraps beyond the end of an episode"),
        Fault("broadcast-loss", "loss-shape", P.criterion(_no_mean), "", ("loss",), "[8, 1] against [8] broadcasts to [8, 8]"),
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
        Clean("rmsprop-loop", "RMSprop without foreach", P.optimizer(lambda m: torch.optim.RMSprop(m.parameters(), lr=1e-3, foreach=False)), steps=2),
        Clean("two-threads", "on two threads", lambda t: setattr(t, "context", lambda: threads(2)), dtype="bfloat16"),
    ),
)


def _channels_last(training: Training) -> None:
    training.model.to(memory_format=torch.channels_last)
    training.batches = [
        [{k: v.contiguous(memory_format=torch.channels_last) if v.dim() == 4 else v for k, v in b.items()} for b in s]
        for s in training.batches
    ]


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
        return policy + value * (values - batch["returns"].float()).square().mean() + entropy * (log.exp() * log).sum(-1).mean()

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


RECURRENT = Model(
    "recurrent-ppo",
    recurrent,
    "PPO with an LSTM cell, clipped objective, value and entropy terms",
    (
        Fault("cell-not-reset", "state-reset", P.rewritten("", _cell_not_reset), "", ("forward",), "c is not zeroed at the start of an episode"),
        Fault("bptt-cut", "detach", P.rewritten("", _truncated), "", ("backward",), "the hidden state is detached at every step", also=("cell",)),
        Fault("clip-range", "loss-scale", P.criterion(ppo(high=1.1)), "", ("loss",), "upper clip 1.1 for 1.2"),
        Fault("entropy-sign", "loss-term", P.criterion(ppo(entropy=-0.01)), "", ("loss",), "the entropy bonus has the wrong sign"),
        Fault(
            "gate-order",
            "permuted-weight",
            P.values("cell", "weight_ih", _reordered),
            "cell",
            ("init",),
            "input weights in the gate order i, f, o, g",
        ),
        Fault("clip-norm", "clip", P.clipped(0.55), "", ("update",), "gradients clipped at 0.55 for 0.5"),
        Fault("norm-eps", "eps", P.setting("norm", eps=1e-4), "norm", ("forward",), "LayerNorm eps 1e-4 for 1e-5", swapped=True),
    ),
    (
        Clean("cell-by-hand", "the LSTM cell written out", lambda t: _cell_by_hand(t)),
        Clean("micro-batches", "two micro-batches for one batch", P.in_two),
        Clean("clip-loop", "clipping without foreach", lambda t: _clip_loop(t), steps=2),
    ),
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


class Twin(nn.Module):
    """Squashed Gaussian actor, two critics and their slow copies in one module."""

    def __init__(self, seen: int = 8, acted: int = 3, hidden: int = 32):
        super().__init__()

        def net(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(nn.Linear(inputs, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, outputs))

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
        Fault("no-squash-correction", "formula", P.method("", "act", _no_squash), "", ("forward",), "the log probability lacks the tanh term"),
        Fault("mean-std-swapped", "wrong-split", P.method("", "act", _swapped_head), "", ("forward",), "the halves of the actor's head are swapped"),
        Fault("polyak-rate", "average", _other_rate, "", ("update",), "slow copies move by 0.06 for 0.05", also=("slow_first*", "slow_second*")),
        Fault("one-copy-moves", "average", _one_copy, "slow_second", ("update",), "the second slow critic never moves", steps=2),
        Fault("copied-from-wrong", "init", _copied, "slow_second", ("init",), "the second slow critic starts as a copy of the first"),
    ),
    (
        Clean("for-loop", "AdamW without foreach", P.optimizer(lambda m: torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.05, foreach=False)), steps=3),
        Clean("fused", "AdamW's fused kernel", P.optimizer(lambda m: torch.optim.AdamW([p for p in m.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.05, fused=True)), steps=2),
    ),
)


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
    data = batches(lambda g: {"seen": normal(g, 8, 12), "noise": normal(g, 32), "actions": ids(g, 8, below=3), "wanted": uniform(g, 8, 11).softmax(-1)}, "noisy")
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


NOISY = Model(
    "categorical-dqn",
    noisy,
    "distributional values with a noisy head, SGD",
    (
        Fault("atoms-actions", "wrong-split", P.rewritten("", _over_actions), "", ("forward",), "the head is viewed as atoms by actions"),
        Fault("support", "buffer", P.values("", "support", lambda s: torch.linspace(-2, 2 - 4 / 11, 11)), "", ("init",), "the support ends one atom early (arange for linspace)"),
        Fault("elu-alpha", "activation", P.setting("body.3", alpha=0.9), "body.3", ("forward",), "ELU alpha 0.9", also=("body",)),
        Fault("momentum", "betas", P.groups(momentum=0.8), "", ("update",), "momentum 0.8 for 0.9: seen from the second step on", step=1, steps=2),
        Fault("nesterov", "optimizer-variant", P.optimizer(lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)), "", ("update",), "Nesterov momentum"),
        Fault("coupled-decay-head", "frozen", P.frozen("spread"), "spread", ("update",), "the noise's weights are not given to the optimizer"),
    ),
    (
        Clean("einsum", "the head by einsum", P.rewritten("mean", lambda self, x: torch.einsum("bi,oi->bo", x, self.weight) + self.bias)),
        Clean("sgd-loop", "SGD without foreach", P.optimizer(lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, foreach=False)), steps=3),
    ),
)

MODELS = (DUELING, RECURRENT, TWIN, NOISY)
