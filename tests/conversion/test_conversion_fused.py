"""Weights that lie in one on one side and apart on the other, converted as a mapping says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import probe
from probe.conversion import plan_for
from probe.conversion.structure import Structure
from probe.errors import ConversionError, MappingError
from probe.numbers import fused
from probe.numbers.fused import Fusion
from tests.published.structures import Arrays, Modules, state_of, structure

HEADS, WIDTH, FFN, EXPERTS = 4, 8, 6, 3
WHOLE: Modules = {
    "": ("GPT", {}),
    "attn": ("SelfAttention", {}),
    "attn.qkv": ("Linear", {"weight": (16, 8), "bias": (16,)}),
    "attn.proj": ("Linear", {"weight": (8, 8)}),
    "mlp": ("MLP", {}),
    "mlp.fc1": ("Linear", {"weight": (12, 8)}),
    "mlp.fc2": ("Linear", {"weight": (8, 6)}),
    "experts": ("Experts", {"gate_up": (3, 12, 8), "down": (3, 6, 8)}),
    "norm": ("OwnNorm", {"scale": (8,)}),
}
PARTS: Modules = {
    "": ("Llama", {}),
    "self_attn": ("Attention", {}),
    **{f"self_attn.{part}": ("Linear", {"weight": (size, 8), "bias": (size,)}) for part, size in (("q", 8), ("k", 4), ("v", 4))},
    "self_attn.o": ("Linear", {"weight": (8, 8)}),
    "mlp": ("LlamaMLP", {}),
    "mlp.gate": ("Linear", {"weight": (6, 8)}),
    "mlp.up": ("Linear", {"weight": (6, 8)}),
    "mlp.down": ("Linear", {"weight": (8, 6)}),
    "experts": ("ModuleList", {}),
    **{key: value for i in range(3) for key, value in {
        f"experts.{i}": ("LlamaMLP", {}),
        f"experts.{i}.gate": ("Linear", {"weight": (6, 8)}),
        f"experts.{i}.up": ("Linear", {"weight": (6, 8)}),
        f"experts.{i}.down": ("Linear", {"weight": (8, 6)}),
    }.items()},
    "norm": ("LayerNorm", {"weight": (8,)}),
}  # fmt: skip


def mapping(groups: int | str = 2) -> dict[str, Any]:
    return {
        "GPT": {"attn": "self_attn"},
        "SelfAttention": {"qkv": {"to": ["q", "k", "v"], "split": {"groups": groups}}, "proj": "o"},
        "MLP": {"fc1": ["gate", "up"], "fc2": "down"},
        "Experts": {"params": {
            "gate_up": {"to": ["{i}.gate.weight", "{i}.up.weight"]},
            "down": {"to": ["{i}.down.weight"], "transpose": True},
        }},
        "OwnNorm": {"params": {"scale": "weight"}},
    }  # fmt: skip


def from_parts(groups: int) -> dict[str, Any]:
    """Return the same, written from the model with the parts."""
    return {
        "Llama": {"self_attn": "attn"},
        "Attention": {"qkv": {"from": ["q", "k", "v"], "split": {"groups": groups}}, "o": "proj"},
        "/mlp": {"fc1": {"from": ["gate", "up"]}, "down": "fc2"},
        "/experts": {"params": {
            "gate_up": {"from": ["{i}.gate.weight", "{i}.up.weight"]},
            "down": {"from": ["{i}.down.weight"], "transpose": True},
        }},
        "LayerNorm": {"params": {"weight": "scale"}},
    }  # fmt: skip


def in_framework(framework: str, modules: Modules) -> Structure:
    """Return a structure whose Linear weights lie as the framework's."""
    turn = framework == "paddle"
    rows = {
        path: (kind, {slot: shape[::-1] if turn and kind == "Linear" and len(shape) == 2 else shape for slot, shape in slots.items()})
        for path, (kind, slots) in modules.items()
    }  # fmt: skip
    return structure(framework, rows)


