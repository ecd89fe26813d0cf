"""Vision models: of transformers, and hand-written."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.architecture import (
    CHANNELS_LAST,
    DOUBLED,
    Architecture,
)
from benchmarks.localisation.models.batches import image_pairs, images, pixel_classes


class ConvNet(nn.Module):
    """Convolutions, batch normalisation, pooling, a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.act1 = nn.ReLU()
        self.pool1 = nn.MaxPool2d(2)
        self.conv2 = nn.Conv2d(8, 16, 3, padding=1)
        self.bn2 = nn.BatchNorm2d(16)
        self.act2 = nn.ReLU()
        self.pool2 = nn.AvgPool2d(3, stride=2, padding=1)
        self.drop = nn.Dropout(0.0)
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.act1(self.bn1(self.conv1(x))))
        x = self.pool2(self.act2(self.bn2(self.conv2(x))))
        return self.head(self.drop(x.flatten(1)))


class Residual(nn.Module):
    """A block of two convolutions around which its input goes."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.shortcut = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        kept = x if self.shortcut is None else self.shortcut(x)
        x = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(x)) + kept)


class ResNet(nn.Module):
    """Three stages of residual blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(8)
        self.layer1 = nn.Sequential(Residual(8, 8, 1), Residual(8, 8, 1))
        self.layer2 = nn.Sequential(Residual(8, 16, 2), Residual(16, 16, 1))
        self.fc = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer2(self.layer1(F.relu(self.bn(self.stem(x)))))
        return self.fc(x.mean((2, 3)))


class Double(nn.Module):
    """Two convolutions with group normalisation."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1)
        self.norm1 = nn.GroupNorm(4, outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.norm2 = nn.GroupNorm(4, outside)
        self.act = nn.SiLU()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm2(self.conv2(self.act(self.norm1(self.conv1(x))))))


class UNet(nn.Module):
    """Down, across and up again, with a connection at each level."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = Double(3, 8), Double(8, 16)
        self.pool = nn.MaxPool2d(2)
        self.middle = Double(16, 16)
        self.up2, self.up1 = nn.ConvTranspose2d(16, 16, 2, stride=2), nn.Upsample(scale_factor=2, mode="nearest")
        self.merge2, self.merge1 = Double(32, 16), Double(24, 8)
        self.out = nn.Conv2d(8, 3, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.down1(x)
        second = self.down2(self.pool(first))
        x = self.middle(self.pool(second))
        x = self.merge2(torch.cat([self.up2(x), second], 1))
        return self.out(self.merge1(torch.cat([self.up1(x), first], 1)))


class MixerLayer(nn.Module):
    """Mixes tokens, then channels."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.tokens = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16))
        self.channels = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.tokens(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channels(self.norm2(x))


class Mixer(nn.Module):
    """Patches mixed along both axes, without attention."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.layers = nn.ModuleList(MixerLayer() for _ in range(3))
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x).mean(1))


class Excite(nn.Module):
    """A factor for each channel, from the mean of all."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.reduce, self.act = nn.Conv2d(channels, channels // 2, 1), nn.SiLU()
        self.expand, self.gate = nn.Conv2d(channels // 2, channels, 1), nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(self.expand(self.act(self.reduce(x.mean((2, 3), keepdim=True)))))


class Inverted(nn.Module):
    """An inverted bottleneck: wide, one kernel for each channel, a factor for each, narrow again."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        wide = 2 * inside
        self.expand, self.bn1, self.act1 = nn.Conv2d(inside, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU()
        self.depth = nn.Conv2d(wide, wide, 3, stride, padding=1, groups=wide, bias=False)
        self.bn2, self.act2, self.excite = nn.BatchNorm2d(wide), nn.SiLU(), Excite(wide)
        self.project, self.bn3 = nn.Conv2d(wide, outside, 1, bias=False), nn.BatchNorm2d(outside)
        self.is_residual = stride == 1 and inside == outside

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.expand(hidden_states)))
        x = self.bn3(self.project(self.excite(self.act2(self.bn2(self.depth(x))))))
        return hidden_states + x if self.is_residual else x


class SqueezeNet(nn.Module):
    """Inverted bottlenecks with squeeze and excitation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn, self.act = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.SiLU()
        self.block1, self.block2, self.block3 = Inverted(8, 8, 1), Inverted(8, 16, 2), Inverted(16, 16, 1)
        self.pool, self.flat = nn.AvgPool2d(3, stride=2, padding=1), nn.Flatten()
        self.head = nn.Linear(16 * 4 * 4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn(self.stem(x)))
        return self.head(self.flat(self.pool(self.block3(self.block2(self.block1(x))))))


class Fusion(nn.Module):
    """Brings what is coarse to the size of what is fine, and adds it."""

    def __init__(self) -> None:
        super().__init__()
        self.lateral = nn.Conv2d(8, 16, 1)

    def forward(self, hidden_states: Tensor, fine: Tensor) -> Tensor:
        coarse = F.interpolate(hidden_states, scale_factor=2, mode="bilinear", align_corners=False)
        return coarse + self.lateral(fine)


class Segmenter(nn.Module):
    """A class for every pixel, from two scales."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.GroupNorm(4, 8)
        self.conv2, self.norm2 = nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.GroupNorm(4, 16)
        self.act, self.middle = nn.ReLU6(), nn.Conv2d(16, 16, 3, padding=1)
        self.fusion, self.smooth = Fusion(), nn.Conv2d(16, 16, 3, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.head = nn.Conv2d(16, 10, 1)

    def forward(self, x: Tensor) -> Tensor:
        fine = self.act(self.norm1(self.conv1(x)))
        coarse = self.middle(self.act(self.norm2(self.conv2(fine))))
        x = self.head(self.up(self.smooth(self.fusion(coarse, fine))))
        return x.permute(0, 2, 3, 1)


VISION: dict[str, Architecture] = {
    "cnn": Architecture(lambda setup: ConvNet(), images("x"), CHANNELS_LAST),
    "resnet": Architecture(lambda setup: ResNet(), images("x"), CHANNELS_LAST),
    "unet": Architecture(lambda setup: UNet(), image_pairs, CHANNELS_LAST),
    "mixer": Architecture(lambda setup: Mixer(), images("x"), DOUBLED),
    "squeeze": Architecture(lambda setup: SqueezeNet(), images("x"), CHANNELS_LAST),
    "segmenter": Architecture(lambda setup: Segmenter(), pixel_classes, CHANNELS_LAST),
}  # fmt: skip
