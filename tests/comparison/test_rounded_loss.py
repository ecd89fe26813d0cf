"""A loss that one side rounds to 16 bits is wrong there; where both do, it is how they train."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.comparison.result import Verdict
from probe.records import Phase
from tests.toys import batch, gpt, loss_of


def record(path: Path, dtype: type | None, factor: float = 1.0) -> Path:
    model = gpt()
    optimizer = nn.AdamW(model.parameters(), lr=1e-3)
    with probe.capture(model, path):
        loss = loss_of(model(batch(0)), batch(0))
        loss.backward()
        optimizer.step()
        value = float(loss.data) * factor
        probe.step(loss=float(dtype(value)) if dtype else value)
    return path


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, "float16"])
@pytest.mark.parametrize("rounded", ["A", "B"])
def test_one_side_alone(tmp_path: Path, dtype: object, rounded: str) -> None:
    kind = np.dtype(dtype).type
    a, b = (record(tmp_path / f"{side}.h5", kind if side == rounded else None) for side in "AB")
    first = probe.compare(a, b).first_divergence
    assert first is not None and first.phase is Phase.LOSS
    assert f"{rounded}'s has no more digits than a 16-bit number" in first.evidence
    assert first.hint == "look at the dtype in which the loss is computed and averaged"


def test_both_sides(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", ml_dtypes.bfloat16)
    b = record(tmp_path / "b.h5", ml_dtypes.bfloat16, 1 + 2.0**-9)
    assert probe.compare(a, b).verdict is Verdict.ALIGNED
