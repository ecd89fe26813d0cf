"""`replay_gradients` tells optimizers apart by one update of the same gradients, and passes those that compute the same."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probe
from probe.comparison.answer import Comparison

Optimizer = torch.optim.Optimizer


class Uncorrected(torch.optim.AdamW):
    """Adam whose moments are used as they are: the correction of bias is that of a late step."""

    def step(self, closure: Any = None) -> Any:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and not self.state[p]:
                    self.state[p] = {
                        "step": torch.tensor(1e5),
                        "exp_avg": torch.zeros_like(p),
                        "exp_avg_sq": torch.zeros_like(p),
                    }
        return super().step(closure)


ADAM: dict[str, Any] = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
SGD: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def batch(step: int) -> Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(step))


def recorded(model: nn.Module, optimizer: Optimizer, path: Path, steps: int = 1) -> Path:
    with probe.capture(model, path, task="tensor", quiet=True):
        for step in range(steps):
            loss = model(batch(step)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


def replayed(
    tmp_path: Path, kind_a: type[Optimizer], a: dict[str, Any], kind_b: type[Optimizer], b: dict[str, Any]
) -> Comparison:
    model = net()
    trained = copy.deepcopy(model)
    recording = recorded(trained, kind_a(trained.parameters(), **a), tmp_path / "a.h5")
    optimizer = kind_b(model.parameters(), **b)
    before = copy.deepcopy(model.state_dict())
    found = probe.replay_gradients(model, optimizer, recording)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not optimizer.state and all(each.grad is None for each in model.parameters())
    return found


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [
    {}, {"foreach": True}, {"foreach": False}, {"fused": True}, {"capturable": False},
], ids=str)  # fmt: skip
def test_the_same_update_however_it_is_computed(tmp_path: Path, kind: type[Optimizer], options: dict[str, Any]) -> None:
    assert replayed(tmp_path, kind, ADAM, kind, {**ADAM, **options}).verdict == "aligned"


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW])
@pytest.mark.parametrize("options", [
    {"lr": 1.02e-3}, {"weight_decay": 0.0, "foreach": True}, {"weight_decay": 0.1, "fused": True}, {"betas": (0.8, 0.999)},
    {"betas": (0.9, 0.99), "foreach": True}, {"eps": 1e-5, "fused": True}, {"maximize": True}, {"amsgrad": True},
], ids=str)  # fmt: skip
def test_another_update(tmp_path: Path, kind: type[Optimizer], options: dict[str, Any]) -> None:
    found = replayed(tmp_path, kind, ADAM, kind, {**ADAM, **options})
    assert found.verdict == "diverged"
    assert {each.phase.label for each in found.divergences} == {"update"}


def test_decay_in_the_gradient_is_not_decay_of_the_weight(tmp_path: Path) -> None:
    assert replayed(tmp_path, torch.optim.AdamW, ADAM, torch.optim.Adam, ADAM).verdict == "diverged"


def test_no_correction_of_bias(tmp_path: Path) -> None:
    assert replayed(tmp_path, torch.optim.AdamW, ADAM, Uncorrected, ADAM).verdict == "diverged"


@pytest.mark.parametrize("options, verdict", [
    ({}, "aligned"), ({"foreach": True}, "aligned"), ({"fused": True}, "aligned"), ({"lr": 0.102}, "diverged"),
    ({"momentum": 0.5}, "diverged"), ({"momentum": 0.0}, "diverged"), ({"weight_decay": 0.0}, "diverged"), ({"nesterov": True}, "diverged"),
], ids=str)  # fmt: skip
def test_sgd_with_momentum(tmp_path: Path, options: dict[str, Any], verdict: str) -> None:
    assert replayed(tmp_path, torch.optim.SGD, SGD, torch.optim.SGD, {**SGD, **options}).verdict == verdict
