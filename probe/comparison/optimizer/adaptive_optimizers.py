"""Optimizers that divide a gradient by its own size, and so make a whole update of one that is rounding."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Iterator

from probe.comparison.optimizer.counters import is_counter
from probe.comparison.steps.events import StepPairs
from probe.records import Phase, Role

_UPDATE = f"{Phase.UPDATE.label}:"
_SEVERAL = 4
"""updates from which on their lengths tell how an optimizer makes them"""
_FLAT = 1.5
"""how much larger than the root mean square the largest element of an update by signs is at most, with decay"""
_Parameter = tuple[int, str]
"""module of A, and slot"""


class OwnSize:
    """Which of A's updates do not become smaller with their gradients.

    Adam keeps a second moment beside the first. Adagrad, RMSprop and Lion keep one state alone, as momentum does: of those it is told
    by the updates, which are then more alike in their size than they are multiples of the gradients. Of Muon's that is true too, which
    divides a matrix as a whole: so each element has to show it, by a state of squares or by updates that are as large everywhere.
    """

    def __init__(self, pairs: StepPairs) -> None:
        self._pairs = pairs
        self._states = self._states_kept()

    def divides(self, module: int, slot: str) -> bool:
        """Tell whether A's optimizer divides the gradient of a parameter by its own size."""
        states = self._states.get((module, slot), [])
        return len(states) > 1 or (self._is_told_by_sizes and self._is_by_element(module, slot, states))

    def _states_kept(self) -> dict[_Parameter, list[int]]:
        """Return the rows of what A's optimizer keeps of each parameter."""
        found: dict[_Parameter, list[int]] = {}
        for (_, module, _), by_label in self._pairs.rows_a.by_role[Role.STATE].items():
            for label, rows in by_label.items():
                parameter, dot, state = label.partition(".")
                if dot and parameter.startswith(_UPDATE) and not is_counter(self._pairs.a, rows[-1], state):
                    found.setdefault((module, parameter.removeprefix(_UPDATE)), []).append(rows[-1])
        return found

    def _is_by_element(self, module: int, slot: str, states: list[int]) -> bool:
        """Tell whether what is kept are squares, or no element of an update is much larger than the others."""
        columns = self._pairs.a.columns
        if any(columns["min"][row] >= 0 for row in states):
            return True
        rows = self._pairs.rows_a.get((0, module, 0), Role.DELTA).get(f"{_UPDATE}{slot}")
        if not rows:
            return False
        largest = max(abs(columns[name][rows[-1]]) for name in ("min", "max"))
        return bool(largest <= _FLAT * columns["rms"][rows[-1]])

    @functools.cached_property
    def _is_told_by_sizes(self) -> bool:
        """Whether updates are more alike in their size than they are multiples of the gradients."""
        sizes = list(self._sizes())
        if len(sizes) < _SEVERAL:
            return False
        return _spread([update for update, _ in sizes]) < _spread([update - gradient for update, gradient in sizes])

    def _sizes(self) -> Iterator[tuple[float, float]]:
        """Yield the logarithms of the root mean squares of each update and of the gradient that was used for it."""
        side = self._pairs.a
        for (micro, module, call), by_label in self._pairs.rows_a.by_role[Role.DELTA].items():
            gradients = self._pairs.rows_a.get((micro, module, call), Role.PARAM_GRAD)
            for label, rows in by_label.items():
                used = gradients.get(label)
                if used is None or not label.startswith(_UPDATE) or not math.prod(side.shapes[rows[-1]]):
                    continue
                update, gradient = (side.columns["rms"][row] for row in (rows[-1], used[-1]))
                if 0 < update < math.inf and 0 < gradient < math.inf:
                    yield math.log(update), math.log(gradient)


def _spread(values: list[float]) -> float:
    """Return by how much one of them is typically off."""
    middle = statistics.median(values)
    return statistics.median(abs(value - middle) for value in values)
