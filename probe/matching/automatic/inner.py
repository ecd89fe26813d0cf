"""Modules that hold others: they are a pair when most of what they hold is. And what stands between, or beside, pairs."""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Iterator, Sequence

from probe.matching.automatic import likeness, values
from probe.matching.automatic.loose import tables
from probe.matching.automatic.outline import Outline, shapes_of
from probe.matching.automatic.state import Found, Half
from probe.matching.lists import evenly, grouped
from probe.matching.result import Reason

_ENOUGH = 0.6
_SAMPLES = 6
_LIGHT, _UNTOLD = 0.1, 0.5
_MOST_SURE = 0.95
_ALONE = 0.75
_SMALL = 64
"""modules below one in which what has weights, and its norms, are looked for at any depth"""


def match_inner(found: Found) -> None:
    """Pair the modules that hold others, the surest first; no pair lies across another."""
    a, b = found.a, found.b
    halves = here, _ = list(found.sides.values())
    totals_a, totals_b = _totals(a), _totals(b)
    embeddings_a, embeddings_b = (
        _counted(side, "embedding", tables(side, other).__contains__) for side, other in ((a, b), (b, a))
    )
    norms_a, norms_b = _counted(a, "norm"), _counted(b, "norm")
    untold_a, untold_b = (_counted(half.outline, "norm", half.has) for half in halves)
    scored = []
    for i in range(1, len(a)):
        if not a.tree.children[i] or here.has(i) or i in here.ignored:
            continue
        held = [(k, here.counterpart(k)) for k in _held(a, i)]
        for j in _candidates(found, held, totals_a[i], totals_b):
            if a.is_list(i) != b.is_list(j):
                continue  # one computes something, the other only holds what does
            if embeddings_a[i] != embeddings_b[j]:
                continue  # one is given tokens, the other what an embedding made of them
            if norms_a[i] != norms_b[j] and 0 in (norms_a[i], norms_b[j]):
                continue  # one returns what it computes, the other that normed
            both = _shared(found, "A", i, j)
            if both and totals_b[j]:
                back = both if not found.sides["B"].parts else _shared(found, "B", j, i)
                untold = _UNTOLD * min(untold_a[i], untold_b[j])  # which of them is which is not known: all are here
                own = [sorted(w.size for w in side.weights[k]) for side, k in ((a, i), (b, j))]
                untold += _UNTOLD * (own[0] == own[1] != [])
                both, back = both + untold, back + untold
                share = (min(1.0, both / totals_a[i]) + min(1.0, back / totals_b[j])) / 2
                if share >= _ENOUGH:
                    scored.append((share, i, j))
    scored.sort(key=lambda each: (-each[0], a.begin[each[1]], b.begin[each[2]]))
    for share, i, j in scored:
        if i not in found.of_a and j not in found.of_b and stands_right(found, i, j):
            found.pair(i, j, *_certainty(found, i, min(_MOST_SURE, share)))


def _weight(side: Outline, index: int) -> float:
    if side.adds_nothing(index):
        return 0.0
    if side.is_matrix(index):
        return 1.0
    return 0.5 if side.weights[index] or index in side.unmeasured else _LIGHT


def _totals(side: Outline) -> list[float]:
    own = [side.weights[k] or not side.tree.children[k] for k in range(len(side))]
    return side.with_below([_weight(side, k) if is_own else 0.0 for k, is_own in enumerate(own)])


def _counted(side: Outline, kind: str, is_done: Callable[[int], bool] = lambda _: False) -> list[int]:
    """Return how many modules of a kind, with no weights inside and no partner, stand below each module.

    A norm that drops and activates what it returns holds modules for that, and is a norm.
    """
    inside = side.with_below([len(weights) for weights in side.weights])
    return side.with_below(
        [int(inside[k] == len(side.weights[k]) and side.kind(k) == kind and not is_done(k)) for k in range(len(side))]
    )


def _held(side: Outline, top: int) -> list[int]:
    return [k for k in side.inside(top)[1:] if not side.tree.children[k] or side.weights[k]]


def _shared(found: Found, side: str, index: int, there: int) -> float:
    """Return how much of what a module of a side holds is in a module of the other one."""
    mine, theirs = found.ends(side)
    partners = ((k, mine.counterpart(k)) for k in _held(mine.outline, index))
    inside = (k for k, other in partners if other is not None and theirs.outline.is_below(other, there))
    return sum(_weight(mine.outline, k) for k in inside)


