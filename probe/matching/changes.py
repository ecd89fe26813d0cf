"""What one model has otherwise than the other: layers inserted, removed, in another order, or wrapped."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from probe.matching.automatic.increasing import increasing
from probe.matching.lists import families, number
from probe.matching.result import Doubt, Matching
from probe.tree import Tree

_MOST_NAMED = 4
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
    text: str

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {"kind": self.kind.value, "a": list(self.a), "b": list(self.b), "text": self.text}


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

    def named(self, side: int, places: Sequence[int]) -> str:
        """Write members as ``model.layers.3–5, 7``."""
        runs: list[list[int]] = []
        numbers = [number(self.names[side][place]) for place in places]
        for at, each in enumerate(numbers):
            if runs and each == numbers[at - 1] + 1:
                runs[-1][1] = at
            else:
                runs.append([at, at])
        first = self.path(side, places[0])
        texts = [first if k == 0 else str(numbers[low]) for k, (low, _) in enumerate(runs)]
        ends = ["" if low == high else f"–{numbers[high]}" for low, high in runs]
        shown = [f"{text}{end}" for text, end in zip(texts, ends, strict=True)]
        return ", ".join(shown[:_MOST_NAMED]) + (
            f" and {len(shown) - _MOST_NAMED} more" if len(shown) > _MOST_NAMED else ""
        )

    def with_class(self, side: int, places: Sequence[int]) -> str:
        """Write members with their class."""
        tree = (self.a, self.b)[side]
        members = tree.children[self.above[side]]
        classes = dict.fromkeys(tree.class_name(members[self.names[side][place]]) for place in places)
        return f"{self.named(side, places)} ({', '.join(classes)})"


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
    count = len(places)
    how_many = "one layer" if count == 1 else f"{count} layers"
    have = "has" if count == 1 else "have"
    which = lists.with_class(side, places)
    if side:
        text = f"B has {how_many} more: {which} {have} no counterpart"
    else:
        text = f"B has {how_many} less: A's {which} {have} no counterpart"
    moved = _moved(lists)
    if doubt is not None:
        among = [place for place, name in enumerate(lists.names[side]) if number(name) in doubt.among]
        text += (
            f"; which of {lists.named(side, among)} {'it is' if count == 1 else 'they are'} cannot be told: {doubt.why}"
        )
    if moved:
        text += f"; {moved}"
    paths = tuple(lists.path(side, place) for place in places)
    return Change(ChangeKind.INSERTED, (), paths, text) if side else Change(ChangeKind.REMOVED, paths, (), text)


def _moved(lists: _Lists) -> str:
    """Say which members have other numbers on the other side, in their order."""
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
    texts = [
        f"A's {lists.named(0, mine)} {'is' if len(mine) == 1 else 'are'} B's {lists.named(1, theirs)}"
        for mine, theirs in runs
    ]
    return ", ".join(texts[:_MOST_NAMED]) + (
        f" and {len(texts) - _MOST_NAMED} more" if len(texts) > _MOST_NAMED else ""
    )


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
        numbers = ", ".join(str(number(lists.names[1][j])) for j in theirs[1:])
        yield Change(
            ChangeKind.REORDERED,
            tuple(lists.path(0, i) for i in places),
            tuple(lists.path(1, j) for j in theirs),
            f"another order in B: A's {lists.path(0, places[0])}, "
            f"{', '.join(str(number(lists.names[0][i])) for i in places[1:])} are B's {lists.path(1, theirs[0])}, {numbers}",
        )


def _swapped(lists: _Lists, places: list[int]) -> Change:
    paths = [[lists.path(0, i) for i in places], [lists.path(1, lists.pairs[i]) for i in places]]
    kind = lists.a.class_name(lists.a.by_path[paths[0][0]]), lists.a.class_name(lists.a.by_path[paths[0][1]])
    what = kind[0] if kind[0] == kind[1] else f"{kind[0]} and {kind[1]}"
    if paths[0] == paths[1][::-1]:
        text = f"{paths[0][0]} and {paths[0][1]} ({what}) are swapped: what A has at the one, B has at the other"
    else:
        text = f"A's {paths[0][0]} and {paths[0][1]} ({what}) are swapped: they are B's {paths[1][0]} and {paths[1][1]}"
    return Change(ChangeKind.SWAPPED, tuple(paths[0]), tuple(paths[1]), text)


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
            there = f"{side}'s {path}" if path else f"the whole of {side}"
            text = (
                f"{name}'s {tree.path(outer) or 'root'} ({tree.class_name(outer)}) only holds {tree.path(inner)} "
                f"({tree.class_name(inner)}), which is {there}: it is stepped over"
            )
            if name == "B":
                yield Change(ChangeKind.WRAPPED, (path,), (tree.path(outer),), text)
            else:
                yield Change(ChangeKind.UNWRAPPED, (tree.path(outer),), (path,), text)
