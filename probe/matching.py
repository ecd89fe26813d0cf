"""Matching: which module of A is which of B, and why.

From most to least certain: the mapping says so; the same path; inside a list of layers of which one side has
fewer, the same initial weights. Wrappers are looked through. What has no partner is listed on both sides.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from probe.errors import MappingError
from probe.mapping import LayerMapping, Rule
from probe.tree import WRAPPERS, Tree

_WRAPPED_NAMES = {*WRAPPERS.values(), "0"}
"""names that wrappers, and a list of one model, give to what they hold"""

Fingerprint = Callable[[int], frozenset[object]]
"""what identifies the weights of a module and all below it: a set of hashes"""


class Reason(enum.StrEnum):
    """Why two modules are a pair."""

    MAPPED = "mapped"
    SAME_PATH = "same path"
    SAME_VALUES = "same values"


class Direction(enum.StrEnum):
    """Which side a mapping is written from."""

    A_TO_B = "a-to-b"
    B_TO_A = "b-to-a"


@dataclass(frozen=True, slots=True)
class Pair:
    """A module of A and the module of B that it is matched with."""

    a: int
    b: int
    reason: Reason


@dataclass(frozen=True)
class Matching:
    """All pairs, and what is left on either side."""

    pairs: tuple[Pair, ...]
    only_a: tuple[int, ...]
    only_b: tuple[int, ...]
    direction: Direction
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a module of the source belongs in the target."""

    index: int
    reason: Reason
    rule: Rule | None
    """the rule that names the module itself, not one around it"""


@dataclass
class _Walk:
    """Translates modules of ``source`` into modules of ``target``."""

    source: Tree
    target: Tree
    mapping: LayerMapping
    moved: dict[int, dict[str, str | None]] = field(default_factory=dict)
    """for lists of layers that were aligned by their weights: the target's name of each child, None for none"""
    resolved: dict[Rule, None] = field(default_factory=dict)
    """rules that led from a module of the source to one of the target"""
    unresolved: dict[Rule, list[int]] = field(default_factory=dict)
    """rules that named a module but led to none: below which modules of the source"""
    _sections: dict[str, list[Rule]] = field(default_factory=dict)

    def translate(self, index: int) -> _Place | None:
        """Return the target module that takes the place of a source module, and the reason."""
        names = self.source.steps_to(index)
        here, there = self.source.root, self.target.root
        reason = Reason.SAME_PATH
        rule: Rule | None = None
        while names:
            rule, used = self._rule(here, names)
            if rule is not None:
                found = self._resolved(there, rule.target)
                if found is None:
                    places = self.unresolved.setdefault(rule, [])
                    if here not in places:
                        places.append(here)
                    return None
                self.resolved[rule] = None
                there, reason = found, Reason.MAPPED
            else:
                used = 1
                step = self._same_name(here, there, names[0])
                if step is None:
                    return None
                there, moved = step
                reason = Reason.SAME_VALUES if moved else reason
            for name in names[:used]:
                here = self.source.children[here][name]
            names = names[used:]
        if self.source.wrapped(index) is None:
            there = self.target.unwrapped(there)
        elif self.target.wrapped(there) is None:
            return None
        return _Place(there, reason, rule)

    def _resolved(self, there: int, path: Sequence[str]) -> int | None:
        """Return the target module at a path; wrappers that it names need not be there."""
        for name in path:
            found = self.target.child(there, name)
            if found is not None:
                there = found
            elif name not in _WRAPPED_NAMES or self.target.unwrapped(self.target.root) != self.target.unwrapped(there):
                return None
        return there

    def _rule(self, here: int, names: Sequence[str]) -> tuple[Rule | None, int]:
        for rule in self._section(here):
            used = self._consumed(here, names, rule.source)
            if used:
                return rule, used
        return None, 0

    def _section(self, index: int) -> list[Rule]:
        is_root = index == self.source.root
        key = f"{self.source.class_name(index)}{'/' if is_root else ''}"
        if key not in self._sections:
            self._sections[key] = self.mapping.section(self.source.class_name(index), is_root)
        return self._sections[key]

    def _consumed(self, here: int, names: Sequence[str], key: Sequence[str]) -> int:
        """Return how many names a key stands for, names of wrapped modules left out of the key included."""
        used = 0
        for part in key:
            while used < len(names) and names[used] != part:
                if self.source.wrapped(here) != names[used]:
                    return 0
                here = self.source.children[here][names[used]]
                used += 1
            if used == len(names):
                return 0
            here = self.source.children[here][names[used]]
            used += 1
        return used

    def _same_name(self, here: int, there: int, name: str) -> tuple[int, bool] | None:
        moved = here in self.moved
        wanted = self.moved[here].get(name, name) if moved else name
        if wanted is None:
            return None
        holds = self.source.wrapped(here)
        if holds == name:
            return (self.target.children[there][name] if self.target.wrapped(there) == name else there), False
        if holds is not None:  # something beside what a wrapper holds
            beside = self.target.children[there].get(name) if self.target.wrapped(there) not in (None, name) else None
            return None if beside is None else (beside, False)
        found = self.target.child(self.target.unwrapped(there), wanted)
        return None if found is None else (found, moved)

    def align_lists(self, weights_here: Fingerprint, weights_there: Fingerprint) -> list[str]:
        """Where a list of layers is shorter on one side, pair its members by weights; return what was found."""
        said = []
        for index in range(len(self.source)):
            mine = self.source.children[index]
            if not _is_list(mine):
                continue
            found = self.translate(index)
            theirs = self.target.children[found.index] if found else {}
            if not _is_list(theirs) or len(mine) == len(theirs):
                continue
            names = _aligned(
                _distinctive({name: weights_here(child) for name, child in mine.items()}),
                _distinctive({name: weights_there(child) for name, child in theirs.items()}),
            )
            if names is not None and any(names.get(name) != name for name in mine if name in theirs):
                self.moved[index] = {name: names.get(name) for name in mine}
                said.append(
                    f"{self.source.path(index) or 'the root'} has {len(mine)} members on one side and {len(theirs)} on "
                    "the other; they are paired by their initial weights"
                )
        return said


