"""Detection, capsules, spatial transformers, convolutional recurrence, style transfer."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .. import plant as P
from ..spec import HERE, model
from ..training import Training, batches, give, ids, lively, normal, sgd, squared, threads, uniform

# Anchor-free detector with a feature pyramid, focal and IoU loss.


class Stage(nn.Module):
    """Convolution, frozen-free batch norm, ReLU."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x)))


class Pyramid(nn.Module):
    """Feature pyramid: lateral convolutions, upsampling from the top, smoothing."""

    def __init__(self, widths: tuple[int, ...], out: int):
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(w, out, 1) for w in widths)
        self.smooth = nn.ModuleList(nn.Conv2d(out, out, 3, padding=1) for _ in widths)

    def forward(self, levels):
        sides = [conv(x) for conv, x in zip(self.lateral, levels, strict=True)]
        for i in range(len(sides) - 2, -1, -1):
            sides[i] = sides[i] + F.interpolate(sides[i + 1], size=sides[i].shape[-2:], mode="nearest")
        return [conv(x) for conv, x in zip(self.smooth, sides, strict=True)]


class Tower(nn.Module):
    """The heads that all levels share: classes, distances to the box's sides, centredness."""

    def __init__(self, size: int, classes: int, levels: int):
        super().__init__()
        self.classes = nn.Sequential(
            nn.Conv2d(size, size, 3, padding=1),
            nn.GroupNorm(4, size),
            nn.ReLU(),
            nn.Conv2d(size, classes, 3, padding=1),
        )
        self.trunk = nn.Sequential(nn.Conv2d(size, size, 3, padding=1), nn.GroupNorm(4, size), nn.ReLU())
        self.sides, self.centre = nn.Conv2d(size, 4, 3, padding=1), nn.Conv2d(size, 1, 3, padding=1)
        self.scales = nn.Parameter(torch.ones(levels))

    def forward(self, levels):
        result = []
        for number, x in enumerate(levels):
            h = self.trunk(x)
            both = torch.cat(
                [self.classes(x), F.relu(self.sides(h) * self.scales[number]) * 2**number, self.centre(h)], 1
            )
            result.append(both.flatten(2))
        return torch.cat(result, 2).transpose(1, 2)


class Detector(nn.Module):
    """FCOS."""

    def __init__(self, classes: int = 3):
        super().__init__()
        self.stages = nn.ModuleList([Stage(3, 8), Stage(8, 12), Stage(12, 16)])
        self.pyramid, self.tower = Pyramid((8, 12, 16), 12), Tower(12, classes, 3)

    def forward(self, images):
        levels = []
        for stage in self.stages:
            images = stage(images)
            levels.append(images)
        return self.tower(self.pyramid(levels))


def detector() -> Training:
    places = 64 + 16 + 4
    data = batches(
        lambda g: {
            "images": normal(g, 3, 3, 16, 16),
            "kinds": ids(g, 3, places, below=4),
            "boxes": uniform(g, 3, places, 4) * 4 + 0.1,
            "centres": uniform(g, 3, places),
        },
        "detector",
    )
    return Training(lively(Detector()), give("images"), fcos_loss(), data, optimize=sgd, clip=10.0)


def fcos_loss(alpha=0.25, gamma=2.0, generous=False):
    def loss(output, batch):
        output = output.float()
        scores, sides, centre = output[..., :3], output[..., 3:7], output[..., 7]
        found = batch["kinds"] < 3
        hot = F.one_hot(batch["kinds"], 4)[..., :3].float()
        chance = scores.sigmoid()
        entropy = F.binary_cross_entropy_with_logits(scores, hot, reduction="none")
        right = chance * hot + (1 - chance) * (1 - hot)
        focal = ((alpha * hot + (1 - alpha) * (1 - hot)) * (1 - right) ** gamma * entropy).sum() / found.sum()
        a, b = sides[found], batch["boxes"][found].float()
        near = torch.minimum(a, b)
        inner = (near[:, 0] + near[:, 2]) * (near[:, 1] + near[:, 3])
        union = (a[:, 0] + a[:, 2]) * (a[:, 1] + a[:, 3]) + (b[:, 0] + b[:, 2]) * (b[:, 1] + b[:, 3]) - inner
        box = 1 - (inner + 1) / (union + 1)
        if generous:
            far = torch.maximum(a, b)
            hull = (far[:, 0] + far[:, 2]) * (far[:, 1] + far[:, 3])
            box = box + (hull - union) / hull
        return focal + box.mean() + F.binary_cross_entropy_with_logits(centre[found], batch["centres"][found].float())

    return loss


