"""Lists of layers of which one is longer or in another order; lines that count on wrappers; what has no counterpart and needs none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.mapping import LayerMapping, load_mapping
from probe.mapping.parsing import parse_mapping
from probe.matching import Direction, Fingerprint, Known, Matching, Reason, match
from probe.matching.automatic.likeness import kind_of
from probe.matching.automatic.outline import Numbers, Outline, Seen, outline
from probe.matching.changes import changes_of
from probe.matching.checks.coverage import coverage
from probe.matching.lists import Member, laid_side_by_side
from probe.matching.unneeded import listed, needing_no_partner
from probe.records import ParameterInfo
from probe.structure.tree import Tree
from tests.published.mapped import matched, names, nothing, with_parameters
from tests.published.trees import DATA, tree

# ---- Lists of layers of which one is longer, or in another order: which member is which, and what is said of it.

Net = tuple[Tree, Fingerprint]


def net(members: str, name: str = "layers.{}", outer: str = "Net") -> Net:
    """Make a model with a list: ``a`` is a layer with weights of its own, ``Conv:a`` one of a class, ``Conv:`` without weights.

    Every one shares a norm's and a bias' weights with all.
    """
    classes, own = {"": outer}, {}
    above, dot, _ = name.rpartition(".")
    if dot:
        classes[above] = "ModuleList"
    for number, text in enumerate(members.split()):
        class_name, _, label = text.rpartition(":")
        if label:
            own[len(classes)] = frozenset([("weight", label), ("more", label), "ones"])
        classes[name.format(number)] = class_name or "Layer"
    found = tree(classes)

    def weights(index: int) -> frozenset[object]:
        return frozenset().union(*(own.get(i, frozenset()) for i in found.subtree(index)))

    return found, weights


def matched_changes(
    a: Net, b: Net, sections: Mapping[str, Any] | None = None, direction: Direction | None = None
) -> Matching:
    mapping = LayerMapping() if sections is None else load_mapping(dict(sections))
    return match(a[0], b[0], mapping, a[1], b[1], direction)


def numbers(found: Matching, a: Net, b: Net) -> dict[str, str]:
    """Return the numbers of the members that are pairs."""
    pairs = {a[0].path(pair.a): b[0].path(pair.b) for pair in found.pairs}
    return {i[-1]: j[-1] for i, j in pairs.items() if i[-1:].isdigit()}


def said(found: Matching, a: Net, b: Net) -> list[tuple[str, str]]:
    return [(change.kind.value, change.text) for change in changes_of(found, a[0], b[0])]


CASES = {
    "inserted": (
        "a b c d", "a b x c d", "0:0 1:1 2:3 3:4",
        ["inserted: B has one layer more: layers.2 (Layer) has no counterpart; A's layers.2–3 are B's layers.3–4"],
    ),
    "two inserted": (
        "a b c", "a x y b c", "0:0 1:3 2:4",
        ["inserted: B has 2 layers more: layers.1–2 (Layer) have no counterpart; A's layers.1–2 are B's layers.3–4"],
    ),
    "apart": (
        "a b c", "x a b y c", "0:1 1:2 2:4",
        ["inserted: B has 2 layers more: layers.0, 3 (Layer) have no counterpart; A's layers.0–1 are B's layers.1–2, A's "
         "layers.2 is B's layers.4"],
    ),
    "removed": (
        "a b c d", "a c d", "0:0 2:1 3:2",
        ["removed: B has one layer less: A's layers.1 (Layer) has no counterpart; A's layers.2–3 are B's layers.1–2"],
    ),
    "removed and inserted": (
        "a c d e f", "a b c d f", "0:0 1:2 2:3 4:4",
        ["inserted: B has one layer more: layers.1 (Layer) has no counterpart; A's layers.1–2 are B's layers.2–3",
         "removed: B has one layer less: A's layers.3 (Layer) has no counterpart; A's layers.1–2 are B's layers.2–3"],
    ),
    "swapped": (
        "a b c d e", "a e c d b", "0:0 1:4 2:2 3:3 4:1",
        ["swapped: layers.1 and layers.4 (Layer) are swapped: what A has at the one, B has at the other"],
    ),
    "neighbours swapped": (
        "a b c", "a c b", "0:0 1:2 2:1",
        ["swapped: layers.1 and layers.2 (Layer) are swapped: what A has at the one, B has at the other"],
    ),
    "swapped behind an inserted one": (
        "a b c d", "x a b d c", "0:1 1:2 2:4 3:3",
        ["inserted: B has one layer more: layers.0 (Layer) has no counterpart; A's layers.0–1 are B's layers.1–2",
         "swapped: A's layers.2 and layers.3 (Layer) are swapped: they are B's layers.4 and layers.3"],
    ),
    "three in another order": (
        "a b c d", "b c a d", "0:2 1:0 2:1 3:3",
        ["reordered: another order in B: A's layers.0, 1, 2 are B's layers.2, 0, 1"],
    ),
    "equal but one": (
        "a a a", "a a x a", "0:0 1:1 2:3",
        ["inserted: B has one layer more: layers.2 (Layer) has no counterpart; A's layers.2 is B's layers.3"],
    ),
    "a copy": (
        "a b c", "a b b c", "0:0 1:1 2:3",
        ["inserted: B has one layer more: layers.2 (Layer) has no counterpart; which of layers.1–2 it is cannot be told: they "
         "have the same weights; A's layers.2 is B's layers.3"],
    ),
    "all equal": (
        "a a a", "a a a a", "0:0 1:1 2:2",
        ["inserted: B has one layer more: layers.3 (Layer) has no counterpart; which of layers.0–3 it is cannot be told: they "
         "have the same weights"],
    ),
    "other weights": (
        "a b c", "w x y z", "0:0 1:1 2:2",
        ["inserted: B has one layer more: layers.3 (Layer) has no counterpart; which of layers.0–3 it is cannot be told: no "
         "initial weights are the same on both sides"],
    ),
    "no weights": (
        "Layer: Layer:", "Layer: Layer: Layer:", "0:0 1:1",
        ["inserted: B has one layer more: layers.2 (Layer) has no counterpart; which of layers.0–2 it is cannot be told: no "
         "initial weights are known"],
    ),
    "told by classes": (
        "Conv: ReLU: Conv: ReLU:", "Conv: ReLU: Pool: Conv: ReLU:", "0:0 1:1 2:3 3:4",
        ["inserted: B has one layer more: layers.2 (Pool) has no counterpart; A's layers.2–3 are B's layers.3–4"],
    ),
    "classes swapped": (
        "Conv: Norm: ReLU: Pool:", "Conv: ReLU: Norm: Pool:", "0:0 1:2 2:1 3:3",
        ["swapped: layers.1 and layers.2 (Norm and ReLU) are swapped: what A has at the one, B has at the other"],
    ),
    "one weight differs": ("a b c", "a x c", "0:0 1:1 2:2", []),
    "all weights differ": ("a b c", "x y z", "0:0 1:1 2:2", []),
    "other classes": ("Conv:a Norm:b", "Conv2D:a BatchNorm:b", "0:0 1:1", []),
}  # fmt: skip
"""members of A, of B, numbers of the pairs, what is said"""


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize("case", CASES)
def test_members_are_told_by_weights_and_classes(case: str, direction: Direction) -> None:
    mine, theirs, pairs, texts = CASES[case]
    a, b = net(mine), net(theirs)
    found = matched_changes(a, b, direction=direction)
    assert " ".join(f"{i}:{j}" for i, j in numbers(found, a, b).items()) == pairs
    assert [f"{kind}: {text}" for kind, text in said(found, a, b)] == texts
    assert found.warnings == ()


@pytest.mark.parametrize("case", CASES)
def test_the_other_way_round_the_same_members_are_pairs(case: str) -> None:
    mine, theirs, pairs, _ = CASES[case]
    a, b = net(mine), net(theirs)
    back = {f"{i}:{j}" for j, i in numbers(matched_changes(b, a), b, a).items()}
    assert back == set(pairs.split())


OWN = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True)
ANY = st.lists(st.sampled_from(["a", "b", "c", "Conv:d", "Conv:", "Layer:"]), min_size=1, max_size=6)


@given(OWN, OWN)
@settings(max_examples=80, deadline=None)
def test_layers_with_weights_of_their_own_are_paired_wherever_they_stand(mine: list[str], theirs: list[str]) -> None:
    a, b = net(" ".join(mine)), net(" ".join(theirs))
    pairs = {(mine[int(i)], theirs[int(j)]) for i, j in numbers(matched_changes(a, b), a, b).items()}
    for label in set(mine) & set(theirs):
        assert (label, label) in pairs
    wrong = {(x, y) for x, y in pairs if x != y}
    by_number = {(mine[k], theirs[k]) for k in range(min(len(mine), len(theirs)))}
    assert wrong <= by_number, "what has no like may keep its number, and nothing else"


@pytest.mark.thorough
@given(ANY, ANY)
@settings(max_examples=100, deadline=None)
def test_lists_are_laid_side_by_side_alike_from_either_side(mine: list[str], theirs: list[str]) -> None:
    a, b = net(" ".join(mine)), net(" ".join(theirs))
    here, there = numbers(matched_changes(a, b), a, b), numbers(matched_changes(b, a), b, a)
    assert here == {i: j for j, i in there.items()}
    assert len(set(here.values())) == len(here)


def test_a_member_that_two_others_claim_is_told_by_neither() -> None:
    mine = [Member(0, "Layer", frozenset([1, 2])), Member(1, "Layer", frozenset([3]))]
    theirs = [Member(0, "Layer", frozenset([1, 2, 3])), Member(1, "Layer", frozenset([9]))]
    assert laid_side_by_side(mine, theirs) is None, "by number: nothing speaks against it"


@pytest.mark.parametrize("weights", [frozenset("w"), frozenset()], ids=["the same", "unknown"])
def test_a_member_keeps_its_name_where_the_first_ones_have_another(weights: frozenset[object]) -> None:
    """``bn1`` has gone into a module of its own, ``bn2`` has not: nothing but its name tells which of two alike it is."""
    first, second = Member(1, "BatchNorm2d", weights), Member(2, "BatchNorm2d", weights)
    assert laid_side_by_side([first, second], [second]) is None
    assert laid_side_by_side([second], [first, second]) is None
    moved = laid_side_by_side(
        [Member(1, "Conv", frozenset("a")), Member(2, "Conv", frozenset("b"))], [Member(2, "Conv", frozenset("a"))]
    )
    assert moved is not None and moved.numbers == {1: 2}, "weights of its own tell more than its name"


def test_how_a_pair_was_told_is_kept() -> None:
    def reasons(mine: str, theirs: str) -> set[Reason]:
        a, b = net(mine), net(theirs)
        return {pair.reason for pair in matched_changes(a, b).pairs if a[0].path(pair.a)[-1:].isdigit()}

    assert reasons("a b c", "a x b c") == {Reason.SAME_VALUES}
    assert reasons("Conv: ReLU:", "Pool: Conv: ReLU:") == {Reason.SAME_STRUCTURE}
    assert reasons("Layer: Layer:", "Layer: Layer: Layer:") == {Reason.SAME_PATH}


def test_layers_with_numbers_in_their_names_are_a_list_too() -> None:
    a, b = net("a b c", "conv{}"), net("a x b c", "conv{}")
    found = matched_changes(a, b)
    assert numbers(found, a, b) == {"0": "0", "1": "2", "2": "3"}
    text = "B has one layer more: conv1 (Layer) has no counterpart; A's conv1–2 are B's conv2–3"
    assert said(found, a, b) == [("inserted", text)]


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize(
    "sections",
    [{"Net": {"layers": "h"}}, {"Net": {"layers.{i}": "h.{i}"}}, {"TopLayer": {"layers": "h"}, "ignore": ["**.none"]}],
    ids=["the list", "its members", "with ignore"],
)
def test_a_mapping_says_what_the_list_is_and_weights_which_member(
    sections: Mapping[str, Any], direction: Direction
) -> None:
    mine, theirs = net("a b c d"), net("a x b d c", "h.{}", "Other")
    a, b = (mine, theirs) if direction is Direction.A_TO_B else (theirs, mine)
    found = matched_changes(a, b, sections, direction)
    pairs = numbers(found, a, b)
    wanted = {"0": "0", "1": "2", "2": "4", "3": "3"}
    assert pairs == (wanted if direction is Direction.A_TO_B else {j: i for i, j in wanted.items()})
    kinds = [kind for kind, _ in said(found, a, b)]
    assert kinds == ["inserted" if direction is Direction.A_TO_B else "removed", "swapped"]


def test_numbers_in_the_names_of_a_few_parts_are_no_list_of_layers() -> None:
    a = tree({"": "Net", "linear_fc1": "Linear", "linear_fc2": "Linear"}), lambda _: frozenset()
    b = tree({"": "Net", "w1": "Linear", "w2": "Linear", "w3": "Linear"}), lambda _: frozenset()
    assert said(matched_changes(a, b, {"Net": {"linear_fc1": "w1", "linear_fc2": "w2"}}), a, b) == []


def test_a_line_for_one_member_is_taken_at_its_word() -> None:
    a, b = net("a b c"), net("a c b", "h.{}")
    found = matched_changes(a, b, {"Net": {"layers.0": "h.0", "layers.1": "h.1", "layers.2": "h.2"}})
    assert numbers(found, a, b) == {"0": "0", "1": "1", "2": "2"}


# Wrappers


def wrapping(prefix: str, inner: Mapping[str, str]) -> dict[str, str]:
    return {f"{prefix}.inner{'.' if path else ''}{path}": name for path, name in inner.items()}


LAYER = {"": "Layer", "attn": "Attention", "mlp": "MLP"}


def nested(wrapped: int | None, name: str = "layers") -> Net:
    """Three layers with children, one of them in a wrapper."""
    classes = {"": "Net", name: "ModuleList"}
    for number in range(3):
        prefix = f"{name}.{number}"
        if number == wrapped:
            classes[prefix] = "Checkpointed"
            classes.update(wrapping(prefix, LAYER))
        else:
            classes.update({f"{prefix}{'.' if path else ''}{path}": each for path, each in LAYER.items()})
    return tree(classes), lambda _: frozenset()


@pytest.mark.parametrize("sections", [None, {"Net": {"layers": "h"}}], ids=["without a mapping", "mapped"])
@pytest.mark.parametrize("direction", list(Direction))
def test_a_module_that_only_holds_another_one_is_stepped_over(
    direction: Direction, sections: Mapping[str, Any] | None
) -> None:
    name = "layers" if sections is None else "h"
    a, b = nested(None), nested(1, name)
    if direction is Direction.B_TO_A and sections is not None:
        a, b = nested(1), nested(None, name)
    if sections is None and direction is Direction.B_TO_A:
        a, b = b, a
    found = matched_changes(a, b, sections)
    pairs = {a[0].path(pair.a): b[0].path(pair.b) for pair in found.pairs}
    side, holder = ("B", name) if b[0].by_path.get(f"{name}.1.inner") else ("A", "layers")
    outer, inner = f"{holder}.1", f"{holder}.1.inner"
    other = "layers.1" if side == "B" else f"{name}.1"
    forwards = pairs if side == "B" else {j: i for i, j in pairs.items()}
    assert (forwards[other], forwards[f"{other}.attn"]) == (inner, f"{inner}.attn")
    assert (found.only_a, found.only_b) == ((), ())
    text = (
        f"{side}'s {outer} (Checkpointed) only holds {inner} (Layer), which is {'A' if side == 'B' else 'B'}'s {other}: it is "
        "stepped over"
    )
    assert said(found, a, b) == [("wrapped" if side == "B" else "unwrapped", text)]


def test_a_mapping_that_names_what_a_wrapper_holds_is_taken_at_its_word() -> None:
    a, b = nested(None), nested(1, "h")
    sections = {"Net": {"layers": "h", "layers.1.attn": "h.1.inner.attn"}, "Layer": {"mlp": "mlp"}}
    found = matched_changes(a, b, sections)
    assert {a[0].path(p.a): b[0].path(p.b) for p in found.pairs}["layers.1.attn"] == "h.1.inner.attn"
    by_layer = matched_changes(a, b, {"Net": {"layers": "h"}, "/layers.1": {"attn": "inner.attn", "mlp": "inner.mlp"}})
    assert {a[0].path(p.a): b[0].path(p.b) for p in by_layer.pairs}["layers.1.mlp"] == "h.1.inner.mlp"
    assert by_layer.warnings == ()
    inside = matched_changes(b, a, {"Net": {"h": "layers"}, "Checkpointed": {"inner.attn": "attn", "inner": "mlp"}})
    assert {b[0].path(p.a): a[0].path(p.b) for p in inside.pairs}["h.1.inner"] == "layers.1.mlp"


def test_the_whole_model_in_a_wrapper() -> None:
    inner = {"": "Net", "layers": "ModuleList", "layers.0": "Layer"}
    a = tree(inner), lambda _: frozenset()
    b = (
        tree({"": "Holder", **{f"inner{'.' if path else ''}{path}": name for path, name in inner.items()}}),
        lambda _: frozenset(),
    )
    found = matched_changes(a, b)
    assert {a[0].path(p.a): b[0].path(p.b) for p in found.pairs}["layers.0"] == "inner.layers.0"
    text = "B's root (Holder) only holds inner (Net), which is the whole of A: it is stepped over"
    assert said(found, a, b) == [("wrapped", text)]


def test_what_holds_more_than_one_thing_is_no_wrapper() -> None:
    a = tree({"": "Net", "layer": "Layer", "layer.attn": "Attention"}), lambda _: frozenset()
    b = tree({"": "Net", "layer": "Adapter", "layer.inner": "Layer", "layer.more": "Linear"}), lambda _: frozenset()
    found = matched_changes(a, b)
    assert {a[0].path(p.a): b[0].path(p.b) for p in found.pairs} == {"": "", "layer": "layer"}
    assert said(found, a, b) == []


# ---- Lines that count on wrappers, DistributedDataParallel of Float16Module in a list, on models that have others or none.

MEGATRON = {
    "": "GPTModel", "embedding": "LanguageModelEmbedding", "embedding.word_embeddings": "VocabParallelEmbedding",
    "rotary_emb": "RotaryEmbedding", "decoder": "TransformerBlock", "decoder.layers": "ModuleList",
    "decoder.layers.0": "TransformerLayer", "decoder.layers.0.input_layernorm": "RMSNorm",
    "decoder.layers.0.self_attention": "SelfAttention", "decoder.layers.0.self_attention.linear_proj": "RowParallelLinear",
    "decoder.layers.0.pre_mlp_layernorm": "RMSNorm", "decoder.layers.0.mlp": "MLP",
    "decoder.layers.0.mlp.linear_fc2": "RowParallelLinear", "decoder.final_layernorm": "RMSNorm",
    "output_layer": "ColumnParallelLinear",
}  # fmt: skip
QWEN2 = {
    "": "Qwen2ForCausalLM", "model": "Qwen2Model", "model.embed_tokens": "Embedding", "model.rotary_emb": "Qwen2RotaryEmbedding",
    "model.layers": "ModuleList", "model.layers.0": "Qwen2DecoderLayer", "model.layers.0.input_layernorm": "Qwen2RMSNorm",
    "model.layers.0.self_attn": "Qwen2Attention", "model.layers.0.self_attn.o_proj": "Linear",
    "model.layers.0.post_attention_layernorm": "Qwen2RMSNorm", "model.layers.0.mlp": "Qwen2MLP",
    "model.layers.0.mlp.down_proj": "Linear", "model.norm": "Qwen2RMSNorm", "lm_head": "Linear",
}  # fmt: skip
PAIRS = {
    "": "", "embedding.word_embeddings": "model.embed_tokens", "rotary_emb": "model.rotary_emb", "decoder.layers": "model.layers",
    "decoder.layers.0": "model.layers.0", "decoder.layers.0.input_layernorm": "model.layers.0.input_layernorm",
    "decoder.layers.0.self_attention": "model.layers.0.self_attn",
    "decoder.layers.0.self_attention.linear_proj": "model.layers.0.self_attn.o_proj",
    "decoder.layers.0.pre_mlp_layernorm": "model.layers.0.post_attention_layernorm", "decoder.layers.0.mlp": "model.layers.0.mlp",
    "decoder.layers.0.mlp.linear_fc2": "model.layers.0.mlp.down_proj", "decoder.final_layernorm": "model.norm",
    "output_layer": "lm_head",
}  # fmt: skip
"""what both templates pair, by the paths without wrappers: `rotary_emb` keeps its name, below where the model's parts begin"""
WRAPPED = {
    "bare": [],
    "in a list": ["list"],
    "DDP": ["DistributedDataParallel"],
    "Float16Module": ["Float16Module"],
    "Float16Module in a list": ["list", "Float16Module"],
    "DDP in a list": ["list", "DistributedDataParallel"],
    "DDP of Float16Module": ["DistributedDataParallel", "Float16Module"],
    "all": ["list", "DistributedDataParallel", "Float16Module"],
}


