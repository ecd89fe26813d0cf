"""What one side recorded of the update of one parameter: sketches, which are linear, norms, and values where they are stored."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from probe.comparison.optimizer.counters import is_counter
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.rows import Rows
from probe.comparison.steps.side import Side
from probe.comparison.steps.step_half import Event, StepHalf
from probe.numbers.statistics import as_real, unit_roundoff
from probe.records import Phase, Role

_MOST_READ = 1 << 22
"""elements up to which a tensor is read whole"""

Vector = np.ndarray


@dataclass(frozen=True, slots=True)
class Found:
    """A record of a side."""

    side: Side
    row: int

    @property
    def sketch(self) -> Vector | None:
        """The sketch, float64."""
        found = self.side.sketch(self.row)
        return None if found is None else np.asarray(found, np.float64)

    @property
    def u(self) -> float:
        """The unit roundoff of the dtype."""
        return unit_roundoff(self.side.dtypes[self.row])

    def number(self, name: str) -> float:
        """Return a statistic: norm, mean, min, max, zeros."""
        return float(self.side.columns[name][self.row])

    def values(self) -> Vector | None:
        """Return the values, flat, where they are stored and not too many."""
        if self.row in self.side.combined or not self.side.has_values(self.row):
            return None
        if math.prod(self.side.shapes[self.row]) > _MOST_READ:
            return None
        return as_real(self.side.values(self.row)).astype(np.float64).reshape(-1)


class Trace:
    """One side of an update.

    Parameters
    ----------
    half
        the step
    earlier
        the step before, where it was recorded
    event
        the update δ
    """

    def __init__(self, half: StepHalf, earlier: tuple[Side, Rows] | None, event: Event) -> None:
        self.side, self._rows, self._earlier = half.side, half.rows, earlier
        self.module, self.slot = half.modules[event.pair], half.slot(event)
        self.update = Found(half.side, half.row(event))
        self.size = math.prod(half.side.shapes[half.row(event)])

    @functools.cached_property
    def is_finite(self) -> bool:
        """Tell whether all of it is finite."""
        found = [self.update, *([self.gradient] if self.gradient else []), *self.states.values()]
        return not any(each.number(name) for each in found for name in ("nan", "posinf", "neginf"))

    @functools.cached_property
    def gradient(self) -> Found | None:
        """The gradient as the optimizer used it."""
        return self._find(self._rows, self.side, Role.PARAM_GRAD, Phase.UPDATE, self.slot)

    @functools.cached_property
    def tells(self) -> bool:
        """Tell whether there is a gradient to solve with: not of several parameters beside one another, which have no sketch."""
        return self.gradient is not None and self.gradient.sketch is not None and self.gradient.number("norm") > 0

    @functools.cached_property
    def after(self) -> Found | None:
        """The parameter as the update left it."""
        return self._find(self._rows, self.side, Role.PARAM, Phase.UPDATE, self.slot)

    @functools.cached_property
    def before(self) -> Found | None:
        """The parameter as the update found it."""
        first = self._find(self._rows, self.side, Role.PARAM, Phase.INIT, self.slot)
        if first is not None or self._earlier is None:
            return first
        side, rows = self._earlier
        return self._find(rows, side, Role.PARAM, Phase.UPDATE, self.slot)

    @property
    def parameter(self) -> Vector | None:
        """The sketch of the parameter before the update."""
        after = None if self.after is None else self.after.sketch
        update = self.update.sketch
        if self.before is not None:
            return self.before.sketch
        return None if after is None or update is None else after - update

    @functools.cached_property
    def states(self) -> dict[str, Found]:
        """What the optimizer keeps of this parameter after the update, by canonical name."""
        return dict(self._states(self._rows, self.side))

    @functools.cached_property
    def old_states(self) -> dict[str, Found] | None:
        """The same before the update; None where that was not recorded."""
        return None if self._earlier is None else dict(self._states(self._earlier[1], self._earlier[0]))

    @functools.cached_property
    def settings(self) -> dict[str, object]:
        """The hyper-parameters that were recorded for it."""
        for group in self.side.reader.groups_of(self.side.step):
            for number in group.parameters:
                parameter = self.side.parameters[number]
                if (parameter.module, parameter.slot) == (self.module, self.slot):
                    return group.hyper
        return {}

    def _states(self, rows: Rows, side: Side) -> Iterator[tuple[str, Found]]:
        prefix = f"{Phase.UPDATE.label}:{self.slot}."
        for slot, found in rows.get((0, self.module, 0), Role.STATE).items():
            if slot.startswith(prefix) and side.shapes[found[-1]] == self.side.shapes[self.update.row]:
                name = side.canonical(self.module, slot.partition(":")[2]).rpartition(".")[2]
                if not is_counter(side, found[-1], slot.removeprefix(prefix)):
                    yield name, Found(side, found[-1])

    def _find(self, rows: Rows, side: Side, role: Role, phase: Phase, slot: str) -> Found | None:
        found = rows.get((0, self.module, 0), role).get(f"{phase.label}:{slot}")
        return Found(side, found[-1]) if found else None


class Traces:
    """Both sides of the updates of a step.

    Parameters
    ----------
    pairs
        the step
    """

    def __init__(self, pairs: StepPairs) -> None:
        self._pairs = pairs

    def of(self, event: Event) -> tuple[Trace, Trace]:
        """Return what A and B recorded of an update that both made."""
        a, b = (Trace(half, earlier, event) for half, earlier in zip(self._pairs.halves, self._earlier, strict=True))
        return a, b

    @functools.cached_property
    def _earlier(self) -> tuple[tuple[Side, Rows] | None, tuple[Side, Rows] | None]:
        a, b = (side.earlier for side in (self._pairs.a, self._pairs.b))
        return None if a is None else (a, Rows.of(a)), None if b is None else (b, Rows.of(b))
