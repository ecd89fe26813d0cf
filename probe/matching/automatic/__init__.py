"""Pairs for what a mapping and equal paths leave: by structure, by order, and by recorded values.

Nothing here is certain, so every pair says how sure it is. Large blocks meet by the sizes of all weights in them, which
neither names nor nesting nor fusing changes (`regions`); single modules inside by shapes and the order in which they run
(`line`), layers that are one layer on the other side among them (`fused`); modules that hold others when most of what
they hold is paired (`inner`). Where both models have the same weights, their numbers decide (`values`).
"""

from __future__ import annotations

from dataclasses import replace

from probe.matching.automatic import likeness, values
from probe.matching.automatic.between import match_between
from probe.matching.automatic.inner import drop_straddling, match_alone, match_inner
from probe.matching.automatic.layouts import agree_on_groups
from probe.matching.automatic.named import match_by_names
from probe.matching.automatic.outline import Outline, outline, outline_of
from probe.matching.automatic.parameters import match_parameters
from probe.matching.automatic.regions import match_inside
from probe.matching.automatic.running import match_running
from probe.matching.automatic.state import Found
from probe.matching.result import Matching, Pair, Reason
from probe.tree import Tree

_FAR = 0.9


def leaves_something(matching: Matching, a: Tree, b: Tree) -> bool:
    """Tell whether there is anything for `complete` to do: something left on both sides, or pairs of doubtful paths."""
    return bool(matching.only_a and matching.only_b) or any(
        pair.reason is Reason.SAME_PATH and likeness.of_classes(a.class_name(pair.a), b.class_name(pair.b)) < 0
        for pair in matching.pairs
    )


def complete(matching: Matching, a: Outline, b: Outline) -> Matching:
    """Return a matching with pairs for what it leaves on both sides, as far as these can be told.

    Parameters
    ----------
    matching
        what is certain; it stays
    a, b
        the two models
    """
    doubtful = [pair for pair in matching.pairs if pair.reason is Reason.SAME_PATH and _is_doubtful(a, b, pair)]
    kept = [pair for pair in matching.pairs if pair not in doubtful] if doubtful else list(matching.pairs)
    found = _started(matching, kept, a, b)
    if len(found.of_a) < len(a) and len(found.of_b) < len(b):
        _match_all(found, kept)
    _drop_homeless(found)
    said = agree_on_groups(found)
    for pair in doubtful:
        if pair.a not in found.of_a and pair.b not in found.of_b:
            kept.append(pair)
            found.of_a[pair.a], found.of_b[pair.b] = pair.b, pair.a
    pairs = kept + [Pair(i, found.of_a[i], *why) for i, why in found.why.items()]
    pairs.sort(key=lambda pair: pair.a)
    whole = {
        side: {k for bundle in (*matching.bundles, *found.bundles) if bundle.side == side for k in bundle.parts}
        for side in "AB"
    }
    return replace(
        matching,
        pairs=tuple(pairs),
        only_a=_left(a, {*found.of_a, *found.parts, *whole["A"], *matching.ignored_a, *matching.stepped_a}),
        only_b=_left(b, {*found.of_b, *found.parts_b, *whole["B"], *matching.ignored_b, *matching.stepped_b}),
        bundles=(*matching.bundles, *found.bundles),
        weight_bundles=(*matching.weight_bundles, *found.weight_bundles),
        views_a={**found.views_a, **matching.views_a},
        views_b={**found.views_b, **matching.views_b},
        warnings=(*matching.warnings, *said),
    )


def without_guesses(matching: Matching, least: float) -> Matching:
    """Return a matching without the pairs that are less sure than ``least``; what they were is left on both sides."""
    lost = [pair for pair in matching.pairs if pair.confidence < least]
    if not lost:
        return matching
    gone_a, gone_b = {pair.a for pair in lost}, {pair.b for pair in lost}
    bundles = [
        bundle for bundle in matching.bundles
        if bundle.parts[0] not in (gone_a if bundle.side == "A" else gone_b)
    ]  # fmt: skip
    for bundle in set(matching.bundles).difference(bundles):
        (gone_a if bundle.side == "A" else gone_b).update(bundle.parts)
    weights = [
        each for each in matching.weight_bundles if each.whole[0] not in (gone_b if each.side == "A" else gone_a)
    ]
    return replace(
        matching,
        pairs=tuple(pair for pair in matching.pairs if pair.confidence >= least),
        only_a=tuple(sorted({*matching.only_a, *gone_a})),
        only_b=tuple(sorted({*matching.only_b, *gone_b})),
        bundles=tuple(bundles),
        weight_bundles=tuple(weights),
    )


