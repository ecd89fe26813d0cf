"""A U-Net: blocks called inc, down and up, against an encoder and a decoder of stages."""

from __future__ import annotations

import torch
from torch import nn

WIDTHS = (6, 12, 24)


class DoubleConv(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.double_conv = nn.Sequential(
            nn.Conv2d(inner, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(),
            nn.Conv2d(outer, outer, 3, padding=1), nn.BatchNorm2d(outer), nn.ReLU(),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.double_conv(x)


class Down(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.maxpool_conv = nn.Sequential(nn.MaxPool2d(2), DoubleConv(inner, outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.maxpool_conv(x)


class Up(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(inner, outer, 2, 2)
        self.conv = DoubleConv(2 * outer, outer)

    def forward(self, x: torch.Tensor, skipped: torch.Tensor) -> torch.Tensor:
        return self.conv(torch.cat([skipped, self.up(x)], 1))


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        first, second, third = WIDTHS
        self.inc = DoubleConv(1, first)
        self.down1 = Down(first, second)
        self.down2 = Down(second, third)
        self.up1 = Up(third, second)
        self.up2 = Up(second, first)
        self.outc = nn.Conv2d(first, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        one = self.inc(x)
        two = self.down1(one)
        return self.outc(self.up2(self.up1(self.down2(two), two), one))


class Stage(nn.Module):
    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        self.conv_a = nn.Conv2d(inner, outer, 3, padding=1)
        self.norm_a = nn.BatchNorm2d(outer)
        self.conv_b = nn.Conv2d(outer, outer, 3, padding=1)
        self.norm_b = nn.BatchNorm2d(outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.relu(self.norm_a(self.conv_a(x)))
        return torch.relu(self.norm_b(self.conv_b(x)))


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stages = nn.ModuleList(Stage(a, b) for a, b in zip((1, *WIDTHS), WIDTHS, strict=False))
        self.pool = nn.MaxPool2d(2)

    def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
        found = [self.stages[0](x)]
        for stage in self.stages[1:]:
            found.append(stage(self.pool(found[-1])))
        return found


class Decoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        pairs = list(zip(WIDTHS[::-1], WIDTHS[-2::-1], strict=False))
        self.upsamplers = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.stages = nn.ModuleList(Stage(2 * b, b) for _, b in pairs)

    def forward(self, found: list[torch.Tensor]) -> torch.Tensor:
        x = found[-1]
        for skipped, up, stage in zip(found[-2::-1], self.upsamplers, self.stages, strict=True):
            x = stage(torch.cat([skipped, up(x)], 1))
        return x


class Segmenter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder()
        self.decoder = Decoder()
        self.classify = nn.Conv2d(WIDTHS[0], 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classify(self.decoder(self.encoder(x)))


_STAGE = {"0": "conv_a", "1": "norm_a", "3": "conv_b", "4": "norm_b"}
_PLACES = {
    "inc.double_conv": "encoder.stages.0", "down1.maxpool_conv.1.double_conv": "encoder.stages.1",
    "down2.maxpool_conv.1.double_conv": "encoder.stages.2", "up1.conv.double_conv": "decoder.stages.0",
    "up2.conv.double_conv": "decoder.stages.1",
}  # fmt: skip
_SINGLE = {"up1.up": "decoder.upsamplers.0", "up2.up": "decoder.upsamplers.1", "outc": "classify"}


def pair() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    a, b = UNet(), Segmenter()
    made = {}
    for name, value in a.state_dict().items():
        module, _, slot = name.rpartition(".")
        place, _, number = module.rpartition(".")
        made[f"{_SINGLE.get(module) or f'{_PLACES[place]}.{_STAGE[number]}'}.{slot}"] = value
    b.load_state_dict(made)
    return a, b, (torch.randn(2, 1, 16, 16),)
