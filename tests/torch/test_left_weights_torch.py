"""Weights that were not compared are as they began in the first step, and no one knows what they are in the next."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Divergence, Verdict  # noqa: E402


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.fc = nn.LayerNorm(16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(self.fc(self.norm(x)))


class Packed(nn.Module):
    """The same, with weight and bias in one vector: it has no counterpart."""

    def __init__(self, of: Block) -> None:
        super().__init__()
        self.norm = of.norm
        self.packed = nn.Parameter(torch.cat([of.fc.weight.detach().flatten(), of.fc.bias.detach()]))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.tanh(F.linear(self.norm(x), self.packed[:256].view(16, 16), self.packed[256:]))


def net(is_packed: bool) -> nn.Sequential:
    torch.manual_seed(0)
    blocks = [Block() for _ in range(3)]
    ends = nn.Linear(8, 16), nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 5))
    return nn.Sequential(ends[0], *(Packed(each) if is_packed else each for each in blocks), ends[1])


def record(path: Path, is_packed: bool, change: Callable[[nn.Sequential, int], object] | None = None) -> Path:
    model = net(is_packed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    probe.start(model, path)
    for step in range(2):
        x = torch.randn(4, 8, generator=torch.Generator().manual_seed(step + 1))
        loss = F.cross_entropy(model(x), torch.arange(4))
        optimizer.zero_grad()
        loss.backward()
        if change is not None:
            change(model, step)
        optimizer.step()
        probe.step(loss=loss)
    probe.stop()
    return path


def other_gradient(model: nn.Sequential, step: int) -> None:
    """Of what has no counterpart alone."""
    for name, parameter in model.named_parameters():
        if name.endswith("packed") and parameter.grad is not None:
            parameter.grad *= 1.5


def other_eps(model: nn.Sequential, step: int) -> None:
    model[4][0].eps = 1e-2


@pytest.fixture
def first(tmp_path: Path) -> Callable[[Callable[[nn.Sequential, int], object]], Divergence]:
    def found(change: Callable[[nn.Sequential, int], object]) -> Divergence:
        answer = probe.compare(record(tmp_path / "a.h5", False), record(tmp_path / "b.h5", True, change))
        assert answer.first_divergence is not None
        return answer.first_divergence

    return found


def test_a_right_pair_is_aligned(tmp_path: Path) -> None:
    assert probe.compare(record(tmp_path / "a.h5", False), record(tmp_path / "b.h5", True)).verdict is Verdict.ALIGNED


def test_a_step_behind_updates_that_were_not_compared_is_not_sure(first: Callable[..., Divergence]) -> None:
    found = first(other_gradient)
    assert found.a[0].step == 1 and found.confidence <= 0.5
    fact = "weights there were not compared, and may have been updated otherwise in the steps before: "
    assert any(text.startswith(fact) and "1.packed in B" in text for text in found.evidence)


def test_a_fault_elsewhere_keeps_its_confidence(first: Callable[..., Divergence]) -> None:
    found = first(other_eps)
    assert (found.a[0].step, found.path) == (1, "4.0") and found.confidence > 0.9
