"""Conformer with relative positions, CTC loss, warm-up."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal, threads


class RelativeAttention(nn.Module):
    """Self-attention with relative positions as in Transformer-XL."""

    def __init__(self, size: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(size, size) for _ in range(3))
        self.position = nn.Linear(size, size, bias=False)
        self.u, self.v = (
            nn.Parameter(torch.zeros(heads, size // heads)),
            nn.Parameter(torch.zeros(heads, size // heads)),
        )
        self.out = nn.Linear(size, size)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1))

    def shift(self, scores):
        padded = F.pad(scores, (1, 0)).view(*scores.shape[:2], scores.shape[3] + 1, scores.shape[2])
        return padded[:, :, 1:].reshape(scores.shape)[..., : scores.shape[2]]

    def forward(self, x, positions, mask):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        p = self.split(self.position(positions))
        content = torch.einsum("bqhd,bkhd->bhqk", q + self.u, k)
        place = self.shift(torch.einsum("bqhd,phd->bhqp", q + self.v, p))
        scores = (content + place) * q.shape[-1] ** -0.5
        weights = scores.masked_fill(~mask[:, None, None], -1e4).softmax(-1)
        return self.out(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(-2))


class FeedForward(nn.Module):
    """Norm, widen, SiLU, narrow."""

    def __init__(self, size: int):
        super().__init__()
        self.norm, self.first, self.second = nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.Linear(2 * size, size)

    def forward(self, x):
        return self.second(F.silu(self.first(self.norm(x))))


class Convolution(nn.Module):
    """Norm, pointwise with GLU, depthwise, batch norm, SiLU, pointwise."""

    def __init__(self, size: int):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.point1 = nn.Conv1d(size, 2 * size, 1)
        self.depth = nn.Conv1d(size, size, 5, padding=2, groups=size)
        self.batch_norm = nn.BatchNorm1d(size)
        self.point2 = nn.Conv1d(size, size, 1)

    def forward(self, x, mask):
        h = F.glu(self.point1(self.norm(x).transpose(1, 2)), 1)
        h = self.depth(h * mask[:, None].to(h.dtype))
        return self.point2(F.silu(self.batch_norm(h))).transpose(1, 2)


class ConformerBlock(nn.Module):
    """Half feed-forward, attention, convolution, half feed-forward, norm."""

    def __init__(self, size: int = 24, heads: int = 4):
        super().__init__()
        self.ff1, self.ff2 = FeedForward(size), FeedForward(size)
        self.attention_norm, self.attention = nn.LayerNorm(size), RelativeAttention(size, heads)
        self.convolution, self.norm = Convolution(size), nn.LayerNorm(size)

    def forward(self, x, positions, mask):
        x = x + 0.5 * self.ff1(x)
        x = x + self.attention(self.attention_norm(x), positions, mask)
        x = x + self.convolution(x, mask)
        x = x + 0.5 * self.ff2(x)
        return self.norm(x)


class Conformer(nn.Module):
    """Subsampling by 4, conformer blocks, a CTC head."""

    def __init__(self, size: int = 24, letters: int = 9):
        super().__init__()
        self.subsample = nn.Sequential(nn.Conv2d(1, 6, 3, 2, 1), nn.ReLU(), nn.Conv2d(6, 6, 3, 2, 1), nn.ReLU())
        self.into = nn.Linear(6 * 4, size)
        self.blocks = nn.ModuleList(ConformerBlock(size) for _ in range(2))
        self.head = nn.Linear(size, letters)
        self.size = size

    def positions(self, length, like):
        place = torch.arange(length - 1, -length, -1.0)
        rate = torch.exp(-math.log(10000) * torch.arange(0, self.size, 2) / self.size)
        angle = place[:, None] * rate
        return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).to(like)

    def forward(self, sound, lengths):
        h = self.subsample(sound[:, None])
        h = self.into(h.transpose(1, 2).flatten(2)) * math.sqrt(self.size)
        left = (lengths + 3) // 4
        mask = torch.arange(h.shape[1]) < left[:, None]
        positions = self.positions(h.shape[1], h)
        for block in self.blocks:
            h = block(h, positions, mask)
        return self.head(h), left


def conformer() -> Training:
    def make(g):
        return {
            "sound": normal(g, 4, 40, 16),
            "lengths": torch.tensor([40, 36, 28, 33]),
            "letters": ids(g, 4, 4, below=8) + 1,
            "letter_lengths": torch.tensor([4, 3, 2, 4]),
        }

    model = lively(Conformer())
    with torch.no_grad():
        for block in model.blocks:
            block.attention.u.normal_(0, 0.3, generator=torch.Generator().manual_seed(1))
            block.attention.v.normal_(0, 0.3, generator=torch.Generator().manual_seed(2))
    warm = lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: (n + 1) / 4)  # noqa: E731
    return Training(model, give("sound", "lengths"), ctc("mean", 0), batches(make, "conformer"), schedule=warm)


def ctc(reduction, blank):
    def loss(output, batch):
        logits, lengths = output
        log = logits.float().log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(log, batch["letters"], lengths, batch["letter_lengths"], blank=blank, reduction=reduction)

    return loss


def _full_ff(self, x, positions, mask):
    x = x + self.ff1(x)
    x = x + self.attention(self.attention_norm(x), positions, mask)
    x = x + self.convolution(x, mask)
    x = x + 0.5 * self.ff2(x)
    return self.norm(x)


def _ascending(self, length, like):
    place = torch.arange(-length + 1.0, length)
    rate = torch.exp(-math.log(10000) * torch.arange(0, self.size, 2) / self.size)
    angle = place[:, None] * rate
    return torch.stack([angle.sin(), angle.cos()], -1).flatten(1).to(like)


def _halves(self, length, like):
    place = torch.arange(length - 1, -length, -1.0)
    rate = torch.exp(-math.log(10000) * torch.arange(0, self.size, 2) / self.size)
    angle = place[:, None] * rate
    return torch.cat([angle.sin(), angle.cos()], -1).to(like)


def _no_shift(self, scores):
    return scores[..., : scores.shape[2]]


def _mask_in_padding(self, x, mask):
    h = F.glu(self.point1(self.norm(x).transpose(1, 2)), 1)
    return self.point2(F.silu(self.batch_norm(self.depth(h)))).transpose(1, 2)


CONFORMER = Model(
    "conformer-ctc",
    conformer,
    "conformer with relative positions, CTC loss, warm-up",
    (
        Fault(
            "no-relative-shift",
            "formula",
            P.method("blocks.1.attention", "shift", _no_shift),
            "blocks.1.attention",
            ("forward",),
            "the relative shift is missing",
            dtype="bfloat16",
        ),
        Fault(
            "whole-ff",
            "scale",
            P.rewritten("blocks.0", _full_ff),
            "blocks.0",
            ("forward",),
            "the first feed-forward is not halved",
        ),
        Fault(
            "positions-ascending",
            "order-of-axis",
            P.method("", "positions", _ascending),
            "",
            ("forward",),
            "relative positions ascend",
        ),
        Fault(
            "sinusoid-halves",
            "rotary",
            P.method("", "positions", _halves),
            "",
            ("forward",),
            "sines, then cosines, not interleaved",
            dtype="autocast",
        ),
        Fault(
            "padding-leaks",
            "mask",
            P.rewritten("blocks.1.convolution", _mask_in_padding),
            "blocks.1.convolution",
            ("forward",),
            "padding is not zeroed before the depthwise convolution",
        ),
        Fault(
            "last-length",
            "off-by-one",
            P.each_batch(lambda b: {**b, "lengths": b["lengths"] - 4}),
            "",
            ("forward", "inputs"),
            "lengths lack one frame",
        ),
        Fault("ctc-sum", "reduction", P.criterion(ctc("sum", 0)), "", ("loss",), "the CTC loss is summed"),
        Fault(
            "warm-from-zero",
            "schedule",
            P.scheduled(lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: (n + 2) / 4)),
            "",
            ("update",),
            "the warm-up begins one step late in the count",
        ),
    ),
    (
        Clean(
            "boolean-mask",
            "-inf for -10,000 in the mask",
            P.rewritten("blocks.0.attention", lambda self, x, p, m: _infinite(self, x, p, m)),
        ),
        Clean("two-threads", "on two threads", lambda t: setattr(t, "context", lambda: threads(2)), dtype="autocast"),
        Clean(
            "conv-as-unfold",
            "the depthwise convolution by unfold",
            P.rewritten(
                "blocks.1.convolution.depth",
                lambda self, x: (
                    (F.pad(x, (2, 2)).unfold(-1, 5, 1) * self.weight[:, 0][:, None]).sum(-1) + self.bias[:, None]
                ),
            ),
            steps=2,
        ),
    ),
)


def _infinite(self, x, positions, mask):
    q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
    p = self.split(self.position(positions))
    scores = torch.einsum("bqhd,bkhd->bhqk", q + self.u, k) + self.shift(torch.einsum("bqhd,phd->bhqp", q + self.v, p))
    weights = (scores / math.sqrt(q.shape[-1])).masked_fill(~mask[:, None, None], -math.inf).softmax(-1)
    return self.out(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(-2))
