"""Norms, and whatever holds no matrix, that stand between two neighbours which are known: told by the order alone.

One side may have a norm inside the attention and the other beside it: then they stand in no block together, and freshly
initialised ones have no numbers that tell them apart. Laid in one line, by the order in which they run, they are between
the same neighbours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence

from probe.matching.automatic import likeness, values
from probe.matching.automatic.increasing import increasing
from probe.matching.automatic.inner import stands_right
from probe.matching.automatic.outline import Outline, is_matrix
from probe.matching.automatic.state import Found
from probe.matching.result import Reason

_RETURN_THE_SAME, _ALONE, _ONE_OF_SEVERAL = 0.9, 0.75, 0.65


def match_between(found: Found) -> None:
    """Pair what has weights, but no matrix, between neighbours that are pairs, where both sides have as many of a kind."""
    if not found.by_calls:
        return  # the order of definition says too little
    lines = _line(found.a, found.order_a), _line(found.b, found.order_b)
    for mine, theirs in _gaps(found, *lines):
        left, right = _by_kind(found.a, mine), _by_kind(found.b, theirs)
        for kind, group in left.items():
            others = right.get(kind, [])
            if len(group) == len(others):
                for i, j in zip(group, others, strict=True):
                    _keep(found, i, j, _ALONE if len(group) == 1 else _ONE_OF_SEVERAL)


def _keep(found: Found, i: int, j: int, sure: float) -> None:
    if not stands_right(found, i, j) or found.weights_differ(i, j):
        return
    same = values.close(found.a.outputs.get(i, ()), found.b.outputs.get(j, ())) >= 2
    if same:
        found.pair(i, j, Reason.SAME_VALUES, _RETURN_THE_SAME)
    else:
        found.pair(i, j, Reason.SAME_STRUCTURE, sure)


def _line(side: Outline, order: Sequence[float]) -> list[int]:
    """Return what holds weights and no modules, and ran, in order."""
    leaves = (k for k in side.first_call if side.weights[k] and not side.tree.children[k])
    return sorted(leaves, key=lambda k: order[k])


def _gaps(found: Found, line_a: Sequence[int], line_b: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    places = {j: place for place, j in enumerate(line_b)}
    known = []
    for place, i in enumerate(line_a):
        j = found.of_a.get(i, found.parts.get(i))
        if j in places:
            known.append((place, places[j]))
    anchors = [(-1, -1), *increasing(known), (len(line_a), len(line_b))]
    for (low_a, low_b), (high_a, high_b) in zip(anchors, anchors[1:], strict=False):
        mine = [i for i in line_a[low_a + 1 : high_a] if not found.has_a(i)]
        theirs = [j for j in line_b[low_b + 1 : high_b] if not found.has_b(j)]
        if mine and theirs:
            yield mine, theirs


def _by_kind(side: Outline, modules: Sequence[int]) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for k in modules:
        if not is_matrix(side, k):
            shapes = tuple(sorted(w.shape for w in side.weights[k]))
            found[likeness.kind_of(side.tree.class_name(k)), shapes].append(k)
    return found
