"""Small pairs of runs in MindSpore, with the answer that is right for each."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")
from mindspore import Tensor, nn, ops  # noqa: E402

import probe  # noqa: E402
from probe.comparing import compare  # noqa: E402


def data(*shape: int, seed: int = 1) -> Tensor:
    return Tensor(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def record(model: nn.Cell, loss_of: Callable[[nn.Cell], Tensor], path: Path, task: str) -> None:
    weights = model.trainable_params()
    update = nn.SGD(weights, learning_rate=0.1)  # that of mint changes nothing on a CPU
    with probe.capture(model, path, task=task, optimizer=update):
        loss, gradients = mindspore.value_and_grad(lambda: loss_of(model), None, weights)()
        update(gradients)
        probe.step(loss=loss)


class Scorer(nn.Cell):
    def __init__(self, squashes: bool) -> None:
        super().__init__()
        self.first, self.second, self.squashes = nn.Dense(8, 12), nn.Dense(12, 6), squashes

    def construct(self, x: Tensor) -> Tensor:
        y = self.second(ops.relu(self.first(x)))
        return ops.tanh(y) if self.squashes else y


class Channels(nn.Cell):
    """[b, h, w, c] around a convolution, within one side's own cell."""

    def __init__(self, first: bool, epsilon: float = 1e-5) -> None:
        super().__init__()
        self.inp, self.norm, self.out = nn.Dense(4, 6), nn.LayerNorm((6,), epsilon=epsilon), nn.Dense(6, 3)
        self.mix, self.first = nn.Conv2d(6, 6, 3, has_bias=True), first

    def construct(self, x: Tensor) -> Tensor:
        x = self.inp(x) if self.first else self.inp(x.reshape(-1, 4)).reshape(2, 5, 7, 6)
        y = self.mix(x.transpose(0, 3, 1, 2)).transpose(0, 2, 3, 1)
        return self.out(self.norm(x + y))


def of_outputs(model: nn.Cell) -> Tensor:
    return ops.mse_loss(model(data(16, 8)), data(16, 6, seed=3).tanh())


def of_raw(weight: float) -> Callable[[nn.Cell], Tensor]:
    return lambda model: weight * ops.mse_loss(ops.tanh(model(data(16, 8))), data(16, 6, seed=3).tanh())


def squared(model: nn.Cell) -> Tensor:
    return model(data(2, 5, 7, 4)).square().mean()


# name: make, arguments of A and of B, losses of both, and the place and phase; None for ``aligned``
PAIRS: dict[str, tuple[Any, ...]] = {
    "tanh-clean": (Scorer, (True,), (False,), of_outputs, of_raw(1.0), None),
    "tanh-weight": (Scorer, (True,), (False,), of_outputs, of_raw(1.5), ("", "loss")),
    "channels-clean": (Channels, (True,), (False,), squared, squared, None),
    "channels-eps": (Channels, (True,), (False, 1e-2), squared, squared, ("norm", "forward")),
}


@pytest.mark.parametrize("task", ["tensor", "statistics"])
@pytest.mark.parametrize("name", PAIRS)
def test_pair(name: str, task: str, tmp_path: Path) -> None:
    make, for_a, for_b, loss_a, loss_b, place = PAIRS[name]
    mindspore.set_seed(0)
    a, b = make(*for_a), make(*for_b)
    for ours, theirs in zip(a.get_parameters(), b.get_parameters(), strict=True):
        theirs.set_data(Tensor(ours.asnumpy()))
    record(a, loss_a, tmp_path / "a.h5", task)
    record(b, loss_b, tmp_path / "b.h5", task)
    answer = compare(tmp_path / "a.h5", tmp_path / "b.h5")
    found = answer.first_divergence
    assert (found and (found.a[0].path, found.phase.label)) == place, answer
    assert answer.verdict.value == ("diverged" if place else "aligned")
