"""Matrices of which one side does not tell the sizes: what classes, neighbours and numbers of siblings say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from probe.matching.automatic import likeness
from probe.matching.automatic.outline import Outline, is_matrix
from probe.matching.automatic.state import Found
from probe.matching.automatic.weights.fused import Fused, keep_fused
from probe.matching.result import Reason

_FUSED, _SINGLE, _UNSURE = 0.75, 0.8, 0.65

Choice = tuple[float, tuple[int, ...], tuple[int, ...]]
"""score, modules of A, modules of B"""


def match_unmeasured(found: Found, mine: Sequence[int], theirs: Sequence[int], confidence: float) -> None:
    """Pair matrices, the likeliest first, fused ones before single ones."""
    left = [i for i in mine if is_matrix(found.a, i) and not found.a.tree.children[i]]
    right = [j for j in theirs if is_matrix(found.b, j) and not found.b.tree.children[j]]
    choices: list[Choice] = [*_fused(found, left, right, "A"), *_fused(found, right, left, "B")]
    _keep(found, choices, confidence)
    left, right = (
        [i for i in left if i not in found.of_a and i not in found.parts],
        [j for j in right if j not in found.of_b and j not in found.parts_b],
    )
    singles = []
    for x, i in enumerate(left):
        for y, j in enumerate(right):
            score = _likeness(found, i, j)
            apart = abs((x + 0.5) / len(left) - (y + 0.5) / len(right))
            if score > 0:
                singles.append((score - 0.5 * apart, (i,), (j,)))
    _keep(found, singles, confidence)


def _keep(found: Found, choices: list[Choice], confidence: float) -> None:
    used: set[tuple[str, int]] = set()
    for score, mine, theirs in sorted(choices, key=lambda each: -each[0]):
        places = {*(("A", i) for i in mine), *(("B", j) for j in theirs)}
        if used & places:
            continue
        used |= places
        if len(mine) == len(theirs) == 1:
            sure = _SINGLE if score > 1 else _UNSURE
            found.pair(mine[0], theirs[0], Reason.SAME_STRUCTURE, min(sure, confidence))
        elif len(mine) > 1:
            keep_fused(found, Fused("A", theirs[0], mine), min(_FUSED, confidence))
        else:
            keep_fused(found, Fused("B", mine[0], theirs), min(_FUSED, confidence))


def _around(side: Outline, index: int) -> frozenset[str]:
    parent = side.tree.modules[index].parent
    return likeness.words(side.tree.class_name(parent)) | likeness.words(side.tree.name(parent))


def _siblings(side: Outline, index: int) -> list[int]:
    parent = side.tree.modules[index].parent
    return [k for k in side.children(parent) if is_matrix(side, k)]


def _fused(found: Found, parts: Sequence[int], wholes: Sequence[int], side: str) -> Iterator[Choice]:
    """Yield three layers of an attention that may be one, or two of something else, where the other side has fewer."""
    mine, theirs = (found.a, found.b) if side == "A" else (found.b, found.a)
    for whole in wholes:
        if "Row" in theirs.tree.class_name(whole) or likeness.kind_of(theirs.tree.class_name(whole)) != "linear":
            continue
        around = "attention" in _around(theirs, whole)
        count = 3 if around else 2
        fewer = len(_siblings(theirs, whole))
        for at in range(len(parts) - count + 1):
            window = parts[at : at + count]
            siblings = _siblings(mine, window[0])
            are_alike = len({mine.tree.modules[k].parent for k in window}) == 1 and _last_are_alike(mine, window)
            if (
                len(siblings) < fewer + count - 1
                or not are_alike
                or ("attention" in _around(mine, window[0])) != around
            ):
                continue
            roles = [likeness.role_of(mine.tree.name(k)) for k in window]
            wrong = any(roles) and roles not in (["q", "k", "v"], ["gate", "up"])
            if not wrong and all(likeness.kind_of(mine.tree.class_name(k)) == "linear" for k in window):
                first = siblings.index(window[0]) == 0
                score = count + any(roles) + 0.5 * first + ("qkv" in likeness.words(theirs.tree.name(whole)))
                yield (score, tuple(window), (whole,)) if side == "A" else (score, (whole,), tuple(window))


def _last_are_alike(side: Outline, window: Sequence[int]) -> bool:
    """Tell whether k and v, or gate and up, may be of one shape."""
    shapes = [[w.shape for w in side.weights[k] if len(w.shape) > 1] for k in window[-2:]]
    return shapes[0] == shapes[1] or not all(shapes)


def _likeness(found: Found, i: int, j: int) -> float:
    a, b = found.a.tree, found.b.tree
    likes = likeness.of_classes(a.class_name(i), b.class_name(j))
    if likes < 0 or likeness.kind_of(a.class_name(i)) != likeness.kind_of(b.class_name(j)):
        return -1.0
    here, there = _around(found.a, i), _around(found.b, j)
    inside = sum(
        0.5 if (word in here) == (word in there) else -1.0 for word in ("attention", "mlp") if word in here | there
    )
    score = 1.0 + likes + likeness.of_names(a.name(i), b.name(j)) + inside
    for side, k, other, m in ((found.a, i, found.b, j), (found.b, j, found.a, i)):
        shapes = [w.shape for w in other.weights[m] if len(w.shape) > 1]
        if (
            shapes and shapes[0][0] > shapes[0][1]
        ):  # it widens, which a layer that is split along its rows' width never does
            name = side.tree.class_name(k)
            score += -2.0 if "Row" in name else 0.5 if "Column" in name else 0.0
    return score
