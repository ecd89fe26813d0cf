"""Pairs for what a mapping and equal paths leave on both sides."""

from __future__ import annotations

from dataclasses import replace

from probe.matching.automatic import likeness, values
from probe.matching.automatic.between import match_between
from probe.matching.automatic.inner import drop_straddling, match_alone, match_inner
from probe.matching.automatic.named import match_by_names
from probe.matching.automatic.outline import Outline
from probe.matching.automatic.regions import match_inside
from probe.matching.automatic.state import Found
from probe.matching.automatic.weights.layouts import agree_on_groups
from probe.matching.result import Matching, Pair, Reason

_FAR = 0.9


def complete(matching: Matching, a: Outline, b: Outline) -> Matching:
    """Return a matching with pairs for what it leaves on both sides, as far as these can be told.

    Parameters
    ----------
    matching
        what is certain; it stays
    a, b
        the two models
    """
    by_path = [pair for pair in matching.pairs if pair.reason is Reason.SAME_PATH]
    other = {pair for pair in by_path if _computes_otherwise(a, b, pair)}
    doubtful = [pair for pair in by_path if pair not in other and _is_doubtful(a, b, pair)]
    kept = [pair for pair in matching.pairs if pair not in other and pair not in doubtful]
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
        notes=(*matching.notes, *said),
    )


def _computes_otherwise(a: Outline, b: Outline, pair: Pair) -> bool:
    """Tell whether two modules have their path in common alone."""
    i, j = pair.a, pair.b
    return a.tree.class_name(i) != b.tree.class_name(j) and values.compute_otherwise(a, i, b, j)


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
    alone: dict[str, set[int]] = {"A": set(), "B": set()}
    paired = {"A": {pair.a for pair in kept}, "B": {pair.b for pair in kept}}
    for bundle in matching.bundles:
        parts[bundle.side].update(dict.fromkeys(bundle.parts[1:], bundle.whole))
    for weights in matching.weight_bundles:
        other = "A" if weights.side == "B" else "B"
        inside = {module for row in weights.parts for module, _ in row} - paired[weights.side]
        parts[weights.side].update(dict.fromkeys(inside, weights.whole[0]))
        alone[other] |= {weights.whole[0]} - paired[other]
    return Found(
        a, b, {pair.a: pair.b for pair in kept}, {pair.b: pair.a for pair in kept},
        frozenset(pair.a for pair in kept), parts=parts["A"], parts_b=parts["B"],
        ignored_a=matching.ignored_a | matching.stepped_a.keys() | alone["A"],
        ignored_b=matching.ignored_b | matching.stepped_b.keys() | alone["B"],
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
    return tuple(i for i in range(len(side)) if i not in done)
