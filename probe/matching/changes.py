"""What one model has otherwise than the other: layers inserted, removed, in another order, or wrapped."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from probe.comparison.notes import Note, as_json, note
from probe.matching.automatic.increasing import increasing
from probe.matching.lists import families, number
from probe.matching.result import Doubt, Matching
from probe.structure.tree import Tree

_ENOUGH = 3
"""pairs from which on two lists under other names (``layers.0``, ``block0``) are lists of layers; ``fc1``, ``fc2`` are none"""


class ChangeKind(enum.StrEnum):
    """What was changed from A to B."""

    INSERTED = "inserted"
    REMOVED = "removed"
    SWAPPED = "swapped"
    REORDERED = "reordered"
    WRAPPED = "wrapped"
    UNWRAPPED = "unwrapped"
    CALLED_MORE = "called more often"
    CALLED_LESS = "called less often"
    CALLED_OTHERWISE = "called in another order"
    RECOMPUTED = "recomputed"


@dataclass(frozen=True, slots=True)
class Change:
    """Something that one model has, or does, otherwise than the other."""

    kind: ChangeKind
    a: tuple[str, ...]
    """paths in A; of swapped layers in the order of their partners in ``b``"""
    b: tuple[str, ...]
    note: Note

    @property
    def text(self) -> str:
        """The note in words."""
        return str(self.note)

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        said = as_json(self.note)
        return {"kind": self.kind.value, "a": list(self.a), "b": list(self.b), **said}


@dataclass
class _Lists:
    """Members of two lists: numbered names here and there."""

    a: Tree
    b: Tree
    above: tuple[int, int]
    names: tuple[list[str], list[str]]
    pairs: dict[int, int]
    """by place in the lists"""

    def path(self, side: int, place: int) -> str:
        """Return the path of a member."""
        tree = (self.a, self.b)[side]
        return tree.path(tree.children[self.above[side]][self.names[side][place]])

    def members(self, side: int, places: Sequence[int]) -> tuple[tuple[str, int], ...]:
        """Return members by their paths and numbers."""
        return tuple((self.path(side, place), number(self.names[side][place])) for place in places)

    def classes(self, side: int, places: Sequence[int]) -> tuple[str, ...]:
        """Return the classes of members, each once."""
        tree = (self.a, self.b)[side]
        members = tree.children[self.above[side]]
        return tuple(dict.fromkeys(tree.class_name(members[self.names[side][place]]) for place in places))


def changes_of(matching: Matching, a: Tree, b: Tree) -> tuple[Change, ...]:
    """Say what was done to lists of layers, and which modules only hold another one."""
    partner = {pair.a: pair.b for pair in matching.pairs}
    left = frozenset(matching.only_a), frozenset(matching.only_b)
    unsure = {(doubt.a, doubt.b): doubt for doubt in matching.doubts}
    found = [*_of_wrappers((matching.stepped_a, matching.stepped_b), partner, a, b)]
    for lists in _lists(partner, a, b):
        alone = [_alone(lists, side, left[side]) for side in (0, 1)]
        for side in (1, 0):
            if alone[side]:
                found.append(_one_sided(lists, side, alone[side], None if alone[1 - side] else unsure.get(lists.above)))
        found += _reordered(lists)
    return tuple(found)


def _lists(partner: Mapping[int, int], a: Tree, b: Tree) -> Iterator[_Lists]:
    for above, children in enumerate(a.children):
        for which, mine in families(children).items():
            partners = {place: partner[children[name]] for place, name in enumerate(mine) if children[name] in partner}
            parents = {b.modules[each].parent for each in partners.values()}
            if len(parents) != 1 or -1 in parents:
                continue
            (there,) = parents
            for other, theirs in families(b.children[there]).items():
                places = {b.children[there][name]: place for place, name in enumerate(theirs)}
                pairs = {place: places[each] for place, each in partners.items() if each in places}
                if pairs and max(len(mine), len(theirs)) > 1 and (which == other or len(pairs) >= _ENOUGH):
                    yield _Lists(a, b, (above, there), (mine, theirs), pairs)


def _alone(lists: _Lists, side: int, left: frozenset[int]) -> list[int]:
    tree = (lists.a, lists.b)[side]
    members = tree.children[lists.above[side]]
    return [place for place, name in enumerate(lists.names[side]) if members[name] in left]


def _one_sided(lists: _Lists, side: int, places: Sequence[int], doubt: Doubt | None) -> Change:
    unsure = [] if doubt is None else [n for n, x in enumerate(lists.names[side]) if number(x) in doubt.among]
    said = note(
        "layers-on-one-side", side="AB"[side], layers=lists.members(side, places), classes=lists.classes(side, places),
        among=lists.members(side, unsure), why="" if doubt is None else doubt.why, moved=tuple(_moved(lists)),
    )  # fmt: skip
    paths = tuple(lists.path(side, place) for place in places)
    return Change(ChangeKind.INSERTED, (), paths, said) if side else Change(ChangeKind.REMOVED, paths, (), said)


def _moved(lists: _Lists) -> Iterator[Note]:
    """Yield which members have other numbers on the other side, in their order."""
    kept = increasing(sorted(lists.pairs.items()))
    runs: list[tuple[list[int], list[int]]] = []
    before = None
    for i, j in kept:
        offset = number(lists.names[1][j]) - number(lists.names[0][i])
        if offset and before == (i - 1, j - 1) and runs:
            runs[-1][0].append(i)
            runs[-1][1].append(j)
        elif offset:
            runs.append(([i], [j]))
        before = (i, j)
    for mine, theirs in runs:
        yield note("layers-moved", a=lists.members(0, mine), b=lists.members(1, theirs))


def _reordered(lists: _Lists) -> Iterator[Change]:
    """Say which members stand in another order: two that are swapped, or more."""
    mine = sorted(lists.pairs)
    rank_b = {j: rank for rank, j in enumerate(sorted(lists.pairs.values()))}
    order = [rank_b[lists.pairs[i]] for i in mine]
    swapped = [(x, y) for x, y in enumerate(order) if x < y and order[y] == x]
    for x, y in swapped:
        yield _swapped(lists, [mine[x], mine[y]])
    others = [x for x, y in enumerate(order) if x != y and order[y] != x]
    if others:
        places = [mine[x] for x in others]
        theirs = [lists.pairs[i] for i in places]
        said = note("layers-reordered", a=lists.members(0, places), b=lists.members(1, theirs))
        paths = tuple(lists.path(0, i) for i in places), tuple(lists.path(1, j) for j in theirs)
        yield Change(ChangeKind.REORDERED, *paths, said)


def _swapped(lists: _Lists, places: list[int]) -> Change:
    a, b = tuple(lists.path(0, i) for i in places), tuple(lists.path(1, lists.pairs[i]) for i in places)
    classes = lists.a.class_name(lists.a.by_path[a[0]]), lists.a.class_name(lists.a.by_path[a[1]])
    return Change(ChangeKind.SWAPPED, a, b, note("layers-swapped", a=a, b=b, classes=classes))


def _of_wrappers(
    stepped: tuple[Mapping[int, int], Mapping[int, int]], partner: Mapping[int, int], a: Tree, b: Tree
) -> Iterator[Change]:
    """Say which modules only hold another one, which its partner does without."""
    back = {theirs: mine for mine, theirs in partner.items()}
    for name, tree, other, held, counterpart in (("B", b, a, stepped[1], back), ("A", a, b, stepped[0], partner)):
        for outer, inner in held.items():
            if inner not in counterpart:
                continue
            side, path = "A" if name == "B" else "B", other.path(counterpart[inner])
            said = note(
                "module-only-holds", side=name, path=tree.path(outer), class_name=tree.class_name(outer), inner=tree.path(inner),
                inner_class=tree.class_name(inner), other=side, of_other=path,
            )  # fmt: skip
            if name == "B":
                yield Change(ChangeKind.WRAPPED, (path,), (tree.path(outer),), said)
            else:
                yield Change(ChangeKind.UNWRAPPED, (tree.path(outer),), (path,), said)
