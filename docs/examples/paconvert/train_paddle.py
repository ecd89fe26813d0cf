"""Train what PaConvert has written from A's weights, and record it: python train_paddle.py b.h5."""

from __future__ import annotations

import sys

import paddle
import paddle.nn.functional as F
from net_paddle import Net

import probe

model = Net()
probe.load_matching(model, "a.h5")
optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters(), weight_decay=0.01)
with probe.capture(model, sys.argv[1], task="tensor"):
    for step in range(2):
        batch = probe.make_inputs({"ids": "int64[4,9] < 40", "labels": "int64[4,9] labels < 7"}, seed=step, to="paddle")
        probe.log("labels", batch["labels"])
        loss = F.cross_entropy(model(batch["ids"]).flatten(0, 1), batch["labels"].flatten())
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        probe.step(loss=loss)
        print(f"step {step}  loss {loss.item():.6f}")
