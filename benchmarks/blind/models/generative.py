"""Autoregressive flows, score networks, adversarial training, hyper-networks, mixture densities."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from .. import plant as P
from ..spec import HERE, model
from ..training import Training, batches, give, ids, lively, normal, squared, threads, uniform

# Masked autoregressive flow.


class Masked(nn.Linear):
    """A linear layer whose weight is masked."""

    def __init__(self, inputs: int, outputs: int, mask: torch.Tensor):
        super().__init__(inputs, outputs)
        self.register_buffer("mask", mask)

    def forward(self, x):
        return F.linear(x, self.weight * self.mask, self.bias)


class Made(nn.Module):
    """Masked autoencoder that gives shift and log scale of every variable from those before it."""

    def __init__(self, size: int, hidden: int = 24):
        super().__init__()
        order, middle = torch.arange(size), torch.arange(hidden) % (size - 1)
        self.first = Masked(size, hidden, (middle[:, None] >= order).float())
        self.second = Masked(hidden, hidden, (middle[:, None] >= middle).float())
        self.last = Masked(hidden, 2 * size, (order.repeat(2)[:, None] > middle).float())

    def forward(self, x):
        shift, log = self.last(torch.relu(self.second(torch.relu(self.first(x))))).chunk(2, -1)
        log = 2 * torch.tanh(log / 2)
        return (x - shift) * torch.exp(-log), -log.sum(-1)


class Autoregressive(nn.Module):
    """Several MADEs with the order reversed between them."""

    def __init__(self, size: int = 6, depth: int = 3):
        super().__init__()
        self.steps = nn.ModuleList(Made(size) for _ in range(depth))

    def forward(self, x):
        total = 0.0
        for made in self.steps:
            x, log = made(x)
            total = total + log
            x = x.flip(-1)
        return x, total


def autoregressive() -> Training:
    return Training(lively(Autoregressive()), give("x"), flow_loss, batches(lambda g: {"x": normal(g, 16, 6)}, "maf"))


def flow_loss(output, batch):
    z, log = output
    return (0.5 * z.float().square().sum(-1) + 3 * math.log(2 * math.pi) - log.float()).mean()


def _no_flip(self, x):
    total = 0.0
    for number, made in enumerate(self.steps):
        x, log = made(x)
        total = total + log
        if number:
            x = x.flip(-1)
    return x, total


def _sign(self, x):
    shift, log = self.last(torch.relu(self.second(torch.relu(self.first(x))))).chunk(2, -1)
    log = 2 * torch.tanh(log / 2)
    return (x - shift) * torch.exp(-log), log.sum(-1)


def _interleaved(self, x):
    shift, log = self.last(torch.relu(self.second(torch.relu(self.first(x))))).unflatten(-1, (-1, 2)).unbind(-1)
    log = 2 * torch.tanh(log / 2)
    return (x - shift) * torch.exp(-log), -log.sum(-1)


AUTOREGRESSIVE = model(
    "made-flow",
    autoregressive,
    {
        "no-flip": P.rewritten("", _no_flip),
        "jacobian-sign": P.rewritten(HERE, _sign),
        "interleaved": P.rewritten(HERE, _interleaved),
        "mask-strict": P.values(HERE, "mask", lambda m: (torch.arange(24)[:, None] % 5 > torch.arange(24) % 5).float()),
        "mask-after": P.parameter_gradient(HERE, "weight", lambda g: g * 1.002),
        "log-scale-order": P.method("", "forward", lambda self, x: _from_last(self, x)),
        "bfloat16-threads": lambda t: setattr(t, "context", lambda: threads(2)),
        "masked-in-advance": P.rewritten("steps.1.second", lambda self, x: x @ (self.mask * self.weight).T + self.bias),
    },
)


def _from_last(self, x):
    logs = []
    for made in self.steps:
        x, log = made(x)
        logs.insert(0, log)
        x = x.flip(-1)
    return x, torch.stack(logs).sum(0)


# Noise-conditional score matching with FiLM and dilated convolutions.


class Score(nn.Module):
    """Noise-conditional score network with Fourier features of the noise level and FiLM."""

    def __init__(self, channels: int = 16):
        super().__init__()
        self.register_buffer("frequencies", torch.linspace(0.5, 8, channels // 2))
        self.embed = nn.Sequential(nn.Linear(channels, 32), nn.SiLU(), nn.Linear(32, 32))
        self.inward = nn.Conv2d(1, channels, 3, padding=1)
        self.norms = nn.ModuleList(nn.GroupNorm(4, channels) for _ in range(3))
        self.convs = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=d, dilation=d) for d in (1, 2, 1))
        self.films = nn.ModuleList(nn.Linear(32, 2 * channels) for _ in range(3))
        self.outward = nn.Conv2d(channels, 1, 3, padding=1)

    def level(self, sigma):
        angle = 2 * math.pi * sigma.log()[:, None] * self.frequencies
        return self.embed(torch.cat([angle.sin(), angle.cos()], -1))

    def forward(self, x, sigma):
        level, h = self.level(sigma), self.inward(x)
        for norm, conv, film in zip(self.norms, self.convs, self.films, strict=True):
            scale, shift = film(level)[..., None, None].chunk(2, 1)
            h = h + conv(F.silu(norm(h) * (1 + scale) + shift))
        return self.outward(h) / sigma[:, None, None, None]


def score() -> Training:
    def make(g):
        sigma, clean, noise = uniform(g, 6) + 0.3, normal(g, 6, 1, 12, 12), normal(g, 6, 1, 12, 12)
        return {"x": clean + sigma[:, None, None, None] * noise, "sigma": sigma, "noise": noise}

    return Training(lively(Score()), give("x", "sigma"), score_loss(2), batches(make, "score"))


def score_loss(power):
    def loss(output, batch):
        sigma = batch["sigma"][:, None, None, None].float()
        return ((output.float() + batch["noise"].float() / sigma).square() * sigma**power).sum((1, 2, 3)).mean() / 2

    return loss


def _sine_first(self, sigma):
    angle = 2 * math.pi * sigma.log()[:, None] * self.frequencies
    return self.embed(torch.cat([angle.cos(), angle.sin()], -1))


def _no_one(self, x, sigma):
    level, h = self.level(sigma), self.inward(x)
    for norm, conv, film in zip(self.norms, self.convs, self.films, strict=True):
        scale, shift = film(level)[..., None, None].chunk(2, 1)
        h = h + conv(F.silu(norm(h) * (1 + scale + shift)))
    return self.outward(h) / sigma[:, None, None, None]


SCORE = model(
    "score-network",
    score,
    {
        "cos-sin": P.method("", "level", _sine_first),
        "film-shift": P.rewritten("", _no_one),
        "dilation": P.setting(HERE, dilation=(1, 1), padding=(1, 1)),
        "groups": P.setting(HERE, num_groups=8),
        "loss-weight": P.criterion(score_loss(1)),
        "circular": P.setting(HERE, padding_mode="circular", _reversed_padding_repeated_twice=[1, 1, 1, 1]),
        "no-mkldnn": lambda t: setattr(t, "context", lambda: torch.backends.mkldnn.flags(enabled=False)),
        "norm-by-hand": P.rewritten("norms.0", lambda self, x: _group_norm(self, x)),
        "no-mkldnn-cast": lambda t: setattr(t, "context", lambda: torch.backends.mkldnn.flags(enabled=False)),
    },
)


def _group_norm(self, x):
    parts = x.unflatten(1, (self.num_groups, -1)).flatten(2)
    mean = parts.mean(-1, keepdim=True)
    spread = (parts - mean).square().mean(-1, keepdim=True)
    normed = ((parts - mean) / (spread + self.eps).sqrt()).view_as(x)
    return normed * self.weight[:, None, None] + self.bias[:, None, None]


# Projection discriminator with spectral norm, conditional batch norm, hinge loss.


class Spectral(nn.Module):
    """A projection discriminator under spectral norm, and a generator with conditional batch norm."""

    def __init__(self, classes: int = 4, width: int = 12):
        super().__init__()
        self.seed = nn.Linear(8, width * 9)
        self.gains, self.shifts = nn.Embedding(classes, width), nn.Embedding(classes, width)
        self.norm = nn.BatchNorm2d(width, affine=False)
        self.grow = nn.ConvTranspose2d(width, 1, 4, 2, 1)
        self.look = nn.ModuleList(
            [spectral_norm(nn.Conv2d(1, width, 3, 2, 1)), spectral_norm(nn.Conv2d(width, 16, 3, 2, 1))]
        )
        self.judge = spectral_norm(nn.Linear(16, 1))
        self.project = nn.Embedding(classes, 16)

    def make(self, z, y):
        h = self.norm(self.seed(z).view(len(z), -1, 3, 3))
        h = F.relu(h * (1 + self.gains(y)[..., None, None]) + self.shifts(y)[..., None, None])
        return torch.tanh(self.grow(h))

    def score(self, x, y):
        for conv in self.look:
            x = F.leaky_relu(conv(x), 0.2)
        x = x.sum((2, 3))
        return self.judge(x)[:, 0] + (self.project(y) * x).sum(-1)

    def forward(self, z, y, real):
        fake = self.make(z, y)
        return self.score(real, y), self.score(fake.detach(), y), self.score(fake, y)


def spectral() -> Training:
    data = batches(lambda g: {"z": normal(g, 8, 8), "y": ids(g, 8, below=4), "real": normal(g, 8, 1, 6, 6)}, "spectral")
    model = Spectral()
    with torch.no_grad():
        model.gains.weight.mul_(0.3)
    return Training(
        model,
        give("z", "y", "real"),
        hinge(),
        data,
        optimize=lambda m: torch.optim.Adam(m.parameters(), lr=2e-3, betas=(0.5, 0.9)),
    )


def hinge(margin=1.0):
    def loss(output, batch):
        real, fake, wish = (x.float() for x in output)
        return F.relu(margin - real).mean() + F.relu(margin + fake).mean() - wish.mean()

    return loss


def _mean_pool(self, x, y):
    for conv in self.look:
        x = F.leaky_relu(conv(x), 0.2)
    x = x.mean((2, 3))
    return self.judge(x)[:, 0] + (self.project(y) * x).sum(-1)


def _slope(self, x, y):
    for conv in self.look:
        x = F.leaky_relu(conv(x), 0.01)
    x = x.sum((2, 3))
    return self.judge(x)[:, 0] + (self.project(y) * x).sum(-1)


def _not_detached(self, z, y, real):
    fake = self.make(z, y)
    return self.score(real, y), self.score(fake, y), self.score(fake, y)


SPECTRAL = model(
    "projection-gan",
    spectral,
    {
        "mean-pool": P.method("", "score", _mean_pool),
        "slope": P.method("", "score", _slope),
        "fake-not-detached": P.rewritten("", _not_detached),
        "betas": P.groups(betas=(0.5, 0.999)),
        "norm-momentum": P.setting(HERE, momentum=0.01),
        "stride": P.setting(HERE, padding=(0, 0)),
        "adam-capturable": P.optimizer(
            lambda m: torch.optim.Adam(m.parameters(), lr=2e-3, betas=(0.5, 0.9), foreach=False)
        ),
        "norm-written-out": P.rewritten("norm", lambda self, x: _batch_norm(self, x)),
    },
)


def _batch_norm(self, x):
    mean, spread = x.mean((0, 2, 3)), x.var((0, 2, 3), unbiased=False)
    with torch.no_grad():
        count = x.numel() / x.shape[1]
        self.running_mean.lerp_(mean, self.momentum)
        self.running_var.lerp_(spread * count / (count - 1), self.momentum)
        self.num_batches_tracked += 1
    return (x - mean[:, None, None]) * torch.rsqrt(spread[:, None, None] + self.eps)


# HiFi-GAN generator under weight norm, L1 loss.


class Vocoder(nn.Module):
    """A HiFi-GAN generator: transposed convolutions and residual stacks of several kernels under weight norm."""

    def __init__(self, mels: int = 10, width: int = 16):
        super().__init__()
        self.pre = weight_norm(nn.Conv1d(mels, width, 7, padding=3))
        self.ups = nn.ModuleList(
            [weight_norm(nn.ConvTranspose1d(width, 8, 4, 2, 1)), weight_norm(nn.ConvTranspose1d(8, 4, 4, 2, 1))]
        )
        self.blocks = nn.ModuleList(nn.ModuleList([Residual(c, 3), Residual(c, 5)]) for c in (8, 4))
        self.post = weight_norm(nn.Conv1d(4, 1, 7, padding=3))

    def forward(self, mel):
        x = self.pre(mel)
        for up, blocks in zip(self.ups, self.blocks, strict=True):
            x = up(F.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.post(F.leaky_relu(x)))


class Residual(nn.Module):
    """Two dilated convolutions, each with a residual."""

    def __init__(self, channels: int, kernel: int):
        super().__init__()
        self.convs = nn.ModuleList(
            weight_norm(nn.Conv1d(channels, channels, kernel, dilation=d, padding=(kernel - 1) * d // 2))
            for d in (1, 3)
        )

    def forward(self, x):
        for conv in self.convs:
            x = x + conv(F.leaky_relu(x, 0.1))
        return x


def vocoder() -> Training:
    data = batches(lambda g: {"mel": normal(g, 3, 10, 12), "target": normal(g, 3, 1, 48).clamp(-1, 1)}, "vocoder")
    return Training(lively(Vocoder()), give("mel"), lambda o, b: (o.float() - b["target"].float()).abs().mean(), data)


def _summed(self, mel):
    x = self.pre(mel)
    for up, blocks in zip(self.ups, self.blocks, strict=True):
        x = up(F.leaky_relu(x, 0.1))
        x = sum(block(x) for block in blocks)
    return torch.tanh(self.post(F.leaky_relu(x)))


def _last_slope(self, mel):
    x = self.pre(mel)
    for up, blocks in zip(self.ups, self.blocks, strict=True):
        x = up(F.leaky_relu(x, 0.1))
        x = sum(block(x) for block in blocks) / len(blocks)
    return torch.tanh(self.post(F.leaky_relu(x, 0.1)))


def _no_residual(self, x):
    x = x + self.convs[0](F.leaky_relu(x, 0.1))
    return self.convs[1](F.leaky_relu(x, 0.1))


VOCODER = model(
    "vocoder",
    vocoder,
    {
        "blocks-summed": P.rewritten("", _summed),
        "last-slope": P.rewritten("", _last_slope),
        "residual-missing": P.rewritten(HERE, _no_residual),
        "output-padding": P.around(HERE, lambda f, x: f(x).roll(1, -1)),
        "norm-not-learned": lambda t: t.at("post").parametrizations.weight.original0.requires_grad_(False) and None,
        "lr-warmup": P.scheduled(lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.99)),
        "mean-of-stack": P.rewritten("", lambda self, mel: _stacked(self, mel)),
        "no-mkldnn": lambda t: setattr(t, "context", lambda: torch.backends.mkldnn.flags(enabled=False)),
    },
)


def _stacked(self, mel):
    x = self.pre(mel)
    for up, blocks in zip(self.ups, self.blocks, strict=True):
        x = up(F.leaky_relu(x, 0.1))
        x = torch.stack([block(x) for block in blocks]).mean(0)
    return torch.tanh(self.post(F.leaky_relu(x)))


# Mixture density network, Adamax.


class Mixture(nn.Module):
    """Mixture density network."""

    def __init__(self, seen: int = 5, parts: int = 4, size: int = 2):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(seen, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.weights = nn.Linear(32, parts)
        self.means = nn.Linear(32, parts * size)
        self.widths = nn.Linear(32, parts)
        self.shape = (parts, size)

    def forward(self, x):
        h = self.body(x)
        return (
            self.weights(h).log_softmax(-1),
            self.means(h).unflatten(-1, self.shape),
            F.softplus(self.widths(h)) + 1e-3,
        )


def mixture() -> Training:
    data = batches(lambda g: {"x": normal(g, 16, 5), "target": normal(g, 16, 2)}, "mixture")
    return Training(
        lively(Mixture()),
        give("x"),
        mixture_loss(2),
        data,
        optimize=lambda m: torch.optim.Adamax(m.parameters(), lr=2e-3),
    )


def mixture_loss(size):
    def loss(output, batch):
        log, means, widths = (x.float() for x in output)
        away = (batch["target"].float()[:, None] - means).square().sum(-1)
        parts = log - 0.5 * away / widths.square() - size * (widths.log() + 0.5 * math.log(2 * math.pi))
        return -parts.logsumexp(-1).mean()

    return loss


MIXTURE = model(
    "mixture-density",
    mixture,
    {
        "one-dimensional": P.criterion(mixture_loss(1)),
        "softplus": P.rewritten("", lambda self, x: _exponential(self, x)),
        "floor": P.rewritten("", lambda self, x: _no_floor(self, x)),
        "adamax-betas": P.groups(betas=(0.9, 0.99)),
        "tanh-in-half": P.rewritten(HERE, lambda self, x: x.half().tanh().float()),
        "sigmoid-for-tanh": P.rewritten("body.3", lambda self, x: 2 * torch.sigmoid(2 * x) - 1),
        "adamax-loop": P.optimizer(lambda m: torch.optim.Adamax(m.parameters(), lr=2e-3, foreach=False)),
        "micro-batches": P.in_two,
    },
)


def _exponential(self, x):
    h = self.body(x)
    return self.weights(h).log_softmax(-1), self.means(h).unflatten(-1, self.shape), self.widths(h).exp() + 1e-3


def _no_floor(self, x):
    h = self.body(x)
    return self.weights(h).log_softmax(-1), self.means(h).unflatten(-1, self.shape), F.softplus(self.widths(h)) + 2e-3


# A network that writes another one's weights, NAdam.


class Hyper(nn.Module):
    """A hyper-network that writes the weights of a small network for each task."""

    def __init__(self, tasks: int = 5, inner: int = 12):
        super().__init__()
        self.tasks = nn.Embedding(tasks, 10)
        self.trunk = nn.Linear(10, 24)
        self.first = nn.Linear(24, inner * 3 + inner)
        self.second = nn.Linear(24, inner * 1 + 1)
        self.inner = inner

    def forward(self, task, x):
        h = F.gelu(self.trunk(self.tasks(task)))
        first, second = self.first(h), self.second(h)
        w, b = first[:, : -self.inner].unflatten(-1, (self.inner, 3)), first[:, -self.inner :]
        y = torch.sin(torch.einsum("bnc,bic->bni", x, w) + b[:, None])
        return torch.einsum("bni,bi->bn", y, second[:, :-1]) + second[:, -1:]


def hyper() -> Training:
    data = batches(lambda g: {"task": ids(g, 4, below=5), "x": normal(g, 4, 7, 3), "target": normal(g, 4, 7)}, "hyper")
    return Training(
        lively(Hyper()), give("task", "x"), squared, data, optimize=lambda m: torch.optim.NAdam(m.parameters(), lr=2e-3)
    )


def _transposed(self, task, x):
    h = F.gelu(self.trunk(self.tasks(task)))
    first, second = self.first(h), self.second(h)
    w, b = first[:, : -self.inner].unflatten(-1, (3, self.inner)).transpose(1, 2), first[:, -self.inner :]
    y = torch.sin(torch.einsum("bnc,bic->bni", x, w) + b[:, None])
    return torch.einsum("bni,bi->bn", y, second[:, :-1]) + second[:, -1:]


HYPER = model(
    "hyper-network",
    hyper,
    {
        "weights-transposed": P.rewritten("", _transposed),
        "gelu-tanh": P.rewritten("", lambda self, task, x: _tanh_gelu(self, task, x)),
        "trunk-gradient": P.around(HERE, lambda f, x: P.wrong_gradient(f(x), lambda g: g * 0.99)),
        "loss-sum": P.criterion(lambda o, b: F.mse_loss(o.float(), b["target"].float(), reduction="sum") / len(o)),
        "nadam-decay": P.groups(momentum_decay=0.04),
        "matmul": P.rewritten("", lambda self, task, x: _by_matmul(self, task, x)),
        "unit-batch": lambda t: (P.in_two(t), P.in_two(t)) and None,
    },
)


def _tanh_gelu(self, task, x):
    h = F.gelu(self.trunk(self.tasks(task)), approximate="tanh")
    first, second = self.first(h), self.second(h)
    w, b = first[:, : -self.inner].unflatten(-1, (self.inner, 3)), first[:, -self.inner :]
    y = torch.sin(torch.einsum("bnc,bic->bni", x, w) + b[:, None])
    return torch.einsum("bni,bi->bn", y, second[:, :-1]) + second[:, -1:]


def _by_matmul(self, task, x):
    h = F.gelu(self.trunk(self.tasks(task)))
    first, second = self.first(h), self.second(h)
    w, b = first[:, : -self.inner].unflatten(-1, (self.inner, 3)), first[:, -self.inner :]
    y = torch.sin(torch.baddbmm(b[:, None], x, w.transpose(1, 2)))
    return torch.baddbmm(second[:, -1:, None], y, second[:, :-1, None])[..., 0]


MODELS = (AUTOREGRESSIVE, SCORE, SPECTRAL, VOCODER, MIXTURE, HYPER)