def wrapped(classes: dict[str, str], around: list[str]) -> Tree:
    found = classes
    for name in reversed(around):
        held = "0" if name == "list" else "module"
        found = {"": name, **{f"{held}.{path}".rstrip("."): each for path, each in found.items()}}
    return tree(found)


def bare(path: str) -> str:
    while path.partition(".")[0] in ("0", "module"):
        path = path.partition(".")[2]
    return path


def pairs(found: object, a: Tree, b: Tree) -> dict[str, str]:
    inner = {i: j for i, j in ((p.a, p.b) for p in found.pairs) if a.wrapped(i) is None}  # type: ignore[attr-defined]
    return {bare(a.path(i)): bare(b.path(j)) for i, j in inner.items()}


@pytest.mark.parametrize("file", ["template-qwen2.5-mindspeed-llm.yaml", "template-qwen2.5-llamafactory.yaml"])
@pytest.mark.parametrize("around_qwen2", [[], ["list"], ["DistributedDataParallel"]], ids=["bare", "list", "DDP"])
@pytest.mark.parametrize("around", WRAPPED.values(), ids=WRAPPED)
def test_a_template_says_the_same_whatever_wraps_the_models(
    file: str, around: list[str], around_qwen2: list[str]
) -> None:
    megatron, qwen2 = wrapped(MEGATRON, around), wrapped(QWEN2, around_qwen2)
    mapping = load_mapping(DATA / file)
    found = match(megatron, qwen2, mapping, nothing, nothing)
    lacking = {"linear_fc1: up_proj", "up_proj: linear_fc1"}  # these trees are without
    assert [text for text in found.warnings if not any(each in text for each in lacking)] == []
    assert pairs(found, megatron, qwen2) == PAIRS
    turned = match(qwen2, megatron, mapping, nothing, nothing)
    assert {(p.b, p.a) for p in turned.pairs} == {(p.a, p.b) for p in found.pairs}