def _candidates(found: Found, held: list[tuple[int, int | None]], total: float, totals_b: list[float]) -> Iterator[int]:
    known = [j for _, j in held if j is not None]
    seen: set[int] = set()
    step = max(1, len(known) // _SAMPLES)
    tree = found.b.tree
    for j in known[::step]:
        for at in (*([j] if tree.children[j] else []), *tree.ancestors(j)):
            if at == 0 or at in seen or totals_b[at] > 3 * total:
                break
            seen.add(at)
            if at not in found.of_b and at not in found.sides["B"].ignored:
                yield at


def stands_right(found: Found, i: int, j: int) -> bool:
    """Return True if the nearest modules around two that have partners stand around the other one on the other side."""
    for side, at, there in (("A", i, j), ("B", j, i)):
        mine, theirs = found.ends(side)
        around = (mine.partner[k] for k in mine.outline.tree.ancestors(at) if k in mine.partner)
        if not theirs.outline.is_below(there, next(around, 0)):
            return False
    return True


def _certainty(found: Found, i: int, share: float) -> tuple[Reason, float]:
    """Return what most of the pairs inside rest on, and how sure they are, of a share that is inside."""
    inside = [k for k in _held(found.a, i) if k in found.of_a]
    if not inside:
        return Reason.SAME_STRUCTURE, 0.8 * share
    sure = sum(found.confidence(k) for k in inside) / len(inside)
    by_values = sum(k in found.why and found.why[k][0] is Reason.SAME_VALUES for k in inside)
    return (Reason.SAME_VALUES if 2 * by_values > len(inside) else Reason.SAME_STRUCTURE), share * sure


def drop_straddling(found: Found) -> None:
    """Take back guesses of modules of which one holds weights that lie outside of the other: they return other things.

    Attention with the norm behind it is none without, nor a model with its last norm one without. Nor is a layer of which
    columns are a weight of their own on the other side, as where x @ w + t * v is one product of [x, t] there.
    """
    for i in list(found.why):
        j = found.of_a[i]
        is_outside = _holds_what_is_outside(found, "A", i, j) or _holds_what_is_outside(found, "B", j, i)
        if is_outside or _has_its_rest_beside(found, i, j):
            found.forget(i)


def _holds_what_is_outside(found: Found, side: str, index: int, there: int) -> bool:
    mine, theirs = found.ends(side)
    held = (mine.counterpart(k) for k in _held(mine.outline, index) if mine.outline.weights[k])
    return any(other is not None and not theirs.outline.is_below(other, there) for other in held)


def _has_its_rest_beside(found: Found, i: int, j: int) -> bool:
    """Return True if what one layer has more is as much as a weight without a partner beside, or around, the other."""
    size_a, size_b = (sum(w.size for w in side.weights[k]) for side, k in ((found.a, i), (found.b, j)))
    if size_a == size_b or 0 in (size_a, size_b) or found.a.tree.children[i] or found.b.tree.children[j]:
        return False
    half, k = (found.sides["A"], i) if size_a < size_b else (found.sides["B"], j)
    small = half.outline
    places = [each for parent in [*small.tree.ancestors(k)][:1] for each in (parent, *small.children(parent))]
    free = [each for place, each in enumerate(places) if place == 0 or not half.has(each)]
    return any(w.size == abs(size_a - size_b) for each in free for w in small.weights[each])


def match_alone(found: Found) -> None:
    """Pair what is left of a kind alone on both sides below two modules that are a pair."""
    for i, j in list(found.of_a.items()):
        mine = _left_by_kind(found.sides["A"], i)
        for one, other, count in evenly(mine, _left_by_kind(found.sides["B"], j) if mine else {}):
            is_telling = count == 1 and found.a.kind(one) not in ("", *likeness.NEVER_ALIKE)
            if is_telling and not values.compute_otherwise(found.a, one, found.b, other):
                found.pair(one, other, Reason.SAME_STRUCTURE, _ALONE * found.confidence(i))


def _left_by_kind(half: Half, top: int) -> dict[tuple[object, ...], list[int]]:
    side = half.outline
    is_small = side.end[top] - side.begin[top] < _SMALL
    near = list(side.children(top))
    left = (
        k
        for k in (_held(side, top) if is_small else near)
        if not side.tree.children[k] and not half.has(k) and (k in near or side.weights[k])
    )
    return grouped(left, lambda k: (side.kind(k), shapes_of(side, k)))


# Norms, and whatever holds no matrix, between neighbours that are known: told by the order alone
#
# One side may have a norm inside the attention and the other beside it: then they stand in no block together, and freshly
# initialised ones have no numbers that tell them apart. In the order in which they run, they are between the same neighbours.

_RETURN_THE_SAME, _ONE_OF_SEVERAL = 0.9, 0.65


def match_between(found: Found) -> None:
    """Pair what has weights, but no matrix, between neighbours that are pairs, where both sides have as many of a kind."""
    if not found.by_calls:
        return  # the order of definition says too little
    for mine, theirs in list(found.gaps(_line(found.sides["A"]), _line(found.sides["B"]))):
        for i, j, count in evenly(_by_kind(found.a, mine), _by_kind(found.b, theirs)):
            _keep(found, i, j, _ALONE if count == 1 else _ONE_OF_SEVERAL)


def _keep(found: Found, i: int, j: int, sure: float) -> None:
    if not stands_right(found, i, j) or found.weights_differ(i, j):
        return
    if values.close(found.a.outputs.get(i, ()), found.b.outputs.get(j, ())) >= 2:
        found.pair(i, j, Reason.SAME_VALUES, _RETURN_THE_SAME)
    else:
        found.pair(i, j, Reason.SAME_STRUCTURE, sure)


def _line(half: Half) -> list[int]:
    """Return what holds weights and no modules, and ran, in order."""
    side = half.outline
    leaves = (k for k in side.first_call if side.weights[k] and not side.tree.children[k])
    return sorted(leaves, key=lambda k: half.order[k])


def _by_kind(side: Outline, modules: Sequence[int]) -> dict[Hashable, list[int]]:
    return grouped((k for k in modules if not side.is_matrix(k)), lambda k: (side.kind(k), shapes_of(side, k)))


# The two norms of a layer, where nothing was seen to run: named after the attention, or standing in it, and the other
#
# The order in which they are defined says little: MindFormers defines that of the MLP first. With each norm goes what is numbered as it
# is, or stands beside it: ``norm1`` and ``dropout1``, ``output.LayerNorm`` and ``output.dropout``.

_NORM, _COMPANION, _BY_NEIGHBOURS = 0.7, 0.65, 0.85
_NUMBER = re.compile(r"\d+$")


def match_by_names(found: Found) -> None:
    """Pair the norms of layers that are pairs, by what their names say."""
    if found.by_calls:
        return
    for i, j in list(found.of_a.items()):
        norms_a, norms_b = _norms(found.a, i), _norms(found.b, j)
        for role, one in norms_a.items():
            other = norms_b.get(role)
            if other is not None and shapes_of(found.a, one) == shapes_of(found.b, other):
                _put(found, one, other, min(_NORM, found.confidence(i)), _NORM)
                if found.of_a.get(one) == other:
                    _match_companions(found, one, other)


def _put(found: Found, i: int, j: int, sure: float, most: float) -> None:
    """Keep a pair; guesses by the order of definition give way, if they are not surer than ``most``."""
    for k in (i, found.of_b.get(j)):
        if k in found.why and found.why[k][1] <= most:
            found.forget(k)
    found.pair(i, j, Reason.SAME_STRUCTURE, sure)


def _norms(side: Outline, top: int) -> dict[str, int]:
    """Return the two norms of a layer by their roles; nothing where there are not two, or names do not tell them apart."""
    if not side.tree.children[top] or side.end[top] - side.begin[top] > _SMALL:
        return {}
    norms = [k for k in side.inside(top)[1:] if side.weights[k] and side.kind(k) == "norm"]
    roles = [_role(side, k, top) for k in norms]
    if len(norms) != 2 or roles.count("norm1") != 1:
        return {}
    first = roles.index("norm1")
    return {"norm1": norms[first], "norm2": norms[1 - first]}


def _role(side: Outline, index: int, top: int) -> str:
    """Return ``norm1`` for the norm of the attention."""
    role = likeness.role_of(side.tree.name(index))
    around = [index, *(k for k in side.tree.ancestors(index) if k > top)]
    is_of_attention = any("attention" in likeness.words(side.tree.name(k)) for k in around)
    return role or ("norm1" if is_of_attention else "")


def _match_companions(found: Found, i: int, j: int) -> None:
    """Pair what has no weights and goes with two norms; a guess by the order of definition gives way."""
    mine, theirs = _companions(found.a, i), _companions(found.b, j)
    for kind, one in mine.items():
        other = theirs.get(kind)
        if other is not None and found.of_a.get(one) != other:
            _put(found, one, other, _COMPANION, _BY_NEIGHBOURS)


def _companions(side: Outline, index: int) -> dict[str, int]:
    """Return what stands beside a norm and has no weights, by kind, where there is one; with a number, the same number."""
    number = _NUMBER.findall(side.tree.name(index))
    beside = [
        k
        for k in side.children(side.tree.modules[index].parent)
        if not side.weights[k] and not side.tree.children[k] and not side.is_matrix(k)
        and (not number or _NUMBER.findall(side.tree.name(k)) == number)
    ]  # fmt: skip
    return {kind: group[0] for kind, group in grouped(beside, side.kind).items() if kind and len(group) == 1}
