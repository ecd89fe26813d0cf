"""Lines of a mapping that name one of several parts for the whole that holds them all: the group is completed.

``linear_fc1: up_proj`` pairs a layer of gate and up with up alone. The sizes say that it is not all, a sibling that no line names
says what lacks, and the weights, where they were recorded, that it is this one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from probe.mapping import Rule
from probe.mapping.rules import written
from probe.matching.automatic import values
from probe.matching.automatic.likeness import role_of
from probe.matching.automatic.outline import Outline, Weight
from probe.matching.automatic.weights.fused import FUSED_ROLES, agreed, groups_of
from probe.matching.lists import grouped
from probe.matching.loose import numbered
from probe.matching.result import Bundle, Matching, Pair, Reason, other_side
from probe.notes import Note, note
from probe.structure.tree import Tree

_MOST = 4
"""parts of one layer"""


@dataclass(frozen=True, slots=True)
class _Partial:
    """A pair of which one module is a part of the other."""

    pair: Pair
    side: str
    """``A`` or ``B``: which has the part"""
    parts: tuple[int, ...] = ()
    """the part, and the siblings that are the rest of the whole; empty where these cannot be told"""

    @property
    def part(self) -> int:
        """The module that is a part."""
        return self.pair.a if self.side == "A" else self.pair.b

    @property
    def whole(self) -> int:
        """The module that holds it."""
        return self.pair.b if self.side == "A" else self.pair.a


def with_whole_groups(matching: Matching, a: Outline, b: Outline) -> Matching:
    """Return a matching in which no line pairs a part with the whole that holds it.

    Where the siblings that are the rest can be told, all parts are compared with the whole; where not, only what the part and
    the whole are given.
    """
    found = list(_partial(matching, a, b))
    if not found:
        return matching
    whole = [each for each in found if each.parts]
    bundles = [_bundle(each, a, b) for each in whole]
    said = list(agreed(a, b, bundles))
    made = {each.pair: bundle for each, bundle in zip(whole, bundles, strict=True)}
    firsts = {pair.a: bundle.parts[0] for pair, bundle in made.items() if bundle.side == "A"}
    parts = {side: {part for each in bundles if each.side == side for part in each.parts} for side in "AB"}
    return replace(
        matching,
        pairs=tuple(sorted((_of_first(pair, made) for pair in matching.pairs), key=lambda pair: pair.a)),
        only_a=tuple(i for i in matching.only_a if i not in parts["A"]),
        only_b=tuple(i for i in matching.only_b if i not in parts["B"]),
        bundles=(*matching.bundles, *bundles),
        part_of_other=frozenset(each.pair.a for each in found if not each.parts),
        lines={firsts.get(i, i): line for i, line in matching.lines.items()},
        rules={firsts.get(i, i): rule for i, rule in matching.rules.items()},
        notes=(*matching.notes, *_notes(matching, found, made, a.tree, b.tree), *said),
    )


def _of_first(pair: Pair, made: Mapping[Pair, Bundle]) -> Pair:
    """Return a pair with the part that lies first in the place of the one that a line names."""
    bundle = made.get(pair)
    if bundle is None:
        return pair
    return replace(pair, a=bundle.parts[0]) if bundle.side == "A" else replace(pair, b=bundle.parts[0])


def _partial(matching: Matching, a: Outline, b: Outline) -> Iterator[_Partial]:
    sides = {"A": (a, set(matching.only_a)), "B": (b, set(matching.only_b))}
    bundled = {(other_side(each.side), each.whole) for each in matching.bundles}
    views = {side: {module for module, _ in matching.views(side)} for side in "AB"}
    for pair in matching.pairs:
        if pair.reason is not Reason.MAPPED or not pair.has_calls:
            continue
        matrices = _only_matrix(a, pair.a), _only_matrix(b, pair.b)
        if matrices[0] is None or matrices[1] is None or matrices[0].shape[1:] != matrices[1].shape[1:]:
            continue
        side = "A" if matrices[0].shape[0] < matrices[1].shape[0] else "B"
        each = _Partial(pair, side)
        is_other = (other_side(side), each.whole) in bundled or pair.a in views["A"] or pair.b in views["B"]
        if matrices[0].shape == matrices[1].shape or is_other:
            continue
        mine, lonely = sides[side]
        siblings = [k for k in _siblings(mine, each.part) if k in lonely]
        if siblings:
            yield replace(each, parts=_parts(mine, each.part, siblings, matrices[side == "A"]))


def _only_matrix(side: Outline, index: int) -> Weight | None:
    """Return the matrix of a layer that has one and is no embedding, None of all others."""
    found = side.matrices(index)
    is_layer = len(found) == 1 and not side.tree.children[index] and side.kind(index) != "embedding"
    return found[0] if is_layer else None


def _siblings(side: Outline, part: int) -> list[int]:
    """Return the layers beside one that are given as much as it is."""
    mine = _only_matrix(side, part)
    found = ((k, _only_matrix(side, k)) for k in side.children(side.tree.modules[part].parent) if k != part)
    return [k for k, weight in found if weight is not None and mine is not None and weight.shape[1:] == mine.shape[1:]]


def _parts(side: Outline, part: int, siblings: Sequence[int], whole: Weight) -> tuple[int, ...]:
    """Return the layers that together have the rows of another side's, in the order in which they would lie there."""
    matrices = {k: side.matrices(k)[0] for k in (part, *siblings)}
    fitting = [
        _ordered(side, (part, *more))
        for count in range(1, _MOST) for more in itertools.combinations(siblings, count)
        if sum(matrices[k].shape[0] for k in (part, *more)) == whole.shape[0]
    ]  # fmt: skip
    proven = [parts for parts in fitting if values.add_up([matrices[k] for k in parts], whole)]
    named = [parts for parts in fitting if _roles(side, parts) in FUSED_ROLES]
    return next((found[0] for found in (proven, named, fitting) if len(found) == 1), ())