UNKNOWN = {
    "unknown": [("TrainedModel", "net")],
    "DDP of an unknown one": [("DistributedDataParallel", "module"), ("TrainedModel", "net")],
    "unknown, of the usual name": [("TrainedModel", "module")],
}


def held(classes: dict[str, str], around: list[tuple[str, str]]) -> Tree:
    """Return a tree of models in wrappers of any class, each with the name of what it holds."""
    for name, inner in reversed(around):
        classes = {"": name, **{f"{inner}.{path}".rstrip("."): each for path, each in classes.items()}}
    return tree(classes)


@pytest.mark.parametrize("file", ["template-qwen2.5-mindspeed-llm.yaml", "template-qwen2.5-llamafactory.yaml"])
@pytest.mark.parametrize("known", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN)
def test_a_line_that_pairs_a_wrapper_with_one_of_an_unknown_class(
    file: str, unknown: list[tuple[str, str]], known: list[str]
) -> None:
    """The template's first line is one, with the name that the unknown one gives to what it holds."""
    name = unknown[-1][1]
    text = (
        (DATA / file)
        .read_text()
        .replace("0.module: module", f"0.module: {name}")
        .replace("module: 0.module", f"{name}: 0.module")
    )
    megatron, qwen2 = wrapped(MEGATRON, known), held(QWEN2, unknown)
    found = match(megatron, qwen2, parse_mapping(text, "m.yaml"), nothing, nothing)
    lacking = ("linear_fc1: up_proj", "up_proj: linear_fc1")
    assert [text for text in found.warnings if not any(each in text for each in lacking)] == []
    ends = {megatron.path(p.a): qwen2.path(p.b).removeprefix(qwen2.path(len(unknown))).lstrip(".") for p in found.pairs}
    assert {bare(a): b for a, b in ends.items() if megatron.wrapped(megatron.by_path[a]) is None} == PAIRS


