"""Recordings of two frameworks: parameters and what belongs to them pair, and compare, in the canonical layout."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Kind, Verdict
from probe.comparison.run import Comparison
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

WIDTH = 6


class Net(nn.Module):
    """A square Linear that is called conv, and a norm."""

    def __init__(self, linear: type[nn.Module], norm: type[nn.Module]) -> None:
        super().__init__(conv=linear(WIDTH, WIDTH), norm=norm(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.conv(x))


class AdamWeightDecay(nn.AdamW):
    """AdamW with the names that MindSpore gives its states."""

    def update(self, p: np.ndarray, g: np.ndarray, group: dict[str, Any], state: dict[str, Any]) -> None:
        theirs = {"exp_avg": "adam_m", "exp_avg_sq": "adam_v"}
        back = {mine: state.pop(name) for mine, name in theirs.items() if name in state}
        state.update(back)
        super().update(p, g, group, state)
        state.update({name: state.pop(mine) for mine, name in theirs.items()})


def first() -> Net:
    """Return the model with torch's names and layouts."""
    rng = np.random.default_rng(3)
    model = Net(nn.Linear, nn.LayerNorm)
    for tensor in model.parameters():
        tensor.data[...] = rng.standard_normal(tensor.shape)
    return model


def second() -> Net:
    """Return the same model with other names and layouts."""
    weights, model = first(), Net(nn.LinearInOut, nn.GammaBetaNorm)
    model.conv.weight.data[...] = weights.conv.weight.data.T
    model.conv.bias.data[...] = weights.conv.bias.data
    model.norm.gamma.data[...] = weights.norm.weight.data
    model.norm.beta.data[...] = weights.norm.bias.data
    return model


@pytest.fixture(params=["statistics", "tensor"])
def compared(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Comparison]:
    """Train both models for two steps and compare their recordings."""

    def train(name: str, model: Net, kind: type[nn.Optimizer], lr: float = 1e-2, decay: float = 0.0) -> Path:
        optimizer = kind(model.parameters(), lr=lr, weight_decay=decay)
        path = tmp_path / name
        with probe.capture(model, path, task=request.param, optimizer=optimizer, steps=[0, 1]):
            for seed in range(2):
                x = np.random.default_rng(seed).standard_normal((3, WIDTH))
                loss = (model(Tensor(x)) * Tensor(x)).sum()
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                probe.step(loss=float(loss.data))
        return path

    def compared(other: Net, **options: float) -> Comparison:
        a, b = train("a.h5", first(), nn.AdamW), train("b.h5", other, AdamWeightDecay, **options)
        with h5py.File(b, "r+") as file:
            file.attrs["framework"] = "mindspore"  # its table has the names of states
        return probe.compare(a, b)

    return compared


def test_every_parameter_gradient_state_and_update_has_its_counterpart(compared: Callable[..., Comparison]) -> None:
    found = compared(second())
    assert (found.verdict, found.warnings) == (Verdict.ALIGNED, ())
    names = {(slot.phase, slot.role, slot.slot_a, slot.slot_b) for slot in found.slots if slot.path_a == "norm"}
    assert {
        (Phase.INIT, Role.PARAM, "weight", "gamma"),
        (Phase.GRADIENT, Role.PARAM_GRAD, "bias", "beta"),
        (Phase.UPDATE, Role.DELTA, "weight", "gamma"),
        (Phase.UPDATE, Role.STATE, "weight.exp_avg_sq", "gamma.adam_v"),
    } <= names
    turned = [slot for slot in found.slots if (slot.path_a, slot.slot_a) == ("conv", "weight")]
    assert {slot.role for slot in turned} == {Role.PARAM, Role.PARAM_GRAD, Role.DELTA}
    assert max(slot.metrics.rel_l2 for slot in turned) < 1e-6
    assert not any(slot.slot_a == "" or slot.slot_b == "" for slot in found.slots)


def test_a_square_weight_that_was_not_transposed_is_named(compared: Callable[..., Comparison]) -> None:
    model = second()
    model.conv.weight.data[...] = model.conv.weight.data.T
    worst = compared(model).first_divergence
    assert worst is not None
    assert (worst.kind, worst.phase, worst.a[0].path, worst.a[0].slot) == (Kind.INIT, Phase.INIT, "conv", "weight")


def test_a_parameter_that_is_frozen_on_one_side_is_named_in_both_names(compared: Callable[..., Comparison]) -> None:
    model = second()
    model.norm.gamma.requires_grad = False
    worst = compared(model).first_divergence
    assert worst is not None
    assert (worst.kind, worst.a[0].path, worst.a[0].slot) == (Kind.MISSING, "norm", "weight")


def test_settings_that_differ_are_found_under_other_names(compared: Callable[..., Comparison]) -> None:
    worst = compared(second(), decay=0.5).first_divergence
    assert worst is not None and worst.phase is Phase.UPDATE
    assert "weight_decay 0.0 against 0.5" in worst.hint or "weight_decay 0.01 against 0.5" in worst.hint


def test_a_file_without_canonical_names_is_read_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with probe.capture(second(), path, task="structure"):
        pass
    with h5py.File(path, "r+") as file:
        rows = file["parameters"][:]
        old = rows[[name for name in rows.dtype.names if name != "canonical"]]
        del file["parameters"]
        kept = np.dtype([(name, rows.dtype[name]) for name in old.dtype.names])
        file.create_dataset("parameters", data=old.astype(kept), dtype=kept, chunks=True)
    with Reader(path) as reader:
        assert [p.canonical_slot for p in reader.parameters] == ["weight", "bias", "gamma", "beta"]
        assert reader.parameters[0].axes == (1, 0)
