"""Which hyper-parameter two optimizers differ by, read off the numbers of a finding's updates."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probe.comparison.failing import unless_it_fails
from probe.comparison.notes import Note, note
from probe.comparison.optimizer import naming
from probe.comparison.optimizer.traces import Trace
from probe.comparison.result import Divergence
from probe.diagnosis.evidence import read
from probe.records import Phase, Role
from probe.verdict.judge.verdicts import Finding
from probe.verdict.side import Place, Side
from probe.verdict.side import steps_of as recorded_steps
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Tensor

_COUNTERS = ("step", "pow_acc", "power")
"""ends of the names of states that count steps"""
_COLUMNS = {"min": "low", "max": "high"}


def with_settings_by_numbers(step: Step, finding: Finding, said: Divergence, warnings: list[Any]) -> Divergence:
    """Return a finding about updates with what its numbers say of the settings; the advice, where none are recorded otherwise."""
    is_of_update = said.phase is Phase.UPDATE and said.role in (Role.DELTA, Role.STATE) and finding.is_shown
    if not is_of_update:
        return said
    events = [each for each in step.parameters.events(Phase.UPDATE, Role.DELTA) if _is_concerned(step, finding, each)]
    steps = step.a.step, step.b.step
    named: list[Note] = unless_it_fails(
        lambda: naming.named_settings(_Traces(step), events, steps), [], "settings by the numbers", said.path, warnings
    )
    if not named:
        return said
    facts = [note("by-the-numbers", said=each) for each in named]
    return replace(said, facts=(*said.facts, *facts), advice=said.advice if said.is_read else facts[0])


def _is_concerned(step: Step, finding: Finding, event: Event) -> bool:
    return event.is_paired and event.place is not None and finding.paths in (("",), (step.path(event.place[0]),))


@dataclass(frozen=True, slots=True)
class _Found:
    """A tensor of a side, as `probe.comparison.optimizer.traces.Found`."""

    tensor: Tensor

    @property
    def sketch(self) -> np.ndarray | None:
        """The sketch, float64."""
        return None if self.tensor.sketch is None else np.asarray(self.tensor.sketch, np.float64)

    @property
    def u(self) -> float:
        """The unit roundoff of the dtype."""
        return self.tensor.u

    def number(self, name: str) -> float:
        """Return a statistic."""
        if name in ("nan", "posinf", "neginf"):
            return float(sum(self.tensor.bad))
        return float(getattr(self.tensor, _COLUMNS.get(name, name)))

    def values(self) -> np.ndarray | None:
        """Return the values, flat."""
        found = None if self.tensor.parts else read(self.tensor)
        return None if found is None or found.size < self.tensor.size else found.reshape(-1)


class _Trace(Trace):
    """One side of an update."""

    def __init__(self, side: Side, earlier: Side | None, place: Place, update: Tensor) -> None:
        self.side, self._rows, self._earlier = side, None, None if earlier is None else (earlier, None)  # type: ignore[assignment]
        self.module, self.slot = place
        self.update, self.size = _Found(update), update.size  # type: ignore[assignment]

    @functools.cached_property
    def settings(self) -> dict[str, object]:
        """The hyper-parameters that were recorded for it."""
        place = self.module, self.slot
        groups = (each for each in self.side.groups if place in [self.side.places[i] for i in each.parameters])  # type: ignore[attr-defined]
        return next((each.hyper for each in groups), {})

    def _states(self, rows: Any, side: Any) -> Iterator[tuple[str, Any]]:
        for (module, name), tensor in side.params.get((Phase.UPDATE, Role.STATE), {}).items():
            slot, _, state = name.partition(".")
            if (module, slot) == (self.module, self.slot) and tensor.size == self.size:
                if self.size > 1 or not state.endswith(_COUNTERS):
                    yield state, _Found(tensor)

    def _find(self, rows: Any, side: Any, role: Role, phase: Phase, slot: str) -> Any:
        tensor = side.params.get((phase, role), {}).get((self.module, slot))
        return None if tensor is None else _Found(tensor)


class _Traces:
    """Both sides of the updates of a step."""

    def __init__(self, step: Step) -> None:
        self.step = step
        sides = (step.a, step.matching.views_a), (step.b, step.matching.views_b)
        self.earlier = [
            Side(side.reader, side.step - 1, views) if side.step - 1 in recorded_steps(side.reader) else None
            for side, views in sides
        ]

    def of(self, event: Event) -> tuple[Trace, Trace]:
        """Return what A and B recorded of an update that both made."""
        assert event.place is not None and event.a is not None and event.b is not None
        module = self.step.pair_of[event.place[0]].b
        a = _Trace(self.step.a, self.earlier[0], (event.place[0], event.slot_a), event.a)
        return a, _Trace(self.step.b, self.earlier[1], (module, event.slot_b), event.b)
