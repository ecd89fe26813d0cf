"""Pairs for what a mapping and equal paths leave on both sides."""

from __future__ import annotations

from dataclasses import replace

from probe.matching.automatic import likeness, values
from probe.matching.automatic.inner import drop_straddling, match_alone, match_between, match_by_names, match_inner
from probe.matching.automatic.outline import Outline
from probe.matching.automatic.regions import match_inside
from probe.matching.automatic.state import Found, Half
from probe.matching.automatic.weights.fused import agree_on_groups
from probe.matching.result import Matching, Pair, Reason, other_side

_FAR = 0.9


def complete(matching: Matching, a: Outline, b: Outline) -> Matching:
    """Return a matching with pairs for what it leaves on both sides, as far as they can be told."""
    by_path = [pair for pair in matching.pairs if pair.reason is Reason.SAME_PATH]
    # what has its path in common alone
    other = {
        pair for pair in by_path
        if a.tree.class_name(pair.a) != b.tree.class_name(pair.b) and values.compute_otherwise(a, pair.a, b, pair.b)
    }  # fmt: skip
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
    bundles = (*matching.bundles, *found.bundles)
    left = []
    for side, half in found.sides.items():
        parts = {k for bundle in bundles if bundle.side == side for k in bundle.parts}
        gone = {*half.partner, *half.parts, *parts, *matching.ignored(side), *matching.stepped(side)}
        left.append(tuple(k for k in range(len(half.outline)) if k not in gone))
    return replace(
        matching,
        pairs=tuple(pairs),
        only_a=left[0],
        only_b=left[1],
        bundles=bundles,
        weight_bundles=(*matching.weight_bundles, *found.weight_bundles),
        views_a={**found.sides["A"].views, **matching.views_a},
        views_b={**found.sides["B"].views, **matching.views_b},
        notes=(*matching.notes, *said),
    )


def _is_doubtful(a: Outline, b: Outline, pair: Pair) -> bool:
    """Return True if two modules of one path are clearly different things."""
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
    of_a = {pair.a: pair.b for pair in kept}
    sides = {"A": Half(a, of_a), "B": Half(b, {j: i for i, j in of_a.items()})}
    for side, half in sides.items():
        half.ignored = matching.ignored(side) | matching.stepped(side).keys()
    for bundle in matching.bundles:
        sides[bundle.side].parts.update(dict.fromkeys(bundle.parts[1:], bundle.whole))
    for weights in matching.weight_bundles:
        mine, theirs = sides[weights.side], sides[other_side(weights.side)]
        whole, parts = weights.ends
        mine.parts.update(dict.fromkeys(set(parts) - mine.partner.keys(), whole))
        theirs.ignored |= {whole} - theirs.partner.keys()
    return Found(sides)


def _match_all(found: Found, kept: list[Pair]) -> None:
    todo = [(pair.a, pair.b, pair.confidence) for pair in kept if _is_open(found, pair)]
    if 0 not in found.of_a and 0 not in found.of_b:
        found.pair(0, 0, Reason.SAME_STRUCTURE, 1.0)
        todo.insert(0, (0, 0, 1.0))
    seen = _look_inside(found, todo)
    for i, j in found.pins.items():
        alike = likeness.of_classes(found.a.tree.class_name(i), found.b.tree.class_name(j)) >= 0
        if alike and not found.a.tree.children[i] and not found.b.tree.children[j]:
            found.pair(i, j, Reason.SAME_VALUES, _FAR)
    match_inner(found)
    drop_straddling(found)
    inside = [(i, j, found.confidence(i)) for i, j in found.of_a.items() if i not in seen and found.a.tree.children[i]]
    _look_inside(found, inside)
    match_between(found)
    match_by_names(found)
    match_alone(found)
    drop_straddling(found)


def _look_inside(found: Found, todo: list[tuple[int, int, float]]) -> set[int]:
    """Pair what stands inside of pairs, and so on down; return the modules of A that were looked into."""
    seen = set()
    while todo:
        seen.add(todo[-1][0])
        todo += match_inside(found, *todo.pop())
    return seen


def _drop_homeless(found: Found) -> None:
    """Forget weights that lie in one of a module without a partner: there is nothing to compare them at."""
    for bundle in list(found.weight_bundles):
        mine, theirs = found.ends(bundle.side)
        whole, parts = bundle.ends
        if whole not in theirs.partner:
            found.weight_bundles.remove(bundle)
            for module in parts:
                mine.parts.pop(module, None)


def _is_open(found: Found, pair: Pair) -> bool:
    """Return True if both sides of a pair have something right below that is left."""
    return any(c not in found.of_a for c in found.a.children(pair.a)) and any(
        c not in found.of_b for c in found.b.children(pair.b)
    )
