"""Weights without a partner."""

from __future__ import annotations

import re
from collections.abc import Iterable, Set

from probe.matching.known import Known
from probe.matching.result import Matching, Place
from probe.numbers.layouts import recorded_kind, unpacked

_NUMBER = re.compile(r"(?<![^.])[0-9]+(?![^.])")


def loose_weights(
    matching: Matching, a: Known, b: Known, frameworks: tuple[str, str], unmeasured: tuple[Set[int], Set[int]]
) -> tuple[list[str], list[str]]:
    """Return the names of the weights of A, and of B, that have no partner and are in no module that the mapping ignores.

    Those of modules that are several on the other side count as paired: a bias that one of them lacks is zeros there.

    Parameters
    ----------
    frameworks
        of both sides
    unmeasured
        modules of which the weights are not known: whether those of their partners have one cannot be told
    """
    sides = _Side("A", matching, a, frameworks[0], unmeasured[0]), _Side("B", matching, b, frameworks[1], unmeasured[1])
    return sides[0].loose(sides[1]), sides[1].loose(sides[0])


def of_modules_not_left(names: Iterable[str], known: Known, left: Iterable[int]) -> list[str]:
    """Return those of some names of weights of which the module is not left over itself."""
    paths = {known.tree.path(index) for index in left}
    return [name for name in names if name.rpartition(".")[0] not in paths]


class _Side:
    def __init__(self, side: str, matching: Matching, known: Known, framework: str, unmeasured: Set[int]) -> None:
        is_a = side == "A"
        self.known, self.framework, self.unmeasured = known, framework, unmeasured
        self.views = matching.views_a if is_a else matching.views_b
        self.ignored = matching.ignored_a if is_a else matching.ignored_b
        self.partner = {(p.a if is_a else p.b): (p.b if is_a else p.a) for p in matching.pairs}
        self.apart = matching.compared_apart(side)
        self.bundled = {m for each in matching.bundles for m in (each.parts if each.side == side else (each.whole,))}
        self.names = {
            module: {
                self.name((module, slot), each.canonical_slot if each.slot == slot else slot)
                for slot, each in slots.items()
                if not each.is_buffer
            }
            for module, slots in known.slots.items()
        }

    def name(self, place: Place, canonical: str) -> str:
        """Return what the partner calls a weight."""
        return self.views[place].name if place in self.views else canonical

    def loose(self, other: _Side) -> list[str]:
        """Return the weights without a partner, by the first of their names."""
        found = []
        by_path = self.known.tree.by_path
        for each in self.known.parameters or ():
            names = (name.rpartition(".") for name in each.names)
            places = [(by_path[path], slot) for path, _, slot in names if path in by_path]
            is_told = each.is_buffer or any(
                place in self.apart
                or place[0] in self.ignored | self.bundled
                or self._is_paired(place, self.name(place, each.canonical_slot), other)
                for place in places
            )
            if not is_told:
                found.append(each.names[0])
        return found

    def _is_paired(self, place: Place, name: str, other: _Side) -> bool:
        there = self.partner.get(place[0])
        if there is None:
            return False
        if there in other.unmeasured or name in other.names.get(there, ()):
            return True
        parts = unpacked(self.framework, recorded_kind(self.framework, self.known.tree.modules[place[0]]), place[1])
        return bool(parts) and all(other.known.parameter(there, part.split(".")) is not None for part in parts)


def numbered(names: Iterable[str]) -> list[str]:
    """Return names; those that differ in numbers only as one, with ``{i}`` and how many there are."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(numbers_left_out(name), []).append(name)
    return [f"{name} ×{len(each)}" if len(each) > 1 else each[0] for name, each in groups.items()]


def numbers_left_out(name: str) -> str:
    """Return a name with ``{i}`` in the place of each number."""
    return _NUMBER.sub("{i}", name)
