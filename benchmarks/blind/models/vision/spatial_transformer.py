"""Spatial transformer with a classifier, label smoothing, cosine schedule."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, ids, lively, normal


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


SPATIAL = Model(
    "spatial-transformer",
    spatial,
    "spatial transformer with a classifier, label smoothing, cosine schedule",
    (
        Fault("corners", "interpolation", P.method("", "warp", _corners), "", ("forward",), "corners are aligned"),
        Fault("border", "padding", P.method("", "warp", _border), "", ("forward",), "the border is repeated for zeros"),
        Fault(
            "pool-kind",
            "pooling",
            P.rewritten("features.1", lambda self, x: F.max_pool2d(x, 2)),
            "features.1",
            ("forward",),
            "maximum pooling",
            also=("features",),
            dtype="float16",
        ),
        Fault(
            "hardswish",
            "activation",
            P.rewritten("features.2", lambda self, x: F.silu(x)),
            "features.2",
            ("forward",),
            "SiLU for hard swish",
            also=("features",),
            dtype="bfloat16",
        ),
        Fault(
            "dropout",
            "dropout",
            P.setting("features.3", p=0.1),
            "features.3",
            ("forward",),
            "dropout is on",
            also=("features",),
        ),
        Fault("smoothing", "smoothing", P.criterion(smooth_loss(0.0)), "", ("loss",), "no label smoothing"),
        Fault(
            "cosine-length",
            "schedule",
            P.scheduled(lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 5)),
            "",
            ("update",),
            "the cosine takes 5 steps for 4",
            step=1,
            steps=2,
        ),
    ),
    (
        Clean(
            "dropout-module", "no dropout module for one of p = 0", P.exchanged("features.3", lambda m: nn.Identity())
        ),
        Clean("loss-by-hand", "smoothed cross entropy written out", P.criterion(lambda o, b: _smooth(o, b))),
        Clean(
            "no-mkldnn",
            "convolutions without oneDNN",
            lambda t: setattr(t, "context", lambda: torch.backends.mkldnn.flags(enabled=False)),
            dtype="autocast",
        ),
    ),
)


def _smooth(output, batch):
    log = output.float().log_softmax(-1)
    return -(0.9 * log.gather(1, batch["labels"][:, None])[:, 0] + 0.1 * log.mean(-1)).mean()
