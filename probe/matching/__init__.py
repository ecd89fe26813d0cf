"""Matching: which module of A is which of B, and why.

From most to least certain: the mapping says so; the same path; inside a list of layers that is longer on one side, or
in another order, the same initial weights, or the same classes and shapes. Wrappers are looked through, and so are
modules that only hold another one. What has no partner is listed on both sides.
"""

from __future__ import annotations

from collections.abc import Mapping

from probe.errors import MappingError
from probe.mapping import LayerMapping
from probe.mapping.patterns import places as places_of
from probe.mapping.sections import SectionIndex
from probe.matching.bundles import Bundles
from probe.matching.checks.complaints import Complaints, lost_lines, where
from probe.matching.checks.wrappers import looked_through, with_wrappers
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
    other_side,
)  # fmt: skip
from probe.matching.walk import Walk, left_out, settled
from probe.notes import Note, note
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
    sides = {name: side if isinstance(side, Known) else Known(side) for name, side in (("A", a), ("B", b))}
    trees = with_wrappers(mapping, sides["A"].tree, sides["B"].tree)
    sides = {name: side.of(tree) for (name, side), tree in zip(sides.items(), trees, strict=True)}
    weights = {"A": weights_a, "B": weights_b}
    said: list[Note] = []
    if direction is None:
        direction, is_tie = _direction(mapping, sides["A"], sides["B"])
        if is_tie:
            direction, is_tie = _tie_broken(mapping, sides["A"], sides["B"], weights_a, weights_b)
        if is_tie:
            said.append(note("mapping-fits-both-sides"))
    here = "A" if direction is Direction.A_TO_B else "B"
    found = _Matched(mapping, sides, weights, here)
    wrong = found.complaints.all(found.left_out.unused)
    if strict and wrong:
        raise MappingError(
            "\n  ".join([f"{mapping.name}: --strict makes an error of what is a warning otherwise:", *map(str, wrong)])
        )
    left = {side: found.left(side) for side in "AB"}
    bundles, walk, lost = found.bundles, found.walk, found.complaints.lost
    views = {here: bundles.views, other_side(here): bundles.views_there}
    ruled = [(pair, rule) for pair in found.pairs if (rule := found.rules.get(pair.a if here == "A" else pair.b))]
    return Matching(
        tuple(sorted(found.pairs, key=lambda pair: pair.a)),
        left["A"],
        left["B"],
        direction,
        (*said, *wrong),
        tuple(bundles.bundles),
        tuple(bundles.weights),
        views["A"],
        views["B"],
        found.ignored["A"],
        found.ignored["B"],
        found.stepped["A"],
        found.stepped["B"],
        tuple(Doubt(*((i, j) if here == "A" else (j, i)), laid.instead, laid.why) for i, j, laid in walk.doubts),
        lost_lines(walk, bundles, lost, found.partners(here), left[other_side(here)], here),
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
    """A mapping applied from its source to its target; ``here`` is the side, A or B, that it is written from."""

    def __init__(
        self, mapping: LayerMapping, sides: Mapping[str, Known], weights: Mapping[str, Fingerprint], here: str
    ) -> None:
        self._here, self._there = here, other_side(here)
        source, target = sides[here], sides[self._there]
        read = looked_through(mapping, source.tree, target.tree)
        mapping = read.mapping
        sections, others = SectionIndex(mapping, source.tree), SectionIndex(mapping, target.tree)
        self.walk = walk = Walk(source, target, read, sections, weights[here], weights[self._there])
        self.bundles = Bundles(mapping, sections, source, target, self._there)
        self.complaints = Complaints(walk, self.bundles, others, here)
        self._trees, self._sections = {side: known.tree for side, known in sides.items()}, others
        places = walk.places()
        self.left_out = left_out(mapping, source.tree, target.tree, places)
        self.ignored = {here: self.left_out.here, self._there: self.left_out.there}
        alone = {
            i: each
            for i, each in places.items()
            if not (self.left_out.here.isdisjoint(each.members or (i,)) and self.left_out.there.isdisjoint(each.parts))
        }
        places = {i: each for i, each in places.items() if i not in alone}
        chosen = settled(walk, places)
        for index in chosen:
            if source.tree.wrapped(index) is None:
                place = places[index]
                self.bundles.add(index, place.parts, place.rule, place.members)
        self.bundles.add_weights_of({i: each for i, each in alone.items() if source.tree.wrapped(i) is None})
        ends = [((index, places[index].parts[0]), places[index].reason) for index in chosen]
        self.pairs = [Pair(*(both if here == "A" else both[::-1]), reason) for both, reason in ends]
        mapped = (index for index in chosen if places[index].reason is Reason.MAPPED)
        self.rules = {index: rule for index in mapped if (rule := places[index].rule)}
        """by module of the source that a line names, what it says"""
        over = {here: walk.stepped_here, self._there: walk.stepped_there}
        self.stepped = {side: self._stepped(side, held) for side, held in over.items()}
        """the modules of both sides that only hold what is paired, and what they hold"""
        self._check_use(source, target)

    def partners(self, side: str) -> dict[int, int]:
        """Return the partner of each module of a side, A or B."""
        return dict((pair.a, pair.b) if side == "A" else (pair.b, pair.a) for pair in self.pairs)

    def _told(self, side: str) -> set[int]:
        """Return the modules of a side that have a partner, or together with others are one of the other side."""
        parts = (each.parts for each in self.bundles.bundles if each.side == side)
        return {*self.partners(side), *(part for each in parts for part in each)}

    def _stepped(self, side: str, held: Mapping[int, int]) -> dict[int, int]:
        told = self._told(side)
        gone = told | self.ignored[side]
        return {outer: inner for outer, inner in held.items() if inner in told and outer not in gone}

    def left(self, side: str) -> tuple[int, ...]:
        """Return the modules of a side without a partner."""
        tree, gone = self._trees[side], self._told(side) | self.ignored[side] | self.stepped[side].keys()
        return tuple(i for i in range(len(tree)) if i not in gone and tree.wrapped(i) is None)

    def lost_in_part(self) -> list[Note]:
        """Return what is said of lines that lead to nothing somewhere, and pair something elsewhere."""
        pairing = {*self.walk.resolved, *self.bundles.used}
        return [said for rule, said in self.complaints.lost.items() if rule in pairing]

    def _check_use(self, source: Known, target: Known) -> None:
        """Refuse a mapping of which nothing was used."""
        walk, mapping = self.walk, self.walk.mapping
        count = len(mapping.rules) + sum(1 for _ in mapping.parameter_rules())
        is_used = walk.resolved or walk.missed or self.bundles.used or self.bundles.missing
        if not count or is_used or any(self.ignored.values()):
            return
        members = walk.sections.members
        if all(each.is_optional and not members[each.name] for each in mapping.sections if each.rules or each.params):
            return  # what it is for, these models do not have
        why = self.complaints.all(self.left_out.unused)
        more = [f"and {len(why) - _SHOWN} more"] if len(why) > _SHOWN else []
        some = "".join(f"\n  {text}" for text in [*why[:_SHOWN], *more])
        if walk.blocked:
            raise MappingError(f"{mapping.name}: none of its {count} keys can be used:{some}")
        sides = (source, walk.sections), (target, self._sections)
        fits_one = any(_resolving(mapping, known, sections) for known, sections in sides)
        where = self._here if fits_one else "either side"
        raise MappingError(f"{mapping.name}: none of its {count} keys names a module of {where}:{some}")


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


__all__ = [
    "Bundle", "Direction", "Doubt", "Fingerprint", "Known", "LostLine", "Matching", "Pair", "Place", "Reason", "View", "WeightBundle",
    "match",
]  # fmt: skip
