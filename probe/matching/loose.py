"""Weights without a partner."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

from probe.matching.known import Known
from probe.matching.lists import grouped
from probe.matching.result import Matching, Place
from probe.numbers.layouts import recorded_kind, unpacked
from probe.records import ParameterInfo

NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")


def loose_weights(
    matching: Matching, a: Known, b: Known, frameworks: tuple[str, str], unmeasured: tuple[Set[int], Set[int]]
) -> tuple[list[str], list[str]]:
    """Return the names of A's and of B's weights that have no partner and are in no module that the mapping ignores.

    Those of modules that are several on the other side count as paired: a bias that one of them lacks is zeros there.
    Where the weights of a module are not known (``unmeasured``), it cannot be told whether those of its partner have
    one.
    """
    sides = _Side("A", matching, a, frameworks[0], unmeasured[0]), _Side("B", matching, b, frameworks[1], unmeasured[1])
    return sides[0].loose(sides[1]), sides[1].loose(sides[0])


def of_modules_not_left(names: Iterable[str], known: Known, left: Iterable[int]) -> list[str]:
    """Return those of some names of weights of which the module is not left over itself."""
    paths = {known.tree.path(index) for index in left}
    return [name for name in names if name.rpartition(".")[0] not in paths]


class _Side:
    def __init__(self, side: str, matching: Matching, known: Known, framework: str, unmeasured: Set[int]) -> None:
        self.known, self.framework, self.unmeasured = known, framework, unmeasured
        self.views, self.partner = matching.views(side), matching.partners(side)
        self.apart, self.told = matching.compared_apart(side), matching.ignored(side) | matching.bundled(side)

    def name(self, place: Place, canonical: str) -> str:
        """Return what the partner calls a weight."""
        return self.views[place].name if place in self.views else canonical

    def names(self, module: int) -> set[str]:
        """Return what the partner calls the weights of a module."""
        own = ((slot, each) for slot, each in self.known.slots.get(module, {}).items() if not each.is_buffer)
        return {self.name((module, slot), each.canonical_slot if each.slot == slot else slot) for slot, each in own}

    def loose(self, other: _Side) -> list[str]:
        """Return the weights without a partner, by the first of their names."""
        weights = (each for each in self.known.parameters or () if not each.is_buffer)
        return [
            each.names[0]
            for each in weights
            if not any(self._is_told(place, each, other) for place in self._places(each))
        ]

    def _places(self, parameter: ParameterInfo) -> list[Place]:
        names, by_path = (name.rpartition(".") for name in parameter.names), self.known.tree.by_path
        return [(by_path[path], slot) for path, _, slot in names if path in by_path]

    def _is_told(self, place: Place, parameter: ParameterInfo, other: _Side) -> bool:
        module, slot = place
        if place in self.apart or module in self.told:
            return True
        there, name = self.partner.get(module), self.name(place, parameter.canonical_slot)
        if there is None or there in other.unmeasured or name in other.names(there):
            return there is not None
        parts = unpacked(self.framework, recorded_kind(self.framework, self.known.tree.modules[module]), slot)
        return bool(parts) and all(other.known.parameter(there, part.split(".")) is not None for part in parts)


def numbered(names: Iterable[str]) -> list[str]:
    """Return names; those that differ in numbers only as one, with ``{i}`` and how many there are."""
    groups = grouped(names, numbers_left_out).items()
    return [f"{name} ×{len(each)}" if len(each) > 1 else each[0] for name, each in groups]


def numbers_left_out(name: str) -> str:
    """Return a name with ``{i}`` in the place of each number."""
    return NUMBER.sub("{i}", name)
