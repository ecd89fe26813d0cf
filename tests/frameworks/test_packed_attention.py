"""PyTorch packs q, k and v of attention into one weight, PaddlePaddle does not: compared without a mapping."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import probe
from probe.answer.result import Verdict
from probe.records import Phase, Role

TORCH = """
import numpy as np, probe, torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, x):
        return self.layer(x)

x = torch.from_numpy(probe.testing.sample((4, 7, 32)))
for task in TASKS:
    torch.manual_seed(0)
    model = Net()
    np.savez("weights.npz", **{name: tensor.numpy() for name, tensor in model.state_dict().items()})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, f"{task}.h5", task=task):
        for _ in range(2):
            loss = (model(x) * x).mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
"""
PADDLE = """
import itertools, numpy as np, paddle, probe

class Net(paddle.nn.Layer):
    def __init__(self):
        super().__init__()
        self.layer = paddle.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0)

    def forward(self, x):
        return self.layer(x)

x = paddle.to_tensor(probe.testing.sample((4, 7, 32)))
for task, order in itertools.product(TASKS, ("right", "swapped")):
    model = Net()
    weights = probe.convert_weights(dict(np.load("weights.npz")), to="paddle", source=f"{task}.h5", like=model)
    for part in ("weight", "bias") if order == "swapped" else ():
        q, k = f"layer.self_attn.q_proj.{part}", f"layer.self_attn.k_proj.{part}"
        weights[q], weights[k] = weights[k], weights[q]
    model.set_state_dict(weights)
    optimizer = paddle.optimizer.AdamW(1e-3, parameters=model.parameters(), weight_decay=0.01)
    with probe.capture(model, f"{order}-{task}.h5", task=task):
        for _ in range(2):
            loss = (model(x) * x).mean()
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            probe.step(loss=loss)
"""
TASKS = ("statistics", "tensor")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings of both sides; a process for each framework."""
    folder, root = tmp_path_factory.mktemp("packed"), str(Path(__file__).parents[2])
    for code in (TORCH, PADDLE):
        command = [sys.executable, "-c", f"import probe.testing\nTASKS = {TASKS}\n{code}"]
        done = subprocess.run(
            command, cwd=folder, env={**os.environ, "PYTHONPATH": root}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("task", TASKS)
def test_packed_weights_are_compared_with_their_parts(task: str, folder: Path) -> None:
    found = probe.compare(folder / f"{task}.h5", folder / f"right-{task}.h5")
    assert found.verdict is Verdict.ALIGNED
    assert not any("weights that were not compared" in text for text in found.warnings)
    kinds = {(s.phase, s.role) for s in found["layer.self_attn"] if s.slot_a.startswith("in_proj_weight")}
    assert kinds >= {(Phase.INIT, Role.PARAM), (Phase.GRADIENT, Role.PARAM_GRAD), (Phase.UPDATE, Role.STATE),
                     (Phase.UPDATE, Role.DELTA)}  # fmt: skip


@pytest.mark.parametrize("task", TASKS)
def test_parts_in_another_order_are_named(task: str, folder: Path) -> None:
    first = probe.compare(folder / f"{task}.h5", folder / f"swapped-{task}.h5").first_divergence
    assert first is not None and first.phase is Phase.INIT
    assert [ref.path for ref in first.b] == [f"layer.self_attn.{part}_proj" for part in "qkv"]
    said = "of its parts q_proj (rel " if task == "tensor" else "which of q_proj, k_proj and v_proj it is, "
    assert any(text.startswith(said) for text in first.evidence)
    said = "its 3 parts of 32 as 1, 0, 2 (verified)" if task == "tensor" else "has the same numbers in another order"
    assert said in first.hint
