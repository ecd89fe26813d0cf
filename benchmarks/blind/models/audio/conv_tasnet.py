"""Source separation with global layer norm, permutation-invariant SI-SNR."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, normal


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


SEPARATOR = Model(
    "conv-tasnet",
    separator,
    "source separation with global layer norm, permutation-invariant SI-SNR",
    (
        Fault(
            "unbiased",
            "variance",
            P.rewritten("blocks.1.norm1", _unbiased),
            "blocks.1.norm1",
            ("forward",),
            "the unbiased variance",
        ),
        Fault(
            "time-only",
            "axis",
            P.rewritten("blocks.2.norm2", _time_only),
            "blocks.2.norm2",
            ("forward",),
            "normalised over time only",
            dtype="autocast",
        ),
        Fault(
            "softmax-masks",
            "activation",
            P.rewritten("", _softmax_masks),
            "",
            ("forward",),
            "softmax over speakers for sigmoid",
        ),
        Fault(
            "last-skip",
            "residual",
            P.rewritten("", _last_skip),
            "",
            ("forward",),
            "only the last block's skip reaches the masks",
            swapped=True,
        ),
        Fault(
            "not-centred",
            "loss-term",
            P.criterion(si_snr(False)),
            "",
            ("loss",),
            "the signals are not centred in the loss",
        ),
        Fault(
            "prelu-shared",
            "frozen",
            P.frozen("blocks.0.act2"),
            "blocks.0.act2",
            ("update",),
            "a PReLU's slope is missing in the optimizer",
        ),
        Fault(
            "groups",
            "conv-setting",
            P.rewritten(
                "blocks.0.depth", lambda self, x: F.conv1d(x, self.weight.flip(-1), self.bias, padding=1, groups=20)
            ),
            "blocks.0.depth",
            ("forward",),
            "the depthwise kernel is applied mirrored (convolution for correlation)",
        ),
    ),
    (
        Clean(
            "norm-rsqrt",
            "global norm by rsqrt and moments",
            P.rewritten("blocks.1.norm1", lambda self, x: _moments(self, x)),
        ),
        Clean(
            "no-mkldnn",
            "convolutions without oneDNN",
            lambda t: setattr(t, "context", lambda: torch.backends.mkldnn.flags(enabled=False)),
            dtype="bfloat16",
        ),
        Clean(
            "one-by-one-linear",
            "a 1x1 convolution as a matrix product",
            P.rewritten(
                "blocks.2.residual",
                lambda self, x: (x.transpose(1, 2) @ self.weight[..., 0].T + self.bias).transpose(1, 2),
            ),
        ),
    ),
)


def _moments(self, x):
    mean = x.mean((1, 2), keepdim=True)
    spread = x.square().mean((1, 2), keepdim=True) - mean.square()
    return (x - mean) * torch.rsqrt(spread + self.eps) * self.weight + self.bias
