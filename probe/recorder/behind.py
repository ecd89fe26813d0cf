"""What becomes of the optimizers behind the last step: no later step shows it, so the file says it beside the steps."""

from __future__ import annotations

import weakref
from typing import Any

from probe.adapters.base import Group
from probe.adapters.shared.user_objects import Identity
from probe.numbers.packed import hash_of
from probe.recorder.run import Run, guarded


class _State:
    """A state of an optimizer, as a step left it."""

    __slots__ = ("identity", "optimizer", "parameter", "written")

    def __init__(self, optimizer: Any, parameter: Any, identity: Identity, written: object) -> None:
        self.optimizer = weakref.ref(optimizer)
        self.parameter = id(parameter)
        self.identity = identity
        self.written = written
        """what changes when it is written to"""

    def is_of(self, optimizer: Any, parameter: Any, state: Any) -> bool:
        """Return True if it is that of the same objects."""
        return self.parameter == id(parameter) and self.optimizer() is optimizer and self.identity.is_of(state)


class Behind:
    """Looks, when the recording ends, at the settings and states that the last optimizer step used and left."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._settings: dict[tuple[int, int], tuple[Any, dict[str, object]]] = {}
        """by numbers of optimizer and group: the optimizer, and what its step used"""
        self._states: dict[str, _State] = {}
        """by the name of a state"""

    def forget(self) -> None:
        """Forget what was noted: an optimizer goes on in a step that is not recorded."""
        self._settings.clear()
        self._states.clear()

    def note_settings(self, number: int, group: Group) -> None:
        """Keep what a step of an optimizer used."""
        self._settings[number, group.index] = (weakref.ref(group.optimizer), group.hyper)

    def note_state(self, name: str, group: Group, parameter: Any, state: Any) -> None:
        """Keep how a step of an optimizer left one of its states."""
        known, now = self._states.get(name), self._written(state)
        if now is None:
            return
        if known is not None and known.is_of(group.optimizer, parameter, state):
            known.written = now
        else:
            self._states[name] = _State(group.optimizer, parameter, self.run.adapter.identity(state), now)

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
        for name, left in self._states.items():
            owner = left.optimizer()
            if owner is None:
                continue
            if id(owner) not in trained:
                groups = self.run.adapter.groups_of(owner)
                trained[id(owner)] = {id(each): each for group in groups for each in group.parameters}
            of = trained[id(owner)].get(left.parameter)
            if of is None:
                continue
            state, again = (self.run.adapter.optimizer_state(owner, of).get(name.rpartition(".")[2]) for _ in range(2))
            is_held = state is again  # of a count that is a plain number, each is a tensor of its own
            if state is not None and is_held and not self._is_as_left(state, left):
                stats = self.run.adapter.measure(state, ())
                if type(stats) is not bytes:
                    (stats,) = self.run.adapter.settle([stats])
                low, high = hash_of(stats)
                found[name] = f"{high:016x}{low:016x}"
        return found

    def _written(self, state: Any) -> object:
        """Return what changes when a state is written to; None where nothing does."""
        version = self.run.adapter.version_of(state)
        return self.run.adapter.sample_of(state) if version is None else version

    def _is_as_left(self, state: Any, left: _State) -> bool:
        now = self._written(state)
        return now is not None and now == left.written and (isinstance(now, bytes) or left.identity.is_of(state))
