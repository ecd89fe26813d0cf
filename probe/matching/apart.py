"""At which pair of modules weights are compared of which a mapping says so, and not that their modules are a pair."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from probe.comparison.notes import note
from probe.matching.result import Matching, Pair, Place, Reason, WeightBundle
from probe.numbers.fused import Fusion
from probe.structure.tree import Tree


def with_places(matching: Matching, a: Tree, b: Tree) -> Matching:
    """Return a matching of which every weight that is compared has a pair of modules where that can be done.

    One for one, a weight whose module has no partner is read as if it were in the module that the other one's is a pair
    with. Where neither has a partner, what is around all of them, or the first of them, is its pair for these weights
    alone. What is left has a warning.
    """
    trees = {"A": a, "B": b}
    partner = {"A": {pair.a: pair.b for pair in matching.pairs}, "B": {pair.b: pair.a for pair in matching.pairs}}
    pairs, found, notes = list(matching.pairs), [], list(matching.notes)
    for each in matching.weight_bundles:
        bundle = _turned(each, partner)
        other = "A" if bundle.side == "B" else "B"
        whole = bundle.whole[0]
        if whole not in partner[other]:
            modules = [module for row in bundle.parts for module, _ in row]
            free = [m for m in (_around(modules, trees[bundle.side]), *modules) if m not in partner[bundle.side]]
            if not free:
                names = tuple(_name(trees[bundle.side], place) for place in bundle.parts[0])
                whole_name = _name(trees[other], bundle.whole)
                notes.append(note("weight-without-module", name=whole_name, of=other, names=names, side=bundle.side))
                continue
            partner[other][whole], partner[bundle.side][free[0]] = free[0], whole
            ends = (whole, free[0]) if other == "A" else (free[0], whole)
            pairs.append(Pair(*ends, Reason.MAPPED, has_calls=False))
        found.append(bundle)
    return replace(matching, pairs=tuple(pairs), weight_bundles=tuple(found), notes=tuple(notes))


def _turned(bundle: WeightBundle, partner: dict[str, dict[int, int]]) -> WeightBundle:
    """Return one weight for one the other way round where that side's module alone has a partner."""
    other = "A" if bundle.side == "B" else "B"
    (part, *more), *rows = bundle.parts
    if more or rows or bundle.fusion != Fusion() or bundle.whole[0] in partner[other]:
        return bundle
    return (
        replace(bundle, side=other, whole=part, parts=((bundle.whole,),)) if part[0] in partner[bundle.side] else bundle
    )


def _name(tree: Tree, place: Place) -> str:
    path = tree.path(place[0])
    return f"{path}.{place[1]}" if path else place[1]


def _around(modules: Iterable[int], tree: Tree) -> int:
    """Return the innermost module that holds all of some."""
    paths = []
    for module in modules:
        path = [module]
        while tree.modules[path[-1]].parent >= 0:
            path.append(tree.modules[path[-1]].parent)
        paths.append(path[::-1])
    common = [each[0] for each in zip(*paths, strict=False) if len(set(each)) == 1]
    return common[-1]
