"""A part of a model that is called with the same on both sides, by models whose calls have no partner."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from tests.toys import GPT, WIDTH, batch, gpt, loss_of

LENGTH = batch(0).shape[1]


class Placed(GPT):
    """A language model with a table of positions, which is given the same whatever the batch."""

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.positions(Tensor(np.arange(LENGTH)))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


class Both(nn.Module):
    """The model that learns beside the one that it is held against; nobody calls this itself."""


def both() -> Any:
    made = []
    for seed in (0, 1):
        model = gpt(seed)
        model.__class__ = Placed
        nn.manual_seed(7 + seed)
        model.positions = nn.Embedding(LENGTH, WIDTH)
        made.append(model)
    return Both(policy=made[0], reference=made[1])


def recorded(path: Path, together: bool, task: str) -> Path:
    models = both()
    optimizer = nn.SGD(models.policy.parameters(), lr=0.1)
    chosen, rejected = batch(0).data, batch(1).data
    with probe.capture(models, path, task=task):
        parts = [np.concatenate([chosen, rejected])] if together else [chosen, rejected]
        losses = [loss_of(models.policy(Tensor(ids)), Tensor(ids)) for ids in parts]
        loss = losses[0] if together else (losses[0] + losses[1]) * 0.5
        loss.backward()
        optimizer.step()
        probe.step(loss=loss)
    return path


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_its_gradient_is_not_the_losss(tmp_path: Path, task: str) -> None:
    """Two calls on one side, one on the other: what comes back to one of them is a part of what comes back to the other."""
    files = [recorded(tmp_path / f"{name}.h5", together, task) for name, together in (("a", True), ("b", False))]
    found = probe.compare(*files)
    assert found.verdict is Verdict.UNDECIDED and found.first_divergence is None, found.first_divergence
    assert any(
        "the gradient of policy.positions's output 0 differs (rel " in text
        and "policy, which calls it, has no call" in text
        for text in found.doubts
    ), found.doubts
