"""What becomes of the optimizers behind the last step: no later step shows it, so the file says it beside the steps."""

from __future__ import annotations

import weakref
from typing import Any

from probe.adapters.base import Group
from probe.adapters.shared.user_objects import Identity
from probe.numbers.packed import hash_of
from probe.recorder.run import Run, guarded

_Mark = tuple[Identity, object]
"""which state it is, and what changes when it is written to"""


class Behind:
    """Looks, when the recording ends, at the settings and states that the last optimizer step used and left."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._settings: dict[tuple[int, int], tuple[Any, dict[str, object]]] = {}
        """by numbers of optimizer and group: the optimizer, and what its step used"""
        self._states: dict[str, tuple[Any, int, _Mark]] = {}
        """by the name of a state: its optimizer, the id of its parameter, and how it was left"""

    def forget(self) -> None:
        """Forget what was noted: an optimizer goes on in a step that is not recorded."""
        self._settings.clear()
        self._states.clear()

    def note_settings(self, number: int, group: Group) -> None:
        """Keep what a step of an optimizer used."""
        self._settings[number, group.index] = (weakref.ref(group.optimizer), group.hyper)

    def note_state(self, name: str, group: Group, parameter: Any, state: Any) -> None:
        """Keep how a step of an optimizer left one of its states."""
        mark = self._mark(state)
        if mark is not None:
            self._states[name] = (weakref.ref(group.optimizer), id(parameter), mark)

    @guarded
    def record(self) -> None:
        """Put into the file what is otherwise now: settings, and the hashes of states."""
        settings, states = self._changed_settings(), self._changed_states()
        if settings or states:
            self.run.writer.set_attributes(
                "environment", {"behind_last_step": {"settings": settings, "states": states}}
            )

    def _changed_settings(self) -> list[list[object]]:
        found: list[list[object]] = []
        for (number, index), (optimizer, hyper) in self._settings.items():
            now = optimizer()
            groups = [] if now is None else self.run.adapter.groups_of(now)
            for group in groups:
                changed = {name: value for name, value in group.hyper.items() if hyper.get(name) != value}
                if group.index == index and changed:
                    found.append([number, index, changed])
        return found

    def _changed_states(self) -> dict[str, str]:
        found = {}
        trained: dict[int, dict[int, Any]] = {}
        for name, (optimizer, parameter, mark) in self._states.items():
            owner = optimizer()
            if owner is None:
                continue
            if id(owner) not in trained:
                groups = self.run.adapter.groups_of(owner)
                trained[id(owner)] = {id(each): each for group in groups for each in group.parameters}
            of = trained[id(owner)].get(parameter)
            if of is None:
                continue
            state, again = (self.run.adapter.optimizer_state(owner, of).get(name.rpartition(".")[2]) for _ in range(2))
            is_held = state is again  # of a count that is a plain number, each is a tensor of its own
            if state is not None and is_held and not self._is_as_left(state, mark):
                stats = self.run.adapter.measure(state, ())
                if type(stats) is not bytes:
                    (stats,) = self.run.adapter.settle([stats])
                low, high = hash_of(stats)
                found[name] = f"{high:016x}{low:016x}"
        return found

    def _mark(self, state: Any) -> _Mark | None:
        """Return what tells that a state is written to; None where nothing does."""
        version = self.run.adapter.version_of(state)
        mark = self.run.adapter.sample_of(state) if version is None else version
        return None if mark is None else (self.run.adapter.identity(state), mark)

    def _is_as_left(self, state: Any, left: _Mark) -> bool:
        now = self._mark(state)
        return now is not None and now[1] == left[1] and (isinstance(now[1], bytes) or left[0].is_of(state))
