"""More hand-written models of the fifth set: graphs, pictures, sounds, sets, and a decoder cut in another way."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.fourth_networks import Temperature, UnitLength
from benchmarks.localisation.networks import FusedDecoder, rotated


class GraphConvolution(nn.Module):
    """The mean over neighbours, each divided by the roots of both nodes' numbers of neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(24, 24, bias=False)
        self.self_loops = True

    def forward(self, hidden_states: Tensor, edges: Tensor) -> Tensor:
        if self.self_loops:
            edges = edges + torch.eye(edges.shape[-1], dtype=edges.dtype)
        degrees = edges.sum(-1).clamp_min(1).rsqrt()
        return (degrees[:, :, None] * edges * degrees[:, None]) @ self.linear(hidden_states)


class GraphConvolutions(nn.Module):
    """A class for every node of a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(8, 24)
        self.convs = nn.ModuleList(GraphConvolution() for _ in range(3))
        self.norms = nn.ModuleList(nn.LayerNorm(24) for _ in range(3))
        self.act, self.drop, self.head = nn.ELU(), nn.Dropout(0.0), nn.Linear(24, 10)

    def forward(self, nodes: Tensor, edges: Tensor) -> Tensor:
        x = self.encode(nodes)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            x = x + self.drop(self.act(norm(conv(x, edges))))
        return self.head(x)


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


class ConvAutoencoder(nn.Module):
    """A variational autoencoder of pictures; its noise is an input, so that both sides have the same."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1, self.act1 = nn.Conv2d(3, 8, 4, stride=2, padding=1), nn.BatchNorm2d(8), nn.LeakyReLU(0.2)
        self.conv2, self.act2 = nn.Conv2d(8, 16, 3, padding=1), nn.Mish()
        self.pool = nn.MaxPool2d(2)
        self.mean, self.spread = nn.Linear(256, 8), nn.Linear(256, 8)
        self.positive, self.fc = nn.Softplus(), nn.Linear(8, 256)
        self.up1, self.bn2 = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1), nn.BatchNorm2d(8)
        self.act3, self.up2, self.out = (
            nn.ReLU(),
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Conv2d(8, 3, 3, padding=1),
        )

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        x = self.pool(self.act2(self.conv2(self.act1(self.bn1(self.conv1(x)))))).flatten(1)
        code = self.mean(x) + noise * self.positive(self.spread(x))
        x = self.fc(code).unflatten(1, (16, 4, 4))
        return self.out(self.up2(self.act3(self.bn2(self.up1(x)))))


class PooledAttention(nn.Module):
    """A few learned queries look at everything."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.zeros(4, 32))
        self.key_value, self.proj, self.scaling = nn.Linear(32, 64), nn.Linear(32, 32), 8**-0.5

    def forward(self, hidden_states: Tensor) -> Tensor:
        key, value = (each.unflatten(-1, (4, 8)).transpose(1, 2) for each in self.key_value(hidden_states).chunk(2, -1))
        query = self.latents.unflatten(-1, (4, 8)).transpose(0, 1).to(key.dtype)
        weights = F.softmax(query @ key.transpose(2, 3) * self.scaling, -1)
        return self.proj((weights @ value).transpose(1, 2).flatten(2))


class SetPooler(nn.Module):
    """Sets of vectors to a class each, by attention pooling and PReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.norm1, self.act1 = nn.Linear(12, 32), nn.LayerNorm(32), nn.PReLU()
        self.hidden, self.act2, self.norm2 = nn.Linear(32, 32), nn.Hardswish(), nn.LayerNorm(32)
        self.pool, self.head = PooledAttention(), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.norm1(self.encode(x)))
        return self.head(self.pool(self.norm2(x + self.act2(self.hidden(x)))).mean(1))


class PackedAttention(nn.Module):
    """Causal attention with query, key and value in one matrix with a bias, 4 heads that share 2 keys."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.dense = nn.Linear(32, 64), nn.Linear(32, 32)

    def forward(self, hidden_states: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        query, key, value = self.qkv(hidden_states).split([32, 16, 16], -1)
        query, key, value = (each.unflatten(-1, (-1, 8)).transpose(1, 2) for each in (query, key, value))
        query, key = (rotated(each, angles) for each in (query, key))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.dense(mixed.transpose(1, 2).flatten(2))


class PackedLayer(nn.Module):
    """A decoder layer with LayerNorm and a perceptron of two matrices."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(32), nn.LayerNorm(32)
        self.attention = PackedAttention()
        self.up, self.act, self.down = nn.Linear(32, 64), nn.GELU(approximate="tanh"), nn.Linear(64, 32)

    def forward(self, hidden_states: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        x = hidden_states + self.attention(self.norm1(hidden_states), angles)
        return x + self.down(self.act(self.up(self.norm2(x))))


class PackedDecoder(FusedDecoder):
    """What `Starcoder2ForCausalLM` computes, as Megatron would cut it."""

    layer = PackedLayer

    def __init__(self) -> None:
        super().__init__()
        self.final_norm = nn.LayerNorm(32)
