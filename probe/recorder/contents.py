"""What the models of a recording hold, and what was added to them or replaced in them since they were looked at."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any

from probe.recorder.run import Run
from probe.records import REPLACED

_NAMED = 5
"""names in one message"""


class Contents:
    """Modules, parameters and buffers of the models of a run; holds the models by weak references alone."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._models: list[tuple[str, weakref.ref[Any]]] = []
        self._members: list[tuple[list[weakref.ref[Any]], list[int]]] = []
        """by model: its modules, and the ids of its tensors; those that are recorded are held by the run, so that no other has theirs"""
        self._modules: dict[int, weakref.ref[Any]] = {}

    def add(self, models: Sequence[tuple[str, Any]]) -> None:
        """Take models, by their prefixes, and all that they hold for known."""
        for prefix, model in models:
            self._models.append((prefix, weakref.ref(model)))
            self._members.append(_known(*self._run.adapter.members(model)))
            self._new_modules(prefix, model)

    def news(self) -> str:
        """Return in words what was added or replaced since the last time, and is not recorded; mostly ``""``."""
        modules: list[str] = []
        tensors: list[str] = []
        for number, (prefix, reference) in enumerate(self._models):
            model = reference()
            if model is not None and self._changed(number, model):
                modules += self._new_modules(prefix, model)
                tensors += self._new_tensors(prefix, model)
        inside = set(modules)
        names = [name for name in [*modules, *tensors] if name.rpartition(".")[0] not in inside]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        said = f"{REPLACED}: {', '.join(names[:_NAMED])}{more}"
        return said if names else ""

    def _changed(self, number: int, model: Any) -> bool:
        known, ids = self._members[number]
        modules, tensors = self._run.adapter.members(model)
        same = len(known) == len(modules) and all(ref() is each for ref, each in zip(known, modules, strict=True))
        if same and ids == [id(tensor) for tensor in tensors]:
            return False
        self._members[number] = _known(modules, tensors)
        return True

    def _new_modules(self, prefix: str, model: Any) -> list[str]:
        found = []
        for named in self._run.adapter.modules(model):
            known = self._modules.get(id(named.module))
            if known is None or known() is not named.module:
                self._modules[id(named.module)] = weakref.ref(named.module)
                found.append(joined(prefix, named.path))
        return found

    def _new_tensors(self, prefix: str, model: Any) -> list[str]:
        """Return the names of new ones. A buffer that took the place of another is recorded in its stead."""
        run = self._run
        places = {name: index for index, info in enumerate(run.parameters) for name in info.names}
        found, there = [], set()
        for named in run.adapter.parameters(model):
            name = joined(prefix, named.names[0])
            index = run.parameter_index.get(id(named.tensor))
            if index is None and named.is_buffer and name in places and run.parameters[places[name]].is_buffer:
                index = places[name]
                run.parameter_index.pop(id(run.tensors[index].tensor), None)
                run.parameter_index[id(named.tensor)], run.tensors[index] = index, named
            if (
                index is None
                and name in places
                and run.adapter.is_gathered(named.tensor, run.tensors[places[name]].tensor)
            ):
                index = places[name]
            if index is None:
                found.append(name)
            else:
                there.add(index)
        mine = {index for name, index in places.items() if not prefix or name.startswith(f"{prefix}.")}
        run.gone = (run.gone - mine) | (mine - there)
        return found


def _known(modules: list[Any], tensors: list[Any]) -> tuple[list[weakref.ref[Any]], list[int]]:
    return [weakref.ref(module) for module in modules], [id(tensor) for tensor in tensors]


def joined(prefix: str, path: str) -> str:
    """Return the path of a module or parameter in a list of models."""
    return f"{prefix}.{path}" if prefix and path else prefix or path
