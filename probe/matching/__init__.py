"""Matching: which module of A is which of B, and why.

From most to least certain: the mapping says so; the same path; inside a list of layers that is longer on one side, or
in another order, the same initial weights, or the same classes and shapes. Wrappers are looked through, and so are
modules that only hold another one. What has no partner is listed on both sides.
"""

from __future__ import annotations

from collections.abc import Iterator

from probe.comparison.notes import Note, note
from probe.errors import MappingError
from probe.mapping import LayerMapping, ParameterRule, Rule
from probe.mapping.patterns import places as places_of
from probe.mapping.sections import SectionIndex
from probe.matching.bundles import Bundles
from probe.matching.checks.complaints import complaints, lost
from probe.matching.checks.suspects import Missed, lost_lines, missed_lines, where
from probe.matching.checks.wrappers import looked_through, with_wrappers
from probe.matching.ignoring import Ignoring
from probe.matching.known import Known
from probe.matching.lists import Fingerprint
from probe.matching.result import (
    Bundle,
    Direction,
    Doubt,
    LostLine,
    Matching,
    Pair,
    Place,
    Reason,
    View,
    WeightBundle,
)  # fmt: skip
from probe.matching.settling import settled
from probe.matching.walk import Walk
from probe.numbers.fused import Fusion
from probe.structure.tree import Tree

_SHOWN = 5
"""complaints that an error repeats"""


def match(
    a: Tree | Known,
    b: Tree | Known,
    mapping: LayerMapping,
    weights_a: Fingerprint,
    weights_b: Fingerprint,
    direction: Direction | None = None,
    strict: bool = False,
) -> Matching:
    """Pair the modules of two trees.

    Parameters
    ----------
    a, b
        the trees, or all that is known of the sides: with parameters, sizes are checked; with the configuration, splits
        may name numbers of it
    mapping
        may be empty
    weights_a, weights_b
        fingerprints of modules by index, empty where nothing is known
    direction
        which side the mapping is written from; found out when None
    strict
        lines of the mapping that do nothing are errors

    Raises
    ------
    MappingError
        the mapping cannot be used; with the line
    """
    side_a, side_b = (side if isinstance(side, Known) else Known(side) for side in (a, b))
    trees = with_wrappers(mapping, side_a.tree, side_b.tree)
    side_a, side_b = (side.of(tree) for side, tree in zip((side_a, side_b), trees, strict=True))
    said: list[Note] = []
    if direction is None:
        direction, is_tie = _direction(mapping, side_a, side_b)
        if is_tie:
            direction, is_tie = _tie_broken(mapping, side_a, side_b, weights_a, weights_b)
        if is_tie:
            said.append(note("mapping-fits-both-sides"))
    forwards = direction is Direction.A_TO_B
    if forwards:
        found = _Matched(mapping, side_a, side_b, weights_a, weights_b, "AB")
    else:
        found = _Matched(mapping, side_b, side_a, weights_b, weights_a, "BA")
    ignored_a, ignored_b = found.ignored if forwards else found.ignored[::-1]
    wrong = found.complaints()
    if strict and wrong:
        raise MappingError(
            "\n  ".join([f"{mapping.name}: --strict makes an error of what is a warning otherwise:", *map(str, wrong)])
        )
    pairs = found.pairs if forwards else [Pair(pair.b, pair.a, pair.reason) for pair in found.pairs]
    over = found.stepped if forwards else found.stepped[::-1]
    with_a = {pair.a for pair in pairs} | ignored_a | over[0].keys() | found.parts("A")
    with_b = {pair.b for pair in pairs} | ignored_b | over[1].keys() | found.parts("B")
    left = _left(side_a.tree, with_a), _left(side_b.tree, with_b)
    trees = (side_a.tree, side_b.tree) if forwards else (side_b.tree, side_a.tree)
    ruled = [(pair, found.rules[index]) for pair in pairs if (index := pair.a if forwards else pair.b) in found.rules]
    return Matching(
        tuple(sorted(pairs, key=lambda pair: pair.a)),
        *left,
        direction,
        (*said, *wrong),
        tuple(found.bundles.bundles),
        tuple(found.bundles.weights),
        found.bundles.views if forwards else found.bundles.views_there,
        found.bundles.views_there if forwards else found.bundles.views,
        ignored_a,
        ignored_b,
        *over,
        tuple(Doubt(*((i, j) if forwards else (j, i)), laid.instead, laid.why) for i, j, laid in found.walk.doubts),
        lost_lines(found.missed(), mapping, *trees, pairs, left[forwards], forwards),
        {pair.a: where(rule, mapping) for pair, rule in ruled},
        {pair.a: rule for pair, rule in ruled},
        tuple(each for each in wrong if each not in found.lost_in_part()),
    )


