"""Optimizers that divide a gradient by its own size, and so make a whole update of one that is rounding."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterator

from probe.comparison.events import StepPairs
from probe.records import Phase, Role

_UPDATE = f"{Phase.UPDATE.label}:"
_SEVERAL = 4
"""updates from which on their lengths tell how an optimizer makes them"""
_Parameter = tuple[int, str]
"""module of A, and slot"""


class OwnSize:
    """Which of A's updates do not become smaller with their gradients.

    Adam keeps a second moment beside the first. Adagrad, RMSprop and Lion keep one state alone, as momentum does: of those it is told
    by the updates, which are then more alike in their size than they are multiples of the gradients.
    """

    def __init__(self, pairs: StepPairs) -> None:
        self._pairs = pairs
        self._states_kept = self._count_states()
        self._by_numbers = self._is_told_by_sizes()

    def divides(self, module: int, slot: str) -> bool:
        """Tell whether A's optimizer divides the gradient of a parameter by its own size."""
        return self._states_kept[module, slot] > 1 or self._by_numbers

    def _count_states(self) -> Counter[_Parameter]:
        """Return how many states A's optimizer keeps of each parameter."""
        found: Counter[_Parameter] = Counter()
        for (_, module, _), by_label in self._pairs.rows_a.by_role[Role.STATE].items():
            for label in by_label:
                parameter, dot, _ = label.partition(".")
                if dot and parameter.startswith(_UPDATE):
                    found[module, parameter.removeprefix(_UPDATE)] += 1
        return found

    def _is_told_by_sizes(self) -> bool:
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
