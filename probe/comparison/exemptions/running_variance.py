"""Running variances of two frameworks of which one divides by n and the other by n − 1, as it always does.

With v the running variance before a step and v' behind it, k the weight that the old one keeps, s the variance of the
n values of a channel, and f = 1 or n/(n − 1) by what the side divides by: v' = k·v + (1 − k)·f·s. So with the s of both
sides equal, f_B·v'_A − f_A·v'_B = k·(f_B·v_A − f_A·v_B), for one k between 0 and 1. It is tried on the numbers.
"""

from __future__ import annotations

import math

import numpy as np

from probe.comparison.ledger.known import State
from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event
from probe.records import Role

_SLOT = "running_var"
_UNBIASED = {"torch": True, "paddle": False, "mindspore": True}
"""frameworks that divide by n − 1, or by n"""

Vectors = tuple[np.ndarray, np.ndarray]


class RunningVariance:
    """Tells whether two running variances differ only by what they are divided by.

    Parameters
    ----------
    pairs
        the step's paired calls and observations
    state
        what the step before left: the running variances among it
    """

    def __init__(self, pairs: StepPairs, state: State) -> None:
        self._pairs, self._known = pairs, state.variances
        self._unbiased = [_UNBIASED.get(side.reader.info.framework) for side in (pairs.a, pairs.b)]
        self._counts: set[int] = set()

    def explains(self, event: Event, before: Event | None, limit: float) -> bool:
        """Tell whether a difference of relative size ``limit`` or less is left; to be asked of every buffer."""
        if self._unbiased[0] == self._unbiased[1] or None in self._unbiased or not self._is_variance(event):
            return False
        old = self._known.pop((event.pair, event.slot_a), None)
        if before is not None and not before.is_one_sided:
            old = self._vectors(before)
        new = self._known[event.pair, event.slot_a] = self._vectors(event)
        count = self._values_of_a_channel(event)
        if old is None or count < 2:
            return False
        factors = [count / (count - 1) if is_unbiased else 1.0 for is_unbiased in self._unbiased]
        left, right = ([f * v for f, v in zip(reversed(factors), each, strict=True)] for each in (new, old))
        after, start = left[0] - left[1], right[0] - right[1]
        kept = float(after @ start) / float(start @ start) if start.any() else 0.0
        scale = max(float(np.linalg.norm(each)) for each in new)
        is_right = 0 <= kept <= 1 and float(np.linalg.norm(after - kept * start)) <= limit * scale
        if is_right:
            self._counts.add(count)
        return is_right

    def told_of(self, paths: list[str]) -> Note:
        """Return what was explained."""
        a, b = (side.reader.info.framework for side in (self._pairs.a, self._pairs.b))
        return note(
            "variance-divided-otherwise", slot=_SLOT, paths=tuple(paths), a=a, unbiased_a=self._unbiased[0], b=b, unbiased_b=self._unbiased[1],
            counts=tuple(sorted(self._counts)),
        )  # fmt: skip

    def _is_variance(self, event: Event) -> bool:
        pair = self._pairs.matching.pairs[event.pair]
        is_combined = event.row_a in self._pairs.a.combined or event.row_b in self._pairs.b.combined
        return self._pairs.a.canonical(pair.a, event.slot_a) == _SLOT and not is_combined

    def _vectors(self, event: Event) -> Vectors:
        """Return the values of both sides, or their sketches: what is tried is linear."""
        sides = ((self._pairs.a, event.row_a), (self._pairs.b, event.row_b))
        if all(side.has_values(row) for side, row in sides):
            a, b = (side.values(row).astype(np.float64) for side, row in sides)
            return a, b
        a, b = (side.sketch(row) for side, row in sides)
        assert a is not None and b is not None
        return a, b

    def _values_of_a_channel(self, event: Event) -> int:
        """Return n, or 0 when the calls of the module had different ones or it is not known."""
        channels = math.prod(self._pairs.a.shapes[event.row_a])
        module = self._pairs.matching.pairs[event.pair].a
        counts = {
            math.prod(self._pairs.a.shapes[rows[0]]) // channels
            for node in self._pairs.nodes.values()
            if node.pair == event.pair and all(node.training)
            for rows in self._pairs.rows_a.get((node.micro, module, node.call), Role.INPUT).values()
        }
        return counts.pop() if len(counts) == 1 else 0
