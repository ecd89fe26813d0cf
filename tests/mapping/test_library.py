"""The ready-made mappings: each on module trees of the real names and nesting, against truth that was written by hand.

The trees are in ``tests/skeletons`` and ``tests/data``, the truths in ``benchmarks/matching/truths``.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from probe.commands.cli import main
from probe.mapping import library, load_mapping
from probe.matching import Direction, Matching, match
from probe.matching.automatic.outline import outline
from probe.matching.checks.coverage import coverage
from probe.matching.known import Known, canonical_shape
from probe.matching.unneeded import listed, needing_no_partner
from probe.numbers.fused import Fusion, whole_shape
from probe.records import ParameterInfo
from probe.structure.printed import Printed, write_structure
from probe.structure.tree import Tree
from tests.published.pairs import OTHER_TREES, PAIRS, ModelPair
from tests.published.score import judged, relations_of
from tests.published.trees import DATA
from tests.published.truth import Truth, read_truth

LIBRARY = {
    "mindspeed-mm/qwen2.5-vl": "qwen2.5-vl",
    "mindspeed-llm/qwen2.5": "qwen2.5-mindspeed",
    "megatron-core/llama": "llama-megatron",
    "megatron-core/qwen2": "qwen2-megatron",
    "megatron-core/qwen3": "qwen3-megatron",
    "megatron-core/mixtral": "mixtral-megatron",
    "megatron-core/qwen2-moe": "qwen2-moe-megatron",
    "megatron-core/qwen3-moe": "qwen3-moe-megatron",
    "megatron-core/deepseek-v3": "deepseek-v3-megatron",
    "meta/llama": "llama-meta-tree",
    "timm/vit": "vit-timm-tree",
    "torch/bert": "bert-tree",
    "paddlenlp/bert": "bert-paddlenlp",
    "paddlenlp/bert-mlm": "bert-mlm-paddlenlp",
    "paddlenlp/llama": "llama-paddlenlp",
    "paddlenlp/qwen2": "qwen2-paddlenlp",
    "vllm/qwen2": "qwen2-vllm",
    "vllm/llama": "llama-vllm",
    "sglang/qwen2": "qwen2-sglang",
    "mindformers/llama": "llama-mindformers",
    "mindformers/qwen2": "qwen2-mindformers",
    "mindformers/megatron-llama": "llama-mindformers-megatron",
    "mindformers/megatron-qwen2": "qwen2-mindformers-megatron",
}
"""by name the pair of models, in `tests.published.pairs`, that proves it"""
TREES = {
    **LIBRARY,
    "megatron-core/llama, te": "llama-megatron-te",
    "megatron-core/mixtral, te": "mixtral-megatron-te",
    "megatron-core/deepseek-v3, te": "deepseek-v3-megatron-te",
    "megatron-core/mixtral, grouped": "mixtral-megatron-grouped",
    "mindformers/megatron-llama, te": "llama-mindformers-megatron-te",
    "mindformers/llama, qkv_concat": "llama-mindformers-concat",
}
"""by name, and by what a further tree is, the pair of models"""
GROUPS = 2
CONFIG = {"num_query_groups": GROUPS, "num_attention_heads": 4}


@functools.cache
def sides(name: str) -> tuple[Known, Known, Truth]:
    pair = {**PAIRS, **OTHER_TREES}[TREES[name]]
    read = pair.a.read(), pair.b.read()
    truth = pair.truth_of(read[0].modules, read[1].modules)
    return known(read[0]), known(read[1]), truth


def known(printed: Printed) -> Known:
    return Known(Tree(printed.modules), printed.parameters, CONFIG)


def nothing_known(index: int) -> frozenset[object]:
    return frozenset()


def found_by(name: str | Path, a: Known, b: Known) -> Matching:
    source = name.partition(",")[0] if isinstance(name, str) else name
    return match(a, b, load_mapping(source), nothing_known, nothing_known)


@pytest.mark.parametrize("name", TREES)
def test_every_module_with_a_counterpart_is_paired_and_nothing_wrongly(name: str) -> None:
    a, b, truth = sides(name)
    found = found_by(name, a, b)
    score = judged(relations_of(found, a.tree, b.tree), truth, (len(a.tree), len(b.tree)))
    assert (score.wrong, score.missed) == ((), ())
    assert (found.warnings, found.direction) == ((), Direction.A_TO_B)


@pytest.mark.parametrize("name", TREES)
def test_the_other_way_round_finds_the_same(name: str) -> None:
    a, b, _ = sides(name)
    found, other = found_by(name, a, b), found_by(name, b, a)
    assert other.direction is Direction.B_TO_A and other.warnings == ()
    assert {(p.b, p.a, p.reason) for p in other.pairs} == {(p.a, p.b, p.reason) for p in found.pairs}
    assert (other.only_b, other.only_a) == (found.only_a, found.only_b)
    turned = {"A": "B", "B": "A"}
    assert [(turned[x.side], x.whole, x.parts, x.groups) for x in other.bundles] == [
        (x.side, x.whole, x.parts, x.groups) for x in found.bundles
    ]


@pytest.mark.parametrize("name", TREES)
def test_what_is_listed_as_left_over_has_no_counterpart(name: str) -> None:
    a, b, truth = sides(name)
    found = found_by(name, a, b)
    assert {a.tree.path(i) for i in {*found.only_a, *found.ignored_a}} - truth.skipped_a == truth.none_a
    assert {b.tree.path(i) for i in {*found.only_b, *found.ignored_b}} - truth.skipped_b == truth.none_b


@pytest.mark.parametrize("name", TREES)
def test_fused_modules_lie_in_the_order_and_the_groups_that_their_code_says(name: str) -> None:
    a, b, truth = sides(name)
    bundles = [bundle for bundle in found_by(name, a, b).bundles if not bundle.rotary]
    seen = {
        (x.side, wholes.path(x.whole), tuple(parts.path(i) for i in x.parts))
        for x in bundles
        for wholes, parts in [(a.tree, b.tree) if x.side == "B" else (b.tree, a.tree)]
    }
    assert seen == truth.bundles
    assert {a.tree.name(x.whole): x.groups for x in bundles} == {
        a.tree.name(x.whole): GROUPS if a.tree.name(x.whole) == "linear_qkv" else 1 for x in bundles
    }


@pytest.mark.parametrize(
    "name", ["megatron-core/llama, te", "megatron-core/mixtral, te", "megatron-core/deepseek-v3, te"]
)
def test_norms_inside_linears_are_compared_by_their_weights_alone(name: str) -> None:
    a, b, _ = sides(name)
    found = coverage(found_by(name, a, b), a, b)
    norms = {each.path.rpartition(".")[2] for each in found.weights_b}
    assert norms == ({"q_a_layernorm", "kv_a_layernorm", "post_attention_layernorm"} if "deepseek" in name else
                     {"input_layernorm", "post_attention_layernorm"} - ({"post_attention_layernorm"} if "mixtral" in name else set()))  # fmt: skip
    assert not any("norm" in each.path for each in found.only_b)
    experts = {each.path.rpartition(".")[2] for each in found.weights_a}
    assert experts == (set() if "llama" in name else {"linear_fc1", "linear_fc2"})


# Coverage

LEFT = {
    "mindformers/megatron-llama, te": (r"core_attention|flash_attention", "these take and return other layouts"),
}
"""what is left, and why; nothing in the other trees"""


@pytest.mark.parametrize("name", TREES)
def test_map_check_ends_with_0_where_nothing_is_left(tmp_path: Path, name: str) -> None:
    pair, files = {**PAIRS, **OTHER_TREES}[TREES[name]], (tmp_path / "a.h5", tmp_path / "b.h5")
    for text, file in zip((pair.a, pair.b), files, strict=True):
        write_structure(file, text.read(), CONFIG)
    done = CliRunner().invoke(main, ["map", "check", name.partition(",")[0], *map(str, files)])
    left = done.stdout.partition("\nOnly in ")[2]
    paths = [line.split()[0] for line in left.splitlines() if re.match("  [^ ]", line)]
    which = LEFT[name][0] if name in LEFT else "$^"
    assert done.exit_code == (1 if name in LEFT else 0), done.stdout
    assert all(re.search(which, path) for path in paths) and bool(paths) == (name in LEFT), paths


def test_the_list_of_what_needs_no_partner() -> None:
    a, b, _ = sides("megatron-core/mixtral")
    outlines = [outline(k.tree.modules, k.parameters or (), "") for k in (a, b)]
    mine, theirs = needing_no_partner(found_by("megatron-core/mixtral", a, b), *outlines)
    assert listed(a.tree, mine) == (
        "8 IdentityOp, 8 MLP, 8 ColumnParallelLinear, 8 RowParallelLinear, 3 Dropout, 2 DotProductAttention, 2 "
        "FusedScaleMaskSoftmax, 2 IdentityFuncOp, 2 ModuleList, 1 LanguageModelEmbedding, 1 RotaryEmbedding, 1 TransformerBlock"
    )
    assert listed(b.tree, theirs) == "2 SiLUActivation, 1 MixtralModel, 1 MixtralRotaryEmbedding"


# Weights

UNPAIRED = {
    "paddlenlp/bert-mlm": (2, r"^bert\.pooler\."),
}
"""how many weights of both sides have none, and which: the files say why"""


@pytest.mark.parametrize("name", [name for name in TREES if name != "mindspeed-mm/qwen2.5-vl"])
def test_every_weight_has_a_partner_of_its_shape(name: str) -> None:
    a, b, _ = sides(name)
    found = found_by(name, a, b)
    partners, shapes = weights_of(found, a, b)
    assert all(one == other for one, other in shapes), [pair for pair in shapes if pair[0] != pair[1]]
    lonely = [
        p.names[0]
        for side, known_ in (("A", a), ("B", b))
        for p in known_.parameters
        if (side, p.names[0]) not in partners
    ]
    count, which = UNPAIRED.get(name, (0, ""))
    assert len(lonely) == count and all(re.search(which, each) for each in lonely), lonely


def weights_of(found: Matching, a: Known, b: Known) -> tuple[set[tuple[str, str]], list[tuple[object, object]]]:
    """Return the parameters that have a partner, and the canonical shapes of every pair."""
    views = {"A": found.views_a, "B": found.views_b}
    by_place = {side: {(p.module, p.slot): p for p in k.parameters} for side, k in (("A", a), ("B", b))}

    def canonical(side: str, p: ParameterInfo) -> tuple[str, tuple[int, ...]]:
        view = views[side].get((p.module, p.slot))
        return (view.name, canonical_shape(p, view.axes)) if view else (p.canonical_slot, canonical_shape(p))

    partners: set[tuple[str, str]] = set()
    shapes: list[tuple[object, object]] = []
    rows = [(w.side, w.whole, w.parts, w.fusion) for w in found.weight_bundles]
    for bundle in found.bundles:
        whole_side = "B" if bundle.side == "A" else "A"
        for place in by_place[whole_side]:
            if place[0] == bundle.whole and all((part, place[1]) in by_place[bundle.side] for part in bundle.parts):
                rows.append((bundle.side, place, (tuple((part, place[1]) for part in bundle.parts),), Fusion()))
    for side, place, parts, fusion in rows:
        whole_side = "B" if side == "A" else "A"
        whole = by_place[whole_side][place]
        members = [by_place[side][part] for row in parts for part in row]
        sizes = [[canonical(side, by_place[side][part])[1] for part in row] for row in parts]
        shapes.append((whole_shape(sizes, fusion), canonical(whole_side, whole)[1]))
        partners |= {(whole_side, whole.names[0]), *((side, p.names[0]) for p in members)}
    in_bundles = {(x.side, part) for x in found.bundles for part in x.parts}
    for pair in found.pairs:
        if ("A", pair.a) in in_bundles or ("B", pair.b) in in_bundles:
            continue
        mine = {canonical("A", p)[0]: p for p in by_place["A"].values() if p.module == pair.a}
        theirs = {canonical("B", p)[0]: p for p in by_place["B"].values() if p.module == pair.b}
        for slot in mine.keys() & theirs.keys():
            shapes.append((canonical("A", mine[slot])[1], canonical("B", theirs[slot])[1]))
            partners |= {("A", mine[slot].names[0]), ("B", theirs[slot].names[0])}
    return partners, shapes


def test_meta_turns_neighbours_where_transformers_turns_halves() -> None:
    a, b, _ = sides("meta/llama")
    found = {(a.tree.path(each.parts[0])[9:], each.rotary, each.side) for each in found_by("meta/llama", a, b).bundles}
    assert found == {("attention.wq", 4, "A"), ("attention.wk", GROUPS, "A")}


# The library itself


def test_every_file_of_the_library_is_proven_somewhere() -> None:
    elsewhere = {
        "torch/paddle", "torch/mindspore", "transformers/bert-paddle",  # tests of conversion, docs/examples/bert
    }  # fmt: skip
    assert set(library()) == set(LIBRARY) | elsewhere


def test_every_file_says_where_its_names_come_from() -> None:
    for name in LIBRARY:
        head = library()[name].read_text(encoding="utf-8").split("\n\n")[0]
        assert head.startswith("# ") and "<->" in head.split("\n")[0] and "transformers" in head or "Megatron" in head


@pytest.mark.parametrize(
    ("file", "pair", "count"),
    [
        ("template-qwen2.5vl-mindspeed-mm.yaml", "qwen2.5-vl", 193),
        ("template-qwen2.5vl-llamafactory.yaml", "qwen2.5-vl", 210),
        ("template-qwen2.5-mindspeed-llm.yaml", "qwen2.5-mindspeed", 22),
        ("template-qwen2.5-llamafactory.yaml", "qwen2.5-mindspeed", 22),
    ],
)
def test_published_templates_pair_what_they_paired(file: str, pair: str, count: int) -> None:
    models: ModelPair = PAIRS[pair]
    a, b = known(models.a.read()), known(models.b.read())
    found = found_by(DATA / file, a, b)
    other = found_by(DATA / file, b, a)
    assert len(found.pairs) == count
    assert {(p.a, p.b) for p in found.pairs} == {(p.b, p.a) for p in other.pairs}


# The truths


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = x", "modules of A that stand in no line, or in two: ., y"),
        (". = .\nx = x\ny = z\nx = z", "modules of A that stand in no line, or in two: x"),
        (". = .\nx = x\ny = w", "w is no module of B"),
        (". = .\nx = x\nq = z", "q names no module of A"),
        (". = .\nx = x\nA: y\nB: q", "B: q names no module"),
    ],
)
def test_a_truth_that_leaves_something_out_is_an_error(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        read_truth(text, ["", "x", "y"], ["", "x", "z"])


def test_a_truth_with_numbers_lists_and_prefixes() -> None:
    a = ["", "h", "h.0", "h.0.qkv", "h.1", "h.1.qkv", "drop", "wrap"]
    b = ["", "l", "l.0", "l.0.q", "l.0.k", "l.1", "l.1.q", "l.1.k", "act"]
    text = """
    . = .   # the root
    h = l:
      . = .
      {i} = {i}:
        . = .
        qkv = q | k
    A: drop
    -A: wrap
    B: act
    """
    truth = read_truth(text, a, b)
    assert truth.pairs == {("", ""), ("h", "l"), ("h.0", "l.0"), ("h.1", "l.1")}
    assert truth.bundles == {("B", "h.0.qkv", ("l.0.q", "l.0.k")), ("B", "h.1.qkv", ("l.1.q", "l.1.k"))}
    assert (truth.none_a, truth.none_b, truth.skipped_a) == ({"drop"}, {"act"}, {"wrap"})
    assert ("h.1.qkv", "l.1.k") in truth.relations and len(truth.relations) == 8


def test_a_score_counts_what_is_wrong_and_what_is_missed() -> None:
    truth = read_truth(". = .\nx = x\nA: y\n-B: z", ["", "x", "y"], ["", "x", "z"])
    score = judged({("", "", False), ("y", "x", False), ("x", "z", False)}, truth, (3, 3))
    assert (score.found, score.right, score.true) == (2, 1, 2)
    assert (score.wrong, score.missed) == ((("y", "x", False),), (("x", "x", False),))
    assert (score.precision, score.recall) == (0.5, 0.5)