def parts_of(whole: Arrays, groups: int) -> Arrays:
    """Return what the weights of the model with the wholes are in the other one, worked out by hand."""
    found = {
        "self_attn.o.weight": whole["attn.proj.weight"],
        "mlp.down.weight": whole["mlp.fc2.weight"],
        "norm.weight": whole["norm.scale"],
    }
    for slot in ("weight", "bias"):
        rows = whole[f"attn.qkv.{slot}"].reshape(groups, 16 // groups, -1)
        start = 0
        for part, size in (("q", 8), ("k", 4), ("v", 4)):
            stop = start + size // groups
            found[f"self_attn.{part}.{slot}"] = rows[:, start:stop].reshape((size, 8) if slot == "weight" else (size,))
            start = stop
    found["mlp.gate.weight"], found["mlp.up.weight"] = whole["mlp.fc1.weight"][:6], whole["mlp.fc1.weight"][6:]
    for i in range(3):
        found[f"experts.{i}.gate.weight"] = whole["experts.gate_up"][i, :6]
        found[f"experts.{i}.up.weight"] = whole["experts.gate_up"][i, 6:]
        found[f"experts.{i}.down.weight"] = whole["experts.down"][i].T
    return found


def same(a: Arrays, b: Arrays) -> bool:
    return a.keys() == b.keys() and all(
        a[name].dtype == b[name].dtype and a[name].shape == b[name].shape and a[name].tobytes() == b[name].tobytes()
        for name in a
    )


@pytest.mark.parametrize("to", ["torch", "paddle"])
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_there_and_back_bit_for_bit(to: str, groups: int, dtype: Any) -> None:
    source, target = in_framework("torch", WHOLE), in_framework(to, PARTS)
    state = state_of(source, dtype=dtype)
    there = probe.convert_weights(state, mapping(groups), to=to, source=source, like=target)
    wanted = parts_of(state, groups)
    turned = {
        name: np.ascontiguousarray(w.T) if to == "paddle" and w.ndim == 2 else np.ascontiguousarray(w)
        for name, w in wanted.items()
    }
    assert same({name: np.ascontiguousarray(w) for name, w in there.items()}, turned)
    back = probe.convert_weights(there, mapping(groups), to="torch", source=target, like=source)
    assert same({name: np.ascontiguousarray(w) for name, w in back.items()}, state)


@pytest.mark.parametrize("to", ["torch", "paddle"])
def test_a_file_that_is_written_from_the_parts_does_the_same(to: str) -> None:
    source, target = in_framework("torch", WHOLE), in_framework(to, PARTS)
    state = state_of(source)
    there = probe.convert_weights(state, mapping(), to=to, source=source, like=target)
    assert same(probe.convert_weights(state, from_parts(2), to=to, source=source, like=target), there)
    back = probe.convert_weights(there, from_parts(2), to="torch", source=target, like=source)
    assert same({name: np.ascontiguousarray(w) for name, w in back.items()}, state)


def test_experts_that_are_numbered_parameters() -> None:
    """Transformer Engine's grouped linear has weight0, weight1 … in one module."""
    grouped: Modules = {
        "": ("GPT", {}), "experts": ("TEGroupedMLP", {}),
        "experts.linear_fc1": ("TEColumnParallelGroupedLinear", {f"weight{i}": (4, 3) for i in (10, *range(10))}),
    }  # fmt: skip
    stacked: Modules = {"": ("Mixtral", {}), "experts": ("MixtralExperts", {"gate_up_proj": (11, 4, 3)})}
    rules = {"TEGroupedMLP": {"params": {"gate_up_proj": {"from": ["linear_fc1.weight{i}"]}}}}
    source, target = in_framework("torch", grouped), in_framework("torch", stacked)
    state = state_of(source)
    there = probe.convert_weights(state, rules, to="torch", source=source, like=target)
    wanted = np.stack([state[f"experts.linear_fc1.weight{i}"] for i in range(11)])
    assert np.array_equal(there["experts.gate_up_proj"], wanted)
    back = probe.convert_weights(there, rules, to="torch", source=target, like=source)
    assert same({name: np.ascontiguousarray(w) for name, w in back.items()}, state)


def test_experts_in_two_matrices() -> None:
    """Megatron's GroupedMLP reads its weights as [experts, in, out]."""
    grouped: Modules = {"": ("GPT", {}), "experts": ("GroupedMLP", {"weight1": (3, 20), "weight2": (10, 3)})}
    stacked: Modules = {
        "": ("Mixtral", {}),
        "experts": ("MixtralExperts", {"gate_up_proj": (5, 4, 3), "down_proj": (5, 3, 2)}),
    }
    rules = {"GroupedMLP": {"params": {
        "weight1": {"to": "gate_up_proj", "reshape": True, "transpose": True},
        "weight2": {"to": "down_proj", "reshape": True, "transpose": True},
    }}}  # fmt: skip
    source, target = in_framework("torch", grouped), in_framework("torch", stacked)
    state = state_of(source)
    there = probe.convert_weights(state, rules, to="torch", source=source, like=target)
    for mine, theirs, shape in (("weight1", "gate_up_proj", (5, 3, 4)), ("weight2", "down_proj", (5, 2, 3))):
        assert np.array_equal(there[f"experts.{theirs}"], state[f"experts.{mine}"].reshape(shape).swapaxes(1, 2))
    back = probe.convert_weights(there, rules, to="torch", source=target, like=source)
    assert same({name: np.ascontiguousarray(w) for name, w in back.items()}, state)
    with pytest.raises(
        MappingError, match=r"weight1: the sizes do not fit: experts.weight1 has the shape \[3, 20\], experts.gate_up"
    ):
        other = in_framework("torch", {**stacked, "experts": ("MixtralExperts", {"gate_up_proj": (5, 4, 2)})})
        probe.convert_weights(state, rules, to="torch", source=source, like=other)


def test_the_plan_says_what_is_done() -> None:
    source, target = in_framework("torch", WHOLE), in_framework("paddle", PARTS)

    def actions(here: Structure, there: Structure, to: str) -> dict[str, str]:
        from probe.checkpoints import Stored

        stored = {w.names[0]: Stored(w.names[0], np.dtype("f4"), w.shape) for w in here.weights}
        return {
            move.target.name: move.action for move in plan_for(stored, mapping(), to=to, source=here, like=there).moves
        }

    forth, back = actions(source, target, "paddle"), actions(target, source, "torch")
    assert forth["self_attn.k.weight"] == "part 2 of 3, in 2 groups, transpose"
    assert forth["mlp.up.weight"] == "part 2 of 2, transpose"
    assert forth["experts.2.up.weight"] == "index 2, part 2 of 2, transpose"
    assert forth["norm.weight"] == ""
    assert back["attn.qkv.weight"] == "concat 3, in 2 groups, transpose"
    assert back["attn.qkv.bias"] == "concat 3, in 2 groups"
    assert back["experts.gate_up"] == "stack 3, concat 2, transpose"


def test_a_checkpoint_is_converted_file_by_file(tmp_path: Path) -> None:
    from probe.checkpoints import Stored, open_checkpoint, write_checkpoint

    source, target = in_framework("torch", WHOLE), in_framework("torch", PARTS)
    state = state_of(source)
    folder = tmp_path / "whole"
    folder.mkdir()
    stored = [Stored(name, value.dtype, value.shape) for name, value in state.items()]
    write_checkpoint(folder, ".safetensors", [stored[:3], stored[3:]], state.__getitem__, "torch")
    goal, _ = probe.conversion.convert_checkpoint(
        folder, tmp_path / "parts", mapping(), to="torch", model=source, like=target
    )
    again, _ = probe.conversion.convert_checkpoint(
        goal, tmp_path / "back", mapping(), to="torch", model=target, like=source
    )
    checkpoint = open_checkpoint(again)
    assert same({name: np.array(checkpoint.read(name)) for name in checkpoint.tensors}, state)


def test_a_part_that_is_missing_is_an_error() -> None:
    source, target = in_framework("torch", PARTS), in_framework("torch", WHOLE)
    state = state_of(source)
    del state["self_attn.k.weight"]
    with pytest.raises(ConversionError, match=r"attn.qkv.weight: the torch model has it, the source does not"):
        probe.convert_weights(state, mapping(), to="torch", source=source, like=target)


def test_a_part_of_another_size_is_an_error() -> None:
    source, target = in_framework("torch", PARTS), in_framework("torch", WHOLE)
    state = {**state_of(source), "mlp.up.weight": np.zeros((5, 8), np.float32)}
    message = r"mlp.fc1.weight is to be \[12, 8\], the source has mlp.gate.weight \[6, 8\] \+ mlp.up.weight \[5, 8\]"
    with pytest.raises(ConversionError, match=message):
        probe.convert_weights(state, mapping(), to="torch", source=source, like=target)


def test_groups_from_a_configuration_that_is_not_known() -> None:
    source, target = in_framework("torch", WHOLE), in_framework("torch", PARTS)
    message = (
        r"attn.qkv.weight: in how many groups its parts lie stands in the model's configuration, which is not known"
    )
    with pytest.raises(ConversionError, match=message):
        probe.convert_weights(state_of(source), mapping("num_query_groups"), to="torch", source=source, like=target)


def test_a_size_that_no_split_makes_is_an_error_of_the_mapping() -> None:
    source, target = in_framework("torch", WHOLE), in_framework("torch", PARTS)
    with pytest.raises(MappingError, match="3 groups do not divide"):
        probe.convert_weights(state_of(source), mapping(3), to="torch", source=source, like=target)


@pytest.mark.parametrize(("modules", "rules"), [(WHOLE, mapping()), (PARTS, from_parts(2))])
def test_one_model_alone_does_not_tell_how_weights_lie(modules: Modules, rules: dict[str, Any]) -> None:
    source = in_framework("torch", modules)
    message = (
        r"how weights lie can only be told from both models, and the torch one alone is known: give both recordings"
    )
    with pytest.raises(ConversionError, match=message):
        probe.convert_weights(state_of(source), rules, to="paddle", source=source)


def test_modules_that_the_mapping_leaves_out() -> None:
    extra: Modules = {"extra": ("Linear", {"weight": (2, 2)})}
    source, target = (
        in_framework("torch", {**WHOLE, **extra}),
        in_framework("torch", {**PARTS, "more": ("Linear", {"weight": (2, 2)})}),
    )
    rules = {**mapping(), "ignore": ["extra", "more"]}
    there = probe.convert_weights(state_of(source), rules, to="torch", source=source, like=target)
    assert not any(name.startswith(("extra", "more")) for name in there)


def test_the_parts_by_hand_are_those_of_the_other_module() -> None:
    """`parts_of` and `probe.numbers.fused` were written apart; they must say the same."""
    state = state_of(in_framework("torch", WHOLE))
    found = parts_of(state, 2)
    rows = [[found[f"self_attn.{part}.weight"] for part in "qkv"]]
    assert np.array_equal(fused.fuse(rows, Fusion(0, 2)), state["attn.qkv.weight"])


# ---- axes of size 1, and parts in another order ------------------------------------------------------------

CONV: Modules = {
    "": ("Net", {}),
    "attn": ("AttentionBlock", {}),
    "attn.qkv": ("Conv1d", {"weight": (24, 8, 1), "bias": (24,)}),
}
LINEARS: Modules = {
    "": ("Net", {}), "attn": ("Attention", {}),
    **{f"attn.to_{part}": ("Linear", {"weight": (8, 8), "bias": (8,)}) for part in "qkv"},
}  # fmt: skip


@pytest.mark.parametrize("size", [(1,), (1, 1)])
@pytest.mark.parametrize("to", ["torch", "paddle"])
@pytest.mark.parametrize("is_reversed", [False, True])
def test_a_convolution_of_size_1_is_several_linears(size: tuple[int, ...], to: str, is_reversed: bool) -> None:
    whole = structure("torch", {**CONV, "attn.qkv": (f"Conv{len(size)}d", {"weight": (24, 8, *size), "bias": (24,)})})
    parts = in_framework(to, LINEARS)
    split: dict[str, Any] = {"split": {"groups": 2}}  # head by head, as in guided diffusion
    rows = ["to_q", "to_k", "to_v"]
    line = {"from": rows, **split} if is_reversed else {"to": rows, **split}
    lines = {"Attention" if is_reversed else "AttentionBlock": {"qkv": line}}
    state = state_of(whole)
    there = probe.convert_weights(state, lines, to=to, source=whole, like=parts)
    heads = state["attn.qkv.weight"].reshape(2, 3, 4, 8)
    assert np.array_equal(
        there["attn.to_k.weight"] if to == "torch" else there["attn.to_k.weight"].T, heads[:, 1].reshape(8, 8)
    )
    back = probe.convert_weights(there, lines, to="torch", source=parts, like=whole)
    assert {name: array.tobytes() for name, array in back.items()} == {name: x.tobytes() for name, x in state.items()}
    assert back["attn.qkv.weight"].shape == (24, 8, *size)


@pytest.mark.parametrize("split", [{"order": [1, 0]}, {"parts": [4, 1, 1], "order": [2, 0, 1]},
                                   {"parts": 2, "groups": {"here": 1, "there": 3}, "order": [1, 0]}])  # fmt: skip
def test_parts_in_another_order_there_and_back(split: dict[str, Any]) -> None:
    modules: Modules = {"": ("Net", {}), "linear": ("Linear", {"weight": (12, 4), "bias": (12,)})}
    here, there = (structure("torch", modules) for _ in range(2))
    state = state_of(here)
    lines = {"TopLayer": {"linear": {"to": "linear", "split": split}}}
    made = probe.convert_weights(state, lines, to="torch", source=here, like=there, direction="a-to-b")
    sizes = split.get("parts", 2)
    bounds = np.cumsum([0, *([12 // sizes] * sizes if isinstance(sizes, int) else [2 * size for size in sizes])])
    parts = [np.arange(start, stop) for start, stop in zip(bounds, bounds[1:], strict=False)]
    groups = split.get("groups", {"there": 1})["there"]
    rows = np.concatenate([parts[number].reshape(groups, -1) for number in split["order"]], axis=1).reshape(-1)
    assert np.array_equal(made["linear.weight"], state["linear.weight"][rows])
    assert np.array_equal(made["linear.bias"], state["linear.bias"][rows])
    back = probe.convert_weights(made, lines, to="torch", source=there, like=here, direction="b-to-a")
    assert all(np.array_equal(back[name], state[name]) for name in state)


def test_exchanged_columns() -> None:
    known = structure("torch", {"": ("Net", {}), "fc": ("Linear", {"weight": (3, 8)})})
    lines = {
        "TopLayer": {
            "fc": {"to": "fc", "params": {"weight": {"to": "weight", "split": {"order": [1, 0], "axis": "in"}}}}
        }
    }
    state = state_of(known)
    made = probe.convert_weights(state, lines, to="torch", source=known, like=known)
    assert np.array_equal(made["fc.weight"], np.roll(state["fc.weight"], 4, axis=1))
