"""Modules that hold others: they are a pair when most of what they hold is."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from probe.matching.automatic import likeness, values
from probe.matching.automatic.likeness import kind_of
from probe.matching.automatic.loose import tables
from probe.matching.automatic.outline import Outline, is_matrix
from probe.matching.automatic.state import Found
from probe.matching.result import Reason

_ENOUGH = 0.6
_SAMPLES = 6
_LIGHT, _UNTOLD = 0.1, 0.5
_MOST_SURE = 0.95
_ALONE = 0.75
_SMALL = 64
"""modules below one in which what has weights is looked for at any depth"""
_SEVERAL_THINGS = ("rotary", "dropout")
"""kinds of which one is not as good as another"""


def match_inner(found: Found) -> None:
    """Pair the modules that hold others, the surest first; no pair lies across another."""
    a, b = found.a, found.b
    totals_a, totals_b = _totals(a), _totals(b)
    tables_a, tables_b = tables(a, b), tables(b, a)
    embeddings_a, embeddings_b = (
        _counted(side, "embedding", own.__contains__) for side, own in ((a, tables_a), (b, tables_b))
    )
    norms_a, norms_b = _counted(a, "norm"), _counted(b, "norm")
    untold_a, untold_b = _counted(a, "norm", found.has_a), _counted(b, "norm", found.has_b)
    scored = []
    for i in range(1, len(a)):
        if not a.tree.children[i] or i in found.of_a or i in found.parts or i in found.ignored_a:
            continue
        held = [(k, _partner(found, k)) for k in _held(a, i)]
        for j in _candidates(found, held, totals_a[i], totals_b):
            if a.is_list(i) != b.is_list(j):
                continue  # one computes something, the other only holds what does
            if embeddings_a[i] != embeddings_b[j]:
                continue  # one is given tokens, the other what an embedding made of them
            if norms_a[i] != norms_b[j] and 0 in (norms_a[i], norms_b[j]):
                continue  # one returns what it computes, the other that normed
            both = sum(_weight(a, k) for k, other in held if other is not None and b.is_below(other, j))
            whole_b = totals_b[j]
            if both and whole_b:
                back = both if not found.parts_b else _shared_of_b(found, i, j)
                untold = _UNTOLD * min(untold_a[i], untold_b[j])  # which of them is which is not known: all are here
                both, back = both + untold, back + untold
                share = (min(1.0, both / totals_a[i]) + min(1.0, back / whole_b)) / 2
                if share >= _ENOUGH:
                    scored.append((share + _likeness(found, i, j), share, i, j))
    scored.sort(key=lambda each: (-each[0], a.begin[each[2]], b.begin[each[3]]))
    for _, share, i, j in scored:
        if i not in found.of_a and j not in found.of_b and stands_right(found, i, j):
            sure, reason = _certainty(found, i)
            found.pair(i, j, reason, min(_MOST_SURE, share) * sure)


def _weight(side: Outline, index: int) -> float:
    if side.adds_nothing(index):
        return 0.0
    if is_matrix(side, index):
        return 1.0
    return 0.5 if side.weights[index] or index in side.unmeasured else _LIGHT


def _totals(side: Outline) -> list[float]:
    found = [0.0] * len(side)
    for index in reversed(side.preorder):
        if not side.tree.children[index] or side.weights[index]:
            found[index] += _weight(side, index)
        parent = side.tree.modules[index].parent
        if parent >= 0:
            found[parent] += found[index]
    return found


def _counted(side: Outline, kind: str, is_done: Callable[[int], bool] = lambda _: False) -> list[int]:
    """Return how many modules of a kind, with no weights inside and no partner, stand below each module.

    A norm that drops and activates what it returns holds modules for that, and is a norm.
    """
    found, inside = [0] * len(side), [0] * len(side)
    for index in reversed(side.preorder):
        if not inside[index] and kind_of(side.tree.class_name(index)) == kind and not is_done(index):
            found[index] += 1
        parent = side.tree.modules[index].parent
        if parent >= 0:
            found[parent] += found[index]
            inside[parent] += inside[index] + len(side.weights[index])
    return found


def _held(side: Outline, top: int) -> list[int]:
    inside = (side.preorder[place] for place in range(side.begin[top] + 1, side.end[top] + 1))
    return [k for k in inside if not side.tree.children[k] or side.weights[k]]


def _partner(found: Found, i: int) -> int | None:
    return found.of_a.get(i, found.parts.get(i))


def _shared_of_b(found: Found, i: int, j: int) -> float:
    """Return how much of what a module of B holds is in a module of A."""
    partners = ((k, found.of_b.get(k, found.parts_b.get(k))) for k in _held(found.b, j))
    return sum(_weight(found.b, k) for k, other in partners if other is not None and found.a.is_below(other, i))


def _candidates(found: Found, held: list[tuple[int, int | None]], total: float, totals_b: list[float]) -> Iterator[int]:
    known = [j for _, j in held if j is not None]
    seen: set[int] = set()
    step = max(1, len(known) // _SAMPLES)
    tree = found.b.tree
    for j in known[::step]:
        at = j if tree.children[j] else tree.modules[j].parent
        while at > 0 and at not in seen and totals_b[at] <= 3 * total:
            seen.add(at)
            if at not in found.of_b and at not in found.ignored_b:
                yield at
            at = tree.modules[at].parent


def _likeness(found: Found, i: int, j: int) -> float:
    a, b = found.a, found.b
    score = 0.05 * likeness.of_classes(a.tree.class_name(i), b.tree.class_name(j))
    score += 0.12 * likeness.of_names(a.tree.name(i), b.tree.name(j))
    if found.by_calls:
        score += 0.06 if (i in a.first_call) == (j in b.first_call) else -0.06
        score += 0.03 * values.close(a.outputs.get(i, ()), b.outputs.get(j, ()))
        score += 0.02 * values.close(a.inputs.get(i, ()), b.inputs.get(j, ()))
    return score


def stands_right(found: Found, i: int, j: int) -> bool:
    """Tell whether the nearest modules around two that have partners stand around the other one on the other side."""
    for this, other, pairs, at, there in (
        (found.a, found.b, found.of_a, i, j), (found.b, found.a, found.of_b, j, i),
    ):  # fmt: skip
        above = this.tree.modules[at].parent
        while above >= 0 and above not in pairs:
            above = this.tree.modules[above].parent
        if above >= 0 and not other.is_below(there, pairs[above]):
            return False
    return True


def _certainty(found: Found, i: int) -> tuple[float, Reason]:
    """Return how sure the pairs inside are, and what most of them rest on."""
    inside = [k for k in _held(found.a, i) if k in found.of_a]
    if not inside:
        return 0.8, Reason.SAME_STRUCTURE
    sure = sum(found.confidence(k) for k in inside) / len(inside)
    by_values = sum(k in found.why and found.why[k][0] is Reason.SAME_VALUES for k in inside)
    return sure, Reason.SAME_VALUES if 2 * by_values > len(inside) else Reason.SAME_STRUCTURE


def drop_straddling(found: Found) -> None:
    """Take back guesses of modules of which one holds weights that lie outside of the other: they return other things.

    Attention with the norm behind it is none without, nor a model with its last norm one without. Nor is a layer of which
    columns are a weight of their own on the other side, as where x @ w + t * v is one product of [x, t] there.
    """
    for i in list(found.why):
        j = found.of_a[i]
        if _holds_what_is_outside(found, i, j) or _has_its_rest_beside(found, i, j):
            del found.of_a[i], found.of_b[j], found.why[i]


def _holds_what_is_outside(found: Found, i: int, j: int) -> bool:
    mine = ((k, _partner(found, k)) for k in _held(found.a, i) if k != i and found.a.weights[k])
    if any(other is not None and not found.b.is_below(other, j) for _, other in mine):
        return True
    theirs = ((k, found.of_b.get(k, found.parts_b.get(k))) for k in _held(found.b, j) if k != j and found.b.weights[k])
    return any(other is not None and not found.a.is_below(other, i) for _, other in theirs)


def _has_its_rest_beside(found: Found, i: int, j: int) -> bool:
    """Tell whether what one of two layers has more of is as much as a weight without a partner beside the other, or around it."""
    sizes = [sum(w.size for w in side.weights[k]) for side, k in ((found.a, i), (found.b, j))]
    if sizes[0] == sizes[1] or 0 in sizes or found.a.tree.children[i] or found.b.tree.children[j]:
        return False
    small, k, has = (found.a, i, found.has_a) if sizes[0] < sizes[1] else (found.b, j, found.has_b)
    parent = small.tree.modules[k].parent
    beside = [each for each in small.children(parent) if not has(each)] if parent >= 0 else []
    around = [parent] if parent >= 0 else []
    return any(w.size == abs(sizes[0] - sizes[1]) for each in (*around, *beside) for w in small.weights[each])


def match_alone(found: Found) -> None:
    """Pair what is left of a kind alone on both sides below two modules that are a pair."""
    for i, j in list(found.of_a.items()):
        mine = _left_by_kind(found.a, i, found.has_a)
        theirs = _left_by_kind(found.b, j, found.has_b) if mine else {}
        for kind, left in mine.items():
            right = theirs.get(kind, [])
            if len(left) != 1 or len(right) != 1 or not kind[0] or kind[0] in _SEVERAL_THINGS:
                continue
            if not values.compute_otherwise(found.a, left[0], found.b, right[0]):
                found.pair(left[0], right[0], Reason.SAME_STRUCTURE, _ALONE * found.confidence(i))


def _left_by_kind(side: Outline, top: int, is_done: Callable[[int], bool]) -> dict[tuple[object, ...], list[int]]:
    found: dict[tuple[object, ...], list[int]] = {}
    is_small = side.end[top] - side.begin[top] < _SMALL
    for k in _held(side, top) if is_small else side.children(top):
        is_near = side.tree.modules[k].parent == top
        if not side.tree.children[k] and not is_done(k) and (is_near or side.weights[k]):
            shapes = tuple(sorted(w.shape for w in side.weights[k]))
            found.setdefault((kind_of(side.tree.class_name(k)), shapes), []).append(k)
    return found