def test_a_model_that_holds_one_other_is_no_wrapper_unless_a_line_says_so() -> None:
    tied = {path: name for path, name in QWEN2.items() if path != "lm_head"}  # its head is the embedding
    found = matched(tree(tied), tree(tied), {"TopLayer": {"model": "model"}})
    assert len(found.pairs) == len(tied)


@pytest.mark.parametrize("around", WRAPPED.values(), ids=WRAPPED)
def test_paths_that_begin_with_wrappers(around: list[str]) -> None:
    """The library's file for Qwen2.5-VL begins as this one does."""
    sections = {
        "TopLayer": {"0.module.module.decoder.layers": "module.model.layers", "0.module.module.output_layer": "lm_head"}
    }
    megatron = wrapped(MEGATRON, around)
    found = matched(megatron, wrapped(QWEN2, []), sections)
    assert not found.warnings
    made = pairs(found, megatron, wrapped(QWEN2, []))
    assert made["decoder.layers.0"] == "model.layers.0" and made["output_layer"] == "lm_head"


def test_the_model_that_holds_all_weights_is_the_whole_one() -> None:
    """A backbone in a wrapper is the backbone, where the other side has a head that it lacks."""
    backbone = {path: name for path, name in MEGATRON.items() if path != "output_layer"}
    a, b = wrapped(backbone, ["Float16Module"]), wrapped(QWEN2, [])
    sides = (
        with_parameters(
            a, {"module.embedding.word_embeddings.weight": (50, 8), "module.decoder.final_layernorm.weight": (8,)}
        ),
        with_parameters(
            b, {"model.embed_tokens.weight": (50, 8), "model.norm.weight": (8,), "lm_head.weight": (50, 8)}
        ),
    )
    found = matched(*sides, {"Float16Module": {"module": "model"}, "GPTModel": {"decoder.layers": "layers"}})
    made = names(found, a, b)
    assert made["module"] == "model" and made["module.decoder.layers.0"] == "model.layers.0"


