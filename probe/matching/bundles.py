"""What the lines of a mapping say beside the pairs: one module of several, parameters renamed, turned, split."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NoReturn

from probe.errors import MappingError
from probe.mapping import LayerMapping, ParameterRule, Rule
from probe.mapping.patterns import Names, binds, filled, places
from probe.mapping.rules import Rotary, written
from probe.mapping.sections import SectionIndex
from probe.matching.known import Known, canonical_shape
from probe.matching.result import Bundle, Place, View, WeightBundle, other_side
from probe.matching.walk import Place as WalkPlace
from probe.numbers.axis_sums import squeezed
from probe.numbers.fused import order_of
from probe.records import ParameterInfo

_Found = tuple[Place, ParameterInfo | None]
_AXES = ("out", "in")


class Bundles:
    """What is found pair by pair; the mapping is written from the source, and ``parts_side`` is the target's."""

    def __init__(
        self, mapping: LayerMapping, sections: SectionIndex, source: Known, target: Known, parts_side: str
    ) -> None:
        self.mapping, self.sections = mapping, sections
        self.source, self.target, self.side = source, target, parts_side
        self.bundles: list[Bundle] = []
        self.weights: list[WeightBundle] = []
        self.views: dict[Place, View] = {}
        """of the source's parameters"""
        self.views_there: dict[Place, View] = {}
        """of the target's"""
        self.used: dict[ParameterRule, None] = {}
        self.missing: dict[ParameterRule, tuple[int, Names]] = {}
        """parameters that the other side does not have: first module of the source, and which"""

    def add(self, index: int, parts: tuple[int, ...], rule: Rule | None, members: tuple[int, ...] = ()) -> None:
        """Take up what is said of a module of the source, or of several, and what it was led to."""
        if rule is not None:
            if members:
                self._bundle(parts[0], members, rule)
            elif len(parts) > 1:
                self._bundle(index, parts, rule)
            elif rule.rotary is not None:
                self._reorder(index, parts[0], rule, rule.rotary)
            elif rule.split.shares:
                self._repack(index, parts[0], rule)
            if rule.transpose or rule.permute:
                self._turn_all(parts[0] if members else index, rule)
        for each in self._params(index, rule):
            self._parameter(index, parts[0], each)

    def add_weights_of(self, ignored: Mapping[int, WalkPlace]) -> None:
        """Take up the lines of parameters that are for modules only which the mapping leaves out: their weights alone are meant.

        A line that is for other modules too says nothing of these.
        """
        elsewhere = {*self.used, *self.missing}
        for index, place in ignored.items():
            for each in self._params(index, place.rule):
                if each not in elsewhere:
                    self._parameter(index, place.parts[0], each, is_alone=True)

    def _params(self, index: int, rule: Rule | None) -> Iterable[ParameterRule]:
        """Return the lines for parameters of a module: those of its section, and of the line that names it."""
        rules = self.sections.rules(index)
        own = {each.source: each for each in (rule.params if rule else ())}
        return {**(rules.params if rules else {}), **own}.values()

    def _bundle(self, index: int, parts: tuple[int, ...], rule: Rule) -> None:
        groups, missing = self._groups(rule)
        whole_side, parts_side, side, _ = self._sides(rule)
        self.bundles.append(Bundle(side, index, parts, groups, missing=missing))
        for slot, whole in whole_side.slots.get(index, {}).items():
            row = [parts_side.slots.get(part, {}).get(slot) for part in parts]
            if slot == whole.canonical_slot and None not in row:
                found = [((each.module, each.slot), each) for each in row if each is not None]
                axes = _order(rule, len(whole.shape)) if rule.transpose or rule.permute else ()
                self._check_sizes(rule, ((index, whole.slot), whole), [found], groups, (whole_side, parts_side), axes)

    def _reorder(self, here: int, there: int, rule: Rule, rotary: Rotary) -> None:
        """Take up that rows lie in another order: the module in which neighbours are turned together is the part."""
        number, missing = self._number(rule, "heads", rotary.heads)
        heads = number or -1
        whole, part, side = (there, here, other_side(self.side)) if rotary.is_interleaved else (here, there, self.side)
        self.bundles.append(Bundle(side, whole, (part,), 1, heads, missing=missing))
        axes = _order(rule, 2) if rule.transpose or rule.permute else ()
        for parameter in self.source.slots.get(here, {}).values():
            shape = canonical_shape(parameter, axes if len(parameter.shape) == 2 else ())
            if heads > 0 and shape and shape[0] % (2 * heads):
                name = self.source.tree.parameter_name(here, parameter.slot)
                self._fail(rule, f"{name} has {shape[0]} rows, which {heads} heads of two halves do not divide")

    def _repack(self, here: int, there: int, rule: Rule) -> None:
        """Take up that several parts lie in one module on both sides, in other groups: the target's is the part."""
        order, missing = self._order_of_rows(rule)
        for slot, mine in self.source.slots.get(here, {}).items():
            theirs = self.target.slots.get(there, {}).get(slot)
            if slot == mine.canonical_slot and theirs is not None:
                self._check_rows(rule, ((here, mine.slot), mine), ((there, theirs.slot), theirs), order)
        if order or missing:
            self.bundles.append(Bundle(self.side, here, (there,), int(not missing), order=order, missing=missing))

    def _order_of_rows(self, rule: Rule | ParameterRule) -> tuple[tuple[int, ...], str]:
        """Return which block of the target each of the source is, and which number is not known."""
        split = rule.split
        here, missing = self._groups(rule)
        there, missing_there = self._number(rule, "groups: there", split.groups_there)
        unknown = missing or missing_there or ("" if here and there else "groups")
        return ((), unknown) if unknown else (order_of(split.shares, there, here, split.order_there), "")

    def _check_rows(self, rule: Rule | ParameterRule, mine: _Found, theirs: _Found, order: tuple[int, ...]) -> None:
        """Refuse sizes that differ, or that the blocks do not divide."""
        shapes = [canonical_shape(each) for _, each in (mine, theirs) if each is not None]
        names = [side.tree.parameter_name(*each[0]) for side, each in ((self.source, mine), (self.target, theirs))]
        axis = rule.split.axis
        if len({(shape[axis : axis + 1], squeezed(_without(shape, axis))) for shape in shapes}) > 1:
            self._fail(rule, f"the sizes do not fit: {names[0]} has {list(shapes[0])}, {names[1]} {list(shapes[1])}")
        size = shapes[0][axis] if shapes and axis < len(shapes[0]) else 0
        if order and shapes and (not size or size % len(order)):
            what = "rows" if axis == 0 else f"columns along {_axis_name(axis, shapes[0])}"
            self._fail(rule, f"{names[0]} has {size} {what}, which {len(order)} equal blocks do not divide")

    def _sides(self, rule: Rule | ParameterRule) -> tuple[Known, Known, str, dict[Place, View]]:
        """Return the side of the whole, that of the parts, the letter of the latter, and the views of the former."""
        if rule.is_reversed:
            return self.target, self.source, other_side(self.side), self.views_there
        return self.source, self.target, self.side, self.views

    def _groups(self, rule: Rule | ParameterRule) -> tuple[int, str]:
        """Return in how many groups parts lie, 0 where nothing says it; and what is missing, see `Bundle.missing`."""
        return self._number(rule, "groups", rule.split.groups)

    def _number(self, rule: Rule | ParameterRule, what: str, key: int | str) -> tuple[int, str]:
        """Return a number that a rule says, or names; 0 and which it is where no recorded configuration has it."""
        if isinstance(key, int):
            return key, ""
        why = f"neither recording's model_config has {key}"
        for known in (self.source, self.target):
            try:
                number = known.number(key)
            except ValueError as error:
                why = f"{key}: {error}"
                break
            if number is not None:
                return number, ""
        if self.source.config is None and self.target.config is None:
            return 0, ""
        return 0, f"{self.mapping.where(rule.line)}: {rule.section}: {written(rule.source)}: {what}: {why}"

    def _turn_all(self, index: int, rule: Rule) -> None:
        whole, _, _, views = self._sides(rule)
        if whole.parameters is None:
            views[index, "weight"] = View("weight", _order(rule, 2))
        for parameter in {id(each): each for each in whole.slots.get(index, {}).values()}.values():
            if len(parameter.shape) > 1:
                place = parameter.module, parameter.slot
                views[place] = View(parameter.canonical_slot, self._axes(rule, whole, (place, parameter)))

    def _parameter(self, index: int, there: int, rule: ParameterRule, is_alone: bool = False) -> None:
        """Take up one line of ``params``; the whole is the source's, or with ``from`` the target's.

        ``is_alone``: both modules are no pair.
        """
        whole, others, side, views = self._sides(rule)
        ends = (there, index) if rule.is_reversed else (index, there)
        found = whole.parameter(ends[0], rule.source)
        rows, lacking = self.rows(others, ends[1], rule)
        if others.parameters is None and rule.is_stacked and "{" in rule.targets[0][-1]:
            self.used[rule] = None  # how many there are, parameters would tell
            return
        if found is None and (not rule.is_reversed or not rows):
            return
        if found is None or not rows or lacking is not None:
            self.missing.setdefault(rule, (index, rule.source if found is None else lacking or rule.targets[0]))
            return
        self.used[rule] = None
        place, parameter = found
        is_turned, before = rule.transpose or bool(rule.permute), views.get(place)
        axes = () if rule.reshape else before.axes if before else ()
        axes = self._axes(rule, whole, found, rule.is_stacked) if is_turned and not rule.reshape else axes
        if rule.reshape:
            self._reshape(rule, found, rows[0][0])
            return
        if rule.split.shares:
            order, missing = self._order_of_rows(rule)
            self._check_rows(rule, found, rows[0][0], order)
            part, groups = rows[0][0][0], int(not missing)
            made = WeightBundle(side, place, ((part,),), rule.split.axis, groups, order=order, missing=missing)
            self.weights.append(made)
            return
        if not is_alone and len(rule.source) == len(rule.targets) == len(rule.targets[0]) == 1:
            partner = rows[0][0][1]
            views[place] = View(partner.canonical_slot if partner else rule.targets[0][0], axes)
            return
        if is_turned:
            views[place] = View(parameter.canonical_slot if parameter else place[1], axes)
        groups, missing = self._groups(rule)
        self._check_sizes(rule, found, rows, groups, (whole, others), axes)
        parts = tuple(tuple(place for place, _ in row) for row in rows)
        self.weights.append(WeightBundle(side, place, parts, rule.split.axis, groups, rule.is_stacked, missing=missing))

    def _reshape(self, rule: ParameterRule, here: _Found, there: _Found) -> None:
        """Take up that a parameter is one of the target in another shape: it is the part."""
        (mine, parameter), (place, partner) = here, there
        if parameter is None or partner is None:
            return
        axes = self._axes(rule, self.target, there) if rule.transpose or rule.permute else ()
        shape = canonical_shape(partner, axes)
        if math.prod(shape) != math.prod(parameter.shape):
            self._fail(
                rule, f"the sizes do not fit: {self.source.tree.parameter_name(*mine)} has the shape {list(parameter.shape)}, "
                f"{self.target.tree.parameter_name(*place)} {list(partner.shape)}"
            )  # fmt: skip
        if axes:
            self.views_there[place] = View(partner.canonical_slot, axes)
        self.weights.append(WeightBundle(other_side(self.side), place, ((mine,),), shape=shape))

    def rows(self, known: Known, module: int, rule: ParameterRule) -> tuple[list[list[_Found]], Names | None]:
        """Return the parts, a row for each member of a list, in the order in which they lie; and what is not there."""
        numbers = _numbers(known, module, rule.targets[0]) if rule.is_stacked else [{}]
        rows = []
        for bound in numbers:
            row = []
            for number in rule.order:
                path = filled(rule.targets[number], bound)
                part = known.parameter(module, path)
                if part is None:
                    return rows, path
                row.append(part)
            rows.append(row)
        return rows, None

    def _axes(self, rule: Rule | ParameterRule, known: Known, found: _Found, stacked: bool = False) -> tuple[int, ...]:
        place, parameter = found
        count = len(parameter.shape) if parameter else 2 + stacked
        axes = _order(rule, count)
        if parameter is not None and len(axes) != count:
            what = f"permute names {len(rule.permute)} axes" if rule.permute else "transpose needs two axes"
            is_other = isinstance(rule, ParameterRule) and rule.reshape
            why = "; with reshape the axes are those of the other side's parameter" if is_other else ""
            self._fail(rule, f"{what}, {known.tree.parameter_name(*place)} has the shape {list(parameter.shape)}{why}")
        return axes

    # Sizes

    def _check_sizes(
        self,
        rule: Rule | ParameterRule,
        whole: _Found,
        rows: Sequence[Sequence[_Found]],
        groups: int,
        sides: tuple[Known, Known],
        axes: tuple[int, ...],
    ) -> None:
        place, parameter = whole
        if parameter is None or any(part is None for row in rows for _, part in row):
            return
        is_stacked = isinstance(rule, ParameterRule) and rule.is_stacked
        shape = canonical_shape(parameter, axes)
        name = sides[0].tree.parameter_name(*place)
        if is_stacked:
            if shape[:1] != (len(rows),):
                self._fail(rule, f"{name} has the shape {list(shape)}, expected {len(rows)} first: so many are there")
            shape = shape[1:]
        axis = rule.split.axis
        for row in rows:
            shapes = [canonical_shape(part) for _, part in row if part is not None]
            parts = " + ".join(
                f"{sides[1].tree.parameter_name(*at)} {list(s)}" for (at, _), s in zip(row, shapes, strict=True)
            )
            if len(shapes) == 1 and squeezed(shapes[0]) == squeezed(shape):
                continue  # one for one: axes of size 1 are no matter
            rests = {squeezed(_without(each, axis)) for each in (shape, *shapes)}
            if len(rests) > 1 or any(len(each) <= axis for each in (shape, *shapes)):
                hint = _other_axis(shape, shapes) if isinstance(rule, ParameterRule) else ""
                self._fail(rule, f"the sizes do not fit: {name} has {list(shape)}, its parts are {parts}{hint}")
            sizes = [s[axis] for s in shapes]
            if sum(sizes) != shape[axis]:
                self._fail(
                    rule, f"the sizes do not add up: {name} has {shape[axis]} along {_axis_name(axis, shape)}, its parts have "
                    f"{sum(sizes)}: {parts}"
                )  # fmt: skip
            if groups and any(size % groups for size in sizes):
                self._fail(rule, f"{groups} groups do not divide {parts}")

    def _fail(self, rule: Rule | ParameterRule, message: str) -> NoReturn:
        raise MappingError(f"{self.mapping.where(rule.line)}: {rule.section}: {written(rule.source)}: {message}")


