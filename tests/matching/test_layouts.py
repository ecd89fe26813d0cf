"""The table of canonical layouts, by class, and recordings of two frameworks that pair and compare in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.answer.comparison import Comparison
from probe.answer.result import Kind, Verdict
from probe.numbers.layouts import Layout, class_names, counterpart, layout_of, recorded_kind, state_name, unpacked
from probe.records import ModuleInfo, Phase, Role
from probe.store.reading.reader import Reader
from tests.toy import nn
from tests.toy.tensor import Tensor

# ---- The table of canonical layouts, by class; that its rows are true is proven in ``tests/frameworks``.

ROWS = [
    ("paddle", "Linear", "weight", Layout("weight", (1, 0))),
    ("paddle", "Linear", "bias", Layout("bias")),
    ("paddle", "RowParallelLinear", "weight", Layout("weight", (1, 0))),
    ("paddle", "BatchNorm2D", "_variance", Layout("running_var")),
    ("paddle", "InstanceNorm2D", "scale", Layout("weight")),
    ("paddle", "LayerNorm", "weight", Layout("weight")),
    ("paddle", "Conv2DTranspose", "weight", Layout("weight")),
    ("paddle", "PReLU", "_weight", Layout("weight")),
    ("paddle", "Bilinear", "bias", Layout("bias", unit=(0,))),
    ("paddle", "LSTM", "weight_ih_l0_reverse", Layout("weight_ih_l0_reverse")),
    ("mindspore", "Dense", "weight", Layout("weight")),
    ("mindspore", "BatchNorm1d", "moving_mean", Layout("running_mean")),
    ("mindspore", "LayerNorm", "gamma", Layout("weight")),
    ("mindspore", "GroupNorm", "beta", Layout("bias")),
    ("mindspore", "Embedding", "embedding_table", Layout("weight")),
    ("mindspore", "Conv1d", "weight", Layout("weight", unit=(2,))),
    ("mindspore", "Conv2d", "weight", Layout("weight")),
    ("mindspore", "PReLU", "w", Layout("weight")),
    ("torch", "Linear", "weight", Layout("weight")),
    ("torch", "Conv1D", "weight", Layout("weight", (1, 0))),
    ("torch", "Conv1d", "weight", Layout("weight")),
    ("numpy", "LinearInOut", "weight", Layout("weight", (1, 0))),
]


@pytest.mark.parametrize(("framework", "class_name", "parameter", "layout"), ROWS)
def test_layouts(framework: str, class_name: str, parameter: str, layout: Layout) -> None:
    assert layout_of(framework, (class_name,), parameter) == layout


def test_a_subclass_has_the_layout_of_its_base() -> None:
    names = ("my.models.Projection", "paddle.nn.layer.common.Linear", "paddle.nn.layer.layers.Layer")
    assert layout_of("paddle", names, "weight").axes == (1, 0)


def test_somebody_elses_class_of_the_same_name_is_not_the_frameworks() -> None:
    names = ("my.models.Linear", "paddle.nn.layer.layers.Layer")
    assert layout_of("paddle", names, "weight") == Layout("weight")
    assert unpacked("torch", ("my.MultiheadAttention", "torch.nn.modules.module.Module"), "in_proj_weight") == ()


def test_names_of_classes_are_qualified_and_in_the_order_of_lookup() -> None:
    class Mine(Layout):
        pass

    assert [name.rpartition(".")[2] for name in class_names(Mine)] == ["Mine", "Layout"]
    assert class_names(Mine)[1] == "probe.numbers.layouts.Layout"


FILES = [
    ("torch", "/site-packages/torch/nn/modules/linear.py", "torch.nn.modules.linear.Linear"),
    ("torch", "/site-packages/transformers/pytorch_utils.py", "transformers.pytorch_utils.Linear"),
    ("torch", "/home/me/torch/my_linear.py", "else.Linear"),
    ("torch", "/home/torch/me/nn/linear.py", "else.Linear"),
    ("torch", "", "Linear"),
    ("paddle", "C:\\site-packages\\paddle\\nn\\layer\\common.py", "paddle.nn.layer.common.Linear"),
    ("paddle", "/site-packages/paddle/compat/nn/__init__.py", "paddle.compat.nn.__init__.Linear"),
    ("mindspore", "/site-packages/mindspore/mint/nn/layer/basic.py", "mindspore.mint.nn.layer.basic.Linear"),
]


@pytest.mark.parametrize(("framework", "file", "name"), FILES)
def test_the_source_of_a_class_says_whose_it_is(framework: str, file: str, name: str) -> None:
    kind = recorded_kind(framework, ModuleInfo("fc", "Linear", 0, file))
    assert kind == (name,)
    is_in_out = framework == "paddle" and "compat" not in file
    assert (layout_of(framework, kind, "weight").axes == (1, 0)) is is_in_out


LIKE_TORCH = [
    ("paddle", "paddle.compat.nn.Linear", "Linear", "weight"),
    ("mindspore", "mindspore.nn.layer.basic.Linear", "Linear", "weight"),
    ("mindspore", "mindspore.nn.layer.embedding.EmbeddingExt", "Embedding", "weight"),
    ("mindspore", "mindspore.mint.nn.layer.conv.Conv1d", "Conv1d", "weight"),
    ("mindspore", "mindspore.mint.nn.layer.conv.ConvTranspose2d", "ConvTranspose2d", "weight"),
    ("mindspore", "mindspore.mint.nn.layer.normalization.BatchNorm3d", "BatchNorm3d", "running_mean"),
]


@pytest.mark.parametrize(("framework", "name", "torch", "parameter"), LIKE_TORCH)
def test_some_packages_have_torchs_classes(framework: str, name: str, torch: str, parameter: str) -> None:
    mine = ("my.net.Own", name)
    assert layout_of(framework, mine, parameter) == Layout(parameter)
    assert counterpart(framework, mine, "torch") == torch


def test_packed_attention() -> None:
    weights = ("q_proj.weight", "k_proj.weight", "v_proj.weight")
    for framework in ("torch", "mindspore"):
        assert unpacked(framework, ("MultiheadAttention",), "in_proj_weight") == weights
        assert unpacked(framework, ("MultiheadAttention",), "k_proj_weight") == ("k_proj.weight",)
        assert unpacked(framework, ("MultiheadAttention",), "bias_k") == ()
    assert unpacked("paddle", ("MultiHeadAttention",), "in_proj_weight") == ()
    assert unpacked("paddle", ("paddle.compat.nn.transformer.MultiheadAttention",), "in_proj_weight") == weights
    assert unpacked("paddle", ("else.MultiheadAttention",), "in_proj_weight") == ()
    assert unpacked("torch", ("Linear",), "in_proj_weight") == ()


STATES = [
    ("paddle", "AdamW", "moment1_0", "exp_avg"),
    ("paddle", "paddle.optimizer.adam.Adam", "moment2", "exp_avg_sq"),
    ("paddle", "Adam", "beta1_pow_acc_0", "beta1_pow_acc_0"),
    ("paddle", "Momentum", "velocity_0", "momentum_buffer"),
    ("paddle", "Adadelta", "_avg_squared_grad_0", "square_avg"),
    ("paddle", "Adamax", "inf_norm_0", "exp_inf"),
    ("paddle", "Adagrad", "moment_0", "sum"),
    ("mindspore", "Adam", "moment1", "exp_avg"),
    ("mindspore", "AdamWeightDecay", "adam_v", "exp_avg_sq"),
    ("mindspore", "AdaMax", "moment2", "exp_inf"),
    ("mindspore", "Momentum", "moments", "momentum_buffer"),
    ("mindspore", "SGD", "stat", "stat"),
    ("mindspore", "AdamW", "exp_avg", "exp_avg"),
    ("torch", "AdamW", "exp_avg", "exp_avg"),
    ("paddle", "MyOwn", "moment1_0", "moment1_0"),
]


@pytest.mark.parametrize(("framework", "optimizer", "state", "name"), STATES)
def test_states_of_optimizers(framework: str, optimizer: str, state: str, name: str) -> None:
    assert state_name(framework, optimizer, state) == name


def test_a_momentum_that_holds_the_learning_rate_is_not_torchs() -> None:
    names = [state_name("paddle", "RMSProp", "momentum_0"), state_name("mindspore", "RMSProp", "moment")]
    assert names == ["momentum_buffer_times_lr"] * 2
    assert state_name("torch", "RMSprop", "momentum_buffer") == "momentum_buffer"


# ---- Recordings of two frameworks: parameters and what belongs to them pair, and compare, in the canonical layout.

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
