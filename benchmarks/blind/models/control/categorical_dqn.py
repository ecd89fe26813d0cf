"""Distributional values with a noisy head, SGD."""

from __future__ import annotations

import torch
from torch import nn

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal, sgd, uniform


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


NOISY = Model(
    "categorical-dqn",
    noisy,
    "distributional values with a noisy head, SGD",
    (
        Fault(
            "atoms-actions",
            "wrong-split",
            P.rewritten("", _over_actions),
            "",
            ("forward",),
            "the head is viewed as atoms by actions",
        ),
        Fault(
            "support",
            "buffer",
            P.values("", "support", lambda s: torch.linspace(-2, 2 - 4 / 11, 11)),
            "",
            ("init",),
            "the support ends one atom early (arange for linspace)",
        ),
        Fault(
            "elu-alpha",
            "activation",
            P.setting("body.3", alpha=0.9),
            "body.3",
            ("forward",),
            "ELU alpha 0.9",
            also=("body",),
        ),
        Fault(
            "momentum",
            "betas",
            P.groups(momentum=0.8),
            "",
            ("update",),
            "momentum 0.8 for 0.9: seen from the second step on",
            step=1,
            steps=2,
        ),
        Fault(
            "nesterov",
            "optimizer-variant",
            P.optimizer(
                lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, nesterov=True)
            ),
            "",
            ("update",),
            "Nesterov momentum",
        ),
        Fault(
            "coupled-decay-head",
            "frozen",
            P.frozen("spread"),
            "spread",
            ("update",),
            "the noise's weights are not given to the optimizer",
        ),
    ),
    (
        Clean(
            "einsum",
            "the head by einsum",
            P.rewritten("mean", lambda self, x: torch.einsum("bi,oi->bo", x, self.weight) + self.bias),
        ),
        Clean(
            "sgd-loop",
            "SGD without foreach",
            P.optimizer(
                lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, foreach=False)
            ),
            steps=3,
        ),
    ),
)
