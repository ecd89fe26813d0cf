"""What a model returns may be used inside too, as a router's logits are: its gradient then comes from both."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from probe.records import Phase
from tests.toys import batch, gpt, loss_of, record, scaled_gradient


class Gated(nn.Module):
    """Its own code weighs what the layers return by a gate, which is returned for a loss of its own."""

    def __init__(self) -> None:
        nn.manual_seed(0)
        super().__init__(gpt=gpt(), gate=nn.Linear(gpt().head.weight.shape[0], 1), last=Last())

    def forward(self, ids: Tensor) -> Any:
        logits = self.gpt(ids)
        gate = self.gate(logits)
        return self.last((logits + 50.0) * gate), gate


class Last(nn.Module):
    factor: Any = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return scaled_gradient(x, self.factor) * 2.0


def run(path: Path, factor: Any = 1.0, auxiliary: float = 0.1) -> Path:
    model = Gated()
    model.last.factor = factor

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        ids = batch(number)
        logits, gate = model(ids)
        loss = loss_of(logits, ids) + (gate * gate).sum() * auxiliary
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return record(path, model, steps=1, step=step)


_SOME = np.where(np.arange(gpt().head.weight.shape[0]) % 2, 1.001, 0.999)
"""other factors for one half of the features than for the other: in the gate's gradient, a sum over all, it shows more"""


@pytest.mark.parametrize("factor", [1.5, _SOME], ids=["all", "some"])
def test_a_fault_inside_is_not_the_loss_too(tmp_path: Path, factor: Any) -> None:
    found = probe.compare(run(tmp_path / "a.h5"), run(tmp_path / "b.h5", factor=factor))
    assert [(each.phase, each.path) for each in found.divergences] == [(Phase.BACKWARD, "last")]


def test_another_weight_of_the_auxiliary_loss_is_the_loss(tmp_path: Path) -> None:
    first = probe.compare(run(tmp_path / "a.h5"), run(tmp_path / "b.h5", auxiliary=0.2)).first_divergence
    assert first is not None and first.phase is Phase.LOSS


def test_the_same_is_aligned(tmp_path: Path) -> None:
    assert probe.compare(run(tmp_path / "a.h5"), run(tmp_path / "b.h5")).verdict is Verdict.ALIGNED
