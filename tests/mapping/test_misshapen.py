"""Weights that a mapping pairs although their shapes differ: what ``probe map check`` says of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from probe.errors import MappingError
from probe.matching import Direction, WeightBundle
from probe.matching.checks.misshapen import misshapen, reshaped
from probe.structure.tree import Tree
from tests.mapping.test_library import TREES, found_by, sides
from tests.mapping.test_map_commands import Block, Net, Scale, record, run, written
from tests.published.mapped import matched, with_parameters
from tests.published.trees import tree
from tests.toy import nn

PATCHES = tree({"": "Own", "stem": "Linear"}), tree({"": "Net", "proj": "Conv2d"})
TWO = tree({"": "Own", "layers": "List", "layers.0": "Linear", "layers.1": "Linear"})


def said(nets: tuple[Tree, Tree], mine: tuple[int, ...], theirs: tuple[int, ...], text: str) -> list[str]:
    slots = [[f"{module.path}.weight" for i, module in enumerate(net.modules) if not net.children[i]] for net in nets]
    a, b = (
        with_parameters(net, dict.fromkeys(names, shape))
        for net, names, shape in zip(nets, slots, (mine, theirs), strict=True)
    )
    found = matched(a, b, text, Direction.A_TO_B)
    other = matched(b, a, text, Direction.B_TO_A)
    turned = [line.replace("A's", "?").replace("B's", "A's").replace("?", "B's") for line in misshapen(other, b, a)]
    assert turned == misshapen(found, a, b)
    return turned


def test_a_linear_on_patches_for_a_convolution() -> None:
    assert said(PATCHES, (48, 48), (48, 3, 4, 4), "Own: {stem: proj}") == [
        "line 1 of m: A's stem.weight has the shape [48, 48], B's proj.weight [48, 3, 4, 4]: for a Linear on patches write "
        "{to: …, params: {weight: {to: weight, reshape: true, permute: [0, 2, 3, 1]}}} in that line where their channels come "
        "last, no permute where they come first; permute is of the axes of B's"
    ]
    advised = "Own: {stem: {to: proj, params: {weight: {to: weight, reshape: true, permute: [0, 2, 3, 1]}}}}"
    assert not said(PATCHES, (48, 48), (48, 3, 4, 4), advised)


@pytest.mark.parametrize(
    ("mine", "theirs", "advice"),
    [
        ((3, 5), (5, 3), "write {to: …, transpose: true} in that line"),
        ((2, 3, 5), (2, 5, 3), "write {to: …, transpose: true} in that line"),
        ((4, 3, 5), (5, 4, 3), "write {to: …, permute: [2, 0, 1]} in that line, the axes of A's in the order that B's have"),
        ((2, 3, 2), (3, 2, 2), "write {to: …, permute: [1, 0, 2] or [1, 2, 0]} in that line, the axes of A's in the order "
         "that B's have"),
        ((6, 5), (2, 15), "if they are the same elements in another shape, write {to: …, params: {weight: {to: weight, reshape: "
         "true}}} in that line, with permute where the axes of B's are to be put in another order first"),
        ((48, 3, 4, 4), (48, 48), "if they are the same elements in the same order, write {to: …, params: {weight: {to: weight, "
         "reshape: true}}} in that line; if not, the mapping is to be written from the other side, so that permute is of the axes of A's"),
        ((6, 5), (18, 5), "they hold not as many elements; where several of one side lie in one of the other, list them all, "
         "with to or from; else pair other modules, or leave them out with ignore"),
        ((6, 5), (7, 4), "they hold not as many elements; pair other modules, or leave them out with ignore"),
    ],
)  # fmt: skip
def test_what_is_to_be_written(mine: tuple[int, ...], theirs: tuple[int, ...], advice: str) -> None:
    assert said(PATCHES, mine, theirs, "Own: {stem: proj}") == [
        f"line 1 of m: A's stem.weight has the shape {list(mine)}, B's proj.weight {list(theirs)}: {advice}"
    ]


def test_alike_ones_are_said_once_and_those_of_equal_paths_without_a_line() -> None:
    nets = TWO, tree({"": "Net", "blocks": "List", "blocks.0": "Linear", "blocks.1": "Linear"})
    assert said(nets, (3, 5), (5, 3), "Own: {layers: blocks}") == [
        "A's layers.{i}.weight has the shape [3, 5], B's blocks.{i}.weight [5, 3]: write "
        '"{i}": {to: "{i}", transpose: true} (×2)'
    ]


def test_what_the_mapping_turns_the_wrong_way() -> None:
    assert said(PATCHES, (3, 5), (3, 5), "Own: {stem: {to: proj, transpose: true}}") == [
        "line 1 of m: A's stem.weight has the shape [5, 3], B's proj.weight [3, 5]: the axes do not lie as the mapping says "
        "with transpose or permute"
    ]
    assert not said(PATCHES, (3, 5), (5, 3), "Own: {stem: {to: proj, transpose: true}}")


def test_of_another_parameter_than_the_weight_the_line_is_about_it_alone() -> None:
    a, b = (
        with_parameters(net, {f"{net.modules[1].path}.table": shape})
        for net, shape in zip(PATCHES, ((3, 5), (5, 3)), strict=True)
    )
    (text,) = misshapen(matched(a, b, "Own: {stem: proj}", Direction.A_TO_B), a, b)
    assert text.endswith(": write {to: …, params: {table: {to: table, transpose: true}}} in that line")


def test_axes_of_size_1_a_padded_vocabulary_and_parts_of_weights_fit() -> None:
    assert not said(PATCHES, (3, 5), (3, 1, 5), "Own: {stem: proj}")
    embeddings = (
        tree({"": "Own", "words": "Embedding", "head": "Linear"}),
        tree({"": "Net", "embed": "VocabParallelEmbedding", "out": "Linear"}),
    )
    text = "Own: {words: embed, head: out}"
    assert not said(embeddings, (96, 8), (128, 8), text)
    assert len(said((TWO, TWO), (96, 8), (128, 8), "Own: {layers: layers}")) == 1
    a, b = with_parameters(PATCHES[0], {"stem.weight": (4, 8)}), with_parameters(PATCHES[1], {"proj.weight": (8, 8)})
    assert not misshapen(matched(a, b, "Own: {stem: proj}"), a, b, (2, 1))


def test_what_is_sharded_away_has_no_shape() -> None:
    assert not said(PATCHES, (0,), (3, 5), "Own: {stem: proj}")


def test_what_is_read_in_another_shape_is_listed_with_its_direction() -> None:
    a, b = (
        with_parameters(PATCHES[0], {"stem.weight": (48, 48)}),
        with_parameters(PATCHES[1], {"proj.weight": (48, 3, 4, 4)}),
    )
    for permute, says in (
        (", permute: [0, 2, 3, 1]", "permute [0, 2, 3, 1], which gives [48, 4, 4, 3]"),
        ("", "no permute"),
    ):
        text = f"Own: {{stem: proj, params: {{stem.weight: {{to: proj.weight, reshape: true{permute}}}}}}}"
        expected = (
            f"'s stem.weight [48, 48]: the elements of {{}}'s proj.weight [48, 3, 4, 4], in their order after {says}"
        )
        assert reshaped(matched(a, b, text), a, b) == ["A" + expected.format("B")]
        assert reshaped(matched(b, a, text), b, a) == ["B" + expected.format("A")]


@pytest.mark.parametrize("name", TREES)
def test_every_pair_that_the_library_makes_fits(name: str) -> None:
    a, b, _ = sides(name)
    assert misshapen(found_by(name, a, b), a, b) == []


# Several stacked weights for one, and weights in another shape: errors that say which axis, and whose

STACKED = tree({"": "Own", "experts": "Experts"})


def stacked(whole: tuple[int, ...], part: tuple[int, ...], split: str) -> list[WeightBundle]:
    a = with_parameters(STACKED, {"experts.w1": part, "experts.w3": part})
    b = with_parameters(STACKED, {"experts.gate_up_proj": whole})
    return list(matched(a, b, f"Experts: {{params: {{gate_up_proj: {{from: [w1, w3]{split}}}}}}}").weight_bundles)


@pytest.mark.parametrize(
    ("whole", "part", "axis"), [((4, 10, 3), (4, 5, 3), 1), ((4, 3, 10), (4, 3, 5), 2), ((8, 5, 3), (4, 5, 3), 0)]
)
def test_stacked_experts_are_joined_along_the_axis_that_is_said(
    whole: tuple[int, ...], part: tuple[int, ...], axis: int
) -> None:
    expected = [WeightBundle("A", (1, "gate_up_proj"), (((1, "w1"), (1, "w3")),), axis)]
    assert stacked(whole, part, f", split: {{axis: {axis}}}") == expected
    if axis:
        with pytest.raises(
            MappingError,
            match=re.escape(
                f"gate_up_proj: the sizes do not fit: experts.gate_up_proj has {list(whole)}, its parts are experts.w1 "
                f"{list(part)} + experts.w3 {list(part)}; along axis {axis} they add up: write split: {{axis: {axis}}}"
            ) + "$",
        ):  # fmt: skip
            stacked(whole, part, "")
    assert stacked((4, 10, 3), (4, 5, 3), ", split: {axis: in}")[0].axis == 1


@pytest.mark.parametrize(
    ("whole", "part", "split", "message"),
    [
        ((3, 10), (3, 5), "", "the sizes do not fit: experts.gate_up_proj has [3, 10], its parts are experts.w1 [3, 5] + "
         "experts.w3 [3, 5]; along in they add up: write split: {axis: in}"),
        ((4, 11, 3), (4, 5, 3), "", "the sizes do not fit: experts.gate_up_proj has [4, 11, 3], its parts are experts.w1 "
         "[4, 5, 3] + experts.w3 [4, 5, 3]"),
        ((4, 11, 3), (4, 5, 3), ", split: {axis: 1}", "the sizes do not add up: experts.gate_up_proj has 11 along axis 1, its "
         "parts have 10: experts.w1 [4, 5, 3] + experts.w3 [4, 5, 3]"),
        ((4, 10), (4, 5), ", split: {axis: 2}", "the sizes do not fit: experts.gate_up_proj has [4, 10], its parts are "
         "experts.w1 [4, 5] + experts.w3 [4, 5]; along in they add up: write split: {axis: in}"),
    ],
)  # fmt: skip
def test_stacked_experts_that_do_not_fit(
    whole: tuple[int, ...], part: tuple[int, ...], split: str, message: str
) -> None:
    with pytest.raises(MappingError, match=re.escape(message) + "$"):
        stacked(whole, part, split)


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ("reshape: true", "reshape: true"), ("reshape: true, transpose: true", "reshape: true, transpose: true"),
        ("reshape: true, permute: [0, 2, 3, 1]", "reshape: true, permute: [0, 2, 3, 1]"),
    ],
)  # fmt: skip
def test_reshape_of_a_module_says_where_it_belongs(more: str, says: str) -> None:
    line = f"{{to: proj, params: {{weight: {{to: weight, {says}}}}}}}"
    with pytest.raises(
        MappingError,
        match=f"^m, line 1: Own: stem: {re.escape(f'reshape is said of a parameter; expected stem: {line}')}$",
    ):
        said(PATCHES, (48, 48), (48, 3, 4, 4), f"Own: {{stem: {{to: proj, {more}}}}}")
    theirs = (48, 48) if "transpose" in says else (48, 3, 4, 4)
    assert not said(PATCHES, (48, 48), theirs, f"Own: {{stem: {line}}}")


def test_with_reshape_the_axes_are_those_of_the_other_side() -> None:
    text = "Own: {stem: {to: proj, params: {weight: {to: weight, reshape: true, permute: [1, 0]}}}}"
    with pytest.raises(
        MappingError,
        match=re.escape(
            "weight: permute names 2 axes, proj.weight has the shape [48, 3, 4, 4]; with reshape the axes are those of the other "
            "side's parameter"
        ) + "$",
    ):  # fmt: skip
        said(PATCHES, (48, 48), (48, 3, 4, 4), text)


def test_map_check_ends_with_1(tmp_path: Path) -> None:
    def net(name: str, size: int) -> nn.Module:
        return Net("layers", [Block(norm=Scale(size))], **{name: Scale()})

    files = record(tmp_path / "a.h5", net("head", 3)), record(tmp_path / "b.h5", net("top", 1))
    done = run("map", "check", written(tmp_path, "Net: {head: top}"), *files, "--map-direction", "a-to-b")
    lines = done.stdout.splitlines()
    assert lines[lines.index("Weights of which the shapes do not fit") + 1 :] == [
        "  A's layers.0.norm.weight has the shape [3], B's layers.0.norm.weight [1]: they",
        "    hold not as many elements; where several of one side lie in one of the",
        "    other, list them all, with to or from; else pair other modules, or leave",
        "    them out with ignore",
    ]
    assert done.exit_code == 1