def test_names_that_wrappers_give_may_be_a_models_own() -> None:
    own = {"": "Net", "module": "Inner", "module.0": "Linear", "module.1": "Linear"}
    other = {"": "Other", "body": "Inner", "body.first": "Linear", "body.1": "Linear"}
    found = matched(tree(own), tree(other), {"TopLayer": {"module": "body", "module.0": "body.first"}})
    assert names(found, tree(own), tree(other)) == {
        "": "",
        "module": "body",
        "module.0": "body.first",
        "module.1": "body.1",
    }
    assert not found.warnings


def test_a_line_for_what_a_wrapper_holds_that_leads_to_nothing_is_said() -> None:
    mapping = parse_mapping("Float16Module:\n  module: modle\nGPTModel:\n  output_layer: lm_head\n", "m.yaml")
    found = match(wrapped(MEGATRON, []), wrapped(QWEN2, []), mapping, nothing, nothing)
    assert any(text.startswith("the mapping's line 2: Float16Module") and "model" in text for text in found.warnings), (
        found.warnings
    )


# ---- What has no counterpart and needs none, and what does need one.

Classes = Mapping[str, str]


def side(classes: Classes, weights: tuple[str, ...] = ()) -> tuple[Known, Outline]:
    found = tree({"": "Net", **classes})
    parameters = [
        ParameterInfo(
            (f"{path}.weight",), found.by_path[path], "weight", (4 if path == "fc" else 2, 4), "float32", True
        )
        for path in weights
    ]
    return Known(found, parameters), outline(found.modules, parameters)


