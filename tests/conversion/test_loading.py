"""Weights of a recording that are put into another model."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import probe
from probe.errors import ConversionError, NotRecordedError
from tests.toy import nn
from tests.toy.tensor import Tensor


def nets() -> tuple[nn.Module, nn.Module]:
    nn.manual_seed(1)
    return (
        nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
        nn.Sequential(nn.LinearInOut(4, 4), nn.GammaBetaNorm(4), nn.LinearInOut(4, 3)),
    )


def test_recorded_weights_are_put_into_another_model(tmp_path: Path) -> None:
    a, b = nets()
    with probe.capture(a, tmp_path / "a.h5", task="tensor"):
        a(Tensor(np.ones((2, 4), np.float32)))
    plan = probe.load_matching(b, tmp_path / "a.h5")
    first, norm, last = b
    assert np.array_equal(first.weight.data, list(a)[0].weight.data.T)
    assert np.array_equal(last.weight.data, list(a)[2].weight.data.T)
    assert np.array_equal(norm.gamma.data, list(a)[1].weight.data)
    assert {move.target.name: move.action for move in plan.moves}["0.weight"] == "transpose"
    x = Tensor(np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32))
    assert np.allclose(a(x).data, b(x).data, atol=1e-6)


def test_the_weights_are_those_that_the_first_step_began_with(tmp_path: Path) -> None:
    a, b = nets()
    began = [tensor.data.copy() for tensor in a.parameters()]
    with probe.capture(a, tmp_path / "a.h5", task="tensor", steps=[0, 2]):
        for _ in range(3):
            a(Tensor(np.ones((2, 4), np.float32)))
            for tensor in a.parameters():
                tensor.data += 1
            probe.step()
    probe.load_matching(b, tmp_path / "a.h5")
    assert np.array_equal(list(b)[0].weight.data, began[0].T) and np.array_equal(list(b)[1].gamma.data, began[2])


def test_a_recording_without_values_cannot_be_loaded(tmp_path: Path) -> None:
    a, b = nets()
    with probe.capture(a, tmp_path / "a.h5"):
        a(Tensor(np.ones((2, 4), np.float32)))
    with pytest.raises(NotRecordedError, match='a.h5 holds no values of weights: record the run with task="tensor"'):
        probe.load_matching(b, tmp_path / "a.h5")


def test_a_model_that_does_not_fit_is_left_as_it_was(tmp_path: Path) -> None:
    a, b = nets()
    other = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))
    with probe.capture(other, tmp_path / "a.h5", task="tensor"):
        other(Tensor(np.ones((2, 4), np.float32)))
    before = [tensor.data.copy() for tensor in b.parameters()]
    with pytest.raises(ConversionError, match=r"2.weight is to be \[4, 3\], the source has 2.weight \[2, 4\]"):
        probe.load_matching(b, tmp_path / "a.h5")
    assert all(np.array_equal(x, tensor.data) for x, tensor in zip(before, b.parameters(), strict=True))
