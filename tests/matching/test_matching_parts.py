"""Several modules or parameters for one, lines that name one of several parts, and parameters with other names or layouts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.curve_comparison.parameters import counterparts
from probe.curve_comparison.reading.series import RecordedModel
from probe.errors import MappingError
from probe.mapping.parsing import parse_mapping
from probe.matching import Bundle, Direction, Matching, View, WeightBundle, match
from probe.matching.automatic.outline import outline
from probe.matching.automatic.partial import with_whole_groups
from probe.numbers.fused import Fusion, fuse, in_blocks, order_of, problem_of, split, whole_shape
from probe.records import ParameterInfo
from probe.structure.tree import Tree
from tests.published.mapped import matched, names, nothing, with_parameters
from tests.published.trees import modules, tree

# ---- Several modules or parameters for one, and parameters with other names or layouts: what matching says of them.

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


# The same, written from the side that has the parts

FROM_APART = "Attn:\n  qkv: {from: [q, k, v], split: {order: [v, q, k]}}\n"


def test_several_of_this_side_are_one_of_the_other() -> None:
    found, other = matched(APART, FUSED, FROM_APART), matched(FUSED, APART, FROM_APART)
    assert found.bundles == (Bundle("A", 2, (4, 2, 3), 1),) and other.bundles == (Bundle("B", 2, (4, 2, 3), 1),)
    assert names(found, APART, FUSED) == {"": "", "attn": "attn", "attn.v": "attn.qkv", "attn.out": "attn.out"}
    assert {(pair.b, pair.a) for pair in other.pairs} == {(pair.a, pair.b) for pair in found.pairs}
    for each in (found, other):
        assert (each.only_a, each.only_b, each.warnings) == ((), (), ())


def test_of_several_of_this_side_one_is_not_there() -> None:
    text = FROM_APART.replace("k, v], split", "kk, v], split").replace("q, k]", "q, kk]")
    found = matched(APART, FUSED, f"{text}  out: out\n", Direction.A_TO_B)
    assert not found.bundles and [APART.path(i) for i in found.only_a] == ["attn.q", "attn.k", "attn.v"]
    assert [FUSED.path(i) for i in found.only_b] == ["attn.qkv"]
    assert found.warnings == (
        "the mapping's line 2: Attn: qkv: {from: [q, kk, v]} is not used for attn: there is no kk; did you mean k?",
    )


def test_several_of_this_side_are_nothing_on_the_other() -> None:
    found = matched(APART, FUSED, f"{FROM_APART.replace('qkv', 'qkw')}  out: out\n", Direction.A_TO_B)
    assert [APART.path(i) for i in found.only_a] == ["attn.q", "attn.k", "attn.v"]
    assert found.warnings == (
        "the mapping's line 2: Attn: qkw: {from: [q, k, v]} leads to nothing on the other side; did you mean qkv?",
    )


def test_the_parts_of_this_side_may_stand_inside_wrappers_and_have_modules_inside() -> None:
    a = tree({"": "Net", "q": "CheckpointWrapper", "q._checkpoint_wrapped_module": "L", "q._checkpoint_wrapped_module.x": "X",
              "k": "OptimizedModule", "k._orig_mod": "L", "k._orig_mod.x": "X"})  # fmt: skip
    b = tree({"": "Net", "qk": "L", "qk.x": "X"})
    found = matched(a, b, {"Net": {"qk": {"from": ["q", "k"]}}})
    assert found.bundles == (Bundle("A", 1, (2, 5), 1),)
    assert names(found, a, b)["q._checkpoint_wrapped_module.x"] == "qk.x"
    assert ([a.path(i) for i in found.only_a], found.only_b) == (["k._orig_mod.x"], ())


def test_numbers_of_several_of_this_side() -> None:
    a = tree({"": "Net", **{f"{name}{n}": "L" for name in "qk" for n in (0, 1)}})
    b = tree({"": "Net", "qk0": "L", "qk1": "L"})
    found = matched(a, b, {"Net": {"qk{i}": {"from": ["q{i}", "k{i}"]}}})
    assert {(b.path(each.whole), *map(a.path, each.parts)) for each in found.bundles} == {
        ("qk0", "q0", "k0"), ("qk1", "q1", "k1"),
    }  # fmt: skip


# Rows in another order


@pytest.mark.parametrize(("here", "side"), [("interleaved", "A"), ("halves", "B")])
def test_the_side_that_turns_neighbours_has_the_part(here: str, side: str) -> None:
    a, b = tree({"": "Net", "wq": "L"}), tree({"": "Net", "q": "L"})
    rules = {"Net": {"wq": {"to": "q", "rotary": {"heads": "n_heads", "here": here}}}}
    for config in ({"n_heads": 2}, {"num_attention_heads": 2}):
        known = with_parameters(a, {"wq.weight": (8, 3)}, config), with_parameters(b, {"q.weight": (8, 3)}, {})
        found, other = matched(*known, rules), matched(*known[::-1], rules)
        assert found.bundles == (Bundle(side, 1, (1,), 1, 2),)
        assert other.bundles == (Bundle("AB"[side == "A"], 1, (1,), 1, 2),)
        assert (found.only_a, found.only_b, found.warnings) == ((), (), ())
    assert matched(a, b, rules).bundles[0].rotary == -1


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
        ({"num_query_groups": 3}, "3 groups do not divide attn.q.weight [8, 4] + attn.k.weight [4, 4] + attn.v.weight [4, 4]"),
    ],
)  # fmt: skip
def test_groups_that_cannot_be(config: Any, message: str) -> None:
    a, b = with_parameters(FUSED, SHAPES_FUSED, config), with_parameters(APART, SHAPES_APART, {})
    with pytest.raises(MappingError, match=f"^m, line 2: Attention: qkv: .*{re.escape(message)}$"):
        matched(a, b, GROUPED)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "neither recording's model_config has num_query_groups"),
        ({"t": {"kv_heads": 2}, "v": {"kv_heads": 4}}, "num_query_groups: the recorded model_config has several: write t.kv_heads "
         "or v.kv_heads"),
    ],
)  # fmt: skip
def test_a_number_that_is_not_recorded_is_left_open(config: Any, why: str) -> None:
    a, b = with_parameters(FUSED, SHAPES_FUSED, config), with_parameters(APART, SHAPES_APART, {})
    (bundle,) = matched(a, b, GROUPED).bundles
    assert (bundle.groups, bundle.missing) == (0, f"m, line 2: Attention: qkv: groups: {why}")


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


FROM = "Listed:\n  params:\n    w: {from: ['{i}.up.weight', '{i}.gate.weight'], transpose: true}\n"


def test_parameters_of_this_side_in_one_of_the_other() -> None:
    a = tree({module.path: "Listed" if module.path == "experts" else module.class_name for module in LISTED.modules})
    shapes = {f"experts.{n}.{name}.weight": (4, 5) for n in (0, 2, 10) for name in ("gate", "up")}
    known_a, known_b = with_parameters(a, shapes), with_parameters(EXPERTS, {"experts.w": (3, 5, 8)})
    parts = tuple(tuple((a.by_path[f"experts.{n}.{name}"], "weight") for name in ("up", "gate")) for n in (0, 2, 10))
    for first, second in ((a, EXPERTS), (known_a, known_b)):
        found, other = matched(first, second, FROM), matched(second, first, FROM)
        assert found.weight_bundles == (WeightBundle("A", (1, "w"), parts, stacked=True),)
        assert other.weight_bundles == (WeightBundle("B", (1, "w"), parts, stacked=True),)
        assert found.views_b == other.views_a == {(1, "w"): View("w", (0, 2, 1))}
        assert found.views_a == other.views_b == {} and found.warnings == ()
    wrong = with_parameters(EXPERTS, {"experts.w": (3, 5, 7)})
    with pytest.raises(
        MappingError, match="^m, line 3: Listed: w: the sizes do not add up: experts.w has 7 along out, its"
    ):
        matched(known_a, wrong, FROM)
    lacking = matched(known_a, with_parameters(EXPERTS, {"experts.v": (3, 5, 8)}), FROM)
    assert lacking.warnings == (
        "the mapping's line 3: Listed: params: w: {from: [{i}.up.weight, {i}.gate.weight]} leads to nothing on the other side "
        "for experts: there is no w",
    )


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
    assert matched(a, b, "MyNorm:\n  params:\n    gama?: weight\n    gamma?: wight\n", Direction.A_TO_B).warnings == ()
    found = matched(a, b, "MyNorm:\n  params:\n    gama: weight\n    gamma: wight\n", Direction.A_TO_B)
    assert found.warnings == (
        "the mapping's line 3: MyNorm: params: gama: weight names no parameter that is there; did you mean gamma?",
        "the mapping's line 4: MyNorm: params: gamma: wight leads to nothing on the other side for norm: there is no wight",
    )


# ---- Lines that name one of several parts for the whole that holds them all.

Shapes = Mapping[str, tuple[int, int]]


def parts(parent: str, **rows: int) -> Shapes:
    return {f"{parent}.{name}": (count, 8) for name, count in rows.items()}


def model(shapes: Shapes) -> RecordedModel:
    around = [".".join(path.split(".")[:n]) for path in shapes for n in range(1, path.count(".") + 1)]
    classes = {"": "Net", **dict.fromkeys(around, "Block"), **dict.fromkeys(shapes, "Linear")}
    index = {path: i for i, path in enumerate(classes)}
    weights = [
        ParameterInfo((f"{p}.weight",), index[p], "weight", shape, "float32", True) for p, shape in shapes.items()
    ]
    return RecordedModel("", modules(classes), weights, {}, frozenset())


def found(a: Shapes, b: Shapes, text: str) -> tuple[Matching, list[str], list[list[str]]]:
    """Return the completed matching, the pairs, and the parts of each bundle, by paths."""
    sides = model(a), model(b)
    trees = [Tree(each.modules) for each in sides]
    made = match(*trees, parse_mapping(text, "m.yaml"), nothing, nothing)
    made = with_whole_groups(made, *(outline(each.modules, each.parameters, "torch") for each in sides))
    pairs = [f"{i} {j}" for i, j in names(made, *trees).items() if "." in i]
    return made, pairs, [[trees["AB".index(each.side)].path(k) for k in each.parts] for each in made.bundles]


GATED = {**parts("l.0.mlp", gate_proj=16, up_proj=16, down_proj=8), **parts("l.1.mlp", gate_proj=16, up_proj=16)}
FUSED_LINES = {**parts("l.0.mlp", linear_fc1=32, down_proj=8), **parts("l.1.mlp", linear_fc1=32)}
BETTER = "linear_fc1: [gate_proj, up_proj]"
BETTER_HERE = "linear_fc1: {from: [gate_proj, up_proj]}"


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(
    ("line", "better"),
    [("linear_fc1: up_proj", BETTER), ("linear_fc1: gate_proj", BETTER), ("up_proj: linear_fc1", BETTER_HERE)],
)
def test_the_group_is_completed_with_the_sibling_that_no_line_names(line: str, better: str, is_turned: bool) -> None:
    sides = (GATED, FUSED_LINES) if is_turned else (FUSED_LINES, GATED)
    made, pairs, bundles = found(*sides, f"Block:\n  {line}\n")
    assert bundles == [[f"l.{i}.mlp.gate_proj", f"l.{i}.mlp.up_proj"] for i in (0, 1)]
    whole, first = "l.1.mlp.linear_fc1", "l.1.mlp.gate_proj"
    assert (f"{first} {whole}" if is_turned else f"{whole} {first}") in pairs
    assert not made.only_a and not made.only_b and not made.part_of_other
    part = "gate_proj" if "gate" in line else "up_proj"
    assert made.warnings == (
        f"line 2 of m.yaml: {part} is one of several parts of l.{{i}}.mlp.linear_fc1 ×2: gate_proj, up_proj together are compared "
        f"with it; write {better}",
    )


def test_of_siblings_of_one_size_their_names_say_which_are_parts() -> None:
    """With as many heads of keys as of queries, the output projection is as large as q, k and v."""
    attention = parts("attn", q_proj=8, k_proj=8, v_proj=8, o_proj=8)
    made, _, bundles = found({"attn.linear_qkv": (24, 8)}, attention, "Block:\n  linear_qkv: v_proj\n")
    assert bundles == [["attn.q_proj", "attn.k_proj", "attn.v_proj"]]
    assert made.warnings[0].endswith("write linear_qkv: [q_proj, k_proj, v_proj]")


@pytest.mark.parametrize(
    "siblings",
    [parts("net", one=16, two=16, three=16), parts("net", one=16, two=8)],
    ids=["two could be the rest", "the rest is not there"],
)
def test_what_cannot_be_told_is_compared_in_what_is_given_alone(siblings: Shapes) -> None:
    made, pairs, bundles = found({"net.whole": (32, 8)}, siblings, "Block:\n  whole: one\n")
    assert not bundles and pairs == ["net.whole net.one"] and len(made.part_of_other) == 1
    assert made.warnings == (
        "line 2 of m.yaml: one is one of several parts of net.whole: only what they are given is compared; name all parts in a list",
    )


@pytest.mark.parametrize(
    "other", [{}, parts("net", two=8), {"net.two": (16, 4)}], ids=["alone", "paired", "other width"]
)
def test_a_layer_of_another_size_is_none_of_several_parts(other: Shapes) -> None:
    """A wider layer without a sibling that could be the rest is a difference."""
    a = {"net.whole": (32, 8), **({"net.two": (8, 8)} if other == parts("net", two=8) else {})}
    made, _, bundles = found(a, {"net.one": (16, 8), **other}, "Block:\n  whole: one\n")
    assert not bundles and not made.part_of_other and not made.warnings


@pytest.mark.parametrize("line", ["linear_fc1: up_proj", "up_proj: linear_fc1"])
def test_norms_of_a_part_are_not_laid_beside_those_of_the_whole(line: str) -> None:
    a, b = model(GATED), model(FUSED_LINES)
    pairs, _ = counterparts(a, b, parse_mapping(f"Block:\n  {line}\n", "m.yaml"), None)
    assert {(each.a, each.b) for each in pairs if "down_proj" not in each.a[0]} == {
        ((f"l.{i}.mlp.gate_proj.weight", f"l.{i}.mlp.up_proj.weight"), (f"l.{i}.mlp.linear_fc1.weight",))
        for i in (0, 1)
    }
    a, b = model(parts("net", one=16, two=16, three=16)), model({"net.whole": (32, 8)})
    assert not counterparts(a, b, parse_mapping("Block:\n  whole: one\n", "m.yaml"), None)[0]


# ---- Several tensors in one.


@st.composite
def fusions(draw: st.DrawFn) -> tuple[list[list[tuple[int, ...]]], Fusion]:
    """Return shapes of parts that fit, and how they lie."""
    ndim = draw(st.integers(1, 4))
    axis, groups = draw(st.integers(0, ndim - 1)), draw(st.integers(1, 4))
    beside = draw(st.lists(st.integers(1, 3), min_size=ndim, max_size=ndim))
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    row = [tuple(groups * size if k == axis else other for k, other in enumerate(beside)) for size in sizes]
    stacked = draw(st.booleans())
    return [row] * (draw(st.integers(1, 3)) if stacked else 1), Fusion(
        axis - ndim * draw(st.integers(0, 1)), groups, stacked
    )


@given(fusions(), st.sampled_from(["float32", "int8", "bool"]))
@settings(max_examples=80, deadline=None)
def test_putting_together_and_taking_apart_are_inverses(made: tuple[Any, Fusion], dtype: str) -> None:
    shapes, fusion = made
    rng = np.random.default_rng(0)
    parts = [[rng.integers(0, 100, shape).astype(dtype) for shape in row] for row in shapes]
    assert problem_of(shapes, fusion) == ""
    whole = fuse(parts, fusion)
    assert whole.shape == whole_shape(shapes, fusion) and whole.dtype == dtype
    again = split(whole, shapes, fusion)
    assert all(
        np.array_equal(x, y) and x.shape == y.shape
        for a, b in zip(parts, again, strict=True)
        for x, y in zip(a, b, strict=True)
    )
    assert np.array_equal(fuse(again, fusion), whole)
    turned = np.asfortranarray(whole)
    assert all(
        np.array_equal(x, y)
        for a, b in zip(parts, split(turned, shapes, fusion), strict=True)
        for x, y in zip(a, b, strict=True)
    )


def test_groups_lie_as_megatron_has_them() -> None:
    """Per group: its query heads, its key, its value."""
    q, k, v = np.arange(8).reshape(4, 2), 10 + np.arange(4).reshape(2, 2), 20 + np.arange(4).reshape(2, 2)
    whole = fuse([[q, k, v]], Fusion(0, 2))
    assert whole.tolist() == [[0, 1], [2, 3], [10, 11], [20, 21], [4, 5], [6, 7], [12, 13], [22, 23]]
    assert fuse([[q.T, k.T, v.T]], Fusion(-1, 2)).T.tolist() == whole.tolist()
    assert fuse([[q, k, v]], Fusion()).tolist() == np.concatenate([q, k, v]).tolist()
    assert fuse([[q, q], [k[[0, 0, 1, 1]], q]], Fusion(stacked=True)).shape == (2, 8, 2)


@pytest.mark.parametrize(("shapes", "fusion", "text"), [
    ([], Fusion(), "there are no parts"),
    ([[(2, 3)], [(2, 3)]], Fusion(), "several rows of parts are not stacked"),
    ([[(2, 3)], [(2, 4)]], Fusion(stacked=True), "[2, 4] and [2, 3] cannot be stacked"),
    ([[(2, 3), (2, 4)]], Fusion(), "[2, 3], [2, 4] are of different sizes beside axis 0"),
    ([[(2, 3), (4, 3)]], Fusion(0, 4), "[2, 3] cannot be divided into 4 groups"),
    ([[(2,), (4,)]], Fusion(1), "[2], [4] do not all have an axis 1"),
    ([[(2, 3), (2, 4)]], Fusion(1), ""),
    ([[()]], Fusion(), ""),
])  # fmt: skip
def test_what_does_not_fit(shapes: Any, fusion: Fusion, text: str) -> None:
    assert problem_of(shapes, fusion) == text


@pytest.mark.parametrize("axis", [0, -1])
def test_rows_that_rotary_embeddings_turn_together(axis: int) -> None:
    """Neighbours in the part are the two halves of a head in the whole."""
    part = np.arange(8) if axis else np.arange(8).reshape(8, 1)
    fusion = Fusion(axis, rotary=2)
    assert problem_of([[part.shape]], fusion) == "" and whole_shape([[part.shape]], fusion) == part.shape
    whole = fuse([[part]], fusion)
    assert whole.ravel().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert np.array_equal(split(whole, [[part.shape]], fusion)[0][0], part)
    assert problem_of([[(6, 1)]], Fusion(0, rotary=2)) == "[6, 1] cannot be divided into 2 heads of two halves"


@pytest.mark.parametrize(
    ("shares", "here", "there"), [((1, 1, 1), 1, 4), ((1, 1, 1), 4, 2), ((4, 1, 1), 2, 1), ((1, 1), 3, 3)]
)
def test_parts_in_other_groups(shares: tuple[int, ...], here: int, there: int) -> None:
    """What is fused in one number of groups is what is fused in another, block by block."""
    parts = [np.arange(12.0 * share * 3).reshape(-1, 3) + 1000 * k for k, share in enumerate(shares)]
    one, other = (fuse([parts], Fusion(0, groups)) for groups in (here, there))
    order = order_of(shares, here, there)
    assert (order == ()) == (here == there)
    fusion = Fusion(order=order)
    np.testing.assert_array_equal(fuse([[one]], fusion), other)
    np.testing.assert_array_equal(split(other, [[one.shape]], fusion)[0][0], one)
    assert not problem_of([[one.shape]], fusion)
    assert not order or problem_of([[(7, 3)]], fusion) == f"[7, 3] cannot be divided into {len(order)} blocks"


def test_an_order_of_rows_in_the_fewest_blocks() -> None:
    assert in_blocks(np.array([4, 5, 0, 1, 2, 3])) == (2, 0, 1)
    assert in_blocks(np.arange(6)) == ()
    assert in_blocks(np.array([1, 0, 2])) == (1, 0, 2)
