"""Hand-written generative models: adversarial, variational, by diffusion, by a flow, by a codebook."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.localisation.models.architecture import CHANNELS_LAST, DOUBLED, SPLIT, Architecture
from benchmarks.localisation.models.batches import (
    images_against_noise,
    images_and_noise,
    points,
    reconstructed_vectors,
    timed_images,
    vectors_and_noise,
)


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


class Nearest(nn.Module):
    """Each vector's nearest one of a table; what comes back goes round the choice."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Parameter(torch.zeros(24, 8))

    def forward(self, hidden_states: Tensor) -> Tensor:
        codes = self.codes.to(hidden_states.dtype)
        distances = (hidden_states[..., None, :] - codes).float().square().sum(-1)
        found = codes[distances.argmin(-1)]
        return found + hidden_states - hidden_states.detach()


class QuantisedAutoencoder(nn.Module):
    """Vectors through a table of codes."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(12, 32), nn.SiLU(), nn.Linear(32, 8))
        self.norm, self.nearest = nn.LayerNorm(8), Nearest()
        self.decode = nn.Sequential(nn.Linear(8, 32), nn.SiLU(), nn.Linear(32, 12))

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(self.nearest(self.norm(self.encode(x))))


GENERATIVE: dict[str, Architecture] = {
    "gan": Architecture(
        lambda setup: nn.ModuleList([Generator(), Discriminator()]), images_against_noise, DOUBLED
    ),
    "vae": Architecture(lambda setup: Autoencoder(), vectors_and_noise, SPLIT),
    "denoiser": Architecture(lambda setup: Denoiser(), timed_images, CHANNELS_LAST),
    "dit": Architecture(lambda setup: DiffusionTransformer(), timed_images, SPLIT),
    "flow": Architecture(lambda setup: Flow(), points, SPLIT),
    "convvae": Architecture(lambda setup: ConvAutoencoder(), images_and_noise, CHANNELS_LAST),
    "codebook": Architecture(lambda setup: QuantisedAutoencoder(), reconstructed_vectors, SPLIT),
}  # fmt: skip