def _bilinear(self, levels):
    sides = [conv(x) for conv, x in zip(self.lateral, levels, strict=True)]
    for i in range(len(sides) - 2, -1, -1):
        sides[i] = sides[i] + F.interpolate(sides[i + 1], size=sides[i].shape[-2:], mode="bilinear")
    return [conv(x) for conv, x in zip(self.smooth, sides, strict=True)]


def _smooth_first(self, levels):
    sides = [conv(x) for conv, x in zip(self.lateral, levels, strict=True)]
    above = [None, *sides[1:]]
    for i in range(len(sides) - 1):
        sides[i] = sides[i] + F.interpolate(above[i + 1], size=sides[i].shape[-2:], mode="nearest")
    return [conv(x) for conv, x in zip(self.smooth, sides, strict=True)]


def _one_scale(self, levels):
    result = []
    for number, x in enumerate(levels):
        h = self.trunk(x)
        result.append(
            torch.cat([self.classes(x), F.relu(self.sides(h) * self.scales[number]), self.centre(h)], 1).flatten(2)
        )
    return torch.cat(result, 2).transpose(1, 2)


DETECTOR = model(
    "fcos-detector",
    detector,
    {
        "bilinear": P.rewritten(HERE, _bilinear),
        "no-cascade": P.rewritten(HERE, _smooth_first),
        "stride-missing": P.rewritten(HERE, _one_scale),
        "focal-alpha": P.criterion(fcos_loss(alpha=0.75)),
        "giou": P.criterion(fcos_loss(generous=True)),
        "norm-eps": P.setting(HERE, eps=1e-3),
        "norm-not-frozen": P.setting(HERE, momentum=0.03),
        "images-bgr": P.each_batch(lambda b: {**b, "images": b["images"].flip(1)}),
        "channels-last": lambda t: t.model.to(memory_format=torch.channels_last) and None,
        "norm-by-hand": P.rewritten(
            "tower.trunk.1",
            lambda self, x: (
                F.instance_norm(x.unflatten(1, (4, -1)).flatten(2)).view_as(x) * self.weight[:, None, None]
                + self.bias[:, None, None]
            ),
        ),
        "no-mkldnn": lambda t: setattr(t, "context", lambda: torch.backends.mkldnn.flags(enabled=False)),
        "two-threads": lambda t: setattr(t, "context", lambda: threads(2)),
    },
)


# Dynamic routing, margin loss, reconstruction.


class Routing(nn.Module):
    """Capsules that agree are routed."""

    def __init__(self, inputs: int, size: int, outputs: int, out_size: int, rounds: int = 3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(outputs, inputs, out_size, size) * 0.3)
        self.rounds = rounds

    def forward(self, u):
        votes = torch.einsum("oijk,bik->boij", self.weight, u)
        logits = votes.new_zeros(votes.shape[:3])
        for number in range(self.rounds):
            v = squash((logits.softmax(1)[..., None] * votes).sum(2))
            if number < self.rounds - 1:
                logits = logits + (votes * v[:, :, None]).sum(-1)
        return v


def squash(x):
    square = x.square().sum(-1, keepdim=True)
    return square / (1 + square) * x / (square + 1e-8).sqrt()


class Capsules(nn.Module):
    """Convolution, primary capsules, routing; with a decoder."""

    def __init__(self):
        super().__init__()
        self.conv, self.primary = nn.Conv2d(1, 12, 5), nn.Conv2d(12, 16, 3, 2)
        self.routing = Routing(2 * 9, 8, 5, 6)
        self.decoder = nn.Sequential(nn.Linear(30, 32), nn.ReLU(), nn.Linear(32, 121), nn.Sigmoid())

    def forward(self, x, y):
        h = self.primary(F.relu(self.conv(x)))
        u = squash(h.unflatten(1, (2, 8)).permute(0, 1, 3, 4, 2).flatten(1, 3))
        v = self.routing(u)
        kept = v * F.one_hot(y, 5)[..., None].to(v)
        return (v.square().sum(-1) + 1e-8).sqrt(), self.decoder(kept.flatten(1))


