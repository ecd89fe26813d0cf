"""Hand-written PyTorch models: the usual shapes that transformers does not have."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


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


class Tagger(nn.Module):
    """An embedding, two layers of LSTM, a class for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 24)
        self.lstm = nn.LSTM(24, 32, num_layers=2, batch_first=True)
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 96)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.lstm(self.embedding(ids))[0]))


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


class Encoder(nn.Module):
    """PyTorch's own transformer encoder layers behind an embedding, as a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 32)
        self.position = nn.Parameter(torch.zeros(16, 32))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=True) for _ in range(3)
        )
        self.norm = nn.LayerNorm(32)
        self.head = nn.Linear(32, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.position[: ids.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x)[:, 0])


class Recommender(nn.Module):
    """Embeddings of categories beside numbers, their products, and two perceptrons."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.EmbeddingBag(40, 16, mode="sum") for _ in range(3))
        self.bottom = nn.Sequential(nn.Linear(13, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
        self.top = nn.Sequential(nn.Linear(22, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, 10))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        dense = self.bottom(numbers)
        parts = torch.stack([dense, *(table(categories[:, i]) for i, table in enumerate(self.tables))], 1)
        products = parts @ parts.transpose(1, 2)
        rows, columns = torch.triu_indices(4, 4, 1)
        return self.top(torch.cat([dense, products[:, rows, columns]], 1))


class Autoencoder(nn.Module):
    """A variational autoencoder; its noise is an input, so that both sides have the same."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(48, 32), nn.Tanh(), nn.Linear(32, 32), nn.Tanh())
        self.mean, self.spread = nn.Linear(32, 8), nn.Linear(32, 8)
        self.decoder = nn.Sequential(nn.Linear(8, 32), nn.Softplus(), nn.Linear(32, 48))

    def forward(self, x: Tensor, noise: Tensor) -> Tensor:
        hidden = self.encoder(x)
        code = self.mean(hidden) + noise * torch.exp(0.5 * self.spread(hidden))
        return self.decoder(code)


class Recurrent(nn.Module):
    """Two GRUs with a highway gate between them, as a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(96, 24)
        self.first = nn.GRU(24, 24, batch_first=True)
        self.gate = nn.Linear(24, 24)
        self.second = nn.GRU(24, 24, batch_first=True)
        self.norm = nn.LayerNorm(24)
        self.head = nn.Linear(24, 10)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids)
        gate = torch.sigmoid(self.gate(x))
        x = gate * self.first(x)[0] + (1 - gate) * x
        return self.head(self.norm(self.second(x)[0].mean(1)))


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


class Generator(nn.Module):
    """Noise to images."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 16 * 4 * 4)
        self.up = nn.ConvTranspose2d(16, 8, 4, stride=2, padding=1)
        self.bn = nn.BatchNorm2d(8)
        self.act = nn.LeakyReLU(0.2)
        self.out = nn.Conv2d(8, 3, 3, padding=1)

    def forward(self, noise: Tensor) -> Tensor:
        x = self.fc(noise).unflatten(1, (16, 4, 4))
        return torch.tanh(self.out(self.act(self.bn(self.up(x)))))


class Discriminator(nn.Module):
    """Images to one number."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 4, stride=2, padding=1)
        self.act = nn.LeakyReLU(0.2)
        self.conv2 = nn.Conv2d(8, 16, 4, stride=2, padding=1)
        self.norm = nn.GroupNorm(4, 16)
        self.fc = nn.Linear(16 * 2 * 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.conv1(x))
        return self.fc(self.act(self.norm(self.conv2(x))).flatten(1))


class Rotary(nn.Module):
    """The angles of rotary embeddings."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        angles = torch.outer(torch.arange(x.shape[1]), 10_000.0 ** (-torch.arange(0, 8, 2) / 8))
        angles = torch.cat([angles, angles], -1)[None]
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


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


def rotated(x: Tensor, angles: tuple[Tensor, Tensor]) -> Tensor:
    """Return queries or keys (batch, heads, length, width) turned by the angles of their positions."""
    cos, sin = (each[:, None] for each in angles)
    left, right = x.chunk(2, -1)
    return x * cos + torch.cat([-right, left], -1) * sin


class RootMeanSquare(nn.Module):
    """RMSNorm as written by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(32))
        self.eps = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return self.weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)).to(x.dtype)


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
