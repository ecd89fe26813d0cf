"""Both module trees as one list of rows: what is a pair stands in one row, what has no partner has one of its own."""

from __future__ import annotations

import enum
import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from probe.matching import Matching
from probe.structure.tree import Tree
from probe.verdict.side import Call

ABSENT = -1


class State(enum.StrEnum):
    """What a row is."""

    PAIRED = "paired"
    PART = "part"
    """one of several modules that are one on the other side, and not the first of them"""
    UNMATCHED = "unmatched"
    """it was called, and has no partner"""
    UNNEEDED = "needs no partner"
    """it was called, has no partner and needs none: Identity, containers, what is a function on the other side"""
    ALONE = "alone"
    """an operation that one side alone calls"""
    UNCALLED = "uncalled"
    """it has no partner, and was never called: lists of modules"""
    IGNORED = "ignored"
    """the mapping leaves it out"""
    PASSED_OVER = "passed over"
    """wrappers, and others that only hold one module, which only pass on"""


@dataclass(eq=False, slots=True)
class Row:
    """A row; the modules by their indices, -1 where there is none."""

    a: int
    b: int
    pair: int
    """index into the matching's pairs; of a part, the pair that it belongs to; -1 where there is none"""
    state: State
    depth: int = 0
    children: list[Row] = field(default_factory=list)


def merged(
    matching: Matching, tree_a: Tree, tree_b: Tree, left_a: Mapping[str, State], left_b: Mapping[str, State],
    begins: tuple[Mapping[int, int], Mapping[int, int]] = ({}, {}),
) -> list[Row]:  # fmt: skip
    """Return the rows, parents before children, those of one parent in the order in which A first called them.

    What only B has stands where it runs: behind the sibling that it follows in B, or what is in that, wherever A has it.

    Parameters
    ----------
    matching
        pairs, and what is left
    tree_a, tree_b
        the modules
    left_a, left_b
        by path, what the modules are that were called and have no counterpart: unmatched, or in no need of one
    begins
        of each side, by module, when it was first called
    """
    of_a, of_b = {}, {}
    for index, pair in enumerate(matching.pairs):
        of_a[pair.a] = of_b[pair.b] = Row(pair.a, pair.b, index, State.PAIRED)
    for bundle in matching.bundles:
        mine, theirs = (of_a, of_b) if bundle.side == "A" else (of_b, of_a)
        pair = theirs[bundle.whole].pair if bundle.whole in theirs else ABSENT
        for part in bundle.parts:
            if part not in mine:
                place = (part, ABSENT) if bundle.side == "A" else (ABSENT, part)
                mine[part] = Row(*place, pair, State.PART)
    for index in range(len(tree_a)):
        if index not in of_a:
            state = _state(tree_a, index, matching.stepped_a, matching.ignored_a, left_a)
            of_a[index] = Row(index, ABSENT, ABSENT, state)
    for index in range(len(tree_b)):
        if index not in of_b:
            state = _state(tree_b, index, matching.stepped_b, matching.ignored_b, left_b)
            of_b[index] = Row(ABSENT, index, ABSENT, state)
    tops: list[Row] = []
    for index in _as_called(tree_a, begins[0]):
        parent = tree_a.modules[index].parent
        (of_a[parent].children if parent >= 0 else tops).append(of_a[index])
    _add_of_b(tree_b, of_a.values(), of_b, tops, _as_called(tree_b, begins[1]))
    return list(_flat(tops))


def of_one(tree: Tree, begins: Mapping[int, int]) -> list[Row]:
    """Return the rows of one tree, each module a pair by itself, as `merged` does."""
    found = [Row(index, ABSENT, index, State.PAIRED) for index in range(len(tree))]
    tops: list[Row] = []
    for index in _as_called(tree, begins):
        parent = tree.modules[index].parent
        (found[parent].children if parent >= 0 else tops).append(found[index])
    return list(_flat(tops))


def begun(calls: Iterable[Call]) -> dict[int, int]:
    """Return by module when it was first called."""
    found: dict[int, int] = {}
    for call in calls:
        found[call.module] = min(found.get(call.module, call.begin), call.begin)
    return found


def _as_called(tree: Tree, begins: Mapping[int, int]) -> list[int]:
    """Return modules in the order in which they, or what is in them, were first called; the others behind the sibling before them."""
    never = math.inf
    firsts = [float(begins.get(index, never)) for index in range(len(tree))]
    for index, module in reversed(list(enumerate(tree.modules))):
        if module.parent >= 0:
            firsts[module.parent] = min(firsts[module.parent], firsts[index])
    last: dict[int, float] = {}
    for index, module in enumerate(tree.modules):
        if firsts[index] == never:
            firsts[index] = last.get(module.parent, -1.0)
        last[module.parent] = firsts[index]
    return sorted(range(len(tree)), key=lambda index: (firsts[index], index))


def _state(
    tree: Tree, index: int, stepped: Mapping[int, int], ignored: frozenset[int], left: Mapping[str, State]
) -> State:
    if index in ignored:
        return State.IGNORED
    if tree.wrapped(index) is not None or index in stepped:
        return State.PASSED_OVER
    return left.get(tree.path(index), State.ALONE if tree.modules[index].is_operation else State.UNCALLED)


def _add_of_b(tree: Tree, of_a: Iterable[Row], of_b: dict[int, Row], tops: list[Row], order: Iterable[int]) -> None:
    """Add the rows that only B has: behind what they follow in B, wherever that stands, or first in their parents."""
    first: dict[int, list[Row]] = defaultdict(list)
    behind: dict[int, list[Row]] = defaultdict(list)
    last: dict[int, Row] = {}
    for index in order:
        parent, row = tree.modules[index].parent, of_b[index]
        if row.a == ABSENT:
            (behind[id(last[parent])] if parent in last else first[parent]).append(row)
            continue
        last[parent] = row
        while parent >= 0 and of_b[parent].a == ABSENT:  # what follows a module that only B has follows what is in it
            parent = tree.modules[parent].parent
            last[parent] = row
    for parent, group in first.items():
        (of_b[parent].children if parent >= 0 else tops)[:0] = group
    for children in (tops, *(row.children for row in of_a)):
        children[:] = [each for child in children for each in (child, *behind.get(id(child), ()))]


def _flat(tops: list[Row]) -> Iterator[Row]:
    """Yield rows with their depths, without recursion: trees may be deep."""
    left = [(row, 0) for row in reversed(tops)]
    while left:
        row, row.depth = left.pop()
        yield row
        left += [(child, row.depth + 1) for child in reversed(row.children)]
