"""Comparisons of next to nothing."""

from __future__ import annotations

from pathlib import Path

import probe
from probe.adapters import numpy_nn as nn
from probe.adapters.numpy_tensor import Tensor
from probe.comparison.result import Verdict
from tests.toys import batch, gpt, record


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