def unneeded(a: tuple[Known, Outline], b: tuple[Known, Outline], sections: object = None) -> tuple[set[str], set[str]]:
    found = match(a[0], b[0], load_mapping(sections), lambda _: frozenset(), lambda _: frozenset())
    both = needing_no_partner(found, a[1], b[1], changes_of(found, a[0].tree, b[0].tree))
    return {a[0].tree.path(i) for i in both[0]}, {b[0].tree.path(i) for i in both[1]}


CASES_UNNEEDED: dict[str, tuple[Classes, tuple[str, ...], Classes, tuple[str, ...], set[str]]] = {
    "a function there": ({"act": "GELU"}, (), {}, (), {"act"}),
    "one of the kind is left there": ({"act": "GELU"}, (), {"nonlinearity": "GELUActivation"}, (), set()),
    "rotary embeddings are never alike": ({"rope": "RotaryEmbedding"}, (), {"rotary": "RotaryEmbedding"}, (), {"rope"}),
    "a model's name that holds the word of a kind": (
        {"model": "Gemma2Model", "model.rope": "Gemma2RotaryEmbedding"}, (), {"rotary": "Rotary"}, (), {"model", "model.rope"},
    ),
    "identity": ({"same": "IdentityOp"}, (), {"other": "Identity"}, (), {"same"}),
    "an empty list": ({"more": "ModuleList"}, (), {}, (), {"more"}),
    "holds what has a partner": ({"in": "Part"}, (), {}, (), {"in"}),
    "has weights": ({"proj": "Linear"}, ("proj",), {}, (), set()),
    "weights of a kind that must have some are not known": ({"proj": "Linear"}, (), {}, (), set()),
    "holds what is left": ({"part": "Part", "part.proj": "Linear"}, ("part.proj",), {}, (), set()),
    "inserted, with all in it": (
        {"l": "ModuleList", "l.0": "Act", "l.1": "Act", "l.2": "Act"}, (), {"l": "ModuleList", "l.0": "Act", "l.1": "Act"},
        (), set(),
    ),
}  # fmt: skip
"""A and its weights, B and its weights, what of A needs no partner"""


