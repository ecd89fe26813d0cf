"""Pairs without a mapping: by sizes, by order, by values, by names and forms; recurrent layers; and what must not be paired."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from probe.commands.map_commands import suggest_command
from probe.mapping import LayerMapping
from probe.mapping.parsing import parse_mapping
from probe.matching import Bundle, Known, Matching, Reason, match
from probe.matching.automatic import without_guesses
from probe.matching.automatic.completing import complete
from probe.matching.automatic.outline import Numbers, Outline, Weight, outline, outline_of, weights_of
from probe.matching.automatic.state import Found, Half
from probe.matching.automatic.weights.fused import agree_on_groups
from probe.matching.automatic.weights.parameters import match_parameters
from probe.matching.draft import draft
from probe.matching.result import View, WeightBundle
from probe.matching.unneeded import needing_no_partner
from probe.records import ModuleInfo, ParameterInfo
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from tests.toy import nn
from tests.toys import GPT, LAYERS, WIDTH, SequenceFirst, gpt, record

# ---- Pairs without a mapping: by sizes, by order, by values; and what must not be paired.

Shapes = dict[str, tuple[str, dict[str, tuple[int, ...]]]]
"""by path: class, and the shapes of the weights"""


def nothing(_: int) -> frozenset[object]:
    return frozenset()


def side(model: Shapes) -> tuple[list[ModuleInfo], list[ParameterInfo]]:
    index = {path: i for i, path in enumerate(model)}
    modules = [
        ModuleInfo(path, kind, index[path.rpartition(".")[0]] if path else -1) for path, (kind, _) in model.items()
    ]
    parameters = [
        ParameterInfo((f"{path}.{slot}" if path else slot,), index[path], slot, shape, "float32", True)
        for path, (_, slots) in model.items()
        for slot, shape in slots.items()
    ]
    return modules, parameters


def found(a: Shapes, b: Shapes) -> tuple[Matching, Tree, Tree]:
    sides = [outline(*side(model)) for model in (a, b)]
    certain = match(sides[0].tree, sides[1].tree, LayerMapping(), nothing, nothing)
    return complete(certain, *sides), sides[0].tree, sides[1].tree


def names(a: Shapes, b: Shapes) -> dict[str, str]:
    matching, tree_a, tree_b = found(a, b)
    return {tree_a.path(pair.a): tree_b.path(pair.b) for pair in matching.pairs}


def recorded(a: Path, b: Path) -> tuple[Matching, Tree, Tree]:
    with Reader(a) as first, Reader(b) as second:
        sides = outline_of(first), outline_of(second)
        certain = match(sides[0].tree, sides[1].tree, LayerMapping(), nothing, nothing)
        return complete(certain, *sides), sides[0].tree, sides[1].tree


H, F = 8, 24
HF: Shapes = {
    "": ("Llama", {}), "model": ("LlamaModel", {}), "model.embed": ("Embedding", {"weight": (50, H)}),
    "model.layers": ("ModuleList", {}),
}  # fmt: skip
META: Shapes = {"": ("Transformer", {}), "tok": ("Embedding", {"weight": (50, H)}), "layers": ("ModuleList", {})}
MEGATRON: Shapes = {
    "": ("GPTModel", {}), "embedding": ("LanguageModelEmbedding", {}),
    "embedding.word": ("VocabParallelEmbedding", {"weight": (50, H)}), "decoder": ("TransformerBlock", {}),
    "decoder.layers": ("ModuleList", {}),
}  # fmt: skip
for n in range(3):
    HF[f"model.layers.{n}"] = ("LlamaLayer", {})
    HF[f"model.layers.{n}.self_attn"] = ("LlamaAttention", {})
    for name, rows in (("q_proj", H), ("k_proj", H // 2), ("v_proj", H // 2), ("o_proj", H)):
        HF[f"model.layers.{n}.self_attn.{name}"] = ("Linear", {"weight": (rows, H)})
    HF[f"model.layers.{n}.mlp"] = ("LlamaMLP", {})
    for name, shape in (("gate_proj", (F, H)), ("up_proj", (F, H)), ("down_proj", (H, F))):
        HF[f"model.layers.{n}.mlp.{name}"] = ("Linear", {"weight": shape})
    HF[f"model.layers.{n}.input_layernorm"] = ("RMSNorm", {"weight": (H,)})
    HF[f"model.layers.{n}.post_attention_layernorm"] = ("RMSNorm", {"weight": (H,)})
    META[f"layers.{n}"] = ("TransformerBlock", {})
    META[f"layers.{n}.attention"] = ("Attention", {})
    for name, rows in (("wq", H), ("wk", H // 2), ("wv", H // 2), ("wo", H)):
        META[f"layers.{n}.attention.{name}"] = ("Linear", {"weight": (rows, H)})
    META[f"layers.{n}.feed_forward"] = ("FeedForward", {})
    for name, shape in (("w1", (F, H)), ("w2", (H, F)), ("w3", (F, H))):
        META[f"layers.{n}.feed_forward.{name}"] = ("Linear", {"weight": shape})
    META[f"layers.{n}.attention_norm"] = ("RMSNorm", {"weight": (H,)})
    META[f"layers.{n}.ffn_norm"] = ("RMSNorm", {"weight": (H,)})
    MEGATRON[f"decoder.layers.{n}"] = ("TransformerLayer", {})
    MEGATRON[f"decoder.layers.{n}.input_layernorm"] = ("RMSNorm", {"weight": (H,)})
    MEGATRON[f"decoder.layers.{n}.self_attention"] = ("SelfAttention", {})
    MEGATRON[f"decoder.layers.{n}.self_attention.linear_proj"] = ("RowParallelLinear", {"weight": (H, H)})
    MEGATRON[f"decoder.layers.{n}.self_attention.linear_qkv"] = ("ColumnParallelLinear", {"weight": (2 * H, H)})
    MEGATRON[f"decoder.layers.{n}.pre_mlp_layernorm"] = ("RMSNorm", {"weight": (H,)})
    MEGATRON[f"decoder.layers.{n}.mlp"] = ("MLP", {})
    MEGATRON[f"decoder.layers.{n}.mlp.linear_fc1"] = ("ColumnParallelLinear", {"weight": (2 * F, H)})
    MEGATRON[f"decoder.layers.{n}.mlp.linear_fc2"] = ("RowParallelLinear", {"weight": (H, F)})
HF |= {"model.norm": ("RMSNorm", {"weight": (H,)}), "lm_head": ("Linear", {"weight": (50, H)})}
META |= {"norm": ("RMSNorm", {"weight": (H,)}), "output": ("Linear", {"weight": (50, H)})}
MEGATRON |= {
    "decoder.final": ("RMSNorm", {"weight": (H,)}), "output_layer": ("ColumnParallelLinear", {"weight": (50, H)}),
}  # fmt: skip


def test_other_names_and_another_nesting() -> None:
    pairs = names(HF, META)
    assert len(pairs) == len(HF) - 1, "all but LlamaModel, which Meta's has no module for"
    for n in range(3):
        assert pairs[f"model.layers.{n}.self_attn.k_proj"] == f"layers.{n}.attention.wk"
        assert pairs[f"model.layers.{n}.mlp.up_proj"] == f"layers.{n}.feed_forward.w3"
        assert pairs[f"model.layers.{n}.input_layernorm"] == f"layers.{n}.attention_norm"
        assert pairs[f"model.layers.{n}.mlp"] == f"layers.{n}.feed_forward"
    assert pairs["model.norm"] == "norm" and pairs["lm_head"] == "output" and "model" not in pairs


def test_layers_that_are_one_on_the_other_side() -> None:
    matching, hf, megatron = found(HF, MEGATRON)
    assert {tuple(hf.path(part).rpartition(".")[2] for part in bundle.parts) for bundle in matching.bundles} == {
        ("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"),
    }  # fmt: skip
    assert all(bundle.side == "A" for bundle in matching.bundles)
    first = {(hf.path(pair.a), megatron.path(pair.b)) for pair in matching.pairs}
    assert ("model.layers.1.self_attn.q_proj", "decoder.layers.1.self_attention.linear_qkv") in first
    assert ("model.layers.1.self_attn.o_proj", "decoder.layers.1.self_attention.linear_proj") in first
    assert ("model", "decoder") not in first, "one is given tokens, the other what the embedding made of them"
    assert [hf.path(i) for i in matching.only_a] == ["model"], "parts of bundles are not left over"


def test_keys_and_values_are_one_layer_beside_queries() -> None:
    a: Shapes = {"": ("T5", {}), "attention": ("T5Attention", {})}
    b: Shapes = {"": ("Own", {}), "att": ("Att", {}), "att.q": ("Linear", {"weight": (H, H)})}
    for name in "qkvo":
        a[f"attention.{name}"] = ("Linear", {"weight": (H, H)})
    b |= {"att.kv": ("Linear", {"weight": (2 * H, H)}), "att.o": ("Linear", {"weight": (H, H)})}
    matching, tree_a, tree_b = found(a, b)
    (bundle,) = matching.bundles
    assert tree_b.path(bundle.whole) == "att.kv"
    assert [tree_a.path(part) for part in bundle.parts] == ["attention.k", "attention.v"]
    assert {tree_a.path(pair.a) for pair in matching.pairs} >= {"attention.q", "attention.o"}


def test_both_directions_find_the_same() -> None:
    for a, b in ((HF, META), (HF, MEGATRON), (META, MEGATRON)):
        assert {(y, x) for x, y in names(a, b).items()} == set(names(b, a).items())


@pytest.mark.parametrize("seed", range(4))
def test_scrambled_names(seed: int) -> None:
    rng = random.Random(seed)
    new: dict[str, str] = {}

    def renamed(path: str) -> str:
        parts = path.split(".")
        return ".".join(
            part if part.isdigit() or not part else new.setdefault(part, "".join(rng.choices("abcdefghij", k=8)))
            for part in parts
        )

    scrambled = {renamed(path): what for path, what in META.items()}
    right = {x: renamed(y) for x, y in names(HF, META).items()}
    pairs = names(HF, scrambled)
    hits = sum(right.get(x) == y for x, y in pairs.items())
    assert hits / len(pairs) >= 0.98 and hits / len(right) >= 0.85


def test_a_guess_says_that_it_is_one() -> None:
    matching, *_ = found(HF, META)
    guessed = [pair for pair in matching.pairs if pair.reason is not Reason.SAME_PATH]
    assert guessed and all(pair.reason is Reason.SAME_STRUCTURE and 0 < pair.confidence < 1 for pair in guessed)
    least = min(pair.confidence for pair in guessed)
    kept = without_guesses(matching, least + 0.01)
    assert {pair.confidence > least for pair in kept.pairs} == {True}
    lost = {pair.a for pair in matching.pairs} - {pair.a for pair in kept.pairs}
    assert lost <= set(kept.only_a), "what is not trusted is left over, not gone"


def test_a_longer_list_without_values_is_no_sure_thing() -> None:
    longer = {path: what for path, what in META.items() if not path.startswith("layers.2")}
    matching, tree_a, _ = found(HF, longer)
    sure = {tree_a.path(pair.a): pair.confidence for pair in matching.pairs}
    assert all(value < 0.6 for path, value in sure.items() if path.startswith("model.layers.0"))


def test_what_only_wraps_or_does_nothing_is_not_missed() -> None:
    plain: Shapes = {"": ("Net", {}), "a": ("Linear", {"weight": (4, 3)}), "b": ("Linear", {"weight": (5, 4)})}
    padded: Shapes = {
        "": ("Other", {}), "body": ("Sequential", {}), "body.0": ("Linear", {"weight": (4, 3)}),
        "body.1": ("Identity", {}), "body.2": ("Dropout", {}), "body.3": ("Linear", {"weight": (5, 4)}),
    }  # fmt: skip
    matching, _, tree = found(plain, padded)
    assert names(plain, padded) == {"": "", "a": "body.0", "b": "body.3"}
    assert not matching.only_a and {tree.path(index) for index in matching.only_b} == {"body", "body.1", "body.2"}
    assert needing_no_partner(matching, *(outline(*side(model)) for model in (plain, padded))) == (
        frozenset(),
        frozenset(matching.only_b),
    )
    assert tree.path(matching.pairs[-1].b) == "body.3"


def test_experts_in_a_list_against_stacked_ones() -> None:
    apart: Shapes = {"": ("Moe", {}), "gate": ("Linear", {"weight": (4, H)}), "experts": ("ModuleList", {})}
    for n in range(4):
        apart[f"experts.{n}"] = ("MLP", {})
        for name, shape in (("w1", (F, H)), ("w3", (F, H)), ("w2", (H, F))):
            apart[f"experts.{n}.{name}"] = ("Linear", {"weight": shape})
    one: Shapes = {
        "": ("Moe", {}), "router": ("Linear", {"weight": (4, H)}),
        "inner": ("Experts", {"gate_up_proj": (4, 2 * F, H), "down_proj": (4, H, F)}),
    }  # fmt: skip
    matching, tree_a, tree_b = found(apart, one)
    assert names(apart, one)["experts"] == "inner"
    bundles = {bundle.whole[1]: bundle for bundle in matching.weight_bundles}
    assert {tree_b.path(bundle.whole[0]) for bundle in bundles.values()} == {"inner"}
    rows = bundles["gate_up_proj"].parts
    assert [[tree_a.path(k) for k, _ in row] for row in rows] == [
        [f"experts.{n}.w1", f"experts.{n}.w3"] for n in range(4)
    ]
    assert bundles["gate_up_proj"].stacked and not matching.only_a


def test_a_place_in_a_sequence_is_no_proof() -> None:
    plain: Shapes = {
        "": ("Net", {}), "0": ("Linear", {"weight": (4, 3)}), "1": ("ReLU", {}), "2": ("Linear", {"weight": (5, 4)}),
    }  # fmt: skip
    more: Shapes = {
        "": ("Net", {}), "0": ("Linear", {"weight": (4, 3)}), "1": ("BatchNorm1d", {"weight": (4,)}), "2": ("ReLU", {}),
        "3": ("Linear", {"weight": (5, 4)}),
    }  # fmt: skip
    assert names(plain, more) == {"": "", "0": "0", "1": "2", "2": "3"}


def test_equal_paths_stay_pairs_where_nothing_better_is_found() -> None:
    a: Shapes = {"": ("Net", {}), "act": ("ReLU", {})}
    b: Shapes = {"": ("Net", {}), "act": ("Linear", {"weight": (3, 3)})}
    matching, *_ = found(a, b)
    assert [pair.reason for pair in matching.pairs] == [Reason.SAME_PATH] * 2


# ---- with values ----------------------------------------------------------------------------------------


def with_layers(*numbers: int) -> GPT:
    """Return the model with these of its layers, drawn ones where there is no such."""
    model, other = gpt(), gpt(seed=7)
    layers = list(model.layers)
    model.layers = nn.ModuleList(*(layers[n] if n < LAYERS else list(other.layers)[0] for n in numbers))
    return model


def other_names(model: GPT) -> SequenceFirst:
    return SequenceFirst(model)


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_an_inserted_layer_is_the_one_that_is_left(tmp_path: Path, task: str) -> None:
    a = record(tmp_path / "a.h5", with_layers(0, 1, 2), task=task)
    b = record(tmp_path / "b.h5", other_names(with_layers(0, 9, 1, 2)), task=task)
    for one, other, forwards in ((a, b, True), (b, a, False)):
        matching, tree_a, tree_b = recorded(one, other)
        pairs = {tree_a.path(pair.a): tree_b.path(pair.b) for pair in matching.pairs}
        pairs = pairs if forwards else {y: x for x, y in pairs.items()}
        assert pairs["layers.1.attn.q"] == "decoder.layers.2.self_attention.query"
        assert pairs["layers.2.mlp"] == "decoder.layers.3.mlp" and pairs["layers.0"] == "decoder.layers.0"
        tree, left = (tree_b, matching.only_b) if forwards else (tree_a, matching.only_a)
        assert "decoder.layers.1" in [tree.path(i) for i in left]
        assert not [
            tree.path(i) for i in left if not tree.path(i).startswith(("decoder.layers.1", "embedding", "decoder"))
        ]


def test_a_draft_counts_what_is_left_and_not_what_was_paired_inside(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", with_layers(0, 1, 2))
    b = record(tmp_path / "b.h5", other_names(with_layers(0, 9, 1, 2)))
    text = CliRunner().invoke(suggest_command, [str(a), str(b)], catch_exceptions=False).output
    assert "#   embedding\n" in text
    assert "#   decoder and 15 modules inside\n" in text, "it holds 54"
    assert "#   decoder.layers.1 and 12 modules inside\n" in text


def test_swapped_layers_are_told_by_their_weights(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", with_layers(0, 1, 2))
    b = record(tmp_path / "b.h5", other_names(with_layers(0, 2, 1)))
    matching, tree_a, tree_b = recorded(a, b)
    pairs = {tree_a.path(pair.a): tree_b.path(pair.b) for pair in matching.pairs}
    assert pairs["layers.1"] == "decoder.layers.2" and pairs["layers.2.mlp.up"] == "decoder.layers.1.mlp.up"


def test_values_make_pairs_surer(tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", gpt())
    b = record(tmp_path / "b.h5", other_names(gpt()))
    c = record(tmp_path / "c.h5", other_names(gpt(seed=3)))
    same, tree, _ = recorded(a, b)
    other, *_ = recorded(a, c)
    assert {pair.a for pair in same.pairs} == {pair.a for pair in other.pairs}, "structure alone finds them too"
    q = tree.by_path["layers.1.attn.q"]
    reasons = [next(pair for pair in each.pairs if pair.a == q) for each in (same, other)]
    assert [pair.reason for pair in reasons] == [Reason.SAME_VALUES, Reason.SAME_STRUCTURE]
    assert reasons[0].confidence > reasons[1].confidence


@pytest.mark.parametrize("task", ["statistics", "structure"])
def test_a_draft_says_what_it_was_drafted_from(tmp_path: Path, task: str) -> None:
    a = record(tmp_path / "a.h5", gpt(), task=task)
    b = record(tmp_path / "b.h5", other_names(gpt()), task=task)
    with Reader(a) as first, Reader(b) as second:
        sides = [Known(Tree(each.modules), each.parameters, each.info.model_config) for each in (first, second)]
        certain = match(*sides, LayerMapping(), nothing, nothing)
        matching = complete(certain, outline_of(first), outline_of(second))
    text = draft(matching, *sides, ("a.h5", "b.h5"))
    again = match(*sides, parse_mapping(text, "the draft"), nothing, nothing)
    assert {(pair.a, pair.b) for pair in again.pairs} == {(pair.a, pair.b) for pair in matching.pairs}
    assert not again.warnings
    assert "layers.1" not in text and "layers.0" not in text, "one line for all layers"
    assert "\nAttention:\n  q: query" in text


def test_a_draft_with_parts_says_how_they_lie() -> None:
    matching, *_ = found(HF, MEGATRON)
    sides = [
        Known(Tree(modules), parameters, {"num_query_groups": 2}) for modules, parameters in map(side, (HF, MEGATRON))
    ]
    text = draft(matching, *sides, ("hf.h5", "megatron.h5"))
    assert "Keys are modules of megatron.h5, values those of hf.h5." in text
    unseen = "in which order and groups they lie was not seen: record with task='tensor'"
    assert f"  linear_fc1: [gate_proj, up_proj]  # ? same structure, 0.80; {unseen}\n" in text
    again = match(*sides, parse_mapping(text, "the draft"), nothing, nothing)
    assert {(pair.a, pair.b) for pair in again.pairs} == {(pair.a, pair.b) for pair in matching.pairs}
    assert set(again.bundles) == set(matching.bundles)


def test_one_class_in_two_places_gets_a_section_for_each() -> None:
    def model(names: tuple[str, str, str, str]) -> Shapes:
        made: Shapes = {"": ("Net", {})}
        for at, (tower, width) in enumerate(((names[0], 4), (names[1], 6))):
            made[tower] = (f"Tower{names[0]}{at}", {})
            for n in range(2):
                made[f"{tower}.{n}"] = (f"Layer{names[0]}", {})
                made[f"{tower}.{n}.{names[2 + at]}"] = ("Linear", {"weight": (width, width)})
                made[f"{tower}.{n}.last{names[0]}"] = ("Linear", {"weight": (width + 1, width)})
        return made

    a, b = model(("image", "text", "inner", "inner")), model(("visual", "words", "proj", "core"))
    matching, *_ = found(a, b)
    sides = [Known(Tree(modules), parameters) for modules, parameters in map(side, (a, b))]
    text = draft(matching, *sides)
    assert '"/image.*":\n  inner: proj' in text and '"/text.*":\n  inner: core' in text
    again = match(*sides, parse_mapping(text, "the draft"), nothing, nothing)
    assert {(pair.a, pair.b) for pair in again.pairs} == {(pair.a, pair.b) for pair in matching.pairs}


@pytest.mark.parametrize("tasks", [("tensor", "tensor"), ("statistics", "statistics"), ("tensor", "statistics")])
def test_in_how_many_groups_rows_lie_is_read_from_values_or_their_sums(tmp_path: Path, tasks: tuple[str, str]) -> None:
    """Group by group, as Megatron lays them: sizes alone would not tell it from one after the other."""

    class Fused(nn.Module):
        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.qkv(x)

    class Apart(nn.Module):
        def forward(self, x):  # type: ignore[no-untyped-def]
            return self.q(x), self.k(x), self.v(x)

    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((rows, WIDTH)).astype(np.float32) for rows in (8, 4, 4))
    whole = np.concatenate([part.reshape(2, -1, WIDTH) for part in (q, k, v)], axis=1).reshape(16, WIDTH)

    def linear(weight: np.ndarray) -> nn.Linear:
        made = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
        made.weight = nn.Parameter(weight)
        return made

    import probe
    from tests.toy.tensor import Tensor

    models = Apart(q=linear(q), k=linear(k), v=linear(v)), Fused(qkv=linear(whole))
    for name, model, task in zip("ab", models, tasks, strict=True):
        model.config = {"num_key_value_heads": 2}
        with probe.capture(model, tmp_path / f"{name}.h5", task=task):
            model(Tensor(np.ones((2, WIDTH), np.float32)))
            probe.step()
    sides = []
    with Reader(tmp_path / "a.h5") as first, Reader(tmp_path / "b.h5") as second:
        for each in (first, second):
            made = outline_of(each)
            made.config = {"num_key_value_heads": 2}
            sides.append(made)
        certain = match(sides[0].tree, sides[1].tree, LayerMapping(), nothing, nothing)
        matching = complete(certain, *sides)
    assert [(bundle.groups, bundle.is_known) for bundle in matching.bundles] == [(2, True)]
    assert matching.pairs[-1].reason is Reason.SAME_VALUES


def test_what_holds_the_last_norm_is_none_with_what_does_not() -> None:
    """They hold nearly the same, and return other things: a trunk with its last norm inside, and one with it beside."""

    def model(top: str, norm: str) -> Shapes:
        shapes: Shapes = {"": ("Net", {}), top: ("Trunk", {}), f"{top}.embed": ("Embedding", {"weight": (50, H)})}
        for n in range(3):
            shapes[f"{top}.{n}"] = ("Block", {})
            shapes[f"{top}.{n}.norm"] = ("LayerNorm", {"weight": (H,)})
            shapes[f"{top}.{n}.up"] = ("Linear", {"weight": (F, H)})
        return {**shapes, norm: ("RMSNorm", {"weight": (H,)}), "head": ("Linear", {"weight": (50, H)})}

    inside, beside = model("model", "model.final"), model("trunk", "final")
    pairs = names(inside, beside)
    assert (pairs["model.final"], pairs["model.1.up"]) == ("final", "trunk.1.up")
    assert "model" not in pairs
    assert names(inside, model("trunk", "trunk.final"))["model"] == "trunk"


def test_a_block_is_never_paired_with_a_list_of_blocks() -> None:
    """A list computes nothing: of one that holds a single block, the block is the pair."""
    block = {"": ("Block", {}), ".attention": ("Linear", {"weight": (8, 8)}), ".mlp": ("Linear", {"weight": (16, 8)})}
    a = {"": ("Model", {}), "decoder": ("ModuleList", {})}
    a |= {f"decoder.0{path}": what for path, what in block.items()} | {"head": ("Linear", {"weight": (31, 16)})}
    b = {"": ("Model", {}), "net": ("Other", {})}
    b |= {f"net.decoder{path}": what for path, what in block.items()} | {"net.out": ("Linear", {"weight": (31, 16)})}
    paired = names(a, b)
    assert paired.get("decoder.0") == "net.decoder" and "decoder" not in paired
    assert (paired["decoder.0.attention"], paired["head"]) == ("net.decoder.attention", "net.out")


# ---- What names, forms and other layers say where neither a mapping nor values do: parameters, layouts, the norms of a layer.


def outlined(model: Shapes) -> Outline:
    index = {path: i for i, path in enumerate(model)}
    modules = [
        ModuleInfo(path, kind, index[path.rpartition(".")[0]] if path else -1) for path, (kind, _) in model.items()
    ]
    parameters = [
        ParameterInfo((f"{path}.{slot}",), index[path], slot, shape, "float32", True)
        for path, (_, slots) in model.items() for slot, shape in slots.items()
    ]  # fmt: skip
    return outline(modules, parameters)


def certain(a: Outline, b: Outline) -> Matching:
    return match(a.tree, b.tree, LayerMapping(), lambda _: frozenset(), lambda _: frozenset())


def paired(a: Shapes, b: Shapes) -> dict[str, tuple[str, float]]:
    sides = outlined(a), outlined(b)
    found = complete(certain(*sides), *sides)
    return {sides[0].tree.path(p.a): (sides[1].tree.path(p.b), p.confidence) for p in found.pairs}


# Parameters


def views(a: Shapes, b: Shapes, least: float = 0.6) -> tuple[dict[str, View], dict[str, View]]:
    """Return what the parameters of the only layer of each side are called."""
    sides = outlined(a), outlined(b)
    found = match_parameters(certain(*sides), *sides, least)
    mine, theirs = ({slot: view for (_, slot), view in each.items()} for each in (found.views_a, found.views_b))
    return mine, theirs


def layer(kind: str, **slots: tuple[int, ...]) -> Shapes:
    return {"": ("Model", {}), "fc": (kind, slots)}


LINEAR = layer("Linear", weight=(F, H), bias=(F,))


def test_parameters_of_other_names_are_paired_by_form() -> None:
    assert views(LINEAR, layer("Dense", offset=(F,), matrix=(F, H))) == (
        {}, {"matrix": View("weight", (), 0.85), "offset": View("bias", (), 0.85)},
    )  # fmt: skip


def test_a_matrix_may_lie_turned() -> None:
    assert views(LINEAR, layer("Dense", kernel=(H, F), bias=(F,)))[1] == {"kernel": View("weight", (1, 0), 0.85)}
    assert views(LINEAR, layer("Dense", weight=(H, F), bias=(F,)))[1] == {"weight": View("weight", (1, 0), 0.85)}


def test_what_has_the_usual_name_keeps_it_on_either_side() -> None:
    assert views(layer("Dense", kernel=(H, F), bias=(F,)), LINEAR) == ({"kernel": View("weight", (1, 0), 0.85)}, {})


def test_forms_that_fit_twice_are_taken_in_their_order_and_less_sure() -> None:
    norms = layer("LayerNorm", weight=(H,), bias=(H,)), layer("Norm", scale=(H,), shift=(H,))
    assert views(*norms)[1] == {"scale": View("weight", (), 0.6), "shift": View("bias", (), 0.6)}
    assert views(*norms, least=0.7)[1] == {}


def test_no_guess_where_one_side_has_more_of_a_form() -> None:
    assert views(layer("RMSNorm", weight=(H,)), layer("Norm", scale=(H,), shift=(H,))) == ({}, {})


def test_an_own_class_may_have_a_name_that_the_other_side_has_too() -> None:
    assert views(LINEAR, layer("Linear", weight=(H, F), bias=(F,)))[1] == {"weight": View("weight", (1, 0), 0.85)}
    assert views(LINEAR, LINEAR) == ({}, {})


def measured(kind: str, slot: str, numbers: list[float]) -> Outline:
    """Return a model of Linears that have a weight each of which the largest element is known."""
    names = [f"fc{n}" for n in range(len(numbers))]
    modules = [ModuleInfo("", "Model", -1), *(ModuleInfo(name, "Linear", 0) for name in names)]
    modules[-1] = ModuleInfo(names[-1], kind, 0)
    weights = [(), *(
        (Weight("weight", (F, H), Numbers(-1.0, top, 0.0, 5.0 + top), recorded="weight"),) for top in numbers
    )]  # fmt: skip
    weights[-1] = (replace(weights[-1][0], slot=slot, recorded=slot),)
    return Outline(Tree(modules), weights)


def test_values_decide_whether_it_is_a_pair() -> None:
    a, b = measured("Linear", "weight", [1.0, 2.0, 3.0]), measured("Dense", "kernel", [1.0, 2.0, 3.0])
    assert match_parameters(certain(a, b), a, b, 0.6).views_b == {(3, "kernel"): View("weight", (), 0.98)}
    other = measured("Dense", "kernel", [1.0, 2.0, 7.0])
    assert match_parameters(certain(a, other), a, other, 0.6).views_b == {}


def test_modules_whose_weights_are_stacked_are_left_out_on_their_own_side_only() -> None:
    """The norm has the number in A that the expert has in B, and in B that of the stacked experts in A."""
    a = outlined({"": ("A", {}), "norm": ("RMSNorm", {"weight": (H,)}), "experts": ("Experts", {"stacked": (1, F, H)})})
    b = outlined({"": ("B", {}), "expert": ("Linear", {"weight": (F, H)}), "norm": ("Norm", {"g": (H,)})})
    bundle = WeightBundle("B", (2, "stacked"), (((1, "weight"),),))
    found = match_parameters(replace(certain(a, b), weight_bundles=(bundle,)), a, b, 0.6)
    assert found.views_b == {(2, "g"): View("weight", (), 0.85)}


# Layouts


def fused(groups: list[int], known: list[bool]) -> tuple[Found, list[str]]:
    """Return what is found of layers whose parts lie in so many groups, and what is said of them."""
    apart: Shapes = {"": ("A", {}), "layers": ("ModuleList", {})}
    whole: Shapes = {"": ("B", {}), "layers": ("ModuleList", {})}
    for n in range(len(groups)):
        apart |= {f"layers.{n}": ("Layer", {}), f"layers.{n}.q": ("Linear", {}), f"layers.{n}.k": ("Linear", {})}
        whole |= {f"layers.{n}": ("Layer", {}), f"layers.{n}.qk": ("Linear", {})}
    a, b = outlined(apart), outlined(whole)
    found = Found({"A": Half(a), "B": Half(b)})
    for n, (count, is_known) in enumerate(zip(groups, known, strict=True)):
        parts = tuple(a.tree.by_path[f"layers.{n}.{name}"] for name in "qk")
        found.bundles.append(Bundle("A", b.tree.by_path[f"layers.{n}.qk"], parts, count, is_known=is_known))
    return found, [str(note) for note in agree_on_groups(found)]


def test_the_odd_layer_lies_as_the_others_do() -> None:
    found, said = fused([4, 4, 1, 4], [True] * 4)
    assert [(bundle.groups, bundle.is_known) for bundle in found.bundles] == [(4, True)] * 4
    assert said == [
        "the parts of B's layers.2.qk.weight lie one after the other, those of 3 others of its class in 4 groups: it is "
        "compared as if they lay as in the others"
    ]


def test_a_layer_whose_values_do_not_tell_lies_as_the_others_do() -> None:
    found, said = fused([4, 1, 4], [True, False, True])
    assert [(bundle.groups, bundle.is_known) for bundle in found.bundles] == [(4, True)] * 3
    assert not said


def test_no_layout_is_known_where_layers_are_at_odds() -> None:
    found, said = fused([4, 1], [True, True])
    assert [(bundle.groups, bundle.is_known) for bundle in found.bundles] == [(4, False), (1, False)]
    assert not said


# The norms of a layer


def encoder(flat: bool) -> Shapes:
    norm = {"weight": (H,), "bias": (H,)}
    found: Shapes = {"": ("Model", {}), "layers": ("ModuleList", {})}
    for n in range(2):
        top = f"layers.{n}"
        if flat:  # the norm of the MLP is defined first
            found |= {
                top: ("EncoderLayer", {}), f"{top}.attn": ("Attention", {}), f"{top}.attn.o": ("Linear", {"weight": (H, H)}),
                f"{top}.attn.qkv": ("Linear", {"weight": (3 * H, H)}), f"{top}.up": ("Linear", {"weight": (F, H)}),
                f"{top}.dropout": ("Dropout", {}), f"{top}.down": ("Linear", {"weight": (H, F)}),
                f"{top}.norm2": ("LayerNorm", norm), f"{top}.norm1": ("LayerNorm", norm),
                f"{top}.dropout2": ("Dropout", {}), f"{top}.dropout1": ("Dropout", {}),
            }  # fmt: skip
        else:
            found |= {
                top: ("BertLayer", {}), f"{top}.attention": ("BertAttention", {}),
                f"{top}.attention.qkv": ("Linear", {"weight": (3 * H, H)}), f"{top}.attention.dropout": ("Dropout", {}),
                f"{top}.attention.output": ("BertSelfOutput", {}),
                f"{top}.attention.output.dense": ("Linear", {"weight": (H, H)}),
                f"{top}.attention.output.LayerNorm": ("LayerNorm", norm),
                f"{top}.attention.output.dropout": ("Dropout", {}),
                f"{top}.up": ("Linear", {"weight": (F, H)}), f"{top}.output": ("BertOutput", {}),
                f"{top}.output.dense": ("Linear", {"weight": (H, F)}),
                f"{top}.output.LayerNorm": ("LayerNorm", norm), f"{top}.output.dropout": ("Dropout", {}),
            }  # fmt: skip
    return found


def test_norms_of_a_printed_layer_are_told_by_names_not_by_the_order_of_definition() -> None:
    found = paired(encoder(flat=True), encoder(flat=False))
    for n in range(2):
        assert found[f"layers.{n}.norm1"] == (f"layers.{n}.attention.output.LayerNorm", 0.7)
        assert found[f"layers.{n}.norm2"] == (f"layers.{n}.output.LayerNorm", 0.7)


def test_what_goes_with_a_norm_is_paired_with_it() -> None:
    found = paired(encoder(flat=True), encoder(flat=False))
    for n in range(2):
        assert found[f"layers.{n}.dropout1"] == (f"layers.{n}.attention.output.dropout", 0.65)
        assert found[f"layers.{n}.dropout2"][0] == f"layers.{n}.output.dropout"


def test_norms_whose_names_say_nothing_are_no_sure_pair() -> None:
    model = {path.replace("norm", "x"): what for path, what in encoder(flat=True).items()}
    found = paired(model, encoder(flat=False))
    assert all(found[f"layers.{n}.x2"][1] < 0.6 for n in range(2))


# ---- Recurrent layers without a mapping: PaddlePaddle's hold cells, MindSpore's a loop, PyTorch's nothing.

HIDDEN, WIDTH_RECURRENT = 4, 6
SHAPES = {
    "weight_ih_l0": (4 * HIDDEN, WIDTH_RECURRENT),
    "weight_hh_l0": (4 * HIDDEN, HIDDEN),
    "bias_ih_l0": (4 * HIDDEN,),
    "bias_hh_l0": (4 * HIDDEN,),
}


def model(framework: str, *, same_weights: bool) -> Outline:
    """Return an embedding, an LSTM and a head, each as a framework has it."""
    at, embedding, head = ("rnn", "embed", "head") if framework == "torch" else ("encoder.lstm", "word_emb", "fc")
    inside = {
        "torch": {},
        "paddle": {f"{at}.0": "RNN", f"{at}.0.cell": "LSTMCell"},
        "mindspore": {f"{at}.rnn": "_DynamicLSTMCPUGPU", f"{at}.dropout_op": "Dropout"},
    }
    classes = {"": "Tagger", embedding: "Embedding", **({} if at == "rnn" else {"encoder": "Encoder"}),
               at: "LSTM", **inside[framework], head: "Linear"}  # fmt: skip
    index = {path: place for place, path in enumerate(classes)}
    modules = [ModuleInfo(path, name, index[path.rpartition(".")[0]] if path else -1) for path, name in classes.items()]
    weights = {(embedding, "weight"): (30, WIDTH_RECURRENT), **{(at, slot): shape for slot, shape in SHAPES.items()},
               (head, "weight"): (5, HIDDEN)}  # fmt: skip
    parameters, numbers = [], {}
    for place, ((path, slot), shape) in enumerate(weights.items()):
        again = (f"{at}.0.cell.{slot.removesuffix('_l0')}",) if framework == "paddle" and path == at else ()
        parameters.append(ParameterInfo((f"{path}.{slot}", *again), index[path], slot, shape, "float32", True))
        numbers[index[path], slot] = (
            Numbers(-1.0 - place, 2.0 + place, 0.0, 10.0 + place) if same_weights else None,
            -1,
        )
    tree = Tree(modules)
    return Outline(tree, weights_of(tree, parameters, framework, numbers))


@pytest.mark.parametrize("same_weights", [True, False])
@pytest.mark.parametrize("framework", ["paddle", "mindspore"])
def test_a_layer_is_the_layer_whatever_it_holds(framework: str, same_weights: bool) -> None:
    a, b = model("torch", same_weights=same_weights), model(framework, same_weights=same_weights)
    assert a.core[0] == b.core[0], "what the cells have counts once"
    assert not b.lacks_sizes, "the loop is handed the layer's weights"
    for here, there, turned in ((a, b, False), (b, a, True)):
        certain = match(here.tree, there.tree, LayerMapping(), lambda _: frozenset(), lambda _: frozenset())
        matching = complete(certain, here, there)
        pairs = {(here.tree.path(pair.a), there.tree.path(pair.b)) for pair in matching.pairs if pair.a}
        wanted = {("embed", "word_emb"), ("rnn", "encoder.lstm"), ("head", "fc")}
        assert {pair[::-1] for pair in pairs} == wanted if turned else pairs == wanted
