"""Tensors of odd shapes and dtypes: whatever they are, the hints say nothing that is not so, and nothing fails."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict

SHAPES = [(), (1,), (2,), (0, 3), (2, 1), (1, 5), (7, 1, 3), (3, 4, 5), (2, 3, 2, 3), (2, 2, 2, 2, 2)]
DTYPES = ["float32", "float64", "float16", "int64", "bool", "complex64"]


class Made(nn.Module):
    """Returns an array that does not depend on what it is given."""

    def __init__(self, array: np.ndarray) -> None:
        super().__init__()
        self.array = array

    def forward(self, x: Tensor) -> Tensor:
        return Tensor(self.array)


class Softmax(Made):
    """Called as a class of which formulas are tried."""


class LayerNorm(Made):
    """The same."""


class RotaryEmbedding(Made):
    """The same."""


KINDS = [Softmax, LayerNorm, RotaryEmbedding]


class Model(nn.Module):
    def __init__(self, made: nn.Module) -> None:
        super().__init__(made=made)

    def forward(self, x: Tensor) -> Tensor:
        self.made(x)
        return x


def record(path: Path, made: nn.Module, given: np.ndarray, task: str) -> Path:
    model = Model(made)
    with probe.capture(model, path, task=task):
        model(Tensor(given))
        probe.step()
    return path


@pytest.mark.parametrize("kind, dtype", [*((Made, dtype) for dtype in DTYPES), *((kind, "float32") for kind in KINDS)])
def test_odd_tensors(kind: type[Made], dtype: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for number, shape in enumerate(SHAPES):
        a, b = (np.asarray(10 * rng.standard_normal(shape)).astype(dtype) for _ in range(2))
        given = np.asarray(rng.standard_normal(shape)).astype("float32")
        for task in ("tensor", "statistics") if (kind, dtype) == (Made, "float32") else ("tensor",):
            folder = tmp_path / f"{number}-{task}"
            folder.mkdir()
            found = probe.compare(
                record(folder / "a.h5", kind(a), given, task), record(folder / "b.h5", kind(b), given, task)
            )
            if a.size > 8 and dtype != "bool":
                assert found.verdict is Verdict.DIVERGED
                assert not any(hint["verified"] for each in found.divergences for hint in each.hints), found.divergences
