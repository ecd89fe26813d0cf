"""Train a small denoiser for two steps and record it.

python train.py --out a.h5
python train.py --out b.h5 --fault schedule
"""

from __future__ import annotations

import argparse
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import probe

STEPS, CHANNELS, WIDTH = 1000, 3, 32
BATCH = {"images": f"float32[4,{CHANNELS},8,8]", "noise": f"float32[4,{CHANNELS},8,8]", "times": f"int64[4] < {STEPS}"}
FAULTS = {
    "schedule": "betas that grow linearly, not their roots",
    "embedding": "cosines before sines in the embedding of time",
    "target": "the loss against the velocity, not the noise",
    "ema": "an average of the weights that begins one step late",
}


def alphas(fault: str | None = None) -> Tensor:
    """Return the share of the image that is left at each time."""
    power = 1 if fault == "schedule" else 2
    betas = torch.linspace(0.00085 ** (1 / power), 0.012 ** (1 / power), STEPS, dtype=torch.float64) ** power
    return (1 - betas).cumprod(0).float()


class TimeEmbedding(nn.Module):
    def __init__(self, *, cosines_first: bool = False) -> None:
        super().__init__()
        self.fc1, self.fc2, self.cosines_first = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), cosines_first

    def forward(self, times: Tensor) -> Tensor:
        angles = times[:, None] * torch.exp(-math.log(10000) * torch.arange(WIDTH // 2) / (WIDTH // 2))
        parts = angles.sin(), angles.cos()
        return self.fc2(F.silu(self.fc1(torch.cat(parts[::-1] if self.cosines_first else parts, -1))))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.conv, self.time = (
            nn.GroupNorm(8, WIDTH),
            nn.Conv2d(WIDTH, WIDTH, 3, padding=1),
            nn.Linear(WIDTH, WIDTH),
        )

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        return x + self.conv(F.silu(self.norm(x)) + self.time(time)[:, :, None, None])


class Denoiser(nn.Module):
    def __init__(self, *, cosines_first: bool = False) -> None:
        super().__init__()
        self.time = TimeEmbedding(cosines_first=cosines_first)
        self.enter, self.leave = nn.Conv2d(CHANNELS, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, CHANNELS, 3, padding=1)
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        time, x = self.time(times), self.enter(x)
        for block in self.blocks:
            x = block(x, time)
        return self.leave(x)


def main() -> None:
    options = argparse.ArgumentParser(description="Train a denoiser.")
    options.add_argument("--out", required=True, help="the recording to write")
    options.add_argument("--fault", choices=FAULTS, help="; ".join(f"{name}: {what}" for name, what in FAULTS.items()))
    given = options.parse_args()
    fault = given.fault

    torch.manual_seed(7)
    model = Denoiser(cosines_first=fault == "embedding")
    averaged = Denoiser(cosines_first=fault == "embedding").requires_grad_(False)
    averaged.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    left = alphas(fault)
    probe.start([model, averaged], given.out, task="tensor")
    for step in range(2):
        batch = probe.make_inputs(BATCH, seed=step, to="torch")
        images, noise, times = batch["images"], batch["noise"], batch["times"]
        share = left[times][:, None, None, None]
        probe.log("noise", noise)
        probe.log("alphas", share)
        noisy = share.sqrt() * images + (1 - share).sqrt() * noise
        target = share.sqrt() * noise - (1 - share).sqrt() * images if fault == "target" else noise
        loss = F.mse_loss(model(noisy, times), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, own in zip(averaged.parameters(), model.parameters(), strict=True):
                if fault != "ema" or step:
                    mean.lerp_(own, 0.1)
        probe.step(loss=loss)
        print(f"step {step}  loss {loss.item():.6f}")
    probe.stop()


if __name__ == "__main__":
    main()
