"""A port to PaddlePaddle replayed with what PyTorch recorded, and Paddle's optimizers with the gradients of one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")
pytest.importorskip("torch")
from paddle import nn  # noqa: E402

import probe  # noqa: E402
from tests.replayed_ports import FAULTS, check_port  # noqa: E402


@pytest.mark.parametrize("named", [set(), set(FAULTS)], ids=["clean", "three"])
def test_a_port_is_replayed_with_what_torch_recorded(named: set[tuple[str, str]], tmp_path: Path) -> None:
    check_port("paddle", named, tmp_path)


class Uncorrected(paddle.optimizer.Adam):
    """Adam whose powers of beta are those of a late step: no correction of bias."""

    def _add_moments_pows(self, p: Any) -> None:
        super()._add_moments_pows(p)
        for name in (self._beta1_pow_acc_str, self._beta2_pow_acc_str):
            power = self._get_accumulator(name, p)
            power.set_value(paddle.full(power.shape, 1e-9, power.dtype))


def net() -> nn.Layer:
    paddle.seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def replayed(tmp_path: Path, kind_a: Any, a: dict[str, Any], kind_b: Any, b: dict[str, Any]) -> str:
    model = net()
    optimizer = kind_a(parameters=model.parameters(), **a)
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32))
    with probe.capture(model, tmp_path / "a.h5", task="tensor", quiet=True, overwrite=True):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        probe.step(loss=loss)
    other = net()
    before = {name: each.numpy() for name, each in other.state_dict().items()}
    found = probe.replay_gradients(other, kind_b(parameters=other.parameters(), **b), tmp_path / "a.h5")
    assert all(np.array_equal(before[name], each.numpy()) for name, each in other.state_dict().items())
    return str(found.verdict)


ADAM: dict[str, Any] = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01}
MOMENTUM: dict[str, Any] = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01}


@pytest.mark.parametrize("kind", [paddle.optimizer.Adam, paddle.optimizer.AdamW])
@pytest.mark.parametrize("options, verdict", [
    ({}, "aligned"), ({"learning_rate": 1.02e-3}, "diverged"), ({"weight_decay": 0.1}, "diverged"), ({"beta1": 0.8}, "diverged"),
    ({"beta2": 0.99}, "diverged"), ({"epsilon": 1e-5}, "diverged"), ({"amsgrad": True}, "diverged"),
], ids=str)  # fmt: skip
def test_adam(tmp_path: Path, kind: Any, options: dict[str, Any], verdict: str) -> None:
    assert replayed(tmp_path, kind, ADAM, kind, {**ADAM, **options}) == verdict


def test_other_forms_of_adam(tmp_path: Path) -> None:
    adam, adamw = paddle.optimizer.Adam, paddle.optimizer.AdamW
    assert replayed(tmp_path, adam, ADAM, adam, {**ADAM, "use_multi_tensor": True}) == "aligned"
    assert replayed(tmp_path, adam, ADAM, adamw, ADAM) == "diverged"
    assert replayed(tmp_path, adam, ADAM, Uncorrected, ADAM) == "diverged"


@pytest.mark.parametrize("options, verdict", [
    ({}, "aligned"), ({"learning_rate": 0.102}, "diverged"), ({"momentum": 0.5}, "diverged"), ({"weight_decay": 0.1}, "diverged"),
    ({"use_nesterov": True}, "diverged"),
], ids=str)  # fmt: skip
def test_sgd_with_momentum(tmp_path: Path, options: dict[str, Any], verdict: str) -> None:
    kind = paddle.optimizer.Momentum
    assert replayed(tmp_path, kind, MOMENTUM, kind, {**MOMENTUM, **options}) == verdict
