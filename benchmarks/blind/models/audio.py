"""Speech and sound: source separation, a conformer with CTC, a snake codec, a speaker encoder."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from .. import plant as P
from ..spec import HERE, model
from ..training import Training, batches, give, ids, lively, normal, threads

# Source separation with global layer norm, permutation-invariant SI-SNR.


class GlobalNorm(nn.Module):
    """Normalises over channels and time."""

    def __init__(self, channels: int, eps: float = 1e-8):
        super().__init__()
        self.weight, self.bias, self.eps = (
            nn.Parameter(torch.ones(channels, 1)),
            nn.Parameter(torch.zeros(channels, 1)),
            eps,
        )

    def forward(self, x):
        mean = x.mean((1, 2), keepdim=True)
        spread = (x - mean).square().mean((1, 2), keepdim=True)
        return self.weight * (x - mean) / torch.sqrt(spread + self.eps) + self.bias


class Separable(nn.Module):
    """1x1, PReLU, norm, depthwise dilated, PReLU, norm, then residual and skip."""

    def __init__(self, channels: int, hidden: int, dilation: int):
        super().__init__()
        self.widen = nn.Conv1d(channels, hidden, 1)
        self.act1, self.norm1 = nn.PReLU(), GlobalNorm(hidden)
        self.depth = nn.Conv1d(hidden, hidden, 3, padding=dilation, dilation=dilation, groups=hidden)
        self.act2, self.norm2 = nn.PReLU(), GlobalNorm(hidden)
        self.residual, self.skip = nn.Conv1d(hidden, channels, 1), nn.Conv1d(hidden, channels, 1)

    def forward(self, x):
        h = self.norm1(self.act1(self.widen(x)))
        h = self.norm2(self.act2(self.depth(h)))
        return x + self.residual(h), self.skip(h)


class Separator(nn.Module):
    """Learned filter bank, masks for two speakers, overlap and add."""

    def __init__(self, filters: int = 16, channels: int = 12):
        super().__init__()
        self.encoder = nn.Conv1d(1, filters, 8, 4, bias=False)
        self.norm, self.squeeze = GlobalNorm(filters), nn.Conv1d(filters, channels, 1)
        self.blocks = nn.ModuleList(Separable(channels, 20, 2**i) for i in range(3))
        self.mask = nn.Sequential(nn.PReLU(), nn.Conv1d(channels, 2 * filters, 1))
        self.decoder = nn.ConvTranspose1d(filters, 1, 8, 4, bias=False)

    def forward(self, x):
        seen = F.relu(self.encoder(x))
        h, total = self.squeeze(self.norm(seen)), 0.0
        for block in self.blocks:
            h, skip = block(h)
            total = total + skip
        masks = torch.sigmoid(self.mask(total)).unflatten(1, (2, -1))
        parts = masks * seen[:, None]
        return self.decoder(parts.flatten(0, 1)).view(len(x), 2, -1)


def separator() -> Training:
    def make(g):
        target = normal(g, 4, 2, 64)
        return {"x": target.sum(1, keepdim=True), "target": target}

    return Training(lively(Separator()), give("x"), si_snr(True), batches(make, "separator"), clip=5.0)


def si_snr(centred):
    def loss(output, batch):
        guess, target = output.float(), batch["target"].float()
        if centred:
            guess, target = guess - guess.mean(-1, keepdim=True), target - target.mean(-1, keepdim=True)
        scores = []
        for order in ([0, 1], [1, 0]):
            other = target[:, order]
            share = (guess * other).sum(-1, keepdim=True) * other / (other.square().sum(-1, keepdim=True) + 1e-8)
            noise = (guess - share).square().sum(-1)
            scores.append((10 * torch.log10(share.square().sum(-1) / (noise + 1e-8) + 1e-8)).mean(1))
        return -torch.stack(scores, 1).max(1).values.mean()

    return loss


def _unbiased(self, x):
    mean = x.mean((1, 2), keepdim=True)
    spread = x.var((1, 2), keepdim=True)
    return self.weight * (x - mean) / torch.sqrt(spread + self.eps) + self.bias


def _time_only(self, x):
    mean = x.mean(2, keepdim=True)
    spread = (x - mean).square().mean(2, keepdim=True)
    return self.weight * (x - mean) / torch.sqrt(spread + self.eps) + self.bias


def _softmax_masks(self, x):
    seen = F.relu(self.encoder(x))
    h, total = self.squeeze(self.norm(seen)), 0.0
    for block in self.blocks:
        h, skip = block(h)
        total = total + skip
    parts = self.mask(total).unflatten(1, (2, -1)).softmax(1) * seen[:, None]
    return self.decoder(parts.flatten(0, 1)).view(len(x), 2, -1)


def _last_skip(self, x):
    seen = F.relu(self.encoder(x))
    h = self.squeeze(self.norm(seen))
    for block in self.blocks:
        h, skip = block(h)
    parts = torch.sigmoid(self.mask(skip)).unflatten(1, (2, -1)) * seen[:, None]
    return self.decoder(parts.flatten(0, 1)).view(len(x), 2, -1)


SEPARATOR = model(
    "conv-tasnet",
    separator,
    {
        "unbiased": P.rewritten(HERE, _unbiased),
        "time-only": P.rewritten(HERE, _time_only),
        "softmax-masks": P.rewritten("", _softmax_masks),
        "last-skip": P.rewritten("", _last_skip),
        "not-centred": P.criterion(si_snr(False)),
        "prelu-shared": P.frozen(HERE),
        "groups": P.rewritten(HERE, lambda self, x: F.conv1d(x, self.weight.flip(-1), self.bias, padding=1, groups=20)),
        "norm-rsqrt": P.rewritten("blocks.1.norm1", lambda self, x: _moments(self, x)),
        "no-mkldnn": lambda t: setattr(t, "context", lambda: torch.backends.mkldnn.flags(enabled=False)),
        "one-by-one-linear": P.rewritten(
            "blocks.2.residual", lambda self, x: (x.transpose(1, 2) @ self.weight[..., 0].T + self.bias).transpose(1, 2)
        ),
    },
)


def _moments(self, x):
    mean = x.mean((1, 2), keepdim=True)
    spread = x.square().mean((1, 2), keepdim=True) - mean.square()
    return (x - mean) * torch.rsqrt(spread + self.eps) * self.weight + self.bias


# Conformer with relative positions, CTC loss, warm-up.


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


CONFORMER = model(
    "conformer-ctc",
    conformer,
    {
        "no-relative-shift": P.method(HERE, "shift", _no_shift),
        "whole-ff": P.rewritten(HERE, _full_ff),
        "positions-ascending": P.method("", "positions", _ascending),
        "sinusoid-halves": P.method("", "positions", _halves),
        "padding-leaks": P.rewritten(HERE, _mask_in_padding),
        "last-length": P.each_batch(lambda b: {**b, "lengths": b["lengths"] - 4}),
        "ctc-sum": P.criterion(ctc("sum", 0)),
        "warm-from-zero": P.scheduled(lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda n: (n + 2) / 4)),
        "boolean-mask": P.rewritten("blocks.0.attention", lambda self, x, p, m: _infinite(self, x, p, m)),
        "two-threads": lambda t: setattr(t, "context", lambda: threads(2)),
        "conv-as-unfold": P.rewritten(
            "blocks.1.convolution.depth",
            lambda self, x: (
                (F.pad(x, (2, 2)).unfold(-1, 5, 1) * self.weight[:, 0][:, None]).sum(-1) + self.bias[:, None]
            ),
        ),
    },
)


def _infinite(self, x, positions, mask):
    q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
    p = self.split(self.position(positions))
    scores = torch.einsum("bqhd,bkhd->bhqk", q + self.u, k) + self.shift(torch.einsum("bqhd,phd->bhqp", q + self.v, p))
    weights = (scores / math.sqrt(q.shape[-1])).masked_fill(~mask[:, None, None], -math.inf).softmax(-1)
    return self.out(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(-2))


# Speaker embedding with snake activations, attentive statistics and an angular margin.


class Snake(nn.Module):
    """x + sin(ax)^2 / a."""

    def __init__(self, channels: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.ones(channels, 1))

    def forward(self, x):
        return x + torch.sin(self.alpha * x).square() / (self.alpha + 1e-9)


class Speaker(nn.Module):
    """Frames through snake convolutions, attentive statistics, a margin classifier."""

    def __init__(self, bands: int = 10, width: int = 20, speakers: int = 6):
        super().__init__()
        self.frames = nn.Sequential(
            nn.Conv1d(bands, width, 5, padding=2),
            Snake(width),
            nn.BatchNorm1d(width),
            nn.Conv1d(width, width, 3, padding=2, dilation=2),
            Snake(width),
            nn.BatchNorm1d(width),
        )
        self.attend = nn.Sequential(nn.Conv1d(width, 8, 1), nn.Tanh(), nn.Conv1d(8, width, 1))
        self.embed = nn.Linear(2 * width, 16)
        self.centres = nn.Parameter(torch.randn(speakers, 16))

    def pool(self, h):
        weights = self.attend(h).softmax(-1)
        mean = (weights * h).sum(-1)
        spread = (weights * h.square()).sum(-1) - mean.square()
        return torch.cat([mean, spread.clamp_min(1e-6).sqrt()], -1)

    def forward(self, sound):
        embedded = self.embed(self.pool(self.frames(sound)))
        return F.normalize(embedded, dim=-1) @ F.normalize(self.centres, dim=-1).T


def speaker() -> Training:
    data = batches(lambda g: {"sound": normal(g, 8, 10, 24), "labels": ids(g, 8, below=6)}, "speaker")
    return Training(
        lively(Speaker()),
        give("sound"),
        margin(0.2, 16.0),
        data,
        optimize=lambda m: torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3),
    )


def margin(width, scale):
    def loss(output, batch):
        angle = torch.acos(output.float().clamp(-1 + 1e-6, 1 - 1e-6))
        hot = F.one_hot(batch["labels"], output.shape[-1])
        return F.cross_entropy(scale * torch.cos(angle + width * hot), batch["labels"])

    return loss


def _no_mean(self, h):
    weights = self.attend(h).softmax(-1)
    mean = (weights * h).sum(-1)
    spread = (weights * h.square()).sum(-1)
    return torch.cat([mean, spread.clamp_min(1e-6).sqrt()], -1)


def _channel_softmax(self, h):
    weights = self.attend(h).softmax(1)
    mean = (weights * h).sum(-1)
    spread = (weights * h.square()).sum(-1) - mean.square()
    return torch.cat([mean, spread.clamp_min(1e-6).sqrt()], -1)


SPEAKER = model(
    "speaker-encoder",
    speaker,
    {
        "second-moment": P.method("", "pool", _no_mean),
        "softmax-channels": P.method("", "pool", _channel_softmax),
        "snake-unsquared": P.rewritten(HERE, lambda self, x: x + torch.sin(self.alpha * x) / (self.alpha + 1e-9)),
        "snake-gradient": P.parameter_gradient(HERE, "alpha", lambda g: g * 0.5),
        "margin": P.criterion(margin(0.3, 16.0)),
        "eval-norm": lambda t: t.at("frames.2").eval() and None,
        "decay-coupled": P.groups(weight_decay=1e-2),
        "norms-eps-order": P.rewritten("", lambda self, s: _written(self, s)),
        "fused-sgd": P.optimizer(
            lambda m: torch.optim.SGD(m.parameters(), lr=0.02, momentum=0.9, weight_decay=1e-3, fused=True)
        ),
    },
)


def _written(self, sound):
    embedded = self.embed(self.pool(self.frames(sound)))
    dots = embedded @ self.centres.T
    return dots / embedded.norm(dim=-1, keepdim=True) / self.centres.norm(dim=-1)


MODELS = (SEPARATOR, CONFORMER, SPEAKER)
