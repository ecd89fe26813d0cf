"""Adaptive instance normalisation with a frozen encoder."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ... import plant as P
from ...spec import Clean, Fault, Model
from ...training import Training, batches, give, lively, uniform


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


STYLE = Model(
    "style-transfer",
    style,
    "adaptive instance normalisation with a frozen encoder",
    (
        Fault(
            "biased",
            "variance",
            P.method(
                "",
                "moments",
                lambda self, x: (
                    x.mean((2, 3), keepdim=True),
                    (x.var((2, 3), unbiased=False, keepdim=True) + 1e-5).sqrt(),
                ),
            ),
            "",
            ("forward",),
            "the biased variance",
        ),
        Fault(
            "encoder-trained",
            "not-frozen",
            lambda t: (
                (
                    t.at("encoder").requires_grad_(True),
                    setattr(t, "optimize", lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.05)),
                )
                and None
            ),
            "encoder",
            ("gradient", "update", "backward", "init"),
            "the encoder is trained too",
            also=("encoder.*", ""),
        ),
        Fault(
            "shuffle",
            "order-of-axis",
            P.rewritten(
                "decoder.1",
                lambda self, x: x.unflatten(1, (2, 2, -1)).permute(0, 3, 4, 1, 5, 2).flatten(2, 3).flatten(3),
            ),
            "decoder.1",
            ("forward",),
            "pixel shuffle with the channels last",
            also=("decoder",),
        ),
        Fault(
            "zero-pad",
            "padding",
            P.rewritten("encoder.0", lambda self, x: F.pad(x, (1, 1, 1, 1))),
            "encoder.0",
            ("forward",),
            "zeros for reflection",
            also=("encoder",),
            dtype="autocast",
        ),
        Fault("style-weight", "loss-scale", P.criterion(style_loss(2.02)), "", ("loss",), "style weighs 2.02 for 2"),
    ),
    (
        Clean(
            "moments-apart",
            "mean and spread computed apart",
            P.method(
                "",
                "moments",
                lambda self, x: (x.mean((2, 3), keepdim=True), (x.var((2, 3), keepdim=True) + 1e-5).sqrt()),
            ),
        ),
        Clean(
            "frozen-by-no-grad",
            "the style is encoded without a graph",
            P.rewritten("", lambda self, c, s: _no_grad(self, c, s)),
        ),
    ),
)


def _no_grad(self, content, style):
    with torch.no_grad():
        c, s = self.encoder(content), self.encoder(style)
    (mean, spread), (wanted, wide) = self.moments(c), self.moments(s)
    target = (c - mean) * (wide / spread) + wanted
    made = self.encoder(self.decoder(target))
    m, w = self.moments(made)
    return made, target, m, w, wanted, wide
