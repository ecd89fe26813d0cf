"""In which order the axes of a weight lie that a class of one's own has otherwise: a convolution's as [h, w, in, out].

The sizes tell it where they are all different. Where two are the same, as those of a square kernel, the stored values do.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from probe.matching.automatic.outline import Outline, Weight, values_of

_LARGEST = 1 << 22
"""elements of a weight up to which its values are read"""
_MOST_AXES = 5

Axes = tuple[int, ...]


def order_of(here: Outline, there: Outline, pairs: Sequence[tuple[Weight, Weight]]) -> Axes:
    """Return which of its stored axes stands where in the other side's weight, the same for all pairs; empty where nothing tells.

    Parameters
    ----------
    here
        the side whose weights are turned
    pairs
        weights of that side, each with the one of ``there`` that it is
    """
    possible = [set(_fitting(mine, theirs)) for mine, theirs in pairs]
    common = sorted(set.intersection(*possible)) if possible else []
    if len(common) < 2:
        return common[0] if common else ()
    seen: Counter[Axes] = Counter()
    for mine, theirs in pairs:
        seen.update(_agreeing(here, mine, there, theirs, common))
    return seen.most_common(1)[0][0] if seen else ()


def _fitting(mine: Weight, theirs: Weight) -> Iterator[Axes]:
    """Yield the orders of a weight's axes that give it the other one's shape."""
    count = len(mine.shape)
    if count != len(theirs.shape) or count > _MOST_AXES:
        return
    stored = mine.axes if len(mine.axes) == count else tuple(range(count))
    for order in itertools.permutations(range(count)):
        if tuple(mine.shape[axis] for axis in order) == theirs.shape:
            yield tuple(stored[axis] for axis in order)


def _agreeing(here: Outline, mine: Weight, there: Outline, theirs: Weight, orders: Sequence[Axes]) -> Iterator[Axes]:
    """Yield the orders in which the stored values of two weights are the same."""
    if mine.size > _LARGEST:
        return
    stored = values_of(here, Weight(mine.slot, mine.shape, tensor=mine.tensor))
    other = values_of(there, theirs)
    if stored is None or other is None:
        return
    yield from (order for order in orders if np.allclose(stored.transpose(order), other, rtol=1e-2, atol=1e-6))
