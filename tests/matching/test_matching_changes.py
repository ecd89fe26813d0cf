"""Lists of layers of which one is longer, or in another order: which member is which, and what is said of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from probe.mapping import LayerMapping, load_mapping
from probe.matching import Direction, Fingerprint, Matching, Reason, match
from probe.matching.changes import changes_of
from probe.matching.lists import Member, laid_side_by_side
from probe.structure.tree import Tree
from tests.trees import tree

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


def matched(a: Net, b: Net, sections: Mapping[str, Any] | None = None, direction: Direction | None = None) -> Matching:
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
    found = matched(a, b, direction=direction)
    assert " ".join(f"{i}:{j}" for i, j in numbers(found, a, b).items()) == pairs
    assert [f"{kind}: {text}" for kind, text in said(found, a, b)] == texts
    assert found.warnings == ()


@pytest.mark.parametrize("case", CASES)
def test_the_other_way_round_the_same_members_are_pairs(case: str) -> None:
    mine, theirs, pairs, _ = CASES[case]
    a, b = net(mine), net(theirs)
    back = {f"{i}:{j}" for j, i in numbers(matched(b, a), b, a).items()}
    assert back == set(pairs.split())


OWN = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=6, unique=True)
ANY = st.lists(st.sampled_from(["a", "b", "c", "Conv:d", "Conv:", "Layer:"]), min_size=1, max_size=6)


@given(OWN, OWN)
@settings(max_examples=80, deadline=None)
def test_layers_with_weights_of_their_own_are_paired_wherever_they_stand(mine: list[str], theirs: list[str]) -> None:
    a, b = net(" ".join(mine)), net(" ".join(theirs))
    pairs = {(mine[int(i)], theirs[int(j)]) for i, j in numbers(matched(a, b), a, b).items()}
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
    here, there = numbers(matched(a, b), a, b), numbers(matched(b, a), b, a)
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
        return {pair.reason for pair in matched(a, b).pairs if a[0].path(pair.a)[-1:].isdigit()}

    assert reasons("a b c", "a x b c") == {Reason.SAME_VALUES}
    assert reasons("Conv: ReLU:", "Pool: Conv: ReLU:") == {Reason.SAME_STRUCTURE}
    assert reasons("Layer: Layer:", "Layer: Layer: Layer:") == {Reason.SAME_PATH}


def test_layers_with_numbers_in_their_names_are_a_list_too() -> None:
    a, b = net("a b c", "conv{}"), net("a x b c", "conv{}")
    found = matched(a, b)
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
    found = matched(a, b, sections, direction)
    pairs = numbers(found, a, b)
    wanted = {"0": "0", "1": "2", "2": "4", "3": "3"}
    assert pairs == (wanted if direction is Direction.A_TO_B else {j: i for i, j in wanted.items()})
    kinds = [kind for kind, _ in said(found, a, b)]
    assert kinds == ["inserted" if direction is Direction.A_TO_B else "removed", "swapped"]


def test_numbers_in_the_names_of_a_few_parts_are_no_list_of_layers() -> None:
    a = tree({"": "Net", "linear_fc1": "Linear", "linear_fc2": "Linear"}), lambda _: frozenset()
    b = tree({"": "Net", "w1": "Linear", "w2": "Linear", "w3": "Linear"}), lambda _: frozenset()
    assert said(matched(a, b, {"Net": {"linear_fc1": "w1", "linear_fc2": "w2"}}), a, b) == []


def test_a_line_for_one_member_is_taken_at_its_word() -> None:
    a, b = net("a b c"), net("a c b", "h.{}")
    found = matched(a, b, {"Net": {"layers.0": "h.0", "layers.1": "h.1", "layers.2": "h.2"}})
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
    found = matched(a, b, sections)
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
    found = matched(a, b, sections)
    assert {a[0].path(p.a): b[0].path(p.b) for p in found.pairs}["layers.1.attn"] == "h.1.inner.attn"
    by_layer = matched(a, b, {"Net": {"layers": "h"}, "/layers.1": {"attn": "inner.attn", "mlp": "inner.mlp"}})
    assert {a[0].path(p.a): b[0].path(p.b) for p in by_layer.pairs}["layers.1.mlp"] == "h.1.inner.mlp"
    assert by_layer.warnings == ()
    inside = matched(b, a, {"Net": {"h": "layers"}, "Checkpointed": {"inner.attn": "attn", "inner": "mlp"}})
    assert {b[0].path(p.a): a[0].path(p.b) for p in inside.pairs}["h.1.inner"] == "layers.1.mlp"


def test_the_whole_model_in_a_wrapper() -> None:
    inner = {"": "Net", "layers": "ModuleList", "layers.0": "Layer"}
    a = tree(inner), lambda _: frozenset()
    b = (
        tree({"": "Holder", **{f"inner{'.' if path else ''}{path}": name for path, name in inner.items()}}),
        lambda _: frozenset(),
    )
    found = matched(a, b)
    assert {a[0].path(p.a): b[0].path(p.b) for p in found.pairs}["layers.0"] == "inner.layers.0"
    text = "B's root (Holder) only holds inner (Net), which is the whole of A: it is stepped over"
    assert said(found, a, b) == [("wrapped", text)]


def test_what_holds_more_than_one_thing_is_no_wrapper() -> None:
    a = tree({"": "Net", "layer": "Layer", "layer.attn": "Attention"}), lambda _: frozenset()
    b = tree({"": "Net", "layer": "Adapter", "layer.inner": "Layer", "layer.more": "Linear"}), lambda _: frozenset()
    found = matched(a, b)
    assert {a[0].path(p.a): b[0].path(p.b) for p in found.pairs} == {"": "", "layer": "layer"}
    assert said(found, a, b) == []