def capsules() -> Training:
    data = batches(lambda g: {"x": uniform(g, 6, 1, 11, 11), "y": ids(g, 6, below=5)}, "capsules")
    model = lively(Capsules())
    with torch.no_grad():
        model.routing.weight.mul_(12.0)
        model.primary.weight.mul_(3.0)
    return Training(model, give("x", "y"), capsule_loss(0.5), data)


def capsule_loss(down):
    def loss(output, batch):
        lengths, image = (x.float() for x in output)
        hot = F.one_hot(batch["y"], 5)
        wrong = hot * F.relu(0.9 - lengths).square() + down * (1 - hot) * F.relu(lengths - 0.1).square()
        return wrong.sum(-1).mean() + 0.05 * (image - batch["x"].float().flatten(1)).square().sum(-1).mean()

    return loss


def _over_inputs(self, u):
    votes = torch.einsum("oijk,bik->boij", self.weight, u)
    logits = votes.new_zeros(votes.shape[:3])
    for number in range(self.rounds):
        v = squash((logits.softmax(2)[..., None] * votes).sum(2))
        if number < self.rounds - 1:
            logits = logits + (votes * v[:, :, None]).sum(-1)
    return v


def _wrong_view(self, x, y):
    h = self.primary(F.relu(self.conv(x)))
    v = self.routing(squash(h.view(len(x), -1, 8)))
    kept = v * F.one_hot(y, 5)[..., None].to(v)
    return (v.square().sum(-1) + 1e-8).sqrt(), self.decoder(kept.flatten(1))


CAPSULES = model(
    "capsule-net",
    capsules,
    {
        "softmax-axis": P.rewritten(HERE, _over_inputs),
        "rounds": P.setting(HERE, rounds=2),
        "capsule-view": P.rewritten("", _wrong_view),
        "down-weight": P.criterion(capsule_loss(0.6)),
        "target-label": P.each_batch(lambda b: {**b, "y": b["y"].roll(1)}),
        "votes-by-matmul": P.rewritten("routing", lambda self, u: _matmul_votes(self, u)),
        "micro-batches": P.in_two,
    },
)


def _matmul_votes(self, u):
    votes = (self.weight @ u[:, None, :, :, None])[..., 0]
    logits = votes.new_zeros(votes.shape[:3])
    for number in range(self.rounds):
        v = squash((logits.softmax(1)[:, :, None] @ votes)[:, :, 0])
        if number < self.rounds - 1:
            logits = logits + (votes @ v[..., None])[..., 0]
    return v


# Spatial transformer with a classifier, label smoothing, cosine schedule.


class Spatial(nn.Module):
    """A spatial transformer in front of a classifier."""

    def __init__(self, classes: int = 6):
        super().__init__()
        self.localise = nn.Sequential(
            nn.Conv2d(1, 6, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 16, 16), nn.ReLU()
        )
        self.theta = nn.Linear(16, 6)
        self.features = nn.Sequential(nn.Conv2d(1, 8, 3), nn.AvgPool2d(2), nn.Hardswish(), nn.Dropout(0.0))
        self.head = nn.Linear(8 * 25, classes)

    def warp(self, x, theta):
        grid = F.affine_grid(theta.view(-1, 2, 3), x.shape, align_corners=False)
        return F.grid_sample(x, grid, align_corners=False)

    def forward(self, x):
        x = self.warp(x, self.theta(self.localise(x)))
        return self.head(self.features(x).flatten(1))


def spatial() -> Training:
    data = batches(lambda g: {"x": normal(g, 8, 1, 12, 12), "labels": ids(g, 8, below=6)}, "spatial")
    model = lively(Spatial())
    with torch.no_grad():
        model.theta.weight.mul_(0.1)
        model.theta.bias.copy_(torch.tensor([1.0, 0, 0.1, 0, 1, -0.1]))
    cosine = lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 4)  # noqa: E731
    return Training(model, give("x"), smooth_loss(0.1), data, schedule=cosine)


