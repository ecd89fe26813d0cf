"""PPO with an LSTM cell, clipped objective, value and entropy terms."""

from __future__ import annotations

import torch
from torch import nn

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal, uniform


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


RECURRENT = Model(
    "recurrent-ppo",
    recurrent,
    "PPO with an LSTM cell, clipped objective, value and entropy terms",
    (
        Fault(
            "cell-not-reset",
            "state-reset",
            P.rewritten("", _cell_not_reset),
            "",
            ("forward",),
            "c is not zeroed at the start of an episode",
        ),
        Fault(
            "bptt-cut",
            "detach",
            P.rewritten("", _truncated),
            "",
            ("backward",),
            "the hidden state is detached at every step",
            also=("cell",),
        ),
        Fault("clip-range", "loss-scale", P.criterion(ppo(high=1.1)), "", ("loss",), "upper clip 1.1 for 1.2"),
        Fault(
            "entropy-sign",
            "loss-term",
            P.criterion(ppo(entropy=-0.01)),
            "",
            ("loss",),
            "the entropy bonus has the wrong sign",
        ),
        Fault(
            "gate-order",
            "permuted-weight",
            P.values("cell", "weight_ih", _reordered),
            "cell",
            ("init",),
            "input weights in the gate order i, f, o, g",
        ),
        Fault("clip-norm", "clip", P.clipped(0.55), "", ("update",), "gradients clipped at 0.55 for 0.5"),
        Fault(
            "norm-eps",
            "eps",
            P.setting("norm", eps=1e-4),
            "norm",
            ("forward",),
            "LayerNorm eps 1e-4 for 1e-5",
            swapped=True,
        ),
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
