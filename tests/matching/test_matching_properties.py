"""Matching on random trees with random mappings: nothing twice, nothing lost, the same from either side."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from probe.errors import MappingError
from probe.mapping import LayerMapping, load_mapping
from probe.matching import Direction, Known, Matching, _direction, match
from probe.matching.checks.wrappers import with_wrappers
from probe.structure.tree import Tree
from tests.published.trees import tree

pytestmark = pytest.mark.thorough

Drawn = tuple[Tree, Tree, Any]
NAMES = ["a", "b", "module", "0", "1", "b1"]
KINDS = ("X", "Y", "DistributedDataParallel", "Float16Module", "ModuleList")


@st.composite
def class_names(draw: st.DrawFn, kinds: tuple[str, ...] = (*KINDS, "list")) -> dict[str, str]:
    classes = {"": draw(st.sampled_from(kinds))}
    for _ in range(draw(st.integers(0, 10))):
        parent = draw(st.sampled_from(sorted(classes)))
        path = ".".join(part for part in (parent, draw(st.sampled_from(NAMES))) if part)
        classes.setdefault(path, draw(st.sampled_from([kind for kind in kinds if kind != "list"])))
    return classes


TREES = st.builds(tree, class_names())
PLAIN = st.builds(tree, class_names(("X", "Y")))
"""without wrappers: paths through these can be read in two ways"""
PATHS = st.lists(st.sampled_from(NAMES), min_size=1, max_size=3).map(".".join)
PATTERNS = st.lists(st.sampled_from([*NAMES, "*", "**", "{i}"]), min_size=1, max_size=3).map(".".join)


@st.composite
def lines(draw: st.DrawFn) -> tuple[str, Any]:
    """Draw a key and what it stands for: a path, with a number, or several."""
    key = draw(PATHS)
    if draw(st.booleans()):
        targets: list[str] = [draw(PATHS) for _ in range(draw(st.sampled_from([1, 1, 2, 3])))]
    else:
        numbers = ["{i}", "b{i}", "{i+1}", "{2*i}"]
        key, targets = f"{key}.{draw(st.sampled_from(numbers))}", [f"{draw(PATHS)}.{draw(st.sampled_from(numbers))}"]
    return key, targets if len(set(targets)) > 1 and len(set(targets)) == len(targets) else targets[0]


SECTION = st.lists(lines(), max_size=3).map(dict)
HEADERS = st.one_of(
    st.sampled_from(["TopLayer", "X", "Y", "Float16Module"]),
    st.builds("{}{}{}".format, st.sampled_from(["", "/"]), PATTERNS, st.sampled_from(["", "/X", "/Y"])),
)
MAPPINGS = st.builds(
    lambda sections, ignored: {**sections, "ignore": ignored} if ignored else sections,
    st.dictionaries(HEADERS, SECTION, max_size=3),
    st.lists(st.builds("{}{}".format, PATTERNS, st.sampled_from(["/X", "/Y"])), max_size=1),
)


@st.composite
def one_to_many(draw: st.DrawFn, trees: st.SearchStrategy[Tree] = TREES) -> tuple[Tree, Tree, Any]:
    """Draw two trees and a mapping of modules that are there, one to two or three, from the roots, written from either side."""
    a, b = draw(trees), draw(trees)
    paths_a, paths_b = ([module.path for module in net.modules[1:]] for net in (a, b))
    assume(paths_a and len(paths_b) > 1)
    keys = draw(st.lists(st.sampled_from(paths_a), min_size=1, max_size=2, unique=True))
    pool = draw(st.permutations(paths_b))
    section: dict[str, Any] = {}
    for key in keys:
        count = draw(st.integers(2, 3))
        section[key], pool = list(pool[:count]), pool[draw(st.sampled_from([count, count - 1])) :]
    if trees is PLAIN or draw(st.booleans()):
        return a, b, {"TopLayer": {key: targets if len(targets) > 1 else "a" for key, targets in section.items()}}
    return b, a, from_parts(section)


def from_parts(section: dict[str, Any]) -> dict[str, Any]:
    """Return what is said of modules of which each is several, written from the side that has these."""
    return {"TopLayer": {whole: {"from": parts} for whole, parts in section.items() if len(parts) > 1}}


ANY = one_to_many() | st.tuples(TREES, TREES, MAPPINGS)
"""trees A and B, and a mapping between them"""


def nothing(_: int) -> frozenset[object]:
    return frozenset()


def parsed(sections: Any) -> LayerMapping:
    """Parse what was drawn; what is no mapping is drawn anew."""
    try:
        return load_mapping(sections)
    except MappingError:
        assume(False)
        raise


def matched(a: Tree, b: Tree, mapping: LayerMapping, direction: Direction | None) -> Matching | None:
    try:
        return match(a, b, mapping, nothing, nothing, direction)
    except MappingError:
        return None


@given(ANY, st.sampled_from([None, *Direction]))
@settings(max_examples=150, deadline=None)
def test_a_module_is_never_paired_twice_and_none_is_lost(drawn: Drawn, direction: Direction | None) -> None:
    a, b, sections = drawn
    found = matched(a, b, parsed(sections), direction)
    if found is None:
        return
    a, b = with_wrappers(parsed(sections), a, b)  # those that the mapping names too
    in_a, in_b = [pair.a for pair in found.pairs], [pair.b for pair in found.pairs]
    for bundle in found.bundles:
        pairs = {(pair.a, pair.b) for pair in found.pairs}
        first = bundle.parts[0]
        assert ((first, bundle.whole) if bundle.side == "A" else (bundle.whole, first)) in pairs
        (in_a if bundle.side == "A" else in_b).extend(bundle.parts[1:])
    for net, inside, only, ignored, stepped in (
        (a, in_a, found.only_a, found.ignored_a, found.stepped_a),
        (b, in_b, found.only_b, found.ignored_b, found.stepped_b),
    ):
        assert len(set(inside)) == len(inside), "paired twice"
        assert ignored.isdisjoint(inside) and ignored.isdisjoint(only)
        wrappers = [i for i in range(len(net)) if net.wrapped(i) is not None and i not in inside and i not in ignored]
        assert all(inner in inside for inner in stepped.values()), "what is stepped over holds a pair"
        assert sorted([*inside, *only, *ignored, *wrappers, *stepped]) == list(range(len(net)))


@given(ANY, st.sampled_from([None, *Direction]))
@settings(max_examples=150, deadline=None)
def test_the_other_way_round_is_the_transpose(drawn: Drawn, direction: Direction | None) -> None:
    a, b, sections = drawn
    other = None if direction is None else next(d for d in Direction if d is not direction)
    mapping = parsed(sections)
    if direction is None:
        assume(
            _direction(mapping, Known(a), Known(b))[0] is not _direction(mapping, Known(b), Known(a))[0]
        )  # a tie is read from A in both cases
    found, transposed = matched(a, b, mapping, direction), matched(b, a, mapping, other)
    assert (found is None) == (transposed is None)
    if found is None or transposed is None:
        return
    assert {(p.a, p.b, p.reason) for p in found.pairs} == {(p.b, p.a, p.reason) for p in transposed.pairs}
    assert (found.only_a, found.only_b) == (transposed.only_b, transposed.only_a)
    assert (found.ignored_a, found.ignored_b) == (transposed.ignored_b, transposed.ignored_a)
    assert [(each.side == "A", each.whole, each.parts, each.groups) for each in found.bundles] == [
        (each.side == "B", each.whole, each.parts, each.groups) for each in transposed.bundles
    ]


@given(one_to_many(PLAIN))
@settings(max_examples=120, deadline=None)
def test_several_for_one_is_the_same_from_either_side(drawn: Drawn) -> None:
    a, b, sections = drawn
    section = sections["TopLayer"]
    assume(
        all(net.wrapped(i) is None for net in (a, b) for i in range(len(net)))
    )  # in what these hold, paths mean two things
    assume(section and all(isinstance(value, list) for value in section.values()))
    found = matched(a, b, parsed(sections), Direction.A_TO_B)
    other = matched(a, b, parsed(from_parts(section)), Direction.B_TO_A)
    if found is not None and other is not None:
        assert set(found.bundles) == set(other.bundles)


@given(TREES, MAPPINGS)
@settings(max_examples=100, deadline=None)
def test_a_mapping_that_names_a_pair_leads_to_it(a: Tree, sections: Any) -> None:
    """What is paired as mapped is so by some line: without the mapping it would be the same path."""
    found = matched(a, a, parsed(sections), Direction.A_TO_B)
    for pair in found.pairs if found else ():
        assert pair.a == pair.b or pair.reason.value == "mapped"


@given(TREES, TREES)
@settings(max_examples=150, deadline=None)
def test_without_a_mapping_both_sides_are_alike(a: Tree, b: Tree) -> None:
    for net in (a, b):
        assume(all(len(net.children[i]) == 1 for i in range(len(net)) if net.wrapped(i) is not None))
    here, there = matched(a, b, LayerMapping(), None), matched(b, a, LayerMapping(), None)
    assert here is not None and there is not None
    assert {(p.a, p.b) for p in here.pairs} == {(p.b, p.a) for p in there.pairs}


@given(TREES)
def test_a_tree_matches_itself(a: Tree) -> None:
    found = matched(a, a, LayerMapping(), None)
    assert found is not None and all(pair.a == pair.b for pair in found.pairs)
    assert (found.only_a, found.only_b) == ((), ())
