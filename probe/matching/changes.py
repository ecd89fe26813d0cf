"""What one model has otherwise than the other: layers inserted, removed, in another order, or wrapped."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from probe.matching.lists import families, increasing, number
from probe.matching.result import Doubt, Matching, other_side
from probe.notes import Note, as_json, note
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

    def __post_init__(self) -> None:
        held = (tree.children[above] for tree, above in zip((self.a, self.b), self.above, strict=True))
        self.modules = [[each[name] for name in names] for each, names in zip(held, self.names, strict=True)]
        """here and there, by place"""

    def path(self, side: int, place: int) -> str:
        """Return the path of a member."""
        return (self.a, self.b)[side].path(self.modules[side][place])

    def among(self, side: int, modules: Set[int]) -> list[int]:
        """Return the places of the members that are among some modules."""
        return [place for place, index in enumerate(self.modules[side]) if index in modules]

    def members(self, side: int, places: Sequence[int]) -> tuple[tuple[str, int], ...]:
        """Return members by their paths and numbers."""
        return tuple((self.path(side, place), number(self.names[side][place])) for place in places)

    def classes(self, side: int, places: Sequence[int]) -> tuple[str, ...]:
        """Return the classes of members, each once."""
        return tuple(dict.fromkeys((self.a, self.b)[side].class_name(self.modules[side][place]) for place in places))


def changes_of(matching: Matching, a: Tree, b: Tree) -> tuple[Change, ...]:
    """Say what was done to lists of layers, and which modules only hold another one."""
    unsure = {(doubt.a, doubt.b): doubt for doubt in matching.doubts}
    found = [*_of_wrappers(matching, {"A": a, "B": b})]
    for lists in _lists(matching.partners("A"), a, b):
        alone = [lists.among(side, frozenset(left)) for side, left in enumerate((matching.only_a, matching.only_b))]
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
    classes = tuple(lists.a.class_name(lists.modules[0][i]) for i in places)
    return Change(ChangeKind.SWAPPED, a, b, note("layers-swapped", a=a, b=b, classes=classes))


def _of_wrappers(matching: Matching, trees: Mapping[str, Tree]) -> Iterator[Change]:
    """Say which modules only hold another one, which its partner does without."""
    for name, kind in (("B", ChangeKind.WRAPPED), ("A", ChangeKind.UNWRAPPED)):
        tree, side = trees[name], other_side(name)
        counterpart = matching.partners(name)
        for outer, inner in matching.stepped(name).items():
            if inner not in counterpart:
                continue
            path, of_other = tree.path(outer), trees[side].path(counterpart[inner])
            said = note(
                "module-only-holds", side=name, path=path, class_name=tree.class_name(outer), inner=tree.path(inner),
                inner_class=tree.class_name(inner), other=side, of_other=of_other,
            )  # fmt: skip
            ends = (of_other,), (path,)
            yield Change(kind, *(ends if name == "B" else ends[::-1]), said)
