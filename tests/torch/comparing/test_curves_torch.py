"""`probe curves` with PyTorch: the case of the MindFormers guide, and event files as TensorBoard's own writer makes them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import probe
from probe.curve_comparison.reading.files import read_curves

VOCABULARY, WIDTH, BATCH, LENGTH = 32, 32, 8, 32


class In16Bits(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return functional.linear(x, self.weight.bfloat16(), self.bias.bfloat16())


class Embedding32(nn.Embedding):
    """Looked up in float32, forward and backward, then rounded."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x).bfloat16()


class Embedding16(nn.Embedding):
    """Rounded, then looked up: the gradient is summed in bfloat16."""

    def forward(self, x: Tensor) -> Tensor:
        return functional.embedding(x, self.weight.bfloat16())


class Model(nn.Module):
    def __init__(self, embedding: type[nn.Embedding], linear: type[nn.Linear] = In16Bits) -> None:
        super().__init__()
        self.embed = embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(linear(WIDTH, WIDTH) for _ in range(3))
        self.head = linear(WIDTH, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return self.head(x).float()


def train(path: Path, model: nn.Module, steps: int, lr: float) -> Path:
    optimizer = torch.optim.SGD(model.parameters(), lr)
    rng = np.random.default_rng(0)
    with probe.capture(model, path, task="norms"):
        for _ in range(steps):
            x = torch.from_numpy(np.minimum(rng.geometric(0.3, (BATCH, LENGTH + 1)) - 1, VOCABULARY - 1))
            loss = functional.cross_entropy(model(x[:, :-1]).reshape(-1, VOCABULARY), x[:, 1:].reshape(-1))
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), 1e9)
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss, grad_norm=norm, lr=lr)
    return path


def model(*classes: type[nn.Module]) -> Model:
    torch.manual_seed(0)
    return Model(*classes)


def test_an_embedding_in_float32_against_bfloat16_shows_in_its_local_norm_alone(tmp_path: Path) -> None:
    a = train(tmp_path / "a.h5", model(Embedding32), 20, 1e-3)
    b = train(tmp_path / "b.h5", model(Embedding16), 20, 1e-3)
    found = probe.curves(a, b)
    assert found.verdict == "diverged"
    assert [(each.kind.value, each.step, each.series) for each in found.findings] == [("norm", 0, "embed.weight")]
    assert [each.name_a for each in found.norms.results if each.is_out] == ["embed.weight"]
    assert found["loss"].first_out is None and found["grad_norm"].first_out is None
    assert found.norms.first[0].limit == 0.002, "in 16 bits a smaller difference is rounding"
    assert found.findings[0].text.startswith("the gradient norm of embed.weight alone leaves the noise band: ")
    assert "an embedding in float32 against bfloat16" in found.findings[0].hint


def test_weights_that_are_not_updated_and_losses_0_001_apart_are_clean(tmp_path: Path) -> None:
    """lr = 0 for 1,000 steps, as the guide does it: one side in float32, one in bfloat16."""
    wide = train(tmp_path / "a.h5", model(nn.Embedding, nn.Linear), 1000, 0.0)
    narrow = train(tmp_path / "b.h5", model(Embedding32), 1000, 0.0)
    found = probe.curves(wide, narrow)
    apart = np.abs(found["loss"].pair.difference)
    assert 1e-4 < apart.max() < 5e-3, "otherwise this shows nothing"
    assert (found.verdict, found.findings, found.standard.verdict) == ("aligned", (), "aligned")


def test_events_of_tensorboards_own_writer(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from torch.utils.tensorboard import SummaryWriter

    values = np.random.default_rng(0).random(50).astype(np.float32)
    with SummaryWriter(str(tmp_path)) as writer:
        for step, value in enumerate(values):
            writer.add_scalar("train/loss", value, step)
            writer.add_scalar("grad-norm", value, step, new_style=True)
            writer.add_histogram("weights", values, step)
    run = read_curves(tmp_path)
    for name in ("loss", "grad_norm"):
        assert run.series[name].values.tolist() == values.astype(float).tolist()
