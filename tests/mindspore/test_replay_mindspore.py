"""A port to MindSpore replayed with what PyTorch recorded, and MindSpore's optimizers with the gradients of one another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")
pytest.importorskip("torch")
from mindspore import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from tests.replayed_ports import FAULTS, check_port  # noqa: E402


@pytest.mark.parametrize("named", [set(), set(FAULTS)], ids=["clean", "three"])
def test_a_port_is_replayed_with_what_torch_recorded(named: set[tuple[str, str]], tmp_path: Path) -> None:
    check_port("mindspore", named, tmp_path)


def net() -> nn.Cell:
    mindspore.set_seed(0)
    np.random.seed(0)
    return nn.SequentialCell(nn.Dense(8, 16), nn.LayerNorm((16,)), nn.Dense(16, 4))


def replayed(tmp_path: Path, kind_a: Any, a: dict[str, Any], kind_b: Any, b: dict[str, Any]) -> str:
    model = net()
    optimizer = kind_a(model.trainable_params(), **a)
    x = Tensor(np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32))
    with probe.capture(model, tmp_path / "a.h5", task="tensor", quiet=True, overwrite=True):
        loss, gradients = mindspore.value_and_grad(lambda: model(x).square().mean(), None, optimizer.parameters)()
        optimizer(gradients)
        probe.step(loss=loss)
    other = net()
    before = {name: each.asnumpy().copy() for name, each in other.parameters_and_names()}
    found = probe.replay_gradients(other, kind_b(other.trainable_params(), **b), tmp_path / "a.h5")
    assert all(np.array_equal(before[name], each.asnumpy()) for name, each in other.parameters_and_names())
    return str(found.verdict)


ADAM: dict[str, Any] = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
MOMENTUM: dict[str, Any] = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01}


@pytest.mark.parametrize("options, verdict", [
    ({}, "aligned"), ({"learning_rate": 1.02e-3}, "diverged"), ({"weight_decay": 0.1}, "diverged"), ({"beta1": 0.8}, "diverged"),
    ({"beta2": 0.99}, "diverged"), ({"eps": 1e-5}, "diverged"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", [nn.Adam, nn.AdamWeightDecay])
def test_adam(tmp_path: Path, kind: Any, options: dict[str, Any], verdict: str) -> None:
    assert replayed(tmp_path, kind, ADAM, kind, {**ADAM, **options}) == verdict


def test_other_forms_of_adam(tmp_path: Path) -> None:
    assert replayed(tmp_path, nn.Adam, ADAM, nn.Adam, {**ADAM, "use_amsgrad": True}) == "diverged"
    assert replayed(tmp_path, nn.Adam, ADAM, nn.AdamWeightDecay, ADAM) == "diverged"  # it corrects no bias


@pytest.mark.parametrize("options, verdict", [
    ({}, "aligned"), ({"learning_rate": 0.102}, "diverged"), ({"momentum": 0.5}, "diverged"), ({"weight_decay": 0.1}, "diverged"),
    ({"use_nesterov": True}, "diverged"),
], ids=str)  # fmt: skip
def test_sgd_with_momentum(tmp_path: Path, options: dict[str, Any], verdict: str) -> None:
    assert replayed(tmp_path, nn.Momentum, MOMENTUM, nn.Momentum, {**MOMENTUM, **options}) == verdict
