"""The two norms of a layer, where nothing was seen to run: named after the attention, or standing in it, and the other.

The order in which they are defined says little: MindFormers defines that of the MLP first. With each norm goes what is
numbered as it is, or stands beside it: ``norm1`` and ``dropout1``, ``output.LayerNorm`` and ``output.dropout``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from probe.matching.automatic import likeness
from probe.matching.automatic.outline import Outline, is_matrix
from probe.matching.automatic.state import Found
from probe.matching.result import Reason

_NORM, _COMPANION, _BY_NEIGHBOURS = 0.7, 0.65, 0.85
_SMALL = 64
"""modules below one in which its norms are looked for"""
_NUMBER = re.compile(r"\d+$")


def match_by_names(found: Found) -> None:
    """Pair the norms of layers that are pairs, by what their names say."""
    if found.by_calls:
        return
    for i, j in list(found.of_a.items()):
        norms_a, norms_b = _norms(found.a, i), _norms(found.b, j)
        for role, one in norms_a.items():
            other = norms_b.get(role)
            if other is not None and _shapes(found.a, one) == _shapes(found.b, other):
                _keep(found, one, other, min(_NORM, found.confidence(i)), _NORM)
                if found.of_a.get(one) == other:
                    _match_companions(found, one, other)


def _keep(found: Found, i: int, j: int, sure: float, most: float) -> None:
    """Keep a pair; guesses by the order of definition give way, if they are not surer than ``most``."""
    for k in (i, found.of_b.get(j)):
        if k in found.why and found.why[k][1] <= most:
            del found.of_b[found.of_a.pop(k)], found.why[k]
    found.pair(i, j, Reason.SAME_STRUCTURE, sure)


def _norms(side: Outline, top: int) -> dict[str, int]:
    """Return the two norms of a layer by their roles; nothing where there are not two, or names do not tell them apart."""
    if not side.tree.children[top] or side.end[top] - side.begin[top] > _SMALL:
        return {}
    inside = (side.preorder[place] for place in range(side.begin[top] + 1, side.end[top] + 1))
    norms = [k for k in inside if side.weights[k] and likeness.kind_of(side.tree.class_name(k)) == "norm"]
    roles = [_role(side, k, top) for k in norms]
    if len(norms) != 2 or roles.count("norm1") != 1:
        return {}
    first = roles.index("norm1")
    return {"norm1": norms[first], "norm2": norms[1 - first]}


def _role(side: Outline, index: int, top: int) -> str:
    """Return ``norm1`` for the norm of the attention."""
    role = likeness.role_of(side.tree.name(index))
    if role:
        return role
    while index != top:
        if "attention" in likeness.words(side.tree.name(index)):
            return "norm1"
        index = side.tree.modules[index].parent
    return ""


def _match_companions(found: Found, i: int, j: int) -> None:
    """Pair what has no weights and goes with two norms; a guess by the order of definition gives way."""
    mine, theirs = _companions(found.a, i), _companions(found.b, j)
    for kind, one in mine.items():
        other = theirs.get(kind)
        if other is None or found.of_a.get(one) == other:
            continue
        _keep(found, one, other, _COMPANION, _BY_NEIGHBOURS)


def _companions(side: Outline, index: int) -> dict[str, int]:
    """Return what stands beside a norm and has no weights, by kind, where there is one; with a number, the same number."""
    number = _NUMBER.search(side.tree.name(index))
    beside = side.children(side.tree.modules[index].parent)
    found: dict[str, list[int]] = {}
    for k, kind in _without_weights(side, beside):
        same = _NUMBER.search(side.tree.name(k))
        if number is None or (same is not None and same.group() == number.group()):
            found.setdefault(kind, []).append(k)
    return {kind: group[0] for kind, group in found.items() if len(group) == 1}


def _without_weights(side: Outline, modules: object) -> Iterator[tuple[int, str]]:
    for k in modules:  # type: ignore[attr-defined]
        kind = likeness.kind_of(side.tree.class_name(k))
        if kind and not side.weights[k] and not side.tree.children[k] and not is_matrix(side, k):
            yield k, kind


def _shapes(side: Outline, index: int) -> list[tuple[int, ...]]:
    return sorted(w.shape for w in side.weights[index])
