"""What one side recorded of the update of one parameter: sketches, which are linear, norms, and values where they are stored."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator

import numpy as np

from probe.diagnosis.evidence import MOST, read
from probe.records import Phase, Role
from probe.verdict.side import Place, Side, steps_of
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

_COUNTERS = ("step", "pow_acc", "power")
"""ends of the names of states that count steps"""


def values_of(tensor: Tensor) -> np.ndarray | None:
    """Return the values, flat, where they are stored and not too many."""
    found = None if tensor.parts or tensor.size > MOST else read(tensor)
    return None if found is None else found.reshape(-1)


class Trace:
    """One side of the update δ of a parameter, in a step; with the step before, where it was recorded."""

    def __init__(self, side: Side, earlier: Side | None, place: Place, update: Tensor) -> None:
        self.side, self._earlier, self.place = side, earlier, place
        self.update, self.size = update, update.size

    @functools.cached_property
    def is_finite(self) -> bool:
        """Whether all of it is finite."""
        found = [self.update, *([self.gradient] if self.gradient else []), *self.states.values()]
        return not any(sum(each.bad) for each in found)

    @functools.cached_property
    def gradient(self) -> Tensor | None:
        """The gradient as the optimizer used it."""
        return self._find(self.side, Role.PARAM_GRAD, Phase.UPDATE)

    @property
    def gradient_sketch(self) -> np.ndarray | None:
        """Its sketch, which several parameters beside one another do not have; None too if it is 0."""
        return own.sketch if (own := self.gradient) is not None and own.size == self.size and own.norm > 0 else None

    @functools.cached_property
    def after(self) -> Tensor | None:
        """The parameter as the update left it."""
        return self._find(self.side, Role.PARAM, Phase.UPDATE)

    @functools.cached_property
    def before(self) -> Tensor | None:
        """The parameter as the update found it."""
        first = self._find(self.side, Role.PARAM, Phase.INIT)
        return first if first is not None or self._earlier is None else self._find(self._earlier, Role.PARAM)

    @functools.cached_property
    def parameter(self) -> np.ndarray | None:
        """The sketch of the parameter before the update."""
        if self.before is not None:
            return self.before.sketch
        after = None if self.after is None else self.after.sketch
        return (
            None if after is None or self.update.sketch is None else after - np.asarray(self.update.sketch, np.float64)
        )

    @functools.cached_property
    def states(self) -> dict[str, Tensor]:
        """What the optimizer keeps of this parameter after the update, by canonical name."""
        return dict(self._states(self.side))

    @functools.cached_property
    def old_states(self) -> dict[str, Tensor] | None:
        """The same before the update; None where that was not recorded."""
        return None if self._earlier is None else dict(self._states(self._earlier))

    @functools.cached_property
    def settings(self) -> dict[str, object]:
        """The hyper-parameters that were recorded for it."""
        group = self.side.given.get(self.place)
        return {} if group is None else group.hyper

    def _states(self, side: Side) -> Iterator[tuple[str, Tensor]]:
        for (module, name), tensor in side.params.get((Phase.UPDATE, Role.STATE), {}).items():
            slot, _, state = name.partition(".")
            is_own = (module, slot) == self.place and tensor.size == self.size
            if is_own and (self.size > 1 or not state.endswith(_COUNTERS)):
                yield state, tensor

    def _find(self, side: Side, role: Role, phase: Phase = Phase.UPDATE) -> Tensor | None:
        return side.params.get((phase, role), {}).get(self.place)


def traces_of(step: Step) -> Callable[[Event], tuple[Trace, Trace]]:
    """Return what gives what A and B recorded of an update that both made."""
    views = step.matching.views_a, step.matching.views_b
    earlier = [
        Side(side.reader, side.step - 1, each) if side.step - 1 in steps_of(side.reader) else None
        for side, each in zip((step.a, step.b), views, strict=True)
    ]

    def of(event: Event) -> tuple[Trace, Trace]:
        assert event.a is not None and event.b is not None
        modules = step.modules_of(event)
        a = Trace(step.a, earlier[0], (modules[0], event.slot_a), event.a)
        return a, Trace(step.b, earlier[1], (modules[1], event.slot_b), event.b)

    return of
