"""Train the network in PyTorch for two steps, and record it: python train_torch.py."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from net import Net

import probe

torch.manual_seed(7)
model = Net()
optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.01)
with probe.capture(model, "a.h5", task="tensor"):
    for step in range(2):
        batch = probe.make_inputs({"ids": "int64[4,9] < 40", "labels": "int64[4,9] labels < 7"}, seed=step, to="torch")
        probe.log("labels", batch["labels"])
        loss = F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        probe.step(loss=loss)
        print(f"step {step}  loss {loss.item():.6f}")