def _is_doubtful(a: Outline, b: Outline, pair: Pair) -> bool:
    """Tell whether two modules of one path are clearly different things."""
    i, j = pair.a, pair.b
    if not i or not j:
        return False
    class_a, class_b = a.tree.class_name(i), b.tree.class_name(j)
    if class_a == class_b:
        return False
    names = [set(side.tree.children[k]) for side, k in ((a, i), (b, j))]
    if all(names):
        return not names[0] & names[1] and a.rows[i] != b.rows[j]
    if any(names):  # a layer against what holds some
        return any(side.weights[k] and not side.tree.children[k] for side, k in ((a, i), (b, j)))
    shapes = [sorted(tuple(sorted(w.shape)) for w in side.weights[k]) for side, k in ((a, i), (b, j))]
    return likeness.of_classes(class_a, class_b) < 0 or (all(shapes) and shapes[0] != shapes[1])


def _started(matching: Matching, kept: list[Pair], a: Outline, b: Outline) -> Found:
    parts: dict[str, dict[int, int]] = {"A": {}, "B": {}}
    for bundle in matching.bundles:
        parts[bundle.side].update(dict.fromkeys(bundle.parts[1:], bundle.whole))
    for weights in matching.weight_bundles:
        paired = {pair.a if weights.side == "A" else pair.b for pair in kept}
        inside = (module for row in weights.parts for module, _ in row if module not in paired)
        parts[weights.side].update(dict.fromkeys(inside, weights.whole[0]))
    return Found(
        a, b, {pair.a: pair.b for pair in kept}, {pair.b: pair.a for pair in kept},
        frozenset(pair.a for pair in kept), parts=parts["A"], parts_b=parts["B"],
        ignored_a=matching.ignored_a | matching.stepped_a.keys(),
        ignored_b=matching.ignored_b | matching.stepped_b.keys(),
    )  # fmt: skip


def _match_all(found: Found, kept: list[Pair]) -> None:
    if 0 not in found.of_a and 0 not in found.of_b:
        found.pair(0, 0, Reason.SAME_STRUCTURE, 1.0)
        todo = [(0, 0, 1.0)]
    else:
        todo = []
    todo += [(pair.a, pair.b, pair.confidence) for pair in kept if _is_open(found, pair)]
    while todo:
        todo += match_inside(found, *todo.pop())
    for i, j in found.pins.items():
        alike = likeness.of_classes(found.a.tree.class_name(i), found.b.tree.class_name(j)) >= 0
        if alike and not found.a.tree.children[i] and not found.b.tree.children[j]:
            found.pair(i, j, Reason.SAME_VALUES, _FAR)
    match_inner(found)
    drop_straddling(found)
    match_between(found)
    match_by_names(found)
    match_alone(found)
    drop_straddling(found)


def _drop_homeless(found: Found) -> None:
    """Forget weights that lie in one of a module without a partner: there is nothing to compare them at."""
    for bundle in list(found.weight_bundles):
        partners, parts = (found.of_b, found.parts) if bundle.side == "A" else (found.of_a, found.parts_b)
        if bundle.whole[0] not in partners:
            found.weight_bundles.remove(bundle)
            for row in bundle.parts:
                for module, _ in row:
                    parts.pop(module, None)


def _is_open(found: Found, pair: Pair) -> bool:
    """Tell whether both sides of a pair have something right below that is left."""
    return any(c not in found.of_a for c in found.a.children(pair.a)) and any(
        c not in found.of_b for c in found.b.children(pair.b)
    )


def _left(side: Outline, done: set[int]) -> tuple[int, ...]:
    return tuple(i for i in range(len(side)) if i not in done and not side.adds_nothing(i))


__all__ = [
    "Outline",
    "complete",
    "leaves_something",
    "match_parameters",
    "match_running",
    "outline",
    "outline_of",
    "values",
    "without_guesses",
]
