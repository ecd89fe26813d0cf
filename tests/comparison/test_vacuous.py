"""Comparisons of next to nothing."""

from __future__ import annotations

from pathlib import Path

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from tests.toys import batch, gpt, plain_step, record


def test_a_mapping_that_leaves_out_everything(tmp_path: Path) -> None:
    """Inputs alone are no comparison, however equal they are."""

    class Silent(nn.Module):
        def forward(self, ids: Tensor) -> None:
            self.gpt(ids)

    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> float:
        model(batch(number))
        return 0.0

    a, b = (record(tmp_path / f"{name}.h5", Silent(gpt=gpt()), step=step) for name in "ab")
    found = probe.compare(a, b, mapping={"ignore": ["*"]})
    assert found.verdict is Verdict.UNDECIDED
    text = "nothing but what the model is given was compared: see what the mapping leaves out, and what was recorded"
    assert text in found.doubts


def test_recordings_of_whole_runs_are_compared_as_curves(tmp_path: Path) -> None:
    def step(model: nn.Module, optimizer: nn.Optimizer, number: int) -> Tensor:
        return plain_step(model, optimizer, number + 1)

    a = record(tmp_path / "a.h5", steps=3, task="norms")
    b = record(tmp_path / "b.h5", steps=3, task="norms", step=step)
    text = "nothing was compared: no pair of tensors with numbers on both sides; "
    holds = "losses and norms over steps (task='norms'): compare two such recordings with probe curves"
    found = probe.compare(a, b)
    assert found.verdict is Verdict.UNDECIDED
    assert found.doubts[1:] == (f"{text}A and B hold {holds}",)
    assert found.doubts[0].startswith("step 0: the loss differs (")
    full = record(tmp_path / "full.h5", steps=3)
    assert probe.compare(full, b).doubts[-1] == f"{text}B holds {holds}"