def match(
    a: Tree,
    b: Tree,
    mapping: LayerMapping,
    weights_a: Fingerprint,
    weights_b: Fingerprint,
    direction: Direction | None = None,
) -> Matching:
    """Pair the modules of two trees.

    Parameters
    ----------
    a, b
        the trees
    mapping
        may be empty
    weights_a, weights_b
        fingerprints of modules by index, empty where nothing is known
    direction
        which side the mapping is written from; found out when None
    """
    said = []
    if direction is None:
        direction, is_tie = _found_direction(mapping, a, b)
        if is_tie:
            said.append(
                "the mapping fits both sides equally well; it is read as written from A: --map-direction decides"
            )
    forwards = direction is Direction.A_TO_B
    walk = _Walk(a, b, mapping) if forwards else _Walk(b, a, mapping)
    said += walk.align_lists(weights_a, weights_b) if forwards else walk.align_lists(weights_b, weights_a)
    places = {i: place for i in range(len(walk.source)) if (place := walk.translate(i)) is not None}
    if mapping.rules and not walk.resolved and not walk.unresolved:
        raise MappingError(
            f"{mapping.name}: none of its {len(mapping.rules)} keys names a module of "
            f"{'either side' if _resolving(mapping, a) == _resolving(mapping, b) == 0 else 'A' if forwards else 'B'}"
        )
    pairs = [
        Pair(source, target, places[source].reason) if forwards else Pair(target, source, places[source].reason)
        for target, source in _settled(walk, places).items()
    ]
    pairs.sort(key=lambda pair: pair.a)
    with_a, with_b = {pair.a for pair in pairs}, {pair.b for pair in pairs}
    return Matching(
        tuple(pairs),
        tuple(i for i in range(len(a)) if i not in with_a and a.wrapped(i) is None),
        tuple(i for i in range(len(b)) if i not in with_b and b.wrapped(i) is None),
        direction,
        tuple(said + _complaints(walk)),
    )


def direction_of(mapping: LayerMapping, a: Tree, b: Tree) -> Direction:
    """Return which side a mapping is written from: the one in which more of its keys name something."""
    return _found_direction(mapping, a, b)[0]


