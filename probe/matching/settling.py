"""Giving every module of the target to one of the source."""

from __future__ import annotations

from collections.abc import Mapping

from probe.errors import MappingError
from probe.mapping import Rule
from probe.mapping.rules import written
from probe.matching.walk import Place, Walk, several_models


def settled(walk: Walk, places: Mapping[int, Place]) -> list[int]:
    """Return the modules of the source that get what they were led to: rules go before equal names.

    Raises
    ------
    MappingError
        two keys name the same module of the target
    """
    source = walk.source
    taken: dict[int, int] = {}
    for index, place in places.items():
        if place.rule is not None:
            _take(walk, taken, index, places, place.rule)
    lost: set[int] = set()
    for index, place in places.items():
        if taken.get(place.parts[0]) == index:
            continue
        inherits = source.modules[index].parent in lost and place.rule is None
        if place.parts[0] in taken or inherits:
            if source.wrapped(index) is None:
                lost.add(index)
        else:
            taken[place.parts[0]] = index
    return [index for index, place in places.items() if taken.get(place.parts[0]) == index]


def _take(walk: Walk, taken: dict[int, int], index: int, places: Mapping[int, Place], rule: Rule) -> None:
    source, place = walk.source, places[index]
    for part in place.parts:
        other = taken.setdefault(part, index)
        # who was led to a wrapper gives way to who was led to what it holds
        if places[other].is_inside != place.is_inside:
            taken[part] = index if places[other].is_inside else other
        elif other != index and source.wrapped(other) is None and source.wrapped(index) is None:
            before = places[other].rule
            lines = {rule.line, before.line if before else 0}
            how = (
                several_models(source)
                or "where several modules are one on the other side, say so with a list, to or from"
            )
            raise MappingError(
                f"{walk.mapping.where(*sorted(lines))}: {rule.section}: {written(rule.source)}: {walk.target.path(part)} is "
                f"already the counterpart of {source.path(other)}; {how}"
            )
    if len(set(place.parts)) < len(place.parts):
        raise MappingError(
            f"{walk.mapping.where(rule.line)}: {rule.section}: {written(rule.source)}: two of the list lead to the same "
            f"module, {walk.target.path(place.parts[0])}"
        )
