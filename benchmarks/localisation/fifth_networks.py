"""Hand-written PyTorch models of the fifth set: shapes that neither the other sets nor transformers has."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.fourth_networks import CausalConv, TimeEmbedding
from benchmarks.localisation.networks import RootMeanSquare


def eager_attention_forward(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float, **kwargs: Any
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Attend with a learned score for each head that takes weight and gives nothing: a sink."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    scores = query @ key.transpose(2, 3) * scaling + attention_mask
    sinks = module.sinks.reshape(1, -1, 1, 1).expand(*scores.shape[:3], 1)
    weights = F.softmax(torch.cat([scores, sinks], -1), dim=-1, dtype=torch.float32)[..., :-1].to(value.dtype)
    return (weights @ value).transpose(1, 2).contiguous(), weights


class SinkAttention(nn.Module):
    """Causal attention within a window, linear biases of distance, scores that are capped, and a sink."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj = nn.Linear(32, 32), nn.Linear(32, 16)
        self.v_proj, self.o_proj = nn.Linear(32, 16), nn.Linear(32, 32)
        self.sinks = nn.Parameter(torch.zeros(4))
        self.scaling = 8**-0.5

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        parts = (self.q_proj, self.k_proj, self.v_proj)
        query, key, value = (each(hidden_states).unflatten(-1, (-1, 8)).transpose(1, 2) for each in parts)
        mixed, _ = eager_attention_forward(self, query, key, value, attention_mask, self.scaling)
        return self.o_proj(mixed.flatten(2))


class ClampedExperts(nn.Module):
    """Four experts with a gate of their own form; the two best of each token are mixed."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(32, 4)
        self.gate_up = nn.Parameter(torch.zeros(4, 48, 32))
        self.down = nn.Parameter(torch.zeros(4, 32, 24))
        self.alpha, self.top_k = 1.702, 2

    def forward(self, x: Tensor) -> Tensor:
        scores, chosen = self.router(x).topk(self.top_k, -1)
        weights = torch.zeros_like(x[..., :4]).scatter(-1, chosen, F.softmax(scores, -1).to(x.dtype))
        gate, up = torch.einsum("bld,ehd->bleh", x, self.gate_up.to(x.dtype)).chunk(2, -1)
        hidden = gate * torch.sigmoid(self.alpha * gate) * (up + 1)
        return (torch.einsum("bleh,edh->bled", hidden, self.down.to(x.dtype)) * weights[..., None]).sum(2)


class SinkLayer(nn.Module):
    """Attention, then experts, each behind a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RootMeanSquare(), RootMeanSquare()
        self.attention, self.experts = SinkAttention(), ClampedExperts()

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> Tensor:
        x = hidden_states + self.attention(self.norm1(hidden_states), attention_mask=attention_mask)
        return x + self.experts(self.norm2(x))


class SinkStack(nn.Module):
    """The layers, with the mask that they share."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(SinkLayer() for _ in range(3))

    def build_alibi_tensor(self, length: int) -> Tensor:
        """Return what is added to the scores of four heads."""
        slopes = 2.0 ** (-2 * torch.arange(1, 5))
        distances = torch.arange(length)[None] - torch.arange(length)[:, None]
        return slopes[:, None, None] * distances

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.full((x.shape[1], x.shape[1]), -1e4).triu(1) + self.build_alibi_tensor(x.shape[1])
        for layer in self.layers:
            x = layer(x, mask[None].to(x.dtype))
        return x


class SinkDecoder(nn.Module):
    """A decoder with sinks, linear biases and experts; its head shares the embedding's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 32)
        self.stack = SinkStack()
        self.norm = RootMeanSquare()
        self.head = nn.Linear(32, 96, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.stack(self.embedding(ids))))


