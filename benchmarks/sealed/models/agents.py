"""Soft actor-critic with two optimizers: the networks of stable-baselines3 against those of CleanRL's form."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ...blind import plant as P
from ...blind.spec import HERE, Sides, model
from ...blind.training import Training, batches, lively, normal, uniform
from ..common import Both
from ..frame import carried, in_parts, times


class Sac(Training):
    """The critics and the actor take turns; each turn is a step."""

    gamma, alpha, tau, twin, correct, target_cut, ends = 0.98, 0.2, 0.05, True, True, True, True
    actor_lr, critic_lr, sign = 3e-4, 1e-3, 1.0

    @property
    def optimizer(self):
        if self._optimizer is None:
            model = self.model
            self.critic_held = torch.optim.Adam(model.critic_parameters(), lr=self.critic_lr)
            self.actor_held = torch.optim.Adam(model.actor_parameters(), lr=self.actor_lr)
            self._optimizer = Both(self.critic_held, self.actor_held)
        return self._optimizer

    def sampled(self, seen, noise):
        mean, log_std = self.model.policy(seen)
        raw = mean + log_std.exp() * noise
        action, size = raw.tanh(), -0.5 * noise.square() - log_std - 0.9189385
        if self.correct:
            size = size - torch.log(1 - action.square() + 1e-6)
        return action, size.sum(-1, keepdim=True)

    def critic_loss(self, batch):
        with torch.set_grad_enabled(not self.target_cut):
            action, size = self.sampled(batch["next"], batch["noise"])
            values = self.model.values(batch["next"], action, target=True)
            best = torch.minimum(*values) if self.twin else values[0]
            goal = batch["reward"] + self.gamma * ((1 - batch["done"]) if self.ends else 1.0) * (
                best - self.alpha * size
            )
        return 0.5 * sum(F.mse_loss(value, goal) for value in self.model.values(batch["seen"], batch["action"]))

    def actor_loss(self, batch):
        action, size = self.sampled(batch["seen"], batch["noise2"])
        return (self.sign * self.alpha * size - torch.minimum(*self.model.values(batch["seen"], action))).mean()

    def step(self, number):
        """The critics' turn at even numbers, the actor's at odd ones."""
        for act in self.before_step:
            act(number)
        held, total, micros, actor = self.optimizer, 0.0, self.batches[number], number % 2 == 1
        held.zero_grad()
        for p in self.model.critic_parameters():
            p.requires_grad_(not actor)
        for batch in micros:
            loss = (self.actor_loss if actor else self.critic_loss)(batch)
            self.watch("loss")
            (loss / len(micros)).backward()
            total = total + loss.detach() / len(micros)
        self.watch("gradient")
        for act in self.after_backward:
            act(number)
        (self.actor_held if actor else self.critic_held).step()
        for p in self.model.critic_parameters():
            p.requires_grad_(True)
        if actor:
            with torch.no_grad():
                for new, old in self.model.followed():
                    old.lerp_(new, self.tau)
        for act in self.after_step:
            act(number)
        return total


class Sb3(nn.Module):
    """Actor, critics and their targets of stable-baselines3."""

    def __init__(self):
        import numpy as np
        from gymnasium.spaces import Box
        from stable_baselines3.common.policies import ContinuousCritic
        from stable_baselines3.common.torch_layers import FlattenExtractor
        from stable_baselines3.sac.policies import Actor

        super().__init__()
        seen, acts = Box(-9.0, 9.0, (10,), np.float32), Box(-1.0, 1.0, (3,), np.float32)
        options = {"net_arch": [32, 32], "features_dim": 10}
        self.actor = Actor(seen, acts, features_extractor=FlattenExtractor(seen), **options)
        self.critic, self.critic_target = (
            ContinuousCritic(
                seen,
                acts,
                features_extractor=FlattenExtractor(seen),
                n_critics=2,
                share_features_extractor=False,
                **options,
            )
            for _ in "ab"
        )

    def policy(self, seen):
        return self.actor.get_action_dist_params(seen)[:2]

    def values(self, seen, action, target=False):
        return (self.critic_target if target else self.critic)(seen, action)

    def actor_parameters(self):
        return list(self.actor.parameters())

    def critic_parameters(self):
        return list(self.critic.parameters())

    def followed(self):
        return zip(self.critic.parameters(), self.critic_target.parameters(), strict=True)


class Soft(nn.Module):
    """One value network."""

    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc3 = nn.Linear(13, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def forward(self, seen, action):
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(torch.cat([seen, action], 1))))))


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.fc_mean, self.fc_logstd = (
            nn.Linear(10, 32),
            nn.Linear(32, 32),
            nn.Linear(32, 3),
            nn.Linear(32, 3),
        )
        self.low = -20.0

    def forward(self, seen):
        x = F.relu(self.fc2(F.relu(self.fc1(seen))))
        return self.fc_mean(x), self.fc_logstd(x).clamp(self.low, 2.0)


class Clean(nn.Module):
    def __init__(self):
        super().__init__()
        self.pi, self.qf1, self.qf2, self.qf1_target, self.qf2_target = Policy(), Soft(), Soft(), Soft(), Soft()

    def policy(self, seen):
        return self.pi(seen)

    def values(self, seen, action, target=False):
        both = (self.qf1_target, self.qf2_target) if target else (self.qf1, self.qf2)
        return tuple(one(seen, action) for one in both)

    def actor_parameters(self):
        return list(self.pi.parameters())

    def critic_parameters(self):
        return [*self.qf1.parameters(), *self.qf2.parameters()]

    def followed(self):
        return zip(
            self.critic_parameters(), [*self.qf1_target.parameters(), *self.qf2_target.parameters()], strict=True
        )


def sac():
    def data(g):
        return {
            "seen": normal(g, 8, 10),
            "next": normal(g, 8, 10),
            "action": uniform(g, 8, 3) * 2 - 1,
            "reward": normal(g, 8, 1),
            "done": (uniform(g, 8, 1) < 0.3).float(),
            "noise": normal(g, 8, 3),
            "noise2": normal(g, 8, 3),
        }

    turns = [step for step in batches(data, "s-sac", steps=3) for _ in "ca"]
    model = lively(Sb3())
    model.critic_target.load_state_dict(model.critic.state_dict())
    with torch.no_grad():
        for p in model.critic_target.parameters():
            p.mul_(0.98)
    return Sac(model.train(), None, None, turns)


RULES = {
    f"pi.{new}.{p}": f"actor.{old}.{p}"
    for p in ("weight", "bias")
    for new, old in (("fc1", "latent_pi.0"), ("fc2", "latent_pi.2"), ("fc_mean", "mu"), ("fc_logstd", "log_std"))
} | {
    f"qf{i + 1}{end}.fc{n}.{p}": f"critic{end}.qf{i}.{2 * n - 2}.{p}"
    for p in ("weight", "bias")
    for i in (0, 1)
    for n in (1, 2, 3)
    for end in ("", "_target")
}


def clean_rl():
    training, model = sac(), Clean()
    model.load_state_dict(carried(training.model.state_dict(), RULES))
    return Sac(model.train(), None, None, training.batches)


def knob(**values):
    return lambda training: [setattr(training, name, value) for name, value in values.items()]


Q = "critic.qf1"
SAC = model(
    "s-sac",
    sac,
    {
        "gamma": knob(gamma=0.99),
        "done-ignored": knob(ends=False),
        "one-target": knob(twin=False),
        "tanh-uncorrected": knob(correct=False),
        "target-not-cut": knob(target_cut=False),
        "std-floor": P.setting(HERE, low=-0.2),
        "elu-in-critic": P.rewritten(
            HERE, lambda self, seen, action: self.fc3(F.elu(self.fc2(F.relu(self.fc1(torch.cat([seen, action], 1))))))
        ),
        "target-copied-wrong": lambda t: t.at("qf2_target").load_state_dict(t.at("qf1_target").state_dict()),
        "tau": knob(tau=0.5),
        "actor-rate": knob(actor_lr=1e-3),
        "entropy-sign": knob(sign=-1.0),
        "target-touched": P.before_step(lambda t, n: t.at("qf1_target").fc3.bias.data.add_(0.05) if n == 2 else None),
        "seen-normalised": P.each_batch(lambda b: b | {"seen": (b["seen"] - 0.05) / 1.01}),
        "head-gradient": P.parameter_gradient(HERE, "weight", times(2.0)),
        "in-two": Sides(both=in_parts(2)),
    },
    port=clean_rl,
)

MODELS = (SAC,)
