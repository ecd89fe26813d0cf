"""Models of sounds and of time series: of transformers, and hand-written."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.architecture import SPLIT, Architecture
from benchmarks.localisation.models.batches import (
    next_ids,
    series,
    sounds_and_texts,
)
from benchmarks.localisation.models.recommenders import Temperature, UnitLength


class CausalConv(nn.Conv1d):
    """A dilated convolution that sees the past only."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(F.pad(x, (self.dilation[0], 0)))


class GatedLayer(nn.Module):
    """A gated dilated convolution with a residual and a skip."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.conv = CausalConv(24, 48, 2, dilation=dilation)
        self.residual, self.skip = nn.Linear(24, 24), nn.Linear(24, 24)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        value, gate = self.conv(x.transpose(1, 2)).transpose(1, 2).chunk(2, -1)
        hidden = torch.tanh(value) * torch.sigmoid(gate)
        return x + self.residual(hidden), self.skip(hidden)


class WaveNet(nn.Module):
    """A stack of causal convolutions that predicts the next sample of 96 levels."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 24)
        self.layers = nn.ModuleList(GatedLayer(2**i) for i in range(4))
        self.act1, self.hidden, self.act2, self.head = nn.ReLU(), nn.Linear(24, 32), nn.ReLU(), nn.Linear(32, 96)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        total = torch.zeros_like(x)
        for layer in self.layers:
            x, skip = layer(x)
            total = total + skip
        return self.head(self.act2(self.hidden(self.act1(total))))


class DilatedLayer(nn.Module):
    """Two causal convolutions around which the input goes."""

    def __init__(self, dilation: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = (CausalConv(24, 24, 2, dilation=dilation) for _ in range(2))
        self.act1, self.act2, self.drop = nn.ReLU(), nn.LeakyReLU(0.1), nn.Dropout(0.0)

    def forward(self, hidden_states: Tensor) -> Tensor:
        x = self.drop(self.act1(self.conv1(hidden_states)))
        return hidden_states + self.act2(self.conv2(x))


class Forecaster(nn.Module):
    """The next values of four of eight series, from the past of all."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.layers = nn.Sequential(*(DilatedLayer(2**i) for i in range(3)))
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.project(x).transpose(1, 2)).transpose(1, 2)
        return self.head(self.norm(x))


class SoundsAndTexts(nn.Module):
    """Sounds by convolutions against texts by a GRU: every pair's similarity."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.act1 = nn.Conv1d(12, 24, 4, stride=2, padding=1), nn.GELU()
        self.conv2, self.norm = nn.Conv1d(24, 32, 3, padding=1), nn.LayerNorm(32)
        self.sound = nn.Linear(32, 24)
        self.embedding, self.gru = nn.Embedding(96, 24), nn.GRU(24, 32, batch_first=True)
        self.text = nn.Linear(32, 24)
        self.unit1, self.unit2, self.temperature = UnitLength(), UnitLength(), Temperature()

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        hidden = self.conv2(self.act1(self.conv1(x))).transpose(1, 2)
        left = self.unit1(self.sound(self.norm(hidden).mean(1)))
        right = self.unit2(self.text(self.gru(self.embedding(ids))[0][:, -1]))
        return self.temperature(left @ right.T)


AUDIO: dict[str, Architecture] = {
    "wavenet": Architecture(lambda setup: WaveNet(), next_ids, SPLIT, True),
    "tcn": Architecture(lambda setup: Forecaster(), series, SPLIT),
    "sounds": Architecture(lambda setup: SoundsAndTexts(), sounds_and_texts, SPLIT),
}  # fmt: skip