def _numbers(known: Known, module: int, path: Names) -> list[dict[str, str]]:
    """Return what the placeholder of a path stands for, in the order of the numbers: names of modules, or of parameters."""
    last = max(n for n, name in enumerate(path) if "{" in name)
    if last < len(path) - 1:
        return [bound for _, bound in places(known.tree, module, path[: last + 1])]
    owner = known.tree.resolve(module, path[:-1])
    slots = known.slots.get(known.tree.unwrapped(owner), {}) if owner is not None else {}
    found = [bound for slot in slots if (bound := binds(slot, path[-1], {})) is not None]
    return sorted(found, key=lambda bound: [int(value) for value in bound.values()])


def _order(rule: Rule | ParameterRule, count: int) -> tuple[int, ...]:
    """Return the order of axes that a rule asks for: a transposition swaps the last two."""
    if rule.permute:
        return rule.permute
    return (*range(count - 2), count - 1, count - 2) if count > 1 else ()


def _axis_name(axis: int, shape: Sequence[int]) -> str:
    return _AXES[axis] if len(shape) < 3 and axis < len(_AXES) else f"axis {axis}"


def _other_axis(shape: tuple[int, ...], parts: Sequence[tuple[int, ...]]) -> str:
    """Return along which axis parts add up, and what says so, if there is one."""
    are_alike = all(len(each) == len(shape) for each in parts)
    for axis in range(len(shape)) if are_alike else ():
        rest = {_without(each, axis) for each in (shape, *parts)}
        if len(rest) == 1 and sum(p[axis] for p in parts) == shape[axis]:
            name = _AXES[axis] if len(shape) < 3 else str(axis)
            return f"; along {_axis_name(axis, shape)} they add up: write split: {{axis: {name}}}"
    return ""


def _without(shape: tuple[int, ...], axis: int) -> tuple[int, ...]:
    return shape[:axis] + shape[axis + 1 :]
