"""Small trainings for the tests of whole runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import probe
from probe.testing import Recording, sample
from tests.toy import nn
from tests.toy.tensor import Tensor


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    nn.manual_seed(0)
    monkeypatch.chdir(tmp_path)
    yield
    probe.stop()


class Net(nn.Module):
    """Two blocks in a list, and a head."""

    def __init__(self) -> None:
        super().__init__(
            embed=nn.Linear(4, 4),
            layers=nn.ModuleList(*(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)) for _ in range(2))),
            head=nn.Linear(4, 2),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


class Training:
    """A model and its optimizer; keeps outputs and gradients as the optimizer saw them."""

    def __init__(self) -> None:
        self.net = Net()
        self.optimizer = nn.SGD(self.net.parameters(), 1e-4)
        self.output = self.gradients = None

    def step(self, loss: float | None = None, x: Any = None, **scalars: float) -> None:
        self.output = self.net(Tensor(sample((5, 4))) if x is None else x)
        self.output.sum().backward()
        for parameter in self.net.parameters():
            parameter.grad.data *= 0.5  # clipping: what the optimizer uses is not what backward left
        self.gradients = {name: p.grad.data.copy() for name, p, _ in self.net.named_tensors(nn.Parameter)}
        self.optimizer.step()
        self.optimizer.zero_grad()
        probe.step(loss, **scalars)


def recorded(losses: list[float], **options: Any) -> Recording:
    training = Training()
    probe.start(training.net, "a.h5", **options)
    for loss in losses:
        training.step(loss)
    probe.stop()
    return Recording(Path("a.h5"))
