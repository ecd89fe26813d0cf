"""What the loss does not see, and gradients recorded without those of modules."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import probe
from probe.answer.result import Verdict
from probe.records import Phase


class _Times(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, bias: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return bias.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient * ctx.factor, None


class _Linear(nn.Linear):
    factor = 1.0
    last = 1.0

    def forward(self, x: Tensor) -> Tensor:
        made = nn.functional.linear(x, self.weight, _Times.apply(self.bias, self.factor))
        return torch.cat([made[:-1], made[-1:] * self.last])


def _recorded(path: Path, dtype: torch.dtype = torch.float32, task: str = "statistics", **other: Any) -> Path:
    torch.manual_seed(3)
    net = nn.Sequential(_Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)).to(dtype)
    x = (torch.randn(64, 64) * 4 + 3).to(dtype)
    vars(net[0]).update({name: other.pop(name) for name in ("factor", "last") if name in other})
    probe.start(net, path, task=task, quiet=True, **other)
    loss = net(x)[:-1].float().square().mean()
    loss.backward()
    probe.step(loss=loss)
    probe.stop()
    return path


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("factor", [-1.0, 0.5])
def test_a_small_gradient_is_not_held_against_a_large_one_of_its_module(
    dtype: torch.dtype, factor: float, tmp_path: Path
) -> None:
    phases = [Phase.FORWARD.label, Phase.GRADIENT.label]
    a, b = (_recorded(tmp_path / f"{x}.h5", dtype, phases=phases, factor=x) for x in (1.0, factor))
    found = probe.compare(a, b).first_divergence
    assert found is not None and found.phase is Phase.GRADIENT and found.path == "0"


def test_rows_that_no_loss_reaches_are_said_as_such(tmp_path: Path) -> None:
    a, b = (_recorded(tmp_path / f"{x}.h5", task="tensor", last=x) for x in (1.0, 2.0))
    result = probe.compare(a, b)
    (said,) = [each for each in result.notes if each.code == "rows-without-loss"]
    assert result.verdict is Verdict.ALIGNED and said.facts["places"][0] == "output 0 of 0"
    assert not any(each.code == "border-lies-elsewhere" for each in result.notes)
