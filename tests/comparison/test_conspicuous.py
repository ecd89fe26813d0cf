"""What sticks out though it is no more than noise may be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.answer import Comparison
from probe.comparison.result import Verdict
from tests.toys import gpt, record, replaced

USUAL, LARGE = 5e-8, 8e-7
"""relative errors that a Linear makes in all layers, and that one of them makes"""


def _recorded(path: Path, errors: dict[str, float], task: str = "statistics", layers: int = 4) -> Path:
    model = gpt(layers=layers)
    for name, error in errors.items():
        replaced(model, name, forward=lambda m, x, e=error: _noisy(nn.Linear.forward(m, x), e))
    return record(path, model, task=task)


def _noisy(x: Tensor, error: float) -> Tensor:
    noise = np.random.default_rng(0).normal(size=x.data.shape).astype(np.float32)
    return x * Tensor(1 + np.float32(error) * noise)


def _notes(found: Comparison) -> list[str]:
    return [text for text in found.warnings if "sticks out" in text]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_module_that_is_further_off_than_in_other_layers_is_named(tmp_path: Path, task: str) -> None:
    usual = {f"layers.{k}.mlp.up": USUAL for k in range(4)}
    a = _recorded(tmp_path / "a.h5", {}, task)
    found = probe.compare(a, _recorded(tmp_path / "b.h5", {**usual, "layers.2.mlp.up": LARGE}, task))
    assert found.verdict is Verdict.ALIGNED
    (text,) = _notes(found)
    assert text.startswith(
        "nothing exceeds noise, but the forward output 0 of layers.2.mlp.up sticks out: it is off by "
    )
    assert " in 3 other layers " in text and text.endswith("if the runs part, look there first")
    assert not _notes(probe.compare(a, _recorded(tmp_path / "all.h5", usual, task)))


def test_two_layers_say_nothing_of_what_is_usual(tmp_path: Path) -> None:
    a = _recorded(tmp_path / "a.h5", {}, layers=2)
    found = probe.compare(
        a, _recorded(tmp_path / "b.h5", {"layers.0.mlp.up": USUAL, "layers.1.mlp.up": LARGE}, layers=2)
    )
    assert found.verdict is Verdict.ALIGNED and not _notes(found)


def test_what_exceeds_noise_is_a_finding_and_no_note(tmp_path: Path) -> None:
    a = _recorded(tmp_path / "a.h5", {})
    found = probe.compare(a, _recorded(tmp_path / "b.h5", {"layers.2.mlp.up": 1e-3}))
    assert found.verdict is Verdict.DIVERGED and not _notes(found)