class AdditiveAttention(nn.Module):
    """Attention by a small perceptron of query and key."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.score = (
            nn.Linear(32, 32),
            nn.Linear(32, 32, bias=False),
            nn.Linear(32, 1, bias=False),
        )
        self.act, self.softmax = nn.Tanh(), nn.Softmax(dim=-1)

    def forward(self, query: Tensor, memory: Tensor, hidden: Tensor) -> Tensor:
        hidden_scores = self.act(self.query(query)[:, :, None] + self.key(memory)[:, None])
        scores = self.score(hidden_scores).squeeze(-1).masked_fill(hidden[:, None], -1e4)
        return self.softmax(scores) @ memory


class Translator(nn.Module):
    """Two LSTMs, the second attends to the first; padding is id 1."""

    def __init__(self) -> None:
        super().__init__()
        self.source = nn.Embedding(96, 24, padding_idx=1)
        self.target = nn.Embedding(96, 24, padding_idx=1)
        self.encoder = nn.LSTM(24, 32, batch_first=True)
        self.decoder = nn.LSTM(24, 32, batch_first=True)
        self.attention = AdditiveAttention()
        self.drop, self.merge, self.head = nn.Dropout(0.0), nn.Linear(64, 32), nn.Linear(32, 96)

    def forward(self, ids: Tensor, given: Tensor) -> Tensor:
        memory, last = self.encoder(self.source(ids))
        x, _ = self.decoder(self.target(given), last)
        x = torch.cat([x, self.attention(x, memory, ids == 1)], -1)
        return self.head(self.drop(torch.tanh(self.merge(x))))


class Tagger(nn.Module):
    """Characters through a convolution, a GRU in both directions, one in one, and the mean of all."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 24)
        self.conv = nn.Conv1d(24, 24, 3, padding=1)
        self.both = nn.GRU(24, 16, batch_first=True, bidirectional=True)
        self.gru = nn.GRU(32, 32, batch_first=True)
        self.norm, self.act, self.head = nn.LayerNorm(32), nn.Softplus(), nn.Linear(32, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.conv(self.embedding(ids).transpose(1, 2)).transpose(1, 2)
        x, _ = self.gru(self.both(x)[0])
        return self.head(self.act(self.norm(x)).mean(1))


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


class Listed(nn.Module):
    """`SqueezeNet` in one list: a port with another structure."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(*SqueezeNet().children())

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


class Cross(nn.Module):
    """One layer of explicit products of all columns with each other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(48, 48)

    def forward(self, x: Tensor, first: Tensor) -> Tensor:
        return x + first * self.linear(x)


class CrossNet(nn.Module):
    """Bags of categories beside numbers; products and a perceptron side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(40, 8, mode="sum") for _ in range(3))
        self.numbers = nn.Linear(13, 24)
        self.bn = nn.BatchNorm1d(48)
        self.crosses = nn.ModuleList(Cross() for _ in range(2))
        self.deep = nn.Sequential(nn.Linear(48, 48), nn.LeakyReLU(0.2), nn.LayerNorm(48), nn.Linear(48, 24), nn.ReLU())
        self.head = nn.Linear(72, 10)

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        bags = [table(categories[:, i]) for i, table in enumerate(self.tables)]
        first = x = self.bn(torch.cat([self.numbers(numbers), *bags], -1))
        for cross in self.crosses:
            x = cross(x, first)
        return self.head(torch.cat([x, self.deep(first)], -1))


class ModulatedLayer(nn.Module):
    """A transformer's layer whose norms are scaled and shifted by the time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32, eps=1e-6), nn.LayerNorm(32, eps=1e-6)
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(32, 6 * 32))
        self.qkv, self.proj = nn.Linear(32, 96), nn.Linear(32, 32)
        self.fc1, self.act, self.fc2 = nn.Linear(32, 64), nn.GELU(approximate="tanh"), nn.Linear(64, 32)

    def forward(self, hidden_states: Tensor, time: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(time)[:, None].chunk(6, -1)
        x = self.norm1(hidden_states) * (1 + scale1) + shift1
        query, key, value = (each.unflatten(-1, (4, 8)).transpose(1, 2) for each in self.qkv(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        hidden_states = hidden_states + gate1 * self.proj(mixed)
        x = self.norm2(hidden_states) * (1 + scale2) + shift2
        return hidden_states + gate2 * self.fc2(self.act(self.fc1(x)))


class DiffusionTransformer(nn.Module):
    """Noisy pictures and their time to the noise, by patches."""

    def __init__(self) -> None:
        super().__init__()
        self.angles = TimeEmbedding(16)
        self.time = nn.Sequential(nn.Linear(16, 32), nn.SiLU(), nn.Linear(32, 32))
        self.patches = nn.Conv2d(3, 32, 4, stride=4)
        self.position = nn.Parameter(torch.zeros(1, 16, 32))
        self.layers = nn.ModuleList(ModulatedLayer() for _ in range(3))
        self.norm, self.out = nn.LayerNorm(32), nn.Linear(32, 48)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        embedded = self.time(self.angles(time).to(x.dtype))
        x = self.patches(x).flatten(2).transpose(1, 2) + self.position
        for layer in self.layers:
            x = layer(x, embedded)
        x = self.out(self.norm(x)).unflatten(1, (4, 4)).unflatten(-1, (3, 4, 4))
        return x.permute(0, 3, 1, 4, 2, 5).flatten(4, 5).flatten(2, 3)


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


class Coupling(nn.Module):
    """One half of the columns scales and shifts the other, and they change places."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.act, self.fc2 = nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16)

    def forward(self, hidden_states: Tensor) -> Tensor:
        kept, changed = hidden_states.chunk(2, -1)
        scale, shift = self.fc2(self.act(self.fc1(kept))).chunk(2, -1)
        return torch.cat([changed * torch.tanh(scale).exp() + shift, kept], -1)


class Flow(nn.Module):
    """Four couplings that turn points into noise."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Linear(16, 16)
        self.couplings = nn.ModuleList(Coupling() for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = self.scale(x)
        for coupling in self.couplings:
            x = coupling(x)
        return x
