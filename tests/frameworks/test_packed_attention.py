"""PyTorch packs q, k and v of attention into one weight, PaddlePaddle does not: compared without a mapping."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import probe
from probe.comparison.result import Verdict
from probe.comparison.run import Comparison
from probe.records import Phase, Role

TORCH = """
import numpy as np, probe, sys, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)

torch.manual_seed(0)
model = Net()
np.savez("weights.npz", **{name: tensor.numpy() for name, tensor in model.state_dict().items()})
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x = torch.from_numpy(probe.testing.sample((4, 7, 32)))
probe.start(model, "a.h5", task=sys.argv[1])
for _ in range(2):
    loss = (model(x) * x).mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    probe.step(loss=loss)
probe.stop()
"""
PADDLE = """
import numpy as np, paddle, probe, sys

class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.layer = paddle.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0)

    def forward(self, x):
        return self.layer(x)

model = Net()
weights = probe.convert_weights(dict(np.load("weights.npz")), to="paddle", source="a.h5", like=model)
for part in ("weight", "bias") if "swapped" in sys.argv else ():
    q, k = f"layer.self_attn.q_proj.{part}", f"layer.self_attn.k_proj.{part}"
    weights[q], weights[k] = weights[k], weights[q]
model.set_state_dict(weights)
optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters(), weight_decay=0.01)
x = paddle.to_tensor(probe.testing.sample((4, 7, 32)))
probe.start(model, "b.h5", task=sys.argv[1])
for _ in range(2):
    loss = (model(x) * x).mean()
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    probe.step(loss=loss)
probe.stop()
"""


def compared(folder: Path, *arguments: str) -> Comparison:
    root = str(Path(__file__).parents[2])
    for code in (TORCH, PADDLE):
        command = [sys.executable, "-c", "import probe.testing\n" + code, *arguments]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return probe.compare(folder / "a.h5", folder / "b.h5")


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_packed_weights_are_compared_with_their_parts(task: str, tmp_path: Path) -> None:
    found = compared(tmp_path, task)
    assert found.verdict is Verdict.ALIGNED
    assert not any("weights that were not compared" in text for text in found.warnings)
    kinds = {(s.phase, s.role) for s in found["layer.self_attn"] if s.slot_a.startswith("in_proj_weight")}
    assert kinds >= {(Phase.INIT, Role.PARAM), (Phase.GRADIENT, Role.PARAM_GRAD), (Phase.UPDATE, Role.STATE),
                     (Phase.UPDATE, Role.DELTA)}  # fmt: skip


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_parts_in_another_order_are_named(task: str, tmp_path: Path) -> None:
    first = compared(tmp_path, task, "swapped").first_divergence
    assert first is not None and first.phase is Phase.INIT
    assert [ref.path for ref in first.b] == [f"layer.self_attn.{part}_proj" for part in "qkv"]
    assert any(
        text.startswith("of its parts q_proj (rel ") and text.endswith("v_proj agrees") for text in first.evidence
    )
    assert (
        "as if it held k_proj, q_proj, v_proj one after the other" in first.hint
        and "(verified: so they agree)" in first.hint
    )
