"""Train a small image classifier in PyTorch for two steps and record it; save the weights that it begins with.

python train_torch.py --save torch.safetensors --out a.h5
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from inputs import BATCH, CLASSES, STEPS
from safetensors.torch import save_file
from torch import Tensor, nn

import probe


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.conv2, self.bn2 = nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16)
        self.act, self.pool = nn.GELU(), nn.AvgPool2d(2)
        self.norm, self.head = nn.LayerNorm(256), nn.Linear(256, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn1(self.conv1(x)))
        x = self.pool(self.act(self.bn2(self.conv2(x))))
        return self.head(self.norm(x.flatten(1)))


def main() -> None:
    options = argparse.ArgumentParser(description="Train PyTorch's side.")
    options.add_argument("--save", required=True, help="write the initial weights here")
    options.add_argument("--out", required=True, help="the recording to write")
    given = options.parse_args()

    torch.manual_seed(7)
    model = Classifier()
    save_file(model.state_dict(), given.save)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)
    probe.start(model, given.out, task="tensor")
    for step in range(STEPS):
        batch = probe.make_inputs(BATCH, seed=step, to="torch")
        probe.log("labels", batch["labels"])
        loss = F.cross_entropy(model(batch["x"]), batch["labels"])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss)
        print(f"step {step}  loss {loss.item():.6f}")
    probe.stop()


if __name__ == "__main__":
    main()