def smooth_loss(smoothing):
    return lambda output, batch: F.cross_entropy(output.float(), batch["labels"], label_smoothing=smoothing)


def _corners(self, x, theta):
    grid = F.affine_grid(theta.view(-1, 2, 3), x.shape, align_corners=True)
    return F.grid_sample(x, grid, align_corners=True)


def _border(self, x, theta):
    grid = F.affine_grid(theta.view(-1, 2, 3), x.shape, align_corners=False)
    return F.grid_sample(x, grid, align_corners=False, padding_mode="border")


SPATIAL = model(
    "spatial-transformer",
    spatial,
    {
        "corners": P.method("", "warp", _corners),
        "border": P.method("", "warp", _border),
        "pool-kind": P.rewritten(HERE, lambda self, x: F.max_pool2d(x, 2)),
        "hardswish": P.rewritten(HERE, lambda self, x: F.silu(x)),
        "dropout": P.setting(HERE, p=0.1),
        "smoothing": P.criterion(smooth_loss(0.0)),
        "cosine-length": P.scheduled(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5)),
        "dropout-module": P.exchanged("features.3", lambda m: nn.Identity()),
        "loss-by-hand": P.criterion(lambda o, b: _smooth(o, b)),
        "no-mkldnn": lambda t: setattr(t, "context", lambda: torch.backends.mkldnn.flags(enabled=False)),
    },
)


def _smooth(output, batch):
    log = output.float().log_softmax(-1)
    return -(0.9 * log.gather(1, batch["labels"][:, None])[:, 0] + 0.1 * log.mean(-1)).mean()


# Convolutional LSTM with peepholes, tight clipping.


class ConvLstm(nn.Module):
    """A convolutional LSTM that forecasts frames."""

    def __init__(self, width: int = 10):
        super().__init__()
        self.gates = nn.Conv2d(1 + width, 4 * width, 3, padding=1)
        self.peep = nn.Parameter(torch.randn(3, width, 1, 1) * 0.2)
        self.out = nn.Conv2d(width, 1, 1)
        self.width = width

    def cell(self, x, h, c):
        i, f, g, o = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
        i, f = torch.sigmoid(i + self.peep[0] * c), torch.sigmoid(f + self.peep[1] * c)
        c = f * c + i * torch.tanh(g)
        return torch.sigmoid(o + self.peep[2] * c) * torch.tanh(c), c

    def forward(self, frames):
        h = c = frames.new_zeros(len(frames), self.width, *frames.shape[-2:])
        for time in range(frames.shape[1]):
            h, c = self.cell(frames[:, time], h, c)
        return self.out(h)


def convlstm() -> Training:
    data = batches(lambda g: {"frames": normal(g, 4, 4, 1, 8, 8), "target": normal(g, 4, 1, 8, 8)}, "convlstm")
    return Training(lively(ConvLstm()), give("frames"), squared, data, clip=0.05)


def _old_peep(self, x, h, c):
    i, f, g, o = self.gates(torch.cat([x, h], 1)).chunk(4, 1)
    i, f, o = (
        torch.sigmoid(i + self.peep[0] * c),
        torch.sigmoid(f + self.peep[1] * c),
        torch.sigmoid(o + self.peep[2] * c),
    )
    c = f * c + i * torch.tanh(g)
    return o * torch.tanh(c), c


def _hidden_first(self, x, h, c):
    i, f, g, o = self.gates(torch.cat([h, x], 1)).chunk(4, 1)
    i, f = torch.sigmoid(i + self.peep[0] * c), torch.sigmoid(f + self.peep[1] * c)
    c = f * c + i * torch.tanh(g)
    return torch.sigmoid(o + self.peep[2] * c) * torch.tanh(c), c


