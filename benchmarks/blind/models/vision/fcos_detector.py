"""Anchor-free detector with a feature pyramid, focal and IoU loss."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal, sgd, threads, uniform


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


DETECTOR = Model(
    "fcos-detector",
    detector,
    "anchor-free detector with a feature pyramid, focal and IoU loss",
    (
        Fault(
            "bilinear",
            "interpolation",
            P.rewritten("pyramid", _bilinear),
            "pyramid",
            ("forward",),
            "bilinear upsampling in the pyramid",
            dtype="autocast",
        ),
        Fault(
            "no-cascade",
            "order-of-operations",
            P.rewritten("pyramid", _smooth_first),
            "pyramid",
            ("forward",),
            "levels are added before they got the level above",
        ),
        Fault(
            "stride-missing",
            "scale",
            P.rewritten("tower", _one_scale),
            "tower",
            ("forward",),
            "distances are not multiplied by the stride",
        ),
        Fault("focal-alpha", "loss-weights", P.criterion(fcos_loss(alpha=0.75)), "", ("loss",), "alpha 0.75 for 0.25"),
        Fault("giou", "loss-kind", P.criterion(fcos_loss(generous=True)), "", ("loss",), "generalised IoU"),
        Fault(
            "norm-eps",
            "eps",
            P.setting("stages.1.norm", eps=1e-3),
            "stages.1.norm",
            ("forward",),
            "batch norm eps 1e-3 for 1e-5",
            dtype="bfloat16",
        ),
        Fault(
            "norm-not-frozen",
            "running",
            P.setting("stages.2.norm", momentum=0.03),
            "stages.2.norm",
            ("update", "forward"),
            "momentum 0.03 for 0.1",
        ),
        Fault(
            "images-bgr",
            "channels",
            P.each_batch(lambda b: {**b, "images": b["images"].flip(1)}),
            "",
            ("forward", "inputs"),
            "channels come as BGR",
        ),
    ),
    (
        Clean("channels-last", "channels_last", lambda t: t.model.to(memory_format=torch.channels_last) and None),
        Clean(
            "norm-by-hand",
            "group norm in two steps",
            P.rewritten(
                "tower.trunk.1",
                lambda self, x: (
                    F.instance_norm(x.unflatten(1, (4, -1)).flatten(2)).view_as(x) * self.weight[:, None, None]
                    + self.bias[:, None, None]
                ),
            ),
        ),
        Clean(
            "no-mkldnn",
            "convolutions without oneDNN, bfloat16",
            lambda t: setattr(t, "context", lambda: torch.backends.mkldnn.flags(enabled=False)),
            dtype="bfloat16",
        ),
        Clean("two-threads", "on two threads", lambda t: setattr(t, "context", lambda: threads(2)), steps=2),
    ),
)
