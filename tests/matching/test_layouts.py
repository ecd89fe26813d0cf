"""The table of canonical layouts, by class; that its rows are true is proven in ``tests/frameworks``."""

from __future__ import annotations

import pytest

from probe.numbers.layouts import Layout, class_names, counterpart, layout_of, recorded_kind, state_name, unpacked
from probe.records import ModuleInfo

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