def _tie_broken(
    mapping: LayerMapping, a: Known, b: Known, weights_a: Fingerprint, weights_b: Fingerprint
) -> tuple[Direction, bool]:
    """Return the direction in which fewer lines do nothing, A's where as many do, and whether that makes a difference."""
    found: dict[Direction, Matching] = {}
    for direction in Direction:
        try:
            found[direction] = match(a, b, mapping, weights_a, weights_b, direction)
        except MappingError:
            continue
    if not found:
        return Direction.A_TO_B, False
    best = min(found, key=lambda each: len(found[each].notes))
    if len(found) < 2 or len({len(each.notes) for each in found.values()}) > 1:
        return best, False
    pairs = [{(pair.a, pair.b) for pair in each.pairs} for each in found.values()]
    weights = [_one_for_one(each) for each in found.values()]
    is_same = pairs[0] == pairs[1] and weights[0] == weights[1] is not None
    return best, not (is_same and not any(each.bundles for each in found.values()))


def _one_for_one(matching: Matching) -> set[tuple[Place, Place]] | None:
    """Return the weights of A and of B that are compared as one is the other; None where others are several, or lie otherwise."""
    if any(each.fusion != Fusion() or len(each.parts[0]) > 1 for each in matching.weight_bundles):
        return None
    ends = ((each.parts[0][0], each.whole) for each in matching.weight_bundles)
    return {pair if each.side == "A" else pair[::-1] for pair, each in zip(ends, matching.weight_bundles, strict=True)}


