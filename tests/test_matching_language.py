"""What the lines of a mapping do to two trees: paths, numbers, several for one, parameters, what is left out."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest

from probe.errors import MappingError
from probe.mapping import load_mapping, parse_mapping
from probe.matching import Bundle, Direction, Known, Matching, View, WeightBundle, match
from probe.records import ParameterInfo
from probe.tree import Tree
from tests.trees import tree


def nothing(_: int) -> frozenset[object]:
    return frozenset()


def matched(a: Tree | Known, b: Tree | Known, sections: Any, direction: Direction | None = None) -> Matching:
    mapping = parse_mapping(sections, "m") if isinstance(sections, str) else load_mapping(sections)
    return match(a, b, mapping, nothing, nothing, direction)


def names(found: Matching, a: Tree, b: Tree) -> dict[str, str]:
    return {a.path(pair.a): b.path(pair.b) for pair in found.pairs}


def with_parameters(
    net: Tree, shapes: Mapping[str, tuple[int, ...]], config: Mapping[str, Any] | None = None, **more: Mapping[str, Any]
) -> Known:
    """Give a tree parameters by path; ``more`` has further fields, by name and path."""
    found = []
    for path, shape in shapes.items():
        owner, _, slot = path.rpartition(".")
        fields = {name: values[path] for name, values in more.items() if path in values}
        found.append(ParameterInfo((path,), net.by_path[owner], slot, shape, "float32", True, **fields))
    return Known(net, found, config)


# Sections by path

VLM = tree({
    "": "VLM", **{f"{tower}{rest}": name for tower in ("vision", "text") for rest, name in (
        ("", "Tower"), (".layers", "ModuleList"), (".layers.0", "Layer"), (".layers.0.attention", "Attention"),
        (".layers.1", "Layer"), (".layers.1.attention", "Attention"))},
})  # fmt: skip
OTHER = tree({
    "": "Other", **{f"{tower}{rest}": name for tower, attn in (("vision", "attn"), ("text", "self_attn")) for rest, name in (
        ("", "T"), (".layers", "ModuleList"), (".layers.0", "L"), (f".layers.0.{attn}", "A"),
        (".layers.1", "L"), (f".layers.1.{attn}", "A"))},
})  # fmt: skip
BY_PATH = {
    f"{tower}.layers.{n}.attention": f"{tower}.layers.{n}.{attn}"
    for tower, attn in (("vision", "attn"), ("text", "self_attn")) for n in (0, 1)
}  # fmt: skip


@pytest.mark.parametrize(
    "sections",
    [
        {"vision.**/Layer": {"attention": "attn"}, "text.**/Layer": {"attention": "self_attn"}},
        {"Layer": {"attention": "attn"}, "text.**/Layer": {"attention": "self_attn"}},
        {"text.layers.*": {"attention": "self_attn"}, "**/Layer": {"attention": "attn"}},
        {"/vision.layers.{i}": {"attention": "attn"}, "**.layers.*/Layer": {"attention": "self_attn"}},
        {"/vision": {"layers.{i}.attention": "layers.{i}.attn"}, "/text": {"layers.{n}.attention": "layers.{n}.self_attn"}},
        {"VLM": {"vision.layers.{i}.attention": "vision.layers.{i}.attn", "text.layers.{i}.attention":
                 "text.layers.{i}.self_attn"}},
    ],
)  # fmt: skip
def test_the_same_class_in_two_places(sections: Mapping[str, Mapping[str, str]]) -> None:
    found = matched(VLM, OTHER, sections)
    assert names(found, VLM, OTHER).items() >= BY_PATH.items()
    assert (found.only_a, found.only_b, found.warnings) == ((), (), ())
    other = matched(OTHER, VLM, sections)
    assert {(pair.b, pair.a) for pair in other.pairs} == {(pair.a, pair.b) for pair in found.pairs}
    assert other.direction is not found.direction


def test_a_pattern_floats_unless_it_begins_with_a_slash() -> None:
    a = tree({"": "Net", "text": "T", "text.up": "L", "inner": "I", "inner.text": "T", "inner.text.up": "L"})
    b = tree({"": "Net", "text": "T", "text.w": "L", "inner": "I", "inner.text": "T", "inner.text.w": "L"})
    assert names(matched(a, b, {"text.*": {"x": "y"}, "text": {"x": "y"}, "**.text": {"up": "w"}}), a, b)[
        "inner.text.up"
    ]
    found = matched(a, b, {"/text": {"up": "w"}})
    assert names(found, a, b)["text.up"] == "text.w" and "inner.text.up" not in names(found, a, b)


def test_a_pattern_may_leave_wrappers_out() -> None:
    a = tree({"": "DistributedDataParallel", "module": "Net", "module.text": "T", "module.text.up": "L"})
    b = tree({"": "Net", "text": "T", "text.w": "L"})
    for path in ("/text", "/module.text", "text.**", "/"):
        keys = {"text.up": "text.w"} if path == "/" else {"up": "w"}
        assert names(matched(a, b, {path: keys}), a, b)["module.text.up"] == "text.w", path


def test_two_sections_that_fit_equally_well() -> None:
    text = "text.**/Layer:\n  attention: self_attn\n'**.layers.*/Layer':\n  attention: attn\n"
    message = (
        "m, lines 2 and 4: text.**/Layer and **.layers.*/Layer fit attention equally well and say different things: "
        "name more of the path in one of them"
    )
    with pytest.raises(MappingError, match=f"^{re.escape(message)}$"):
        matched(VLM, OTHER, text)
    same = matched(VLM, OTHER, text.replace(": attn", ": self_attn"), Direction.A_TO_B)
    assert names(same, VLM, OTHER)["text.layers.1.attention"] == "text.layers.1.self_attn"


# Numbers


def test_a_number_leads_to_the_same_number_under_another_name() -> None:
    a = tree({"": "Net", **{f"layers.{n}"[: 6 if n < 0 else None]: "L" for n in (-1, 0, 7, 10)}})
    b = tree({"": "Net", "blocks": "X", **{f"blocks.block{n}": "X" for n in (0, 10, 7)}, "blocks.blockx": "X"})
    found = matched(a, b, {"Net": {"layers": "blocks", "layers.{i}": "blocks.block{i}"}})
    assert names(found, a, b) == {"": "", "layers": "blocks", **{f"layers.{n}": f"blocks.block{n}" for n in (0, 7, 10)}}
    assert matched(b, a, {"Net": {"layers": "blocks", "layers.{i}": "blocks.block{i}"}}).direction is Direction.B_TO_A


def test_what_is_named_goes_before_what_a_number_stands_for() -> None:
    a = tree({"": "Net", "0": "L", "1": "L"})
    b = tree({"": "Net", "h0": "L", "first": "L", "h1": "L"})
    assert names(matched(a, b, {"Net": {"{i}": "h{i}", "0": "first"}}), a, b) == {"": "", "0": "first", "1": "h1"}


# Several for one

FUSED = tree({"": "Net", "attn": "Attention", "attn.qkv": "Linear", "attn.out": "Linear"})
APART = tree(
    {"": "Net", "attn": "Attn", "attn.q": "Linear", "attn.k": "Linear", "attn.v": "Linear", "attn.out": "Linear"}
)
QKV = {"Attention": {"qkv": ["q", "k", "v"]}}


def test_several_modules_are_one() -> None:
    found = matched(FUSED, APART, QKV)
    assert found.bundles == (Bundle("B", 2, (2, 3, 4), 1),)
    assert names(found, FUSED, APART) == {"": "", "attn": "attn", "attn.qkv": "attn.q", "attn.out": "attn.out"}
    assert (found.only_a, found.only_b, found.warnings) == ((), (), ())
    other = matched(APART, FUSED, QKV)
    assert other.bundles == (Bundle("A", 2, (2, 3, 4), 1),)
    assert (other.only_a, other.only_b) == ((), ())


def test_the_part_that_lies_first_is_the_partner() -> None:
    for order in (["v", "q", "k"], [2, 0, 1]):
        found = matched(FUSED, APART, {"Attention": {"qkv": {"to": ["q", "k", "v"], "split": {"order": order}}}})
        assert found.bundles == (Bundle("B", 2, (4, 2, 3), 1),)
        assert names(found, FUSED, APART)["attn.qkv"] == "attn.v"


def test_a_part_that_is_not_there_leaves_all_of_them() -> None:
    b = tree({module.path.replace("attn.k", "attn.kk"): module.class_name for module in APART.modules})
    found = matched(FUSED, b, "Attention:\n  qkv: [q, k, v]\n", Direction.A_TO_B)
    assert not found.bundles and [FUSED.path(i) for i in found.only_a] == ["attn.qkv"]
    assert found.warnings == (
        "the mapping's line 2: Attention: qkv: [q, k, v] leads to nothing on the other side (k); did you mean kk?",
    )


def test_a_part_belongs_to_one_module_only() -> None:
    a = tree({"": "Net", "qkv": "L", "kv": "L"})
    b = tree({"": "Net", "q": "L", "k": "L", "v": "L"})
    with pytest.raises(
        MappingError, match="^m, lines 2 and 3: Net: kv: k is already the counterpart of qkv; where several"
    ):
        matched(a, b, "Net:\n  qkv: [q, k, v]\n  kv: [k, v]\n")
    with pytest.raises(MappingError, match="^m, line 1: Net: qkv: two of the list lead to the same module, q"):
        matched(a, b, "Net: {qkv: [q, module.q]}")


def test_what_has_the_same_name_as_a_part_does_not_get_it() -> None:
    a = tree({"": "Net", "k": "L", "qk": "L"})
    b = tree({"": "Net", "q": "L", "k": "L"})
    found = matched(a, b, {"Net": {"qk": ["q", "k"]}})
    assert names(found, a, b) == {"": "", "qk": "q"}
    assert [a.path(i) for i in found.only_a] == ["k"]


def test_a_whole_inside_a_wrapper() -> None:
    a = tree({"": "Net", "qk": "CheckpointWrapper", "qk._checkpoint_wrapped_module": "L"})
    b = tree({"": "Net", "q": "L", "k": "OptimizedModule", "k._orig_mod": "L"})
    for found, side in (
        (matched(a, b, {"Net": {"qk": ["q", "k"]}}), "B"),
        (matched(b, a, {"Net": {"qk": ["q", "k"]}}), "A"),
    ):
        assert found.bundles == (Bundle(side, 2, (1, 3), 1),)
        assert (found.only_a, found.only_b) == ((), ())


# How they lie: groups and sizes

SHAPES_FUSED = {"attn.qkv.weight": (16, 4), "attn.qkv.bias": (16,), "attn.out.weight": (4, 8)}
SHAPES_APART = {"attn.q.weight": (8, 4), "attn.k.weight": (4, 4), "attn.v.weight": (4, 4), "attn.q.bias": (8,),
                "attn.k.bias": (4,), "attn.v.bias": (4,), "attn.out.weight": (4, 8)}  # fmt: skip
GROUPED = "Attention:\n  qkv: {to: [q, k, v], split: {groups: num_query_groups}}\n"


@pytest.mark.parametrize(
    ("config_a", "config_b"),
    [
        ({"num_query_groups": 2}, {}), ({}, {"num_key_value_heads": 2}), ({"kv_heads": 2}, None),
        ({"multi_query_group_num": 2, "num_query_groups": None}, {}), ({}, {"text_config": {"num_key_value_heads": 2}}),
    ],
)  # fmt: skip
def test_groups_come_from_either_configuration_under_any_of_their_names(config_a: Any, config_b: Any) -> None:
    a, b = with_parameters(FUSED, SHAPES_FUSED, config_a), with_parameters(APART, SHAPES_APART, config_b)
    assert [bundle.groups for bundle in matched(a, b, GROUPED).bundles] == [2]
    assert [bundle.groups for bundle in matched(b, a, GROUPED).bundles] == [2]


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "neither recording's model_config has num_query_groups: write the number, or another key"),
        ({"t": {"kv_heads": 2}, "v": {"kv_heads": 4}}, "num_query_groups: the recorded model_config has several: write "
         "t.kv_heads or v.kv_heads"),
        ({"num_query_groups": 3}, "3 groups do not divide attn.q.weight [8, 4] + attn.k.weight [4, 4] + attn.v.weight [4, 4]"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be(config: Any, message: str) -> None:
    a, b = with_parameters(FUSED, SHAPES_FUSED, config), with_parameters(APART, SHAPES_APART, {})
    with pytest.raises(MappingError, match=f"^m, line 2: Attention: qkv: .*{re.escape(message)}$"):
        matched(a, b, GROUPED)


def test_groups_are_not_known_where_no_configuration_was_handed_over() -> None:
    assert [bundle.groups for bundle in matched(FUSED, APART, GROUPED).bundles] == [0]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"attn.v.weight": (5, 4)}, "the sizes do not add up: attn.qkv.weight has 16 along out, its parts have 17: "
         "attn.q.weight [8, 4] + attn.k.weight [4, 4] + attn.v.weight [5, 4]"),
        ({"attn.v.bias": (3,)}, "the sizes do not add up: attn.qkv.bias has 16 along out, its parts have 15: "
         "attn.q.bias [8] + attn.k.bias [4] + attn.v.bias [3]"),
        ({"attn.v.weight": (4, 5)}, "the sizes do not fit: attn.qkv.weight has [16, 4], its parts are "
         "attn.q.weight [8, 4] + attn.k.weight [4, 4] + attn.v.weight [4, 5]"),
        ({"attn.v.weight": (4,)}, "the sizes do not fit: attn.qkv.weight has [16, 4], its parts are "
         "attn.q.weight [8, 4] + attn.k.weight [4, 4] + attn.v.weight [4]"),
    ],
)  # fmt: skip
def test_sizes_that_do_not_add_up(change: Mapping[str, tuple[int, ...]], message: str) -> None:
    a, b = with_parameters(FUSED, SHAPES_FUSED), with_parameters(APART, {**SHAPES_APART, **change})
    for first, second in ((a, b), (b, a)):
        with pytest.raises(MappingError, match=f"^the mapping, line .*: Attention: qkv: {re.escape(message)}$"):
            matched(first, second, QKV)


def test_sizes_are_those_of_the_canonical_layout() -> None:
    turned = {**SHAPES_FUSED, "attn.qkv.weight": (4, 16)}
    by_class = with_parameters(FUSED, turned, axes={"attn.qkv.weight": (1, 0)})
    apart = with_parameters(APART, SHAPES_APART)
    assert matched(by_class, apart, QKV).views_a == {}
    by_mapping = matched(with_parameters(FUSED, turned), apart, {"Attention": {"qkv": {"to": ["q", "k", "v"],
                                                                                      "transpose": True}}})  # fmt: skip
    assert by_mapping.views_a == {(2, "weight"): View("weight", (1, 0))}


# Parameters

NORM_A, NORM_B = tree({"": "Net", "norm": "MyNorm"}), tree({"": "Net", "norm": "LayerNorm"})


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize(
    "section", ["MyNorm: {params: {gamma: weight}}", "Net: {norm: {to: norm, params: {gamma: weight}}}"]
)
def test_a_parameter_with_another_name(known: bool, section: str) -> None:
    a, b = NORM_A, NORM_B
    if known:
        a, b = (
            with_parameters(a, {"norm.gamma": (4,)}),
            with_parameters(b, {"norm.w": (4,)}, canonical={"norm.w": "weight"}),
        )
    found = matched(a, b, section, Direction.A_TO_B)
    assert (found.views_a, found.views_b, found.warnings) == ({(1, "gamma"): View("weight")}, {}, ())
    other = matched(b, a, section, Direction.B_TO_A)
    assert (other.views_a, other.views_b) == ({}, {(1, "gamma"): View("weight")})


def test_the_names_that_torch_has_count_too() -> None:
    a = with_parameters(NORM_A, {"norm.scale_": (4,)}, canonical={"norm.scale_": "gamma"})
    b = with_parameters(NORM_B, {"norm.w": (4,)}, canonical={"norm.w": "weight"})
    assert matched(a, b, "MyNorm: {params: {gamma: w}}", Direction.A_TO_B).views_a == {(1, "scale_"): View("weight")}


@pytest.mark.parametrize(
    ("section", "axes"),
    [
        ("{to: fc, transpose: true}", (1, 0)),
        ("{to: fc, permute: [1, 0]}", (1, 0)),
        ("{to: fc, params: {weight: {to: weight, transpose: true}}}", (1, 0)),
    ],
)
def test_weights_that_lie_the_other_way(section: str, axes: tuple[int, ...]) -> None:
    net = tree({"": "Net", "fc": "Linear"})
    known = with_parameters(net, {"fc.weight": (4, 6), "fc.bias": (6,)})
    found = matched(known, known, f"Net: {{fc: {section}}}", Direction.A_TO_B)
    assert found.views_a == {(1, "weight"): View("weight", axes)}
    assert matched(net, net, f"Net: {{fc: {section}}}", Direction.A_TO_B).views_a == found.views_a


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("{to: fc, permute: [0, 2, 1]}", "Net: fc: permute names 3 axes, fc.weight has the shape [4, 6]"),
        ("{to: fc, params: {bias: {to: bias, transpose: true}}}", "Net: fc: bias: transpose needs two axes, fc.bias has the "
         "shape [6]"),
    ],
)  # fmt: skip
def test_axes_that_are_not_there(section: str, message: str) -> None:
    known = with_parameters(tree({"": "Net", "fc": "Linear"}), {"fc.weight": (4, 6), "fc.bias": (6,)})
    with pytest.raises(MappingError, match=f"^m, line 1: {re.escape(message)}$"):
        matched(known, known, f"Net: {{fc: {section}}}", Direction.A_TO_B)


EXPERTS = tree({"": "Net", "experts": "Experts"})
LISTED = tree({
    "": "Net", "experts": "ModuleList", **{f"experts.{n}{rest}": name for n in (10, 0, 2) for rest, name in (
        ("", "Expert"), (".gate", "Linear"), (".up", "Linear"), (".down", "Linear"))},
})  # fmt: skip
STACKED = """Experts:
  params:
    gate_up: {to: ["{i}.gate.weight", "{i}.up.weight"]}
    down: {to: ["{i}.down.weight"], transpose: true}
