"""A residual network: torchvision's names against blocks called stem, stage and unit."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU()
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.downsample = None
        if stride != 1 or inner != outer:
            self.downsample = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        return self.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU()
        self.maxpool = nn.MaxPool2d(2)
        self.layer1 = nn.Sequential(BasicBlock(8, 8, 1), BasicBlock(8, 8, 1))
        self.layer2 = nn.Sequential(BasicBlock(8, 16, 2), BasicBlock(16, 16, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        return self.fc(self.avgpool(self.layer2(self.layer1(x))).flatten(1))


class ConvNorm(nn.Module):
    def __init__(self, inner: int, outer: int, size: int, stride: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inner, outer, size, stride, size // 2, bias=False)
        self.norm = nn.BatchNorm2d(outer)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x))


class Unit(nn.Module):
    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.first = ConvNorm(inner, outer, 3, stride)
        self.second = ConvNorm(outer, outer, 3, 1)
        self.shortcut = ConvNorm(inner, outer, 1, stride) if stride != 1 or inner != outer else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.second(torch.relu(self.first(x)))
        return torch.relu(y + self.shortcut(x))


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, 8, 3, 1)
        self.pool = nn.MaxPool2d(2)
        self.stages = nn.ModuleList(
            [nn.ModuleList([Unit(8, 8, 1), Unit(8, 8, 1)]), nn.ModuleList([Unit(8, 16, 2), Unit(16, 16, 1)])]
        )
        self.head = nn.Linear(16, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.stem(x)))
        for stage in self.stages:
            for unit in stage:
                x = unit(x)
        return self.head(x.mean((2, 3)))


_NAMES = {"bn1": "first.norm", "conv1": "first.conv", "bn2": "second.norm", "conv2": "second.conv",
          "downsample.0": "shortcut.conv", "downsample.1": "shortcut.norm"}  # fmt: skip


def _named(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    made = {}
    for name, value in state.items():
        module, _, slot = name.rpartition(".")
        parts = module.split(".")
        if parts[0].startswith("layer"):
            inner = _NAMES[".".join(parts[2:])]
            module = f"stages.{int(parts[0][5:]) - 1}.{parts[1]}.{inner}"
        else:
            module = {"conv1": "stem.conv", "bn1": "stem.norm", "fc": "head"}[module]
        made[f"{module}.{slot}"] = value
    return made


def pair() -> tuple[nn.Module, nn.Module, tuple[torch.Tensor, ...]]:
    a, b = ResNet(), Network()
    b.load_state_dict(_named(a.state_dict()))
    return a, b, (torch.randn(4, 3, 12, 12),)
