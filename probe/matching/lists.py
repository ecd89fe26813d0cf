"""Lists of layers of which one side has fewer: their members are paired by their weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

Fingerprint = Callable[[int], frozenset[object]]
"""what identifies the weights of a module and all below it: a set of hashes"""


def is_list(children: dict[str, int]) -> bool:
    """Tell whether a module's children have numbers for names."""
    return bool(children) and all(name.isdigit() for name in children)


def distinctive(weights: dict[str, frozenset[object]]) -> list[tuple[str, frozenset[object]]]:
    """Leave out what several members share: norms of ones and biases of zeros tell no layer from another."""
    counts = Counter(digest for each in weights.values() for digest in each)
    return [(name, frozenset(d for d in each if counts[d] == 1) or each) for name, each in weights.items()]


def aligned(
    mine: list[tuple[str, frozenset[object]]], theirs: list[tuple[str, frozenset[object]]]
) -> dict[str, str] | None:
    """Pair two lists of fingerprints in order, as many as possible; None when nothing is alike."""
    longest = [[0] * (len(theirs) + 1) for _ in range(len(mine) + 1)]
    for i in range(len(mine) - 1, -1, -1):
        for j in range(len(theirs) - 1, -1, -1):
            if _alike(mine[i][1], theirs[j][1]):
                longest[i][j] = 1 + longest[i + 1][j + 1]
            else:
                longest[i][j] = max(longest[i + 1][j], longest[i][j + 1])
    if not longest[0][0]:
        return None
    pairs: dict[str, str] = {}
    i = j = 0
    while i < len(mine) and j < len(theirs):
        if _alike(mine[i][1], theirs[j][1]):
            pairs[mine[i][0]] = theirs[j][0]
            i, j = i + 1, j + 1
        elif longest[i + 1][j] >= longest[i][j + 1]:
            i += 1
        else:
            j += 1
    return pairs


def _alike(a: frozenset[object], b: frozenset[object]) -> bool:
    return bool(a) and bool(b) and 2 * len(a & b) > min(len(a), len(b))
