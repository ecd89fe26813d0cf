"""What happens to the optimizer only later."""

from __future__ import annotations

from pathlib import Path

import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Kind
from probe.records import Phase
from tests.toys import gpt, module, plain_step, record


@pytest.mark.parametrize("since", [0, 1, 2])
@pytest.mark.parametrize("side", ["a", "b"])
def test_a_parameter_that_the_optimizer_loses(tmp_path: Path, since: int, side: str) -> None:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        lost = module(model, "layers.1.mlp.up").weight
        if number == since:
            for group in optimizer.param_groups:
                group["params"] = [each for each in group["params"] if each is not lost]
        return plain_step(model, optimizer, number)

    files = [
        record(tmp_path / f"{name}.h5", gpt(), steps=3, step=step if name == side else plain_step) for name in "ab"
    ]
    first = probe.compare(*files).first_divergence
    assert first is not None
    assert (first.step, first.phase, first.kind, first.path) == (since, Phase.UPDATE, Kind.MISSING, "layers.1.mlp.up")
    other = "A" if side == "b" else "B"
    assert f"only {other} updates this parameter" in first.evidence
