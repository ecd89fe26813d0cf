"""Which parameter of one recording is which of the other, and how their optimizers were set."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from probe.curve_comparison.reading.series import RecordedModel
from probe.errors import ConfigError
from probe.mapping import LayerMapping
from probe.matching import Direction, Matching, Place, View, match
from probe.matching.known import Known
from probe.notes import Note, note
from probe.records import ParameterInfo
from probe.structure.tree import Tree

_SETTINGS = ("lr", "weight_decay", "betas", "eps", "momentum", "dampening", "nesterov", "amsgrad", "alpha", "rho")
_SAME = 1e-6
"""relative difference of two numbers that were written as one: 1e-5 in float32 and in float64"""


@dataclass(frozen=True, slots=True)
class SettingDifference:
    """A setting of the optimizer that parameters have otherwise on the two sides."""

    setting: str
    a: str
    b: str
    step: int
    """the first step in which they differ"""
    parameters: tuple[str, ...]
    """names in A"""
    total: int
    """parameters that were looked at"""
    which: str = ""
    """what they have in common, in words"""

    @property
    def note(self) -> Note:
        """The difference as a note."""
        count = len(self.parameters)
        return note("curve-setting", setting=self.setting, a=self.a, b=self.b, step=self.step, count=count,
                    total=self.total, which=self.which)  # fmt: skip

    def __str__(self) -> str:
        return str(self.note)


@dataclass(frozen=True, slots=True)
class Counterpart:
    """Parameters of A and B that are the same: one and one, or several that lie in one on the other side."""

    a: tuple[str, ...]
    b: tuple[str, ...]


def direction_named(name: str | None) -> Direction | None:
    """Return the direction of a mapping by its name.

    Raises
    ------
    ConfigError
        it is none
    """
    if name is None or name in {each.value for each in Direction}:
        return None if name is None else Direction(name)
    known = " or ".join(repr(each.value) for each in Direction)
    raise ConfigError(f"direction={name!r} is not known; expected {known}")


def counterparts(
    a: RecordedModel, b: RecordedModel, mapping: LayerMapping, direction: Direction | None
) -> tuple[list[Counterpart], tuple[Note, ...]]:
    """Return which parameters of B those of A are, and what the mapping has to say."""
    known = [Known(Tree(model.modules), model.parameters) for model in (a, b)]

    def nothing(module: int) -> frozenset[object]:
        return frozenset()

    matching = _with_groups(match(*known, mapping, nothing, nothing, direction), a, b)
    places = {"A": _by_place(a), "B": _by_place(b)}
    slots = {"A": _by_slot(a, matching.views_a), "B": _by_slot(b, matching.views_b)}
    found, taken = [], {"A": set(), "B": set()}
    for side, whole, parts in _bundles(matching, slots):
        other = "A" if side == "B" else "B"
        names = tuple(places[side][place] for place in parts if place in places[side])
        if whole in places[other] and len(names) == len(parts):
            taken[side].update(names)
            taken[other].add(places[other][whole])
            sides = {side: names, other: (places[other][whole],)}
            found.append(Counterpart(sides["A"], sides["B"]))
    for pair in matching.pairs:
        if pair.a in matching.part_of_other:
            continue
        for slot, name in slots["A"].get(pair.a, {}).items():
            partner = slots["B"].get(pair.b, {}).get(slot)
            if partner is not None:
                mine, theirs = places["A"][name], places["B"][partner]
                if mine not in taken["A"] and theirs not in taken["B"]:
                    found.append(Counterpart((mine,), (theirs,)))
    return found, matching.notes


def _with_groups(matching: Matching, a: RecordedModel, b: RecordedModel) -> Matching:
    """Return a matching in which no line of the mapping pairs one of several parts with the whole that holds them all."""
    from probe.matching.automatic import may_be_partial
    from probe.matching.automatic.outline import outline
    from probe.matching.automatic.partial import with_whole_groups

    if not may_be_partial(matching, Tree(a.modules), Tree(b.modules)):
        return matching

    return with_whole_groups(matching, *(outline(model.modules, model.parameters) for model in (a, b)))


def _by_place(model: RecordedModel) -> dict[Place, str]:
    return {(parameter.module, parameter.slot): parameter.names[0] for parameter in model.parameters}


def _by_slot(model: RecordedModel, views: Mapping[Place, View]) -> dict[int, dict[str, Place]]:
    """Return the places of each module's parameters, by what its partner calls them."""
    found: dict[int, dict[str, Place]] = {}
    for parameter in model.parameters:
        place = (parameter.module, parameter.slot)
        slot = views[place].name if place in views else parameter.canonical_slot
        found.setdefault(parameter.module, {})[slot] = place
    return found