def _found_direction(mapping: LayerMapping, a: Tree, b: Tree) -> tuple[Direction, bool]:
    """Return the direction, and whether it is a tie."""
    forwards, backwards = _resolving(mapping, a), _resolving(mapping, b)
    return Direction.B_TO_A if backwards > forwards else Direction.A_TO_B, forwards == backwards > 0


def _settled(walk: _Walk, places: dict[int, _Place]) -> dict[int, int]:
    """Give every target module to one source module: what a rule names goes before what has the same name."""
    source = walk.source
    taken: dict[int, int] = {}
    for index, place in places.items():
        if place.rule is not None:
            other = taken.setdefault(place.index, index)
            if other != index and source.wrapped(other) is None and source.wrapped(index) is None:
                raise MappingError(
                    f"{walk.mapping.name}{f', line {place.rule.line}' if place.rule.line else ''}: {place.rule.section}: "
                    f"{'.'.join(place.rule.source)}: {walk.target.path(place.index)} is already the counterpart of "
                    f"{source.path(other)}"
                )
    lost: set[int] = set()
    for index, place in places.items():
        is_wrapper = source.wrapped(index) is not None
        if taken.get(place.index) == index:
            continue
        inherits = source.modules[index].parent in lost and place.rule is None
        if place.index in taken or inherits:
            if not is_wrapper:
                lost.add(index)
        else:
            taken[place.index] = index
    return taken


def _resolving(mapping: LayerMapping, tree: Tree) -> int:
    by_class: dict[str, list[int]] = {"TopLayer": [tree.root]}
    for index in range(len(tree)):
        by_class.setdefault(tree.class_name(index), []).append(index)
    return sum(
        any(tree.resolve(index, rule.source) is not None for index in by_class.get(rule.section, ()))
        for rule in mapping.rules
    )


def _complaints(walk: _Walk) -> list[str]:
    unused, missing = [], []
    for rule in walk.mapping.rules:
        places = walk.unresolved.get(rule, [])
        if not places and rule not in walk.resolved:
            unused.append(f"the mapping's {rule} names nothing that is there")
        elif places:
            some = f" for {walk.source.path(places[0])}" if rule in walk.resolved else ""
            more = f" and {len(places) - 1} more" if some and len(places) > 1 else ""
            missing.append(f"the mapping's {rule} leads to nothing on the other side{some}{more}")
    return unused + missing


def _is_list(children: dict[str, int]) -> bool:
    return bool(children) and all(name.isdigit() for name in children)


def _distinctive(weights: dict[str, frozenset[object]]) -> list[tuple[str, frozenset[object]]]:
    """Leave out what several members share: norms of ones and biases of zeros tell no layer from another."""
    counts = Counter(digest for each in weights.values() for digest in each)
    return [(name, frozenset(d for d in each if counts[d] == 1) or each) for name, each in weights.items()]


def _aligned(
    mine: list[tuple[str, frozenset[object]]], theirs: list[tuple[str, frozenset[object]]]
) -> dict[str, str] | None:
    """Pair two lists of fingerprints in order, as many as possible; None when nothing is alike."""
    longest = [[0] * (len(theirs) + 1) for _ in range(len(mine) + 1)]
    for i in range(len(mine) - 1, -1, -1):
        for j in range(len(theirs) - 1, -1, -1):
            if _alike(mine[i][1], theirs[j][1]):
                longest[i][j] = 1 + longest[i + 1][j + 1]
            else:
                longest[i][j] = max(longest[i + 1][j], longest[i][j + 1])
    if not longest[0][0]:
        return None
    pairs: dict[str, str] = {}
    i = j = 0
    while i < len(mine) and j < len(theirs):
        if _alike(mine[i][1], theirs[j][1]):
            pairs[mine[i][0]] = theirs[j][0]
            i, j = i + 1, j + 1
        elif longest[i + 1][j] >= longest[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _alike(a: frozenset[object], b: frozenset[object]) -> bool:
    return bool(a) and bool(b) and 2 * len(a & b) > min(len(a), len(b))
