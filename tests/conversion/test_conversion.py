"""Which weight becomes which, and what is said where one fits nowhere; without a framework."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.checkpoints import Stored
from probe.conversion import convert_weights, plan_for
from probe.conversion.structure import Structure, Weight
from probe.errors import ConversionError, MappingError
from probe.numbers.layouts import Layout
from tests.published.structures import ALIASES, LINEAR, PADDLE, TORCH, Modules, as_paddle, equal, state_of, structure


def test_weights_lie_as_the_other_framework_wants_them() -> None:
    state = state_of(TORCH)
    assert equal(convert_weights(state, to="paddle", source=TORCH), as_paddle(state))


def test_both_models_known_gives_the_same_and_every_name_of_a_tied_weight() -> None:
    state = state_of(TORCH)
    found = convert_weights(state, to="paddle", source=TORCH, like=PADDLE)
    aliases = {alias: found.pop(alias) for _, alias in ALIASES}
    assert equal(found, as_paddle(state))
    assert all(np.array_equal(aliases[alias], found[name]) for name, alias in ALIASES)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.float16, np.float64])
@pytest.mark.parametrize("to", ["paddle", "mindspore"])
def test_there_and_back(to: str, dtype: Any) -> None:
    state = state_of(TORCH, dtype=dtype)
    state["bn.num_batches_tracked"] = np.array(0, np.int64)
    there = convert_weights(state, to=to, source=TORCH)
    for sides in ({"source": to, "like": TORCH}, {"source": PADDLE, "like": TORCH}, {"source": PADDLE}):
        if to == "paddle" or sides["source"] == to:
            back = convert_weights(there, to="torch", **sides)
            back.setdefault("bn.num_batches_tracked", state["bn.num_batches_tracked"])
            assert equal(back, state), sides


SHAPES = st.lists(st.integers(1, 4), min_size=2, max_size=2)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["Linear", "Conv2d", "Conv1d", "Embedding", "LayerNorm"]), SHAPES), max_size=6)
)
def test_any_model_there_and_back(layers: list[tuple[str, list[int]]]) -> None:
    modules: Modules = {"": ("Net", {})}
    for number, (kind, (m, n)) in enumerate(layers):
        shape = {"Conv2d": (m, n, 1, 2), "Conv1d": (m, n, 1), "LayerNorm": (m,)}.get(kind, (m, n))
        modules[str(number)] = (kind, {"weight": shape})
    known = structure("torch", modules)
    state = state_of(known)
    for to in ("paddle", "mindspore"):
        there = convert_weights(state, to=to, source=known)
        assert equal(convert_weights(there, to="torch", source=to, like=known), state)


# ---- names ---------------------------------------------------------------------------------------------

ENCODER: Modules = {
    "": ("Bert", {}), "layer": ("ModuleList", {}), "layer.0": ("BertLayer", {}),
    "layer.0.dense": ("Linear", LINEAR), "layer.0.LayerNorm": ("LayerNorm", {"weight": (4,), "bias": (4,)}),
}  # fmt: skip
OTHER: Modules = {
    "": ("Encoder", {}), "blocks": ("LayerList", {}), "blocks.0": ("Block", {}),
    "blocks.0.fc": ("Linear", {"weight": (3, 4), "bias": (4,)}), "blocks.0.norm": ("LayerNorm", {"weight": (4,), "bias": (4,)}),
}  # fmt: skip
MAPPING = {"TopLayer": {"layer": "blocks"}, "BertLayer": {"dense": "fc", "LayerNorm": "norm"}}
BACKWARDS = {"TopLayer": {"blocks": "layer"}, "Block": {"fc": "dense", "norm": "LayerNorm"}}


@pytest.mark.parametrize("mapping", [MAPPING, BACKWARDS])
def test_a_mapping_names_the_modules_from_whichever_side_it_is_written(mapping: dict[str, Any]) -> None:
    a, b = structure("torch", ENCODER), structure("paddle", OTHER)
    state = state_of(a)
    found = convert_weights(state, mapping, to="paddle", source=a, like=b)
    assert set(found) == {"blocks.0.fc.weight", "blocks.0.fc.bias", "blocks.0.norm.weight", "blocks.0.norm.bias"}
    assert np.array_equal(found["blocks.0.fc.weight"], state["layer.0.dense.weight"].T)


def test_a_mapping_is_enough_where_one_side_is_known() -> None:
    a, b = structure("torch", ENCODER), structure("paddle", OTHER)
    state = state_of(a)
    there = convert_weights(state, MAPPING, to="paddle", source=a)
    assert equal(there, convert_weights(state, MAPPING, to="paddle", source=a, like=b))
    assert equal(convert_weights(there, MAPPING, to="torch", source="paddle", like=a), state)
    assert equal(convert_weights(there, BACKWARDS, to="torch", source=b), state)


def test_a_mapping_from_the_side_that_is_not_known_is_refused() -> None:
    a = structure("torch", ENCODER)
    with pytest.raises(MappingError, match="none of its 3 keys names a module of the torch model.*the other side"):
        convert_weights(state_of(a), BACKWARDS, to="paddle", source=a)


def test_gamma_and_beta_of_old_checkpoints() -> None:
    a = structure("torch", ENCODER)
    state = state_of(a)
    old = {name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta"): x for name, x in state.items()}
    assert "layer.0.LayerNorm.gamma" in old
    assert equal(convert_weights(old, to="paddle", source=a), convert_weights(state, to="paddle", source=a))


def test_buffers_that_no_checkpoint_holds_are_not_asked_for_and_may_be_there() -> None:
    known = structure("torch", ENCODER)
    ids = Weight(("ids",), 0, "ids", (1, 5), Layout("ids"), is_persistent=False)
    source = Structure("torch", known.tree, known.kinds, [*known.weights, ids])
    like = structure("paddle", OTHER)
    state = state_of(known)
    options: dict[str, Any] = {"mapping": MAPPING, "to": "paddle", "like": like}
    expected = convert_weights(state, source=known, **options)
    assert equal(convert_weights(state, source=source, **options), expected)
    assert equal(convert_weights({**state, "ids": np.arange(5)[None]}, source=source, **options), expected)
    with pytest.raises(ConversionError, match="ids: in the source, but the paddle model has no place for it"):
        convert_weights({**state, "ids": np.arange(5)[None]}, source=known, **options)


def test_names_without_the_wrapper_that_the_model_was_recorded_in() -> None:
    wrapped = {f"module.{path}".rstrip("."): entry for path, entry in ENCODER.items()}
    a = structure("torch", {"": ("DistributedDataParallel", {}), **wrapped})
    plain = structure("torch", ENCODER)
    state = state_of(plain)
    assert equal(convert_weights(state, to="paddle", source=a), convert_weights(state, to="paddle", source=plain))


TIED_NET: Modules = {
    "": ("Net", {}), "emb": ("Embedding", {"weight": (7, 4)}), "head": ("Linear", {"weight": (7, 4)}),
}  # fmt: skip
TIED = structure("torch", TIED_NET, [("emb.weight", "head.weight")])


def test_tied_weights_lie_as_each_of_their_classes_wants() -> None:
    table = np.arange(28, dtype=np.float32).reshape(7, 4)
    for state in ({"emb.weight": table}, {"emb.weight": table, "head.weight": table}, {"head.weight": table}):
        found = convert_weights(state, to="paddle", source=TIED)
        assert np.array_equal(found["emb.weight"], table) and np.array_equal(found["head.weight"], table.T)
        assert equal(
            convert_weights(found, to="torch", source="paddle", like=TIED), dict.fromkeys(TIED.weights[0].names, table)
        )


def test_a_tied_parameter_of_mindspore_has_one_name() -> None:
    modules: Modules = {
        "": ("Net", {}), "emb": ("Embedding", {"embedding_table": (7, 4)}), "head": ("Dense", {"weight": (7, 4)}),
    }  # fmt: skip
    like = structure("mindspore", modules, [("emb.embedding_table", "head.weight")])
    table = np.arange(28, dtype=np.float32).reshape(7, 4)
    found = convert_weights({"emb.weight": table, "head.weight": table}, to="mindspore", source=TIED, like=like)
    assert equal(found, {"emb.embedding_table": table})
    assert equal(
        convert_weights(found, to="torch", source=like, like=TIED), {"emb.weight": table, "head.weight": table}
    )


def test_tied_weights_that_differ_are_an_error() -> None:
    table = np.ones((7, 4), np.float32)
    with pytest.raises(
        ConversionError, match="emb.weight and head.weight are one tensor in one of the models, but differ"
    ):
        convert_weights({"emb.weight": table, "head.weight": table + 1}, to="paddle", source=TIED)
    with pytest.raises(ConversionError, match="but differ in the source"):
        convert_weights({"emb.weight": table, "head.weight": table.T + 1}, to="torch", source="paddle", like=TIED)


@pytest.mark.parametrize("kind", ["Linear", "MultiheadAttention", "LSTM"])
def test_a_model_that_is_one_layer(kind: str) -> None:
    slots = {
        "Linear": LINEAR, "MultiheadAttention": {"in_proj_weight": (12, 4), "in_proj_bias": (12,)},
        "LSTM": {"weight_ih_l0": (16, 4)},
    }  # fmt: skip
    known = structure("torch", {"": (kind, slots[kind])})
    state = state_of(known)
    there = convert_weights(state, to="paddle", source=known)
    assert ("q_proj.weight" in there) is (kind == "MultiheadAttention")
    assert equal(convert_weights(there, to="torch", source="paddle", like=known), state)


def test_a_batchnorm_that_holds_another_one() -> None:
    statistics = {"gamma": (4,), "beta": (4,), "moving_mean": (4,), "moving_variance": (4,)}
    known = structure("mindspore", {"": ("Net", {}), "bn": ("BatchNorm3d", {}), "bn.bn2d": ("BatchNorm2d", statistics)})
    state = state_of(known)
    there = convert_weights(state, to="torch", source=known)
    assert there.keys() == {"bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"}
    torchs = structure("torch", {"": ("Net", {}), "bn": ("BatchNorm3d", {name[3:]: (4,) for name in there})})
    assert equal(convert_weights(state, to="torch", source=known, like=torchs), there)
    assert equal(convert_weights(there, to="mindspore", source=torchs), state)
    assert equal(convert_weights(there, to="mindspore", source=torchs, like=known), state)


def test_a_packed_weight_that_cannot_be_split_is_misshapen() -> None:
    state = state_of(TORCH)
    state["attn.in_proj_weight"] = np.ones((13, 4), np.float32)
    with pytest.raises(
        ConversionError, match=r"attn.q_proj.weight is to be \[4, 4\], the source has attn.in_proj_weight \[13"
    ):
        convert_weights(state, to="paddle", source=TORCH)


def test_attention_of_other_widths_stays_in_three() -> None:
    modules: Modules = {
        "": ("Net", {}),
        "attn": ("MultiheadAttention", {"q_proj_weight": (8, 8), "k_proj_weight": (8, 4), "v_proj_weight": (8, 6), "in_proj_bias": (24,)}),
        "attn.out_proj": ("Linear", {"weight": (8, 8), "bias": (8,)}),
    }  # fmt: skip
    known = structure("torch", modules)
    state = state_of(known)
    there = convert_weights(state, to="paddle", source=known)
    assert there["attn.k_proj.weight"].shape == (4, 8)
    paddle = structure("paddle", {
        "": ("Net", {}), "attn": ("MultiHeadAttention", {}),
        **{f"attn.{name}": ("Linear", {"weight": there[f"attn.{name}.weight"].shape, "bias": (8,)})
           for name in ("q_proj", "k_proj", "v_proj", "out_proj")},
    })  # fmt: skip
    assert equal(convert_weights(there, to="torch", source=paddle), state)


# ---- what does not fit ---------------------------------------------------------------------------------


def test_missing_extra_and_misshapen_tensors_are_named_together() -> None:
    state = state_of(TORCH)
    state["more.weight"] = state.pop("norm.bias")
    state["conv.weight"] = state["conv.weight"][:3]
    with pytest.raises(ConversionError) as caught:
        convert_weights(state, to="paddle", source=TORCH)
    assert str(caught.value) == (
        "norm.bias: the paddle model has it, the source does not (--allow-missing NAME leaves out what is meant to be)\n"
        "more.weight: in the source, but the paddle model has no place for it (--allow-extra NAME leaves out what is meant "
        "to be)\n"
        "conv.weight is to be [4, 4], the source has conv.weight [3, 4]\n"
        "where these are the same under other names, a layer mapping says so (-lm, mapping=); probe map suggest drafts one"
    )


def test_what_is_allowed_by_name_or_glob_is_left_out() -> None:
    state = state_of(TORCH)
    state["more.weight"] = state.pop("norm.bias")
    options: dict[str, Any] = {"to": "paddle", "source": TORCH}
    found = convert_weights(state, **options, allow_missing=["norm.bias"], allow_extra=["more.*"])
    assert "norm.bias" not in found and "more.weight" not in found and "norm.weight" in found
    with pytest.raises(ConversionError, match="more.weight: in the source"):
        convert_weights(state, **options, allow_missing=["norm.*"], allow_extra=["mo"])


def test_only_the_first_names_of_many_are_listed() -> None:
    with pytest.raises(ConversionError, match=r"conv.weight, conv.bias, .* and \d+ more: the paddle model has them"):
        convert_weights({}, to="paddle", source=TORCH)


def test_a_square_weight_of_a_class_that_nobody_knows_is_not_guessed() -> None:
    known = structure(
        "torch", {"": ("Net", {}), "fc": ("MyLinear", {"weight": (4, 4)}), "n": ("MyNorm", {"weight": (4,)})}
    )
    with pytest.raises(ConversionError) as caught:
        convert_weights(state_of(known), to="paddle", source=known)
    assert "fc.weight: probe does not know whether what MyLinear is in paddle stores it in the same order" in str(
        caught.value
    )
    assert "give both recordings with --from and --like" in str(caught.value)
    like = structure("paddle", {"": ("Net", {}), "fc": ("Linear", {"weight": (4, 4)}), "n": ("Any", {"weight": (4,)})})
    state = state_of(known)
    assert np.array_equal(
        convert_weights(state, to="paddle", source=known, like=like)["fc.weight"], state["fc.weight"].T
    )


def test_without_a_model_it_says_what_it_needs() -> None:
    with pytest.raises(ConversionError, match="names of tensors do not tell the classes of modules"):
        convert_weights(state_of(TORCH), to="paddle", source="torch")
    with pytest.raises(ConversionError, match="nothing tells which framework the weights come from"):
        convert_weights(state_of(TORCH), to="paddle", like=PADDLE)
    with pytest.raises(
        ConversionError, match="--like is a paddle model, and the weights are to be converted to mindspore"
    ):
        convert_weights(state_of(TORCH), to="mindspore", source=TORCH, like=PADDLE)
    with pytest.raises(ConversionError, match="cannot convert to 'jax': expected torch, paddle, mindspore"):
        convert_weights({}, to="jax", source=TORCH)
    with pytest.raises(ConversionError, match="cannot convert to the dtype 'int8'"):
        convert_weights({}, to="paddle", source=TORCH, dtype="int8")
    with pytest.raises(ConversionError, match="w is a list: expected a tensor or an array"):
        convert_weights({"w": [1.0]}, to="paddle", source=TORCH)


def test_only_floating_point_weights_are_cast() -> None:
    state = state_of(TORCH)
    state["bn.num_batches_tracked"] = np.array(3, np.int64)
    found = convert_weights(state, to="mindspore", source=TORCH, dtype="bfloat16")
    assert {x.dtype for x in found.values()} == {np.dtype(ml_dtypes.bfloat16)}
    assert np.array_equal(found["norm.gamma"], state["norm.weight"].astype(ml_dtypes.bfloat16))
    ids = {"emb.weight": np.arange(28).reshape(7, 4)}
    kept = convert_weights({**state, **ids}, to="paddle", source=TORCH, dtype="float16")
    assert kept["emb.weight"].dtype == np.int64 and np.array_equal(kept["emb.weight"], ids["emb.weight"])
    back = convert_weights(found, to="torch", source="mindspore", like=TORCH, dtype="float32")
    assert back["bn.num_batches_tracked"].dtype == np.int64


def test_the_plan_says_what_is_done_to_each() -> None:
    stored = {name: Stored(name, x.dtype, x.shape) for name, x in state_of(TORCH).items()}
    plan = plan_for(stored, to="paddle", source=TORCH, dtype="float16")
    actions = {move.target.name: move.action for move in plan.moves}
    assert actions["conv.weight"] == "transpose, cast to float16"
    assert actions["norm.weight"] == "cast to float16"
    assert actions["attn.k_proj.weight"] == "part 2 of 3, transpose, cast to float16"
    assert [stored.name for stored in plan.left_out] == ["bn.num_batches_tracked"]
    to_mindspore = {move.target.name: move.action for move in plan_for(stored, to="mindspore", source=TORCH).moves}
    assert (to_mindspore["c1.weight"], to_mindspore["attn.in_proj_weight"]) == ("reshape", "")
    theirs = {name: Stored(name, x.dtype, x.shape) for name, x in state_of(PADDLE).items()}
    back = {move.target.name: move.action for move in plan_for(theirs, to="torch", source=PADDLE, like=TORCH).moves}
    assert back["attn.in_proj_weight"] == "concat 3, transpose"
    assert back["bn.num_batches_tracked"] == "made: 0"


# ---- PaddleNLP's own mappings ---------------------------------------------------------------------------


class NameMapping:
    """What ``_get_name_mappings`` lists, as far as probe looks at it."""

    def __init__(self, source_name: str, target_name: str | None = None, action: str | None = None) -> None:
        self.source_name, self.target_name, self.action = source_name, target_name or source_name, action


class LlamaModel:
    @classmethod
    def _get_name_mappings(cls, config: int) -> list[NameMapping]:
        layers = [NameMapping(f"layers.{i}.q.weight", f"llama.{i}.q.weight", "transpose") for i in range(config)]
        return [
            NameMapping("embed.weight", "llama.embed.weight"),
            *layers,
            NameMapping("o", None, "merge_last_two_dim"),
        ]


def test_name_mappings_of_paddlenlp() -> None:
    state = {
        "embed.weight": np.ones((3, 2)),
        "layers.0.q.weight": np.arange(6.0).reshape(2, 3),
        "o": np.ones((2, 3, 4)),
    }
    found = convert_weights(state, LlamaModel, to="paddle", config=1)
    assert {name: x.shape for name, x in found.items()} == {
        "llama.embed.weight": (3, 2),
        "llama.0.q.weight": (3, 2),
        "o": (2, 12),
    }
    assert np.array_equal(found["llama.0.q.weight"], state["layers.0.q.weight"].T)
    assert equal(convert_weights(state, LlamaModel._get_name_mappings(1), to="paddle"), found)
    with pytest.raises(ConversionError, match="llama.1.q.weight: the paddle model has it, the source does not"):
        convert_weights(state, LlamaModel, to="paddle", config=2)
    with pytest.raises(ConversionError, match="embed.weight: in the source, but the paddle model has no place for it"):
        convert_weights(state, LlamaModel._get_name_mappings(1)[1:], to="paddle")
    with pytest.raises(ConversionError, match="o: probe does not know the action 'split'"):
        convert_weights({"o": np.ones(3)}, [NameMapping("o", None, "split")], to="paddle")
    with pytest.raises(ConversionError, match=r"o \[3\] is to be transposed"):
        convert_weights({"o": np.ones(3)}, [NameMapping("o", None, "transpose")], to="paddle")


@pytest.mark.parametrize("given", ["model.safetensors", [1, 2]])
def test_what_is_no_state_dict(given: Any) -> None:
    kind = type(given).__name__
    with pytest.raises(
        ConversionError,
        match=f"takes a state_dict, tensors by name, and got {kind}: files are converted by probe convert",
    ):
        convert_weights(given, to="paddle")