def _bundles(
    matching: Matching, slots: dict[str, dict[int, dict[str, Place]]]
) -> Iterator[tuple[str, Place, list[Place]]]:
    """Yield the side that has the parts, the place of the whole on the other one, and those of the parts."""
    for bundle in matching.weight_bundles:
        yield bundle.side, bundle.whole, [place for row in bundle.parts for place in row]
    for each in matching.bundles:
        for slot, whole in slots["A" if each.side == "B" else "B"].get(each.whole, {}).items():
            parts = [slots[each.side].get(part, {}).get(slot) for part in each.parts]
            if all(place is not None for place in parts):
                yield each.side, whole, [place for place in parts if place is not None]


def setting_differences(
    a: RecordedModel, b: RecordedModel, names: dict[str, str], to_b: int
) -> tuple[SettingDifference, ...]:
    """Return the settings of the optimizers that differ between paired parameters, in the order of the steps.

    Parameters
    ----------
    a, b
        the two models
    names
        the parameter of B for those of A
    to_b
        what is added to a step of A to get that of B
    """
    rows = {parameter.names[0]: parameter for parameter in a.parameters}
    found: dict[tuple[str, str, str], tuple[int, list[str]]] = {}
    seen: set[tuple[str, str]] = set()
    total = 0
    for step in sorted(a.groups):
        if step + to_b not in b.groups:
            continue
        mine, theirs = _by_parameter(a, step), _by_parameter(b, step + to_b)
        both = [name for name in names if name in mine and names[name] in theirs]
        total = max(total, len(both))
        for name in both:
            for setting, x, y in _differing(mine[name], theirs[names[name]]):
                if (name, setting) not in seen:
                    seen.add((name, setting))
                    found.setdefault((setting, _shown(x), _shown(y)), (step, []))[1].append(name)
    return tuple(
        SettingDifference(setting, x, y, step, tuple(members), total, _in_common(rows, members, total))
        for (setting, x, y), (step, members) in sorted(found.items(), key=lambda item: item[1][0])
    )


def _by_parameter(model: RecordedModel, step: int) -> dict[str, dict[str, object]]:
    return {model.parameters[index].names[0]: group.hyper for group in model.groups[step] for index in group.parameters}


def _differing(a: dict[str, object], b: dict[str, object]) -> Iterable[tuple[str, object, object]]:
    for setting in _SETTINGS:
        if setting in a and setting in b and not _equal(a[setting], b[setting]):
            yield setting, a[setting], b[setting]


def _equal(x: object, y: object) -> bool:
    if isinstance(x, (list, tuple)) and isinstance(y, (list, tuple)):
        return len(x) == len(y) and all(map(_equal, x, y))
    if isinstance(x, (int, float)) and isinstance(y, (int, float)):
        return abs(x - y) <= _SAME * max(abs(x), abs(y))
    return x == y


def _shown(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _in_common(rows: dict[str, ParameterInfo], members: list[str], total: int) -> str:
    """Say so when it is all biases and one-dimensional weights, or all others, of which the guide warns."""
    if len(members) == total:
        return ""
    small = {name for name, row in rows.items() if len(row.shape) <= 1}
    chosen = frozenset(members)
    if chosen and chosen <= small:
        return "biases and one-dimensional weights"
    return "weights of two and more dimensions" if chosen and not chosen & small else ""