@pytest.mark.parametrize("case", CASES_UNNEEDED)
def test_what_needs_no_partner(case: str) -> None:
    mine, weights, theirs, other_weights, wanted = CASES_UNNEEDED[case]
    assert unneeded(side(mine, weights), side(theirs, other_weights))[0] == wanted


def test_weights_that_are_compared_with_those_of_others() -> None:
    a = side({"fc": "Linear"}, ("fc",))
    b = side({"w": "Part", "w.up": "Linear", "w.gate": "Linear"}, ("w.up", "w.gate"))
    lines = {"Net": {"params": {"fc.weight": {"to": ["w.up.weight", "w.gate.weight"]}}}}
    assert unneeded(a, b, lines) == ({"fc"}, {"w", "w.up", "w.gate"})


@pytest.mark.parametrize(("dropped", "wanted"), [(False, {"drop"}), (True, set())])
def test_a_dropout_that_drops_something_is_missed(dropped: bool, wanted: set[str]) -> None:
    a, b = side({"drop": "Dropout"}), side({})
    given = Numbers(-1.0, 1.0, 0.1, 2.0)
    made = Numbers(-2.0, 2.0, 0.1, 3.0) if dropped else given
    a[1].inputs[1], a[1].outputs[1] = (Seen((4,), given),), (Seen((4,), made),)
    assert unneeded(a, b)[0] == wanted