def _roles(side: Outline, parts: Sequence[int]) -> list[str]:
    return [role_of(side.tree.name(k)) for k in parts]


def _ordered(side: Outline, parts: Sequence[int]) -> tuple[int, ...]:
    """Return parts by what they are for, or as they run."""
    roles = next((roles for roles in FUSED_ROLES if sorted(roles) == sorted(_roles(side, parts))), None)
    if roles is not None:
        return tuple(sorted(parts, key=lambda k: roles.index(role_of(side.tree.name(k)))))
    order = side.order(by_calls=True)
    return tuple(sorted(parts, key=lambda k: order[k]))


def _bundle(each: _Partial, a: Outline, b: Outline) -> Bundle:
    mine, theirs = (a, b) if each.side == "A" else (b, a)
    pieces, whole = [mine.matrices(k)[0] for k in each.parts], theirs.matrices(each.whole)[0]
    bundle = Bundle(each.side, each.whole, each.parts)
    groups, is_known = groups_of(mine, theirs, bundle, pieces, whole)
    return replace(bundle, groups=groups, is_known=is_known)


def _notes(
    matching: Matching, found: Sequence[_Partial], made: Mapping[Pair, Bundle], a: Tree, b: Tree
) -> Iterator[Note]:
    """Yield, for every line that names one of several parts, what is compared and the better line."""
    for line, group in grouped(found, lambda each: matching.lines.get(each.pair.a, "")).items():
        first = group[0]
        mine, theirs = (a, b) if first.side == "A" else (b, a)
        (where, *_) = numbered(theirs.path(each.whole) for each in group)
        what = {"line": line, "part": mine.name(first.part), "whole": where}
        rule, bundle = matching.rules.get(first.pair.a), made.get(first.pair)
        if bundle is None:
            yield note("part-of-whole-not-compared", **what)
            continue
        parts = tuple(mine.name(k) for k in bundle.parts)
        are_here = first.side == matching.direction.value[0].upper()
        better = "" if rule is None else _better(rule, parts, bundle.groups, are_here)
        yield note("parts-of-whole-completed", parts=parts, better=better, **what)


def _better(rule: Rule, parts: Sequence[str], groups: int, are_here: bool) -> str:
    """Return the line that names all parts, which are on the side that the mapping is written from or on the other."""
    named, whole = (rule.source, rule.targets[0]) if are_here else (rule.targets[0], rule.source)
    listed = f"[{', '.join(written((*named[:-1], name)) for name in parts)}]"
    split = f", split: {{groups: {groups}}}" if groups > 1 else ""
    if are_here:
        return f"{written(whole)}: {{from: {listed}{split}}}"
    return f"{written(whole)}: {{to: {listed}{split}}}" if split else f"{written(whole)}: {listed}"
