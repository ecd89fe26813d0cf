"""What the lines of a mapping do to two trees: paths, numbers, what is left out, and what they may have meant."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping

import pytest

from probe.errors import MappingError
from probe.matching import Direction
from tests.published.mapped import matched, names
from tests.published.trees import tree

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


def test_a_section_inside_of_what_a_long_key_passes_is_not_asked() -> None:
    a = tree({"": "Net", "mlp": "MLP", "mlp.up": "Up", "mlp.up.w": "L"})
    b = tree({"": "Net", "mlp": "MLP", "mlp.z": "L", "y": "Up", "y.w": "L"})
    found = matched(a, b, {"Net": {"mlp.up": "y"}, "MLP": {"up.w": "z"}}, Direction.A_TO_B)
    assert names(found, a, b)["mlp.up.w"] == "y.w"


# Numbers


def test_a_number_leads_to_the_same_number_under_another_name() -> None:
    a = tree({"": "Net", **{f"layers.{n}"[: 6 if n < 0 else None]: "L" for n in (-1, 0, 7, 10)}})
    b = tree({"": "Net", "blocks": "X", **{f"blocks.block{n}": "X" for n in (0, 10, 7)}, "blocks.blockx": "X"})
    found = matched(a, b, {"Net": {"layers": "blocks", "layers.{i}": "blocks.block{i}"}})
    assert names(found, a, b) == {"": "", "layers": "blocks", **{f"layers.{n}": f"blocks.block{n}" for n in (0, 7, 10)}}
    assert matched(b, a, {"Net": {"layers": "blocks", "layers.{i}": "blocks.block{i}"}}).direction is Direction.B_TO_A


@pytest.mark.parametrize(
    ("sections", "direction", "back"),
    [
        ({"TopLayer": {"layers": "h", "layers.{i}": "h.{2*i+1}"}}, Direction.A_TO_B, Direction.B_TO_A),
        ({"TopLayer": {"h": "layers", "h.{2*i+1}": "layers.{i}"}}, Direction.B_TO_A, Direction.A_TO_B),
    ],
)
def test_layer_i_is_every_second_of_the_other_whichever_side_says_it(
    sections: Mapping[str, Mapping[str, str]], direction: Direction, back: Direction
) -> None:
    a = tree({"": "Net", "layers": "List", **{f"layers.{n}": "L" for n in range(4)}})
    b = tree({"": "Net", "h": "List", **{f"h.{n}": "X" for n in range(9)}, "h.11": "X"})
    found, other = matched(a, b, sections, direction), matched(b, a, sections, back)
    assert names(found, a, b) == {"": "", "layers": "h", **{f"layers.{n}": f"h.{2 * n + 1}" for n in range(4)}}
    assert {(pair.b, pair.a) for pair in other.pairs} == {(pair.a, pair.b) for pair in found.pairs}
    assert [b.path(i) for i in found.only_b] == ["h.0", "h.2", "h.4", "h.6", "h.8", "h.11"]


def test_what_a_remainder_leaves_has_no_partner_of_the_same_name() -> None:
    """Only h.0, h.2 and h.4 are layers: layers.3 is none, though h.3 has its number."""
    a = tree({"": "Net", "h": "List", **{f"h.{n}": "L" for n in range(5)}, "h.1.x": "X"})
    b = tree({"": "Net", "layers": "List", **{f"layers.{n}": "L" for n in range(5)}, "layers.1.x": "X"})
    found = matched(a, b, {"Net": {"h": "layers", "h.{2*i}": "layers.{i}"}}, Direction.A_TO_B)
    assert names(found, a, b) == {"": "", "h": "layers", "h.0": "layers.0", "h.2": "layers.1", "h.4": "layers.2"}
    assert [a.path(i) for i in found.only_a] == ["h.1", "h.3", "h.1.x"]
    further = matched(a, b, {"Net": {"h": "layers", "h.{2*i}": "layers.{i}", "h.3": "layers.4"}}, Direction.A_TO_B)
    assert names(further, a, b)["h.3"] == "layers.4" and "h.1" not in names(further, a, b)


def test_one_layer_is_two_of_the_other() -> None:
    a = tree({"": "Net", "layers": "List", **{f"layers.{n}": "L" for n in range(2)}, **{
        f"layers.{n}.{part}": "P" for n in range(2) for part in ("mixer", "mlp")}})  # fmt: skip
    b = tree({"": "Net", "h": "List", **{f"h.{n}": "X" for n in range(4)}, **{f"h.{n}.inner": "P" for n in range(4)}})
    found = matched(a, b, {"Net": {
        "layers.{i}.mixer": "h.{2*i}.inner", "layers.{i}.mlp": "h.{2*i+1}.inner", "layers": "h"}})  # fmt: skip
    assert {x: y for x, y in names(found, a, b).items() if "m" in x} == {
        "layers.0.mixer": "h.0.inner", "layers.0.mlp": "h.1.inner", "layers.1.mixer": "h.2.inner", "layers.1.mlp": "h.3.inner",
    }  # fmt: skip
    two = matched(a, b, {"Net": {"layers.{i}": ["h.{2*i}", "h.{2*i+1}"]}})
    assert [(a.path(each.whole), *map(b.path, each.parts)) for each in two.bundles] == [
        ("layers.0", "h.0", "h.1"), ("layers.1", "h.2", "h.3"),
    ]  # fmt: skip


def test_a_pipeline_with_the_embedding_before_and_the_norm_behind() -> None:
    a = tree({"": "Pipe", "0": "Embedding", **{str(n): "Layer" for n in range(1, 4)}, "4": "Norm"})
    b = tree({"": "Llama", "embed": "E", "layers": "List", **{f"layers.{n}": "L" for n in range(3)}, "norm": "N"})
    found = matched(a, b, {"Pipe": {"0": "embed", "{i+1}": "layers.{i}", "4": "norm"}})
    assert names(found, a, b) == {
        "": "", "0": "embed", "1": "layers.0", "2": "layers.1", "3": "layers.2", "4": "norm",
    }  # fmt: skip
    assert [b.path(i) for i in found.only_b] == ["layers"] and found.warnings == ()


def test_a_pipeline_of_which_the_norm_has_no_line() -> None:
    a = tree({"": "Pipe", "0": "Embedding", "1": "Layer", "2": "Layer", "3": "Norm", "4": "Head"})
    b = tree({"": "Llama", "embed": "E", "layers": "List", "layers.0": "L", "layers.1": "L"})
    found = matched(a, b, {"Pipe": {"0": "embed", "{i+1}": "layers.{i}"}})
    assert found.warnings == () and [a.path(i) for i in found.only_a] == ["3", "4"], "nobody took them for layers"


def test_a_pipeline_with_more_layers_names_the_first_of_them() -> None:
    a = tree({"": "Pipe", "0": "Embedding", **{str(n): "Layer" for n in range(1, 4)}})
    b = tree({"": "Llama", "embed": "E", "layers": "List", "layers.0": "L", "layers.1": "L"})
    (warning,) = matched(a, b, {"Pipe": {"0": "embed", "{i+1}": "layers.{i}"}}).warnings
    assert "leads to nothing on the other side for 3; did you mean layers.1?" in warning


def test_chunks_of_a_pipeline_each_with_layers_from_0() -> None:
    chunk = {"": "Float16Module", ".module": "GPT", ".module.layers": "List"}
    a = tree({"": "list", **{f"{c}{path}": kind for c in (0, 1) for path, kind in (
        *chunk.items(), *((f".module.layers.{n}", "L") for n in range(2)))}})  # fmt: skip
    b = tree({"": "Llama", "layers": "List", **{f"layers.{n}": "L" for n in range(4)}})
    found = matched(a, b, {"TopLayer": {"0.layers.{i}": "layers.{i}", "1.layers.{i}": "layers.{i+2}"}})
    assert {x: y for x, y in names(found, a, b).items() if x} == {
        f"{c}.module.layers.{n}": f"layers.{2 * c + n}" for c in (0, 1) for n in (0, 1)
    }


CHUNKS = (
    "the 2 models in the list at the top are parts of the other side's one: below TopLayer, say of each where its parts are, such "
    "as 0.decoder.layers.{i}: layers.{i} and 1.decoder.layers.{i}: layers.{i+8} if the first has 8 of the layers"
)


def test_wrapped_chunks_of_a_pipeline_lead_to_what_to_write() -> None:
    chunk = {"": "DistributedDataParallel", ".module": "Float16Module", ".module.module": "GPT", ".module.module.decoder": "D",
             ".module.module.decoder.layers": "List", ".module.module.decoder.layers.0": "L"}  # fmt: skip
    a = tree({"": "list", **{f"{c}{path}": kind for c in (0, 1) for path, kind in chunk.items()}})
    b = tree({"": "Llama", "layers": "List", "layers.0": "L", "layers.1": "L"})
    why = f"the mapping's line 2: GPT: decoder.layers: layers is not used: 0.module.module (GPT) has no counterpart; {CHUNKS}"
    with pytest.raises(MappingError, match=f"^m: none of its 1 keys can be used:\n  {re.escape(why)}$"):
        matched(a, b, "GPT:\n  decoder.layers: layers\n", Direction.A_TO_B)
    why = "layers is already the counterpart of 0.module.module.decoder.layers"
    text = "TopLayer:\n  '{i}.module.decoder.layers': layers\n"
    with pytest.raises(
        MappingError, match=f"^m, line 2: TopLayer: {re.escape(f'{{i}}.module.decoder.layers: {why}; {CHUNKS}')}$"
    ):
        matched(a, b, text, Direction.A_TO_B)
    found = matched(a, b, {"TopLayer": {"0.decoder.layers.{i}": "layers.{i}", "1.decoder.layers.{i}": "layers.{i+1}"}})
    assert names(found, a, b)["1.module.module.decoder.layers.0"] == "layers.1" and found.warnings == ()


def test_sections_for_every_second_layer() -> None:
    a = tree(
        {
            "": "Net",
            **{f"h.{n}"[: 1 if n < 0 else None]: "L" for n in range(-1, 4)},
            **{f"h.{n}.x": "X" for n in range(4)},
        }
    )
    b = tree({"": "Net", **{f"h.{n}"[: 1 if n < 0 else None]: "L" for n in range(-1, 4)}, **{
        f"h.{n}.{'mamba' if n % 2 else 'attn'}": "X" for n in range(4)}})  # fmt: skip
    found = matched(a, b, {"h.{2*i}": {"x": "attn"}, "h.{2*i+1}": {"x": "mamba"}})
    assert (found.only_a, found.only_b, found.warnings) == ((), (), ())


def test_what_is_named_goes_before_what_a_number_stands_for() -> None:
    a = tree({"": "Net", "0": "L", "1": "L"})
    b = tree({"": "Net", "h0": "L", "first": "L", "h1": "L"})
    assert names(matched(a, b, {"Net": {"{i}": "h{i}", "0": "first"}}), a, b) == {"": "", "0": "first", "1": "h1"}


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


@pytest.mark.parametrize(
    "line",
    [
        "Absent{}:\n  x: y", "'/':\n  absent{}: up", "'/':\n  gone{}: absent",
        "'/':\n  whole{}: {{from: [up, absent]}}", "ignore:\n- '**.absent{}'",
    ],
)  # fmt: skip
def test_what_need_not_be_there_is_not_warned_of(line: str) -> None:
    a, b = tree({"": "Net", "up": "L", "gone": "L", "other": "L"}), tree({"": "Net", "up": "L", "x": "L"})
    texts = [f"{line.format(mark)}\nTopLayer:\n  other: x\n" for mark in ("", "?")]
    assert [len(matched(a, b, text, Direction.A_TO_B).warnings) for text in texts] == [1, 0]


# What may have been meant


def test_numbers_are_written_as_in_the_line() -> None:
    model = tree({"": "Net", "head": "Linear", "layers": "List", "layers.0": "Block", "layers.1": "Block"})
    found = matched(model, model, "Net:\n  head: head\n  layer.{i}: layers.{i}\n", Direction.A_TO_B)
    assert found.warnings[0].endswith("names nothing that is there; did you mean layers.{i}?")


FUSED = tree({"": "Net", "attn": "Attention", "attn.qkv": "Linear", "attn.out": "Linear"})
APART = tree(
    {"": "Net", "attn": "Attn", "attn.q": "Linear", "attn.k": "Linear", "attn.v": "Linear", "attn.out": "Linear"}
)


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


# Large trees


@pytest.mark.thorough
def test_trees_of_twenty_thousand_modules() -> None:
    layer = {
        "": "Layer",
        ".attention": "Attention",
        ".attention.qkv": "L",
        ".attention.out": "L",
        ".mlp": "MLP",
        ".mlp.up": "L",
    }
    other = {
        "": "L",
        ".attn": "A",
        ".attn.q": "X",
        ".attn.k": "X",
        ".attn.v": "X",
        ".attn.o": "X",
        ".mlp": "M",
        ".mlp.w1": "X",
    }
    a = tree(
        {
            "": "Net",
            "layers": "List",
            **{f"layers.{n}{path}": kind for n in range(3_400) for path, kind in layer.items()},
        }
    )
    b = tree({"": "Net", "h": "List", **{f"h.{n}{path}": kind for n in range(3_400) for path, kind in other.items()}})
    sections = {
        "Net": {"layers.{i}": "h.{i}", "layers": "h"}, "**.layers.*/Layer": {"attention": "attn"},
        "/layers.**.attention": {"qkv": ["q", "k", "v"], "out": "o"}, "MLP": {"up": "w1"}, "L": {"x": "y"},
    }  # fmt: skip
    begin = time.process_time()
    found = matched(a, b, sections)
    assert time.process_time() - begin < 5
    assert len(a) > 20_000 and len(found.pairs) == len(a) and len(found.bundles) == 3_400
    assert found.only_a == found.only_b == ()


def test_a_line_that_pairs_something_is_no_line_that_does_nothing() -> None:
    classes = {
        "": "Net",
        "0": "Block",
        "0.norm": "Norm",
        "0.fc": "Linear",
        "1": "Block",
        "1.norm": "Norm",
        "1.fc": "Linear",
    }
    other = {path.replace("fc", "proj"): name for path, name in classes.items() if path != "1.fc"}
    found = matched(tree(classes), tree(other), {"Block": {"fc": "proj", "norm": "nothing"}}, Direction.A_TO_B)
    assert ["1.fc" in str(each) or "proj" in str(each) for each in found.notes] == [True, False]
    assert [str(each) for each in found.mistaken] == [str(found.notes[1])] and "nothing" in str(found.mistaken[0])