def test_how_it_is_listed_and_counted() -> None:
    a = side({"x": "Identity", "y": "GELU", "z": "Identity", "proj": "Linear"}, ("proj",))
    b = side({})
    found = match(a[0], b[0], load_mapping(None), lambda _: frozenset(), lambda _: frozenset())
    none = needing_no_partner(found, a[1], b[1])
    assert listed(a[0].tree, none[0]) == "2 Identity, 1 GELU"
    covered = coverage(found, a[0], b[0], none)
    assert [len(each) for each in covered.unneeded] == [3, 0]
    assert [each.path for each in covered.only_a] == ["proj"]


@pytest.mark.parametrize(
    ("class_name", "kind"),
    [
        ("Gemma2RMSNorm", "norm"), ("Gemma2MLP", ""), ("Gemma3TextScaledWordEmbedding", "embedding"), ("GroupedGemm", "linear"),
        ("ConvNextLayerNorm", "norm"), ("ConvNextLayer", ""), ("ConvBertSelfAttention", ""), ("SolarOpenMLP", ""),
        ("SolarOpenRotaryEmbedding", "rotary"), ("PoolFormerPooling", "pool"), ("KimiLinearMLP", ""), ("Conv2d", "conv"),
        ("HunYuanDenseV1MLP", ""), ("BertPooler", "pool"),
    ],
)  # fmt: skip
def test_the_name_of_a_model_tells_no_kind(class_name: str, kind: str) -> None:
    assert kind_of(class_name) == kind
