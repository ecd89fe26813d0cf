"""Ports with another structure: decoders as Megatron cuts them, and networks as one list of modules."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.graphs import PointNet
from benchmarks.localisation.models.mixtures import RootMeanSquare
from benchmarks.localisation.models.recommenders import Perceptron
from benchmarks.localisation.models.vision import ConvNet, SqueezeNet

# Decoders


class Rotary(nn.Module):
    """The angles of rotary embeddings."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.outer(torch.arange(x.shape[1]), 10_000.0 ** (-torch.arange(0, 8, 2) / 8))
        angles = torch.cat([angles, angles], -1)[None]
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Return queries or keys (batch, heads, length, width) turned by the angles of their positions."""
    cos, sin = (each[:, None] for each in angles)
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


class FusedAttention(nn.Module):
    """Causal attention with query, key and value in one matrix, 4 heads that share 2 keys."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 64, bias=False)
        self.proj = nn.Linear(32, 32, bias=False)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        query, key, value = self.qkv(x).split([32, 16, 16], -1)
        query, key, value = (each.unflatten(-1, (-1, 8)).transpose(1, 2) for each in (query, key, value))
        query, key = (rotated(each, angles) for each in (query, key))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
        return self.proj(mixed.transpose(1, 2).flatten(2))


class FusedLayer(nn.Module):
    """A decoder layer with gate and up in one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = RootMeanSquare(), RootMeanSquare()
        self.attention = FusedAttention()
        self.gate_up = nn.Linear(32, 128, bias=False)
        self.down = nn.Linear(64, 32, bias=False)

    def forward(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        x = x + self.attention(self.norm1(x), angles)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(F.silu(gate) * up)


class FusedDecoder(nn.Module):
    """What `LlamaForCausalLM` computes, as Megatron would cut it."""

    layer: type[nn.Module] = FusedLayer

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 32)
        self.rotary = Rotary()
        self.blocks = nn.ModuleList(self.layer() for _ in range(3))
        self.final_norm = RootMeanSquare()
        self.output = nn.Linear(32, 96, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        angles = self.rotary(x)
        for block in self.blocks:
            x = block(x, angles)
        return self.output(self.final_norm(x))


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


class PlainNorm(nn.Module):
    """LayerNorm without parameters, in fp32."""

    def __init__(self) -> None:
        super().__init__()
        self.eps = 1e-5

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x.float(), (32,), eps=self.eps).to(x.dtype)


class PlainLayer(nn.Module):
    """A decoder layer with norms that have no parameters, gate and up in one matrix."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2, self.attention = PlainNorm(), PlainNorm(), FusedAttention()
        self.gate_up, self.act, self.down = nn.Linear(32, 128, bias=False), nn.SiLU(), nn.Linear(64, 32, bias=False)

    def forward(self, hidden_states: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
        x = hidden_states + self.attention(self.norm1(hidden_states), angles)
        gate, up = self.gate_up(self.norm2(x)).chunk(2, -1)
        return x + self.down(self.act(gate) * up)


class PlainDecoder(FusedDecoder):
    """What `OlmoForCausalLM` computes, as Megatron would cut it."""

    layer = PlainLayer

    def __init__(self) -> None:
        super().__init__()
        self.final_norm = PlainNorm()


# Networks as one list


class Sequence(nn.Module):
    """`ConvNet` under other names and in one list: a port with another structure."""

    def __init__(self) -> None:
        super().__init__()
        net = ConvNet()
        self.features = nn.Sequential(
            net.conv1, net.bn1, net.act1, net.pool1, net.conv2, net.bn2, net.act2, net.pool2, nn.Flatten(), net.drop
        )
        self.classifier = net.head

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


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


class Listed(nn.Module):
    """`SqueezeNet` in one list: a port with another structure."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(*SqueezeNet().children())

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)


class Points(nn.Module):
    """`PointNet` in one list: a port with another structure."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Sequential(*PointNet().children())

    def forward(self, x: Tensor) -> Tensor:
        return self.parts(x)