"""


def index(net: Tree, path: str) -> int:
    return net.by_path[path]


def test_experts_in_one_tensor() -> None:
    wanted = tuple(
        tuple((index(LISTED, f"experts.{n}.{name}"), "weight") for name in ("gate", "up")) for n in (0, 2, 10)
    )
    a = with_parameters(EXPERTS, {"experts.gate_up": (3, 8, 5), "experts.down": (3, 4, 5)})
    shapes = {f"experts.{n}.{name}.weight": shape for n in (0, 2, 10) for name, shape in
              (("gate", (4, 5)), ("up", (4, 5)), ("down", (5, 4)))}  # fmt: skip
    b = with_parameters(LISTED, shapes)
    for first, second in ((EXPERTS, LISTED), (a, b)):
        found = matched(first, second, STACKED)
        assert found.weight_bundles[0] == WeightBundle("B", (1, "gate_up"), wanted, stacked=True)
        assert [len(row) for row in found.weight_bundles[1].parts] == [1, 1, 1]
        assert found.views_a == {(1, "down"): View("down", (0, 2, 1))}
        assert found.warnings == ()
    other = matched(b, a, STACKED)
    assert [bundle.side for bundle in other.weight_bundles] == ["A", "A"]
    assert other.views_b == {(1, "down"): View("down", (0, 2, 1))}


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 8, 5), "experts.gate_up has the shape [2, 8, 5], expected 3 first: so many are there"),
        ((3, 9, 5), "the sizes do not add up: experts.gate_up has 9 along out, its parts have 8: "
         "experts.0.gate.weight [4, 5] + experts.0.up.weight [4, 5]"),
    ],
)  # fmt: skip
def test_experts_of_another_size(shape: tuple[int, ...], message: str) -> None:
    a = with_parameters(EXPERTS, {"experts.gate_up": shape})
    b = with_parameters(LISTED, {f"experts.{n}.{name}.weight": (4, 5) for n in (0, 2, 10) for name in ("gate", "up")})
    with pytest.raises(MappingError, match=f"^m, line 3: Experts: gate_up: {re.escape(message)}$"):
        matched(a, b, STACKED, Direction.A_TO_B)


def test_parameters_that_are_packed_and_moved() -> None:
    a, b = tree({"": "Net", "attn": "Packed"}), APART
    section = (
        "Packed:\n  params:\n    in_proj: {to: [q.weight, k.weight, v.weight], split: {order: [2, 1, 0], groups: 2}}\n"
    )
    found = matched(a, b, f"{section}    out_weight: out.weight\n")
    assert found.weight_bundles == (
        WeightBundle("B", (1, "in_proj"), (((4, "weight"), (3, "weight"), (2, "weight")),), 0, 2),
        WeightBundle("B", (1, "out_weight"), (((5, "weight"),),)),
    )


def test_parameters_that_are_not_there() -> None:
    a = with_parameters(tree({"": "Net", "norm": "MyNorm", "x": "MyNorm"}), {"norm.gamma": (4,), "x.gamma": (4,)})
    b = with_parameters(
        tree({"": "Net", "norm": "LayerNorm", "x": "LayerNorm"}), {"norm.weight": (4,), "x.weight": (4,)}
    )
    found = matched(a, b, "MyNorm:\n  params:\n    gama: weight\n    gamma: wight\n", Direction.A_TO_B)
    assert found.warnings == (
        "the mapping's line 3: MyNorm: params: gama: weight names no parameter that is there; did you mean gamma?",
        "the mapping's line 4: MyNorm: params: gamma: wight leads to nothing on the other side for norm: there is no wight",
    )


# What is left out


def test_what_is_ignored_is_neither_paired_nor_left() -> None:
    a = tree(
        {"": "Net", "rope": "Rope", "rope.x": "L", "up": "L", "drop": "Dropout", "more": "L", "more.id": "Identity"}
    )
    b = tree({"": "Net", "rope": "Rope", "up": "L", "id": "Identity", "more": "L"})
    sections = {"ignore": ["rope", "**/Identity", "drop/Dropout"]}
    found = matched(a, b, sections)
    assert [a.path(i) for i in sorted(found.ignored_a)] == ["rope", "rope.x", "drop", "more.id"]
    assert [b.path(i) for i in sorted(found.ignored_b)] == ["rope", "id"]
    assert names(found, a, b) == {"": "", "up": "up", "more": "more"}
    assert (found.only_a, found.only_b, found.warnings) == ((), (), ())
    other = matched(b, a, sections)
    assert (other.ignored_a, other.ignored_b) == (found.ignored_b, found.ignored_a)


def test_what_a_line_names_inside_of_what_is_ignored_is_paired() -> None:
    a = tree({"": "Net", "decoder": "D", "decoder.layers": "L", "decoder.layers.0": "X", "decoder.rest": "X"})
    b = tree({"": "Net", "model": "M", "model.layers": "L", "model.layers.0": "X", "model.rest": "X"})
    sections = {"Net": {"decoder.layers": "model.layers"}, "ignore": ["/decoder", "/model"]}
    for found, first, second in ((matched(a, b, sections), a, b), (matched(b, a, sections), b, a)):
        assert set(map(first.path, found.ignored_a)) == {first.path(1), f"{first.path(1)}.rest"}
        assert len(found.pairs) == 3 and (found.only_a, found.only_b) == ((), ())
        assert second.path(found.pairs[2].b).endswith("layers.0")


def test_ignoring_what_is_not_there_or_everything() -> None:
    a = tree({"": "Net", "up": "L"})
    assert matched(a, a, "ignore:\n- up\n- '**.rop'\n").warnings == (
        "the mapping's line 3: ignore: **.rop fits nothing on either side",
    )
    with pytest.raises(
        MappingError, match="^m, line 2: ignore: /Net leaves out the whole model$|^m, line 2: ignore: \\*\\*/Net"
    ):
        matched(a, a, "ignore:\n- '**/Net'\n")


# What may have been meant


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Atention:\n  qkv: out\n", "the mapping's line 1: Atention: no module is of this class; did you mean Attention?"),
        ("Attention:\n  qvk: q\n", "the mapping's line 2: Attention: qvk: q names nothing that is there; did you mean qkv?"),
        ("Net:\n  atn.qkv: x\n", "the mapping's line 2: Net: atn.qkv: x names nothing that is there; did you mean attn.qkv?"),
        ("Attn:\n  q: qkv\n", "the mapping's line 1: Attn: only B has such modules, and the mapping is read from A"),
        ("'/attn.x':\n  q: qkv\n", "the mapping's line 1: /attn.x: no module is at such a path"),
        ("'/attn.x/Attention':\n  q: qkv\n", "the mapping's line 1: /attn.x/Attention: no module is at such a path"),
    ],
)  # fmt: skip
def test_mistyped_sections_and_keys(text: str, message: str) -> None:
    good = "Attention:\n  out: out\n" if not text.startswith("Attention") else "Net:\n  attn: attn\n"
    found = matched(FUSED, APART, f"{text}{good}", Direction.A_TO_B)
    assert found.warnings == (message,)
    with pytest.raises(MappingError, match=re.escape(message)):
        matched(FUSED, APART, text, Direction.A_TO_B)


def test_a_key_that_others_go_before() -> None:
    found = matched(FUSED, APART, "Attention:\n  out: q\nNet:\n  attn.out: out\n  attn.qkv: attn.q\n", Direction.A_TO_B)
    assert found.warnings[0] == (
        "the mapping's line 2: Attention: out: q is never used: lines with longer keys, or for the path, go before it"
    )


def test_a_section_whose_place_has_no_counterpart_says_where_the_way_ends() -> None:
    a = tree({"": "Net", "decoder": "D", "decoder.block": "B", "decoder.block.attn": "A", "decoder.block.attn.q": "L"})
    b = tree({"": "Net", "model": "M", "model.block": "B", "model.block.attn": "A2", "model.block.attn.w": "L"})
    why = (
        "the mapping's line 2: A: q: w is not used: decoder.block.attn (A) has no counterpart, since decoder has none; a line "
        "decoder: … or decoder.block: … in section TopLayer would say where it is"
    )
    with pytest.raises(MappingError, match=f"^m: none of its 1 keys can be used:\n  {re.escape(why)}$"):
        matched(a, b, "A:\n  q: w\n", Direction.A_TO_B)
    found = matched(a, b, "A:\n  q: w\nTopLayer:\n  decoder: model\n", Direction.A_TO_B)
    assert found.warnings == () and names(found, a, b)["decoder.block.attn.q"] == "model.block.attn.w"
