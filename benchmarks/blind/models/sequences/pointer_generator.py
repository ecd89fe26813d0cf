"""Seq2seq with additive attention and a copy mechanism."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively


class Additive(nn.Module):
    """Bahdanau's attention."""

    def __init__(self, size: int):
        super().__init__()
        self.query, self.key, self.score = (
            nn.Linear(size, size, bias=False),
            nn.Linear(size, size),
            nn.Linear(size, 1, bias=False),
        )

    def forward(self, query, keys, mask):
        scores = self.score(torch.tanh(self.query(query)[:, None] + self.key(keys)))[..., 0]
        return scores.masked_fill(~mask, -1e9)


class Pointer(nn.Module):
    """Bidirectional GRU encoder, GRU-cell decoder with coverage, pointing back at the input."""

    def __init__(self, words: int = 30, size: int = 24):
        super().__init__()
        self.words = nn.Embedding(words, size, padding_idx=0)
        self.encoder = nn.GRU(size, size // 2, bidirectional=True, batch_first=True)
        self.bridge = nn.Linear(size, size)
        self.attend, self.point = Additive(size), Additive(size)
        self.cell = nn.GRUCell(2 * size, size)
        self.out = nn.Linear(2 * size, words)
        self.mix = nn.Linear(2 * size, 1)

    def forward(self, source, given):
        mask = source != 0
        keys, last = self.encoder(self.words(source))
        h = torch.tanh(self.bridge(torch.cat([last[0], last[1]], -1)))
        logs = []
        for time in range(given.shape[1]):
            seen = (self.attend(h, keys, mask).softmax(-1)[:, None] @ keys)[:, 0]
            h = self.cell(torch.cat([self.words(given[:, time]), seen], -1), h)
            both = torch.cat([h, seen], -1)
            share = torch.sigmoid(self.mix(both))
            made = self.out(both).softmax(-1)
            copied = torch.zeros_like(made).scatter_add(1, source, self.point(h, keys, mask).softmax(-1))
            logs.append((share * made + (1 - share) * copied + 1e-8).log())
        return torch.stack(logs, 1)


def pointer() -> Training:
    def make(g):
        source = ids(g, 5, 9, below=29) + 1
        source[1, 6:], source[3, 4:] = 0, 0
        target = ids(g, 5, 6, below=29) + 1
        target[2, 4:] = 0
        given = torch.cat([torch.ones(5, 1, dtype=torch.long), target[:, :-1]], 1)
        return {"source": source, "given": given, "labels": target}

    return Training(lively(Pointer()), give("source", "given"), pointer_loss(0), batches(make, "pointer"), clip=2.0)


def pointer_loss(ignored):
    return lambda output, batch: F.nll_loss(
        output.float().flatten(0, 1), batch["labels"].flatten(), ignore_index=ignored
    )


def _swapped_ends(self, source, given):
    mask = source != 0
    keys, last = self.encoder(self.words(source))
    return _decode(self, source, given, mask, keys, torch.cat([last[1], last[0]], -1))


def _decode(self, source, given, mask, keys, ends, shared=False):
    h, logs = torch.tanh(self.bridge(ends)), []
    for time in range(given.shape[1]):
        seen = (self.attend(h, keys, mask).softmax(-1)[:, None] @ keys)[:, 0]
        h = self.cell(torch.cat([self.words(given[:, time]), seen], -1), h)
        both = torch.cat([h, seen], -1)
        share = torch.sigmoid(self.mix(both))
        if shared:
            share = 1 - share
        copied = (
            torch.zeros(len(source), self.out.out_features)
            .to(both)
            .scatter_add(1, source, self.point(h, keys, mask).softmax(-1))
        )
        logs.append((share * self.out(both).softmax(-1) + (1 - share) * copied + 1e-8).log())
    return torch.stack(logs, 1)


def _mix_reversed(self, source, given):
    keys, last = self.encoder(self.words(source))
    return _decode(self, source, given, source != 0, keys, torch.cat([last[0], last[1]], -1), shared=True)


POINTER = Model(
    "pointer-generator",
    pointer,
    "seq2seq with additive attention and a copy mechanism",
    (
        Fault(
            "no-mask",
            "mask",
            P.rewritten(
                "point", lambda self, q, k, m: self.score(torch.tanh(self.query(q)[:, None] + self.key(k)))[..., 0]
            ),
            "point",
            ("forward",),
            "padding can be pointed at",
        ),
        Fault(
            "directions",
            "wrong-split",
            P.rewritten("", _swapped_ends),
            "",
            ("forward",),
            "forward and backward states are swapped",
        ),
        Fault(
            "mix-reversed",
            "formula",
            P.rewritten("", _mix_reversed),
            "",
            ("forward",),
            "the gate is applied to copying",
        ),
        Fault("ignore", "ignore-index", P.criterion(pointer_loss(-100)), "", ("loss",), "padding counts in the loss"),
        Fault(
            "teacher-shift",
            "off-by-one",
            P.each_batch(lambda b: {**b, "given": b["labels"]}),
            "",
            ("forward", "inputs"),
            "the decoder is given the word that it should say",
            steps=2,
        ),
        Fault(
            "cell-gradient",
            "wrong-gradient",
            P.around("cell", lambda f, x, h: P.wrong_gradient(f(x, h), lambda g: g.clamp(-1e-3, 1e-3))),
            "cell",
            ("backward",),
            "the cell's backward clamps gradients",
        ),
        Fault(
            "padding-trained",
            "padding",
            lambda t: setattr(t.at("words"), "padding_idx", None),
            "words",
            ("gradient", "backward"),
            "the padding row of the embedding is trained",
        ),
    ),
    (
        Clean("gru-by-hand", "the cell written out", P.rewritten("cell", lambda self, x, h: _gru(self, x, h))),
        Clean("foreach-clip", "clipping without foreach", lambda t: _clip_loop(t), steps=2),
    ),
)


def _gru(self, x, h):
    r, z, n = F.linear(x, self.weight_ih, self.bias_ih).chunk(3, -1)
    hr, hz, hn = F.linear(h, self.weight_hh, self.bias_hh).chunk(3, -1)
    z, n = torch.sigmoid(z + hz), torch.tanh(n + torch.sigmoid(r + hr) * hn)
    return n + z * (h - n)


def _clip_loop(training: Training) -> None:
    training.clip = None
    P.after_backward(lambda t, n: nn.utils.clip_grad_norm_(list(t.model.parameters()), 2.0, foreach=False))(training)
