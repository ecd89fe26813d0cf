"""What the models of a recording hold, and what was added to them or replaced in them since they were looked at."""

from __future__ import annotations

import weakref
from typing import Any

from probe.adapters.base import Adapter, NamedTensor
from probe.records import ParameterInfo

_NAMED = 5
"""names in one message"""


class Contents:
    """Modules, parameters and buffers of models; holds the models by weak references alone.

    Parameters
    ----------
    adapter
        of the models' framework
    tensors, parameters
        the parameters and buffers that are recorded, and what is known of them, by their index
    index_of
        those indices by the tensors' ids
    """

    def __init__(
        self,
        adapter: Adapter,
        tensors: list[NamedTensor],
        parameters: list[ParameterInfo],
        index_of: dict[int, int],
    ) -> None:
        self.gone: set[int] = set()
        """indices of parameters and buffers that the models do not have any more"""
        self._adapter = adapter
        self._tensors, self._parameters, self._index_of = tensors, parameters, index_of
        self._models: list[tuple[str, weakref.ref[Any]]] = []
        self._members: list[list[weakref.ref[Any]]] = []
        self._modules: dict[int, weakref.ref[Any]] = {}

    def add(self, prefix: str, model: Any) -> None:
        """Take a model and all that it holds for known; ``prefix`` stands before the names in it."""
        self._models.append((prefix, weakref.ref(model)))
        self._members.append([weakref.ref(member) for member in self._adapter.members(model)])
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
        said = f"added or replaced after probe.start(), and not recorded: {', '.join(names[:_NAMED])}{more}"
        return said if names else ""

    def _changed(self, number: int, model: Any) -> bool:
        known, members = self._members[number], self._adapter.members(model)
        if len(known) == len(members) and all(ref() is each for ref, each in zip(known, members, strict=True)):
            return False
        self._members[number] = [weakref.ref(member) for member in members]
        return True

    def _new_modules(self, prefix: str, model: Any) -> list[str]:
        found = []
        for named in self._adapter.modules(model):
            known = self._modules.get(id(named.module))
            if known is None or known() is not named.module:
                self._modules[id(named.module)] = weakref.ref(named.module)
                found.append(joined(prefix, named.path))
        return found

    def _new_tensors(self, prefix: str, model: Any) -> list[str]:
        """Return the names of new ones. A buffer that took the place of another is recorded in its stead."""
        places = {name: index for index, info in enumerate(self._parameters) for name in info.names}
        found, there = [], set()
        for named in self._adapter.parameters(model):
            name = joined(prefix, named.names[0])
            index = self._index_of.get(id(named.tensor))
            if index is None and named.is_buffer and name in places and self._parameters[places[name]].is_buffer:
                index = places[name]
                self._index_of.pop(id(self._tensors[index].tensor), None)
                self._index_of[id(named.tensor)], self._tensors[index] = index, named
            if index is None:
                found.append(name)
            else:
                there.add(index)
        mine = {index for name, index in places.items() if not prefix or name.startswith(f"{prefix}.")}
        self.gone = (self.gone - mine) | (mine - there)
        return found


def joined(prefix: str, path: str) -> str:
    """Return the path of a module or parameter in a list of models."""
    return f"{prefix}.{path}" if prefix and path else prefix or path
