"""Lines that name one of several parts for the whole that holds them all."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from probe.curve_comparison.parameters import counterparts
from probe.curve_comparison.reading.series import RecordedModel
from probe.mapping.parsing import parse_mapping
from probe.matching import Matching, match
from probe.matching.automatic.outline import outline
from probe.matching.automatic.partial import with_whole_groups
from probe.records import ParameterInfo
from probe.structure.tree import Tree
from tests.mapped import names, nothing
from tests.trees import modules

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
FUSED = {**parts("l.0.mlp", linear_fc1=32, down_proj=8), **parts("l.1.mlp", linear_fc1=32)}
BETTER = "linear_fc1: [gate_proj, up_proj]"
BETTER_HERE = "linear_fc1: {from: [gate_proj, up_proj]}"


@pytest.mark.parametrize("is_turned", [False, True])
@pytest.mark.parametrize(
    ("line", "better"),
    [("linear_fc1: up_proj", BETTER), ("linear_fc1: gate_proj", BETTER), ("up_proj: linear_fc1", BETTER_HERE)],
)
def test_the_group_is_completed_with_the_sibling_that_no_line_names(line: str, better: str, is_turned: bool) -> None:
    sides = (GATED, FUSED) if is_turned else (FUSED, GATED)
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
    a, b = model(GATED), model(FUSED)
    pairs, _ = counterparts(a, b, parse_mapping(f"Block:\n  {line}\n", "m.yaml"), None)
    assert {(each.a, each.b) for each in pairs if "down_proj" not in each.a[0]} == {
        ((f"l.{i}.mlp.gate_proj.weight", f"l.{i}.mlp.up_proj.weight"), (f"l.{i}.mlp.linear_fc1.weight",))
        for i in (0, 1)
    }
    a, b = model(parts("net", one=16, two=16, three=16)), model({"net.whole": (32, 8)})
    assert not counterparts(a, b, parse_mapping("Block:\n  whole: one\n", "m.yaml"), None)[0]
