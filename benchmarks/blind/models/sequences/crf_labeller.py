"""Character convolution, bidirectional LSTM and a CRF."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, sgd


class Chain(nn.Module):
    """A conditional random field: the log-likelihood of a path of tags."""

    def __init__(self, tags: int):
        super().__init__()
        self.start, self.end = nn.Parameter(torch.zeros(tags)), nn.Parameter(torch.zeros(tags))
        self.moves = nn.Parameter(torch.zeros(tags, tags))

    def gold(self, scores, tags, mask):
        total = self.start[tags[:, 0]] + scores[:, 0].gather(1, tags[:, :1])[:, 0]
        for time in range(1, tags.shape[1]):
            step = self.moves[tags[:, time - 1], tags[:, time]] + scores[:, time].gather(1, tags[:, time, None])[:, 0]
            total = total + step * mask[:, time]
        return total + self.end[tags.gather(1, mask.long().sum(1, keepdim=True) - 1)[:, 0]]

    def partition(self, scores, mask):
        alpha = self.start + scores[:, 0]
        for time in range(1, scores.shape[1]):
            step = (alpha[:, :, None] + self.moves + scores[:, time, None]).logsumexp(1)
            alpha = torch.where(mask[:, time, None], step, alpha)
        return (alpha + self.end).logsumexp(1)

    def forward(self, scores, tags, mask):
        return self.gold(scores, tags, mask) - self.partition(scores, mask)


class Labeller(nn.Module):
    """Character convolution, bidirectional LSTM, CRF."""

    def __init__(self, letters: int = 20, size: int = 16, tags: int = 5):
        super().__init__()
        self.letters = nn.Embedding(letters, 8)
        self.spell = nn.Conv1d(8, size, 3, padding=1)
        self.lstm = nn.LSTM(size, size, bidirectional=True, batch_first=True)
        self.scores = nn.Linear(2 * size, tags)
        self.chain = Chain(tags)

    def forward(self, letters, tags, mask):
        seen = self.letters(letters).flatten(0, 1).transpose(1, 2)
        words = F.relu(self.spell(seen)).amax(-1).unflatten(0, letters.shape[:2])
        return self.chain(self.scores(self.lstm(words)[0]), tags, mask)


def labeller() -> Training:
    mask = torch.arange(7) < torch.tensor([7, 5, 6, 3])[:, None]
    data = batches(
        lambda g: {"letters": ids(g, 4, 7, 6, below=20), "tags": ids(g, 4, 7, below=5), "mask": mask}, "labeller"
    )
    model = lively(Labeller())
    return Training(model, give("letters", "tags", "mask"), lambda o, b: -o.float().mean(), data, optimize=sgd)


def _moves_transposed(self, scores, mask):
    alpha = self.start + scores[:, 0]
    for time in range(1, scores.shape[1]):
        step = (alpha[:, :, None] + self.moves.T + scores[:, time, None]).logsumexp(1)
        alpha = torch.where(mask[:, time, None], step, alpha)
    return (alpha + self.end).logsumexp(1)


def _end_of_row(self, scores, tags, mask):
    total = self.start[tags[:, 0]] + scores[:, 0].gather(1, tags[:, :1])[:, 0]
    for time in range(1, tags.shape[1]):
        step = self.moves[tags[:, time - 1], tags[:, time]] + scores[:, time].gather(1, tags[:, time, None])[:, 0]
        total = total + step * mask[:, time]
    return total + self.end[tags[:, -1]]


LABELLER = Model(
    "crf-labeller",
    labeller,
    "character convolution, bidirectional LSTM and a CRF",
    (
        Fault(
            "moves-transposed",
            "transposed-weight",
            P.method("chain", "partition", _moves_transposed),
            "chain",
            ("forward",),
            "transitions are read from-to in the partition",
        ),
        Fault(
            "end-tag",
            "mask",
            P.method("chain", "gold", _end_of_row),
            "chain",
            ("forward",),
            "the end score is that of the padding",
        ),
        Fault(
            "mean-letters",
            "pooling",
            P.rewritten(
                "",
                lambda self, letters, t, m: self.chain(
                    self.scores(
                        self.lstm(
                            F.relu(self.spell(self.letters(letters).flatten(0, 1).transpose(1, 2)))
                            .mean(-1)
                            .unflatten(0, letters.shape[:2])
                        )[0]
                    ),
                    t,
                    m,
                ),
            ),
            "",
            ("forward",),
            "mean for maximum over letters",
            dtype="autocast",
        ),
        Fault(
            "hidden-bias",
            "missing-bias",
            P.values("lstm", "bias_hh_l0_reverse", torch.zeros_like),
            "lstm",
            ("init",),
            "one of the LSTM's biases is not loaded",
        ),
        Fault(
            "sum-loss",
            "reduction",
            P.criterion(lambda o, b: -o.float().sum()),
            "",
            ("loss",),
            "the log-likelihood is summed over sentences",
        ),
        Fault(
            "dampening",
            "optimizer-variant",
            P.groups(dampening=0.1),
            "",
            ("update",),
            "SGD's dampening 0.1",
            step=1,
            steps=2,
        ),
    ),
    (
        Clean(
            "partition-by-max",
            "log-sum-exp by the maximum",
            P.method("chain", "partition", lambda self, s, m: _by_maximum(self, s, m)),
        ),
        Clean("lstm-cells", "the LSTM as cells in a loop", P.rewritten("lstm", lambda self, x: _cells(self, x))),
    ),
)


def _by_maximum(self, scores, mask):
    alpha = self.start + scores[:, 0]
    for time in range(1, scores.shape[1]):
        all_ways = alpha[:, :, None] + self.moves + scores[:, time, None]
        top = all_ways.amax(1, keepdim=True).detach()
        alpha = torch.where(mask[:, time, None], (all_ways - top).exp().sum(1).log() + top[:, 0], alpha)
    return (alpha + self.end).logsumexp(1)


def _cells(self, x):
    outputs = []
    for end in ("", "_reverse"):
        h = c = x.new_zeros(len(x), self.hidden_size)
        seen = []
        for time in range(x.shape[1]) if not end else reversed(range(x.shape[1])):
            gates = F.linear(x[:, time], getattr(self, "weight_ih_l0" + end), getattr(self, "bias_ih_l0" + end))
            i, f, g, o = (
                gates + F.linear(h, getattr(self, "weight_hh_l0" + end), getattr(self, "bias_hh_l0" + end))
            ).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            seen.append(h)
        outputs.append(torch.stack(seen if not end else seen[::-1], 1))
    return torch.cat(outputs, -1), None
