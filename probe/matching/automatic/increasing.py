"""The longest part of a list of points that grows in both directions."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence


def increasing(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest part of points, sorted by the first, in which the second grows too.

    >>> increasing([(0, 2), (1, 0), (2, 1), (3, 5)])
    [(1, 0), (2, 1), (3, 5)]
    """
    tails: list[int] = []
    at: list[int] = []
    before: list[int] = []
    for place, (_, value) in enumerate(points):
        k = bisect_left(tails, value)
        before.append(at[k - 1] if k else -1)
        if k == len(tails):
            tails.append(value)
            at.append(place)
        else:
            tails[k], at[k] = value, place
    found = []
    place = at[-1] if at else -1
    while place >= 0:
        found.append(points[place])
        place = before[place]
    return found[::-1]