class _Matched:
    """A mapping applied from its source to its target."""

    def __init__(
        self, mapping: LayerMapping, source: Known, target: Known, weights_here: Fingerprint, weights_there: Fingerprint,
        sides: str,
    ) -> None:  # fmt: skip
        read = looked_through(mapping, source.tree, target.tree)
        mapping = read.mapping
        sections, others = SectionIndex(mapping, source.tree), SectionIndex(mapping, target.tree)
        self.walk = Walk(source, target, read, sections, weights_here, weights_there)
        self.bundles = Bundles(mapping, sections, source, target, sides[1])
        self._target, self._others, self._sides = target, others, sides
        self._ignoring = Ignoring(mapping, source.tree, target.tree)
        places = self.walk.places()
        here, there = self.ignored = self._ignoring.ignored(places)
        left_out = {
            i: each
            for i, each in places.items()
            if not (here.isdisjoint(each.members or (i,)) and there.isdisjoint(each.parts))
        }
        places = {i: each for i, each in places.items() if i not in left_out}
        chosen = settled(self.walk, places)
        for index in chosen:
            if source.tree.wrapped(index) is None:
                place = places[index]
                self.bundles.add(index, place.parts, place.rule, place.members)
        self.bundles.add_weights_of({i: each for i, each in left_out.items() if source.tree.wrapped(i) is None})
        self.pairs = [Pair(index, places[index].parts[0], places[index].reason) for index in chosen]
        self.rules = {
            index: rule for index in chosen if (rule := places[index].rule) and places[index].reason is Reason.MAPPED
        }
        """by module of the source that a line names, what it says"""
        self.stepped = self._stepped()
        self._check_use(source)

    def _stepped(self) -> tuple[dict[int, int], dict[int, int]]:
        """Return the modules, here and there, that only hold what is paired, and what they hold."""
        parts = [self.parts(side) for side in self._sides]
        paired = {pair.a for pair in self.pairs} | parts[0], {pair.b for pair in self.pairs} | parts[1]
        here, there = (
            {
                outer: inner
                for outer, inner in held.items()
                if inner in paired[side] and outer not in paired[side] | self.ignored[side]
            }
            for side, held in enumerate((self.walk.stepped_here, self.walk.stepped_there))
        )
        return here, there

    def parts(self, side: str) -> set[int]:
        """Return the modules of a side, A or B, that together with others are one of the other side."""
        return {part for each in self.bundles.bundles if each.side == side for part in each.parts}

    def complaints(self) -> list[Note]:
        return complaints(self.walk, self.bundles, self._others, self._sides[0], self._ignoring.unused)

    def lost(self) -> dict[Rule | ParameterRule, Note]:
        """Return what is said of the lines that lead to nothing, somewhere or everywhere."""
        return lost(self.walk, self.bundles, self._others, self._sides[0])

    def lost_in_part(self) -> list[Note]:
        """Return what is said of those that pair something elsewhere."""
        pairing = {*self.walk.resolved, *self.bundles.used}
        return [said for rule, said in self.lost().items() if rule in pairing]

    def missed(self) -> Iterator[Missed]:
        """Yield the lines that lead to nothing."""
        return missed_lines(self.walk, self.lost(), self.bundles.missing)

    def _check_use(self, source: Known) -> None:
        """Refuse a mapping of which nothing was used."""
        walk, mapping = self.walk, self.walk.mapping
        count = len(mapping.rules) + sum(1 for _ in mapping.parameter_rules())
        if not count or walk.resolved or walk.missed or self.bundles.used or self.bundles.missing or any(self.ignored):
            return
        members = walk.sections.members
        if all(each.is_optional and not members[each.name] for each in mapping.sections if each.rules or each.params):
            return  # what it is for, these models do not have
        why = self.complaints()
        more = [f"and {len(why) - _SHOWN} more"] if len(why) > _SHOWN else []
        some = "".join(f"\n  {text}" for text in [*why[:_SHOWN], *more])
        if walk.blocked:
            raise MappingError(f"{mapping.name}: none of its {count} keys can be used:{some}")
        sides = (source, walk.sections), (self._target, self._others)
        fits_one = any(_resolving(mapping, known, sections) for known, sections in sides)
        where = self._sides[0] if fits_one else "either side"
        raise MappingError(f"{mapping.name}: none of its {count} keys names a module of {where}:{some}")


def direction_of(mapping: LayerMapping, a: Tree, b: Tree) -> Direction:
    """Return which side a mapping is written from: the one in which more of its keys name something."""
    return _direction(mapping, Known(a), Known(b))[0]


def _direction(mapping: LayerMapping, a: Known, b: Known) -> tuple[Direction, bool]:
    """Return the direction, and whether it is a tie."""
    forwards, backwards = (
        _resolving(read, source, SectionIndex(read, source.tree))
        for source, read in (
            (a, looked_through(mapping, a.tree, b.tree).mapping),
            (b, looked_through(mapping, b.tree, a.tree).mapping),
        )
    )
    return Direction.B_TO_A if backwards > forwards else Direction.A_TO_B, forwards == backwards > 0


def _resolving(mapping: LayerMapping, known: Known, sections: SectionIndex) -> int:
    """Count the keys that name something."""
    count = 0
    for section in mapping.sections:
        members = sections.members[section.name]
        for rule in section.rules:
            count += all(any(True for index in members for _ in places_of(known.tree, index, key)) for key in rule.keys)
        for rule in section.params:
            if rule.is_reversed:
                count += any(True for index in members for _ in places_of(known.tree, index, rule.targets[0][:-1]))
            else:
                count += any(known.parameter(index, rule.source) is not None for index in members)
    return count


def _left(tree: Tree, paired: set[int]) -> tuple[int, ...]:
    return tuple(i for i in range(len(tree)) if i not in paired and tree.wrapped(i) is None)


__all__ = [
    "Bundle", "Direction", "Doubt", "Fingerprint", "Known", "LostLine", "Matching", "Pair", "Place", "Reason", "View", "WeightBundle",
    "direction_of", "match",
]  # fmt: skip
