"""Hand-written PyTorch models of the fourth set: shapes that neither `networks` nor transformers has."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.networks import FusedDecoder, RootMeanSquare, rotated


class TimeEmbedding(nn.Module):
    """Sines and cosines of a diffusion step's number."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width, self.shift = width, 0

    def forward(self, time: Tensor) -> Tensor:
        half = self.width // 2
        frequencies = torch.exp(-math.log(10_000) * torch.arange(half) / (half - self.shift))
        angles = time[:, None].float() * frequencies
        return torch.cat([angles.sin(), angles.cos()], -1)


class TimedBlock(nn.Module):
    """A residual block of convolutions to which the time is added."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, inside), nn.GroupNorm(4, outside)
        self.conv1 = nn.Conv2d(inside, outside, 3, padding=1)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1)
        self.time = nn.Linear(32, outside)
        self.skip = nn.Conv2d(inside, outside, 1)
        self.act = nn.SiLU()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.conv1(self.act(self.norm1(x))) + self.time(time)[:, :, None, None]
        return self.skip(x) + self.conv2(self.act(self.norm2(hidden)))


class Denoiser(nn.Module):
    """A small U-Net that is told the time, as diffusion models have; strided down, bilinearly up."""

    def __init__(self) -> None:
        super().__init__()
        self.angles = TimeEmbedding(16)
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.block1, self.block2, self.block3 = TimedBlock(8, 8), TimedBlock(16, 16), TimedBlock(24, 8)
        self.down = nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=False)
        self.norm = nn.GroupNorm(4, 8)
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        embedded = self.time(self.angles(time).to(x.dtype))
        first = self.block1(self.stem(x), embedded)
        x = self.up(self.block2(self.down(first), embedded))
        x = self.block3(torch.cat([x, first], 1), embedded)
        return self.out(F.silu(self.norm(x)))


class GraphAttention(nn.Module):
    """A node's mean over its neighbours, weighted by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(24, 24)
        self.source, self.target = nn.Linear(24, 1, bias=False), nn.Linear(24, 1, bias=False)
        self.slope = nn.LeakyReLU(0.2)
        self.softmax = nn.Softmax(dim=-1)
        self.self_loops = True

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        if self.self_loops:
            edges = edges + torch.eye(edges.shape[-1], dtype=edges.dtype)
        hidden = self.project(nodes)
        scores = self.slope(self.source(hidden) + self.target(hidden).transpose(1, 2))
        scores = scores.masked_fill(edges == 0, torch.finfo(scores.dtype).min)
        return self.softmax(scores) @ hidden


class GraphLayer(nn.Module):
    """Attention over the neighbours, a norm, a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = GraphAttention()
        self.norm = nn.LayerNorm(24)
        self.expand, self.act, self.reduce = nn.Linear(24, 48), nn.ELU(), nn.Linear(48, 24)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        nodes = self.norm(nodes + self.attention(nodes, edges))
        return nodes + self.reduce(self.act(self.expand(nodes)))


class GraphNet(nn.Module):
    """Graphs of 12 nodes, one class each."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(8, 24)
        self.layers = nn.ModuleList(GraphLayer() for _ in range(3))
        self.head = nn.Linear(24, 10)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = self.encode(nodes)
        for layer in self.layers:
            x = layer(x, edges)
        return self.head(x.mean(1))


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


class UnitLength(nn.Module):
    """Rows of length one."""

    def forward(self, x: Tensor) -> Tensor:
        return F.normalize(x, dim=-1)


class Temperature(nn.Module):
    """Similarities times a learned scale that is kept as its logarithm."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.scale.exp()


class Towers(nn.Module):
    """Texts against vectors: every pair's similarity, as contrastive models have."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.EmbeddingBag(96, 32, mode="mean")
        self.text = nn.Sequential(nn.Linear(32, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 24))
        self.other = nn.Sequential(nn.Linear(48, 48), nn.ReLU(), nn.LayerNorm(48), nn.Linear(48, 24))
        self.unit1, self.unit2 = UnitLength(), UnitLength()
        self.temperature = Temperature()

    def forward(self, ids: Tensor, x: Tensor) -> Tensor:
        left, right = self.unit1(self.text(self.words(ids))), self.unit2(self.other(x))
        return self.temperature(left @ right.T)


class RecurrentLanguageModel(nn.Module):
    """An LSTM, then a GRU, and a head that shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 32)
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.project = nn.Linear(32, 32)
        self.head = nn.Linear(32, 96, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.gru(self.lstm(self.embedding(ids))[0])[0]
        return self.head(self.project(self.norm(x)))


class Perceptron(nn.Module):
    """Three hidden layers with batch normalisation, for columns of numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.bn1, self.act1 = nn.Linear(24, 48), nn.BatchNorm1d(48), nn.ReLU()
        self.fc2, self.bn2, self.act2 = nn.Linear(48, 48), nn.BatchNorm1d(48), nn.SiLU()
        self.fc3, self.bn3, self.act3 = nn.Linear(48, 32), nn.BatchNorm1d(32), nn.ReLU()
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.fc1(x)))
        x = self.act3(self.bn3(self.fc3(self.act2(self.bn2(self.fc2(x))))))
        return self.head(x)


class Stacked(nn.Module):
    """`Perceptron` in one list: a port with another structure."""

    def __init__(self) -> None:
        super().__init__()
        net = Perceptron()
        self.layers = nn.Sequential(
            net.fc1, net.bn1, net.act1, net.fc2, net.bn2, net.act2, net.fc3, net.bn3, net.act3, net.head
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


class SplitAttention(nn.Module):
    """Causal attention with query, key and value in matrices of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(32, 32, bias=False)
        self.key, self.value = nn.Linear(32, 16, bias=False), nn.Linear(32, 16, bias=False)
        self.out = nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        parts = (each(x).unflatten(-1, (-1, 8)).transpose(1, 2) for each in (self.query, self.key, self.value))
        query, key, value = parts
        query, key = (rotated(each, angles) for each in (query, key))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.out(mixed.transpose(1, 2).flatten(2))


class SplitLayer(nn.Module):
    """A decoder layer with gate and up in two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RootMeanSquare(), RootMeanSquare()
        self.attention = SplitAttention()
        self.gate, self.up = nn.Linear(32, 64, bias=False), nn.Linear(32, 64, bias=False)
        self.down = nn.Linear(64, 32, bias=False)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norm1(x), angles)
        hidden = self.norm2(x)
        return x + self.down(F.silu(self.gate(hidden)) * self.up(hidden))


class SplitDecoder(FusedDecoder):
    """What `Phi3ForCausalLM` computes, with nothing fused."""

    layer = SplitLayer