CONVLSTM = model(
    "convolutional-lstm",
    convlstm,
    {
        "old-cell": P.method("", "cell", _old_peep),
        "concatenation": P.method("", "cell", _hidden_first),
        "no-clip": P.clipped(None),
        "per-parameter-clip": P.several(
            P.clipped(None),
            P.after_backward(lambda t, n: [nn.utils.clip_grad_norm_([p], 0.05) for p in t.model.parameters()]),
        ),
        "last-frame": P.rewritten("", lambda self, f: _skip_last(self, f)),
        "two-convolutions": P.rewritten(
            "gates",
            lambda self, x: (
                F.conv2d(x[:, :1], self.weight[:, :1], self.bias, padding=1)
                + F.conv2d(x[:, 1:], self.weight[:, 1:], padding=1)
            ),
        ),
        "scripted-loop": lambda t: _clip_by_hand(t),
    },
)


def _skip_last(self, frames):
    h = c = frames.new_zeros(len(frames), self.width, *frames.shape[-2:])
    for time in range(frames.shape[1] - 1):
        h, c = self.cell(frames[:, time], h, c)
    return self.out(h)


def _clip_by_hand(training: Training) -> None:
    training.clip = None

    def act(t, number):
        total = sum(p.grad.square().sum() for p in t.model.parameters()).sqrt()
        for p in t.model.parameters():
            p.grad.mul_(min(1.0, 0.05 / (total.item() + 1e-6)))

    P.after_backward(act)(training)


# Adaptive instance normalisation with a frozen encoder.


class Adaptive(nn.Module):
    """Style transfer: the content's features take the style's mean and spread."""

    def __init__(self, width: int = 12):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.ReflectionPad2d(1), nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU()
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(width, 4 * width, 1), nn.PixelShuffle(2), nn.ReLU(), nn.Conv2d(width, 3, 3, padding=1)
        )
        self.encoder.requires_grad_(False)

    def moments(self, x):
        spread, mean = torch.var_mean(x, (2, 3), keepdim=True)
        return mean, (spread + 1e-5).sqrt()

    def forward(self, content, style):
        c, s = self.encoder(content), self.encoder(style)
        (mean, spread), (wanted, wide) = self.moments(c), self.moments(s)
        target = (c - mean) / spread * wide + wanted
        made = self.encoder(self.decoder(target))
        m, w = self.moments(made)
        return made, target, m, w, wanted, wide


def style() -> Training:
    data = batches(lambda g: {"content": uniform(g, 3, 3, 12, 12), "style": uniform(g, 3, 3, 12, 12)}, "style")
    return Training(lively(Adaptive()), give("content", "style"), style_loss(2.0), data)


def style_loss(weight):
    def loss(output, batch):
        made, target, m, w, wanted, wide = (x.float() for x in output)
        return F.mse_loss(made, target) + weight * (F.mse_loss(m, wanted) + F.mse_loss(w, wide))

    return loss


STYLE = model(
    "style-transfer",
    style,
    {
        "biased": P.method(
            "",
            "moments",
            lambda self, x: (x.mean((2, 3), keepdim=True), (x.var((2, 3), unbiased=False, keepdim=True) + 1e-5).sqrt()),
        ),
        "encoder-trained": lambda t: (
            (
                t.at("encoder").requires_grad_(True),
                setattr(t, "optimize", lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.05)),
            )
            and None
        ),
        "shuffle": P.rewritten(
            HERE, lambda self, x: x.unflatten(1, (2, 2, -1)).permute(0, 3, 4, 1, 5, 2).flatten(2, 3).flatten(3)
        ),
        "zero-pad": P.rewritten(HERE, lambda self, x: F.pad(x, (1, 1, 1, 1))),
        "style-weight": P.criterion(style_loss(2.02)),
        "moments-apart": P.method(
            "", "moments", lambda self, x: (x.mean((2, 3), keepdim=True), (x.var((2, 3), keepdim=True) + 1e-5).sqrt())
        ),
        "frozen-by-no-grad": P.rewritten("", lambda self, c, s: _no_grad(self, c, s)),
    },
)


def _no_grad(self, content, style):
    with torch.no_grad():
        c, s = self.encoder(content), self.encoder(style)
    (mean, spread), (wanted, wide) = self.moments(c), self.moments(s)
    target = (c - mean) * (wide / spread) + wanted
    made = self.encoder(self.decoder(target))
    m, w = self.moments(made)
    return made, target, m, w, wanted, wide


MODELS = (DETECTOR, CAPSULES, SPATIAL, CONVLSTM, STYLE)
