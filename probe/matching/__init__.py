"""Matching: which module of A is which of B, and why.

From most to least certain: the mapping says so; the same path; inside a list of layers of which one side has
fewer, the same initial weights. Wrappers are looked through. What has no partner is listed on both sides.
"""

from __future__ import annotations

from probe.errors import MappingError
from probe.mapping import LayerMapping
from probe.matching.lists import Fingerprint
from probe.matching.result import Bundle, Direction, Matching, Pair, Place, Reason, View, WeightBundle
from probe.matching.walk import Found, Walk
from probe.tree import Tree


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
    walk = Walk(a, b, mapping) if forwards else Walk(b, a, mapping)
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


def _settled(walk: Walk, places: dict[int, Found]) -> dict[int, int]:
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


def _complaints(walk: Walk) -> list[str]:
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


__all__ = [
    "Bundle", "Direction", "Fingerprint", "Matching", "Pair", "Place", "Reason", "View", "WeightBundle", "direction_of", "match",
]  # fmt: skip
