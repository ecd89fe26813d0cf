"""Which call of a module is which call of its partner, where one side made more of them, or in another order.

As many calls on both sides are the same ones in their order, unless what they were given says otherwise; those that were
given the same are told by what they returned. Else calls that were given, and returned, what one call alone was on the
other side are the same; the rest are laid side by side in order, so that a recompute, or an extra call in the middle,
leaves those behind it where they belong.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from probe.comparison.steps.side import Side
from probe.matching.automatic.increasing import increasing

_CELLS = 250_000
"""pairs of calls that are looked at; of more, only those that are told by their values are set apart"""
_SAME_CALLER, _OTHER_CALLER = 3.0, -3.0
_CLOSE = 1e-2

Rows = Sequence[int]
"""records of what a call was given and returned, in their order"""


@dataclass(frozen=True, slots=True)
class Made:
    """A call of one side, as it is told from other calls of the module."""

    number: int
    caller: int
    """row of the call that made it"""
    given: Rows
    returned: Rows


class Alignment:
    """Aligns the calls of pairs of modules of one step.

    Parameters
    ----------
    a, b
        the step on both sides
    """

    def __init__(self, a: Side, b: Side) -> None:
        self.a, self.b = a, b

    def aligned(
        self, mine: Sequence[Made], theirs: Sequence[Made], callers: Callable[[int, int], bool | None]
    ) -> list[tuple[int, int]]:
        """Return which of A's calls is which of B's, by their places.

        Parameters
        ----------
        mine, theirs
            the calls of one module and of its partner in one pass, in their order
        callers
            tells whether two calls that made them are a pair; None where either has no partner
        """
        if len(mine) == len(theirs) and not self._contradict(mine, theirs):
            return self._by_returned(mine, theirs)
        told = self._told(mine, theirs)
        left_a = [k for k in range(len(mine)) if k not in told]
        left_b = [k for k in range(len(theirs)) if k not in told.values()]
        anchors = [(-1, -1), *increasing(sorted(told.items())), (len(mine), len(theirs))]
        found = list(told.items())
        for (low_a, low_b), (high_a, high_b) in zip(anchors, anchors[1:], strict=False):
            between_a = [k for k in left_a if low_a < k < high_a]
            between_b = [k for k in left_b if low_b < k < high_b]
            found += self._in_order(mine, theirs, between_a, between_b, callers)
        return sorted(found)

    def _contradict(self, mine: Sequence[Made], theirs: Sequence[Made]) -> bool:
        """Tell whether a call was given what another one of the other side was, and not what its like was."""
        if len(mine) < 2:
            return False
        keys = [(self._key(self.a, m.given), self._key(self.b, t.given)) for m, t in zip(mine, theirs, strict=True)]
        if all(x == y or x is None or y is None for x, y in keys):
            return False
        others = {y for _, y in keys if y is not None}
        return any(x is not None and x != y and x in others for x, y in keys)

    def _by_returned(self, mine: Sequence[Made], theirs: Sequence[Made]) -> list[tuple[int, int]]:
        """Return as many calls in their order, those that were given the same in that of what they returned where it tells one.

        A loop over a set runs in another order in each process.
        """
        order = list(range(len(mine)))
        alike: dict[Hashable, list[int]] = defaultdict(list)
        for k in order if len(mine) > 1 else ():
            given = self._key(self.a, mine[k].given)
            if given is not None and given == self._key(self.b, theirs[k].given):
                alike[given].append(k)
        for calls in alike.values():
            left, found = list(calls), {}
            for k in calls:
                nearness = {j: self._nearness(mine[k].returned, theirs[j].returned) for j in left}
                nearest = max(left, key=lambda j: (nearness[j], j == k))
                if nearness[nearest]:
                    found[k] = nearest
                    left.remove(nearest)
            if not left:
                order = [found.get(k, j) for k, j in enumerate(order)]
        return list(enumerate(order))

    def _nearness(self, here: Rows, there: Rows) -> int:
        """Return 2 where calls returned the same, 1 where it is close, else 0."""
        key = self._key(self.a, here)
        if key is not None and key == self._key(self.b, there):
            return 2
        return int(len(here) == len(there) and all(self._close([i], [j]) > 0 for i, j in zip(here, there, strict=True)))

    def _told(self, mine: Sequence[Made], theirs: Sequence[Made]) -> dict[int, int]:
        """Return calls that were given the same as one call alone of the other side, or returned the same."""
        found: dict[int, int] = {}
        for part in ("given", "returned"):
            places: tuple[dict[Hashable, list[int]], ...] = (defaultdict(list), defaultdict(list))
            for side, calls, into in ((self.a, mine, places[0]), (self.b, theirs, places[1])):
                for k, call in enumerate(calls):
                    key = self._key(side, getattr(call, part))
                    if key is not None:
                        into[key].append(k)
            for key, at in places[0].items():
                other = places[1].get(key, [])
                if len(at) == len(other) == 1 and at[0] not in found and other[0] not in found.values():
                    found[at[0]] = other[0]
        return found

    def _in_order(
        self, mine: Sequence[Made], theirs: Sequence[Made], left: Sequence[int], right: Sequence[int],
        callers: Callable[[int, int], bool | None],
    ) -> list[tuple[int, int]]:  # fmt: skip
        n, m = len(left), len(right)
        if not n or not m:
            return []
        if n * m > _CELLS:
            return list(zip(left, right, strict=False))
        total = [[0.0] * (m + 1) for _ in range(n + 1)]
        meets = [[0.0] * m for _ in range(n)]
        for i in range(n - 1, -1, -1):
            for j in range(m - 1, -1, -1):
                meets[i][j] = self._likeness(mine[left[i]], theirs[right[j]], callers)
                total[i][j] = max(total[i + 1][j], total[i][j + 1], meets[i][j] + total[i + 1][j + 1])
        found = []
        i = j = 0
        while i < n and j < m:
            if meets[i][j] > 0 and meets[i][j] + total[i + 1][j + 1] >= total[i][j]:
                found.append((left[i], right[j]))
                i, j = i + 1, j + 1
            elif total[i + 1][j] >= total[i][j + 1]:
                i += 1
            else:
                j += 1
        return found

    def _likeness(self, mine: Made, theirs: Made, callers: Callable[[int, int], bool | None]) -> float:
        """Return how much speaks for two calls being the same, more than 0 where nothing speaks against it."""
        score = 1.0
        same_caller = callers(mine.caller, theirs.caller)
        if same_caller is not None:
            score += _SAME_CALLER if same_caller else _OTHER_CALLER
        for here, there in ((mine.given, theirs.given), (mine.returned, theirs.returned)):
            score += self._close(here, there)
        return score

    def _close(self, here: Rows, there: Rows) -> float:
        if not here or not there:
            return 0.0
        i, j = here[0], there[0]
        if math.prod(self.a.shapes[i]) != math.prod(self.b.shapes[j]):
            return -1.0
        x, y = self.a.columns["norm"][i], self.b.columns["norm"][j]
        if math.isnan(x) or math.isnan(y):
            return 0.0
        width = max(x, y) / math.sqrt(max(1, math.prod(self.a.shapes[i])))
        is_close = (
            math.isclose(x, y, rel_tol=_CLOSE)
            and abs(self.a.columns["mean"][i] - self.b.columns["mean"][j]) <= _CLOSE * width
        )
        return 1.5 if is_close else 0.0

    @staticmethod
    def _key(side: Side, rows: Rows) -> Hashable:
        digests = [side.digest(row) for row in rows]
        return tuple(digests) if digests and None not in digests else None
