"""Every module of one tree, parents first, is led to its place in the other, as a mapping says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from probe.errors import MappingError
from probe.mapping import LayerMapping, Rule
from probe.mapping.patterns import Names, counts
from probe.mapping.rules import written
from probe.mapping.sections import Found, Patterns, SectionIndex, ways
from probe.matching.checks.wrappers import NAMES, LookedThrough
from probe.matching.known import Known
from probe.matching.lists import Fingerprint, Laid, Member, families, family, laid_side_by_side, number
from probe.matching.result import Reason
from probe.notes import Note, note
from probe.structure.tree import Tree

Laying = dict[str, tuple[str | None, Reason]]
"""by the names of members of a list, what they are called on the other side, and why they are these"""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a module of the source belongs in the target."""

    parts: tuple[int, ...]
    """one module, or several that together are the source's, in the order in which they lie there"""
    reason: Reason
    rule: Rule | None
    """the rule that names the module itself, not one around it"""
    is_inside: bool = False
    """the way led to a wrapper, and the module is what that holds"""
    members: tuple[int, ...] = ()
    """several modules of the source, this one the first, that together are the target's, in the order in which they lie there"""


@dataclass(slots=True)
class _Step:
    """How the way to a module of the source is said on the other side."""

    there: int | None
    """the target's module, before wrappers are looked through; None where the way ends"""
    reason: Reason
    rule: Rule | None = None
    ended: int = -1
    """the first module on the way that has no place"""
    parts: tuple[int, ...] = ()
    listed: tuple[int, Found] | None = None
    """for one of several modules that are one on the other side: where the key begins, and which it is"""


@dataclass(slots=True)
class Miss:
    """A rule that named a module, and did not lead to one."""

    start: int
    """module of the source at which its key begins"""
    there: int
    """the target's module in its place, −1 where it has none"""
    target: Names = ()
    """the path that is not there"""
    ended: int = -1
    """the module on the way to the start that has no place"""
    module: int = -1
    """of the source: the first that the key names"""


@dataclass
class Walk:
    """Translates modules of the source into modules of the target."""

    known: Known
    """what is known of the source"""
    known_there: Known
    read: LookedThrough
    sections: SectionIndex
    """of the source"""
    weights_here: Fingerprint
    weights_there: Fingerprint
    resolved: dict[Rule, set[str]] = field(default_factory=dict)
    """rules that led from a module of the source to one of the target, and the classes of those modules"""
    missed: dict[Rule, list[Miss]] = field(default_factory=dict)
    """rules that did not, where the way to where they begin is known"""
    blocked: dict[Rule, Miss] = field(default_factory=dict)
    """rules that did not because it is not: the first such place"""
    lacking: dict[Rule, tuple[int, Names]] = field(default_factory=dict)
    """rules that list several modules of the source of which one is not there: where they begin, and which"""
    doubts: list[tuple[int, int, Laid]] = field(default_factory=list)
    """lists, by what holds them here and there, of which nothing tells which members one side alone has"""
    stepped_here: dict[int, int] = field(default_factory=dict)
    """by module that only holds another one, which its partner does without: that one"""
    stepped_there: dict[int, int] = field(default_factory=dict)
    _lists: dict[tuple[int, str, int, str], Laying] = field(default_factory=dict)
    """lists that were laid side by side, by what holds them and what their members are called"""
    _steps: list[_Step] = field(default_factory=list)
    _holders: dict[int, int] = field(default_factory=dict)
    """`stepped_there`, the other way round"""

    def __post_init__(self) -> None:
        self.source, self.target = self.known.tree, self.known_there.tree
        self.mapping = self.read.mapping
        self._model, self._model_there = (tree.unwrapped(tree.root) for tree in (self.source, self.target))
        self._around: _Step | None = None
        """the way to what holds the model, where a line leads the model itself further"""

    def places(self) -> dict[int, Place]:
        """Return the place of every module of the source that has one."""
        found: dict[int, Place] = {}
        several: dict[tuple[int, Rule, Names], dict[int, int]] = {}
        taken = list(ways(self.source, self.sections))
        for index, (start, key) in enumerate(taken):
            step = _Step(self.target.root, Reason.SAME_PATH)
            if start >= 0:
                step = self._by_name(index, start) if key is None else self._by_rule(index, start, key)
            if index == self._model:
                step = self._of_model(index, start, step)
            self._step_over(index, step, taken)
            self._steps.append(step)
            place = self._place(index, step)
            if place is not None:
                found[index] = place
                if step.listed is not None and self.source.wrapped(index) is None:
                    begin, named = step.listed
                    several.setdefault((begin, named.rule, named.targets[0]), {})[named.key] = index
        for (begin, rule, _), members in several.items():
            self._gather(found, begin, rule, members)
        self._leave_to_one(found)
        return found

    def _gather(self, found: dict[int, Place], begin: int, rule: Rule, members: dict[int, int]) -> None:
        """Let the first of several modules stand for all of them; where one is not there, for none."""
        first, *others = [members.get(number) for number in rule.order]
        for index in members.values():
            if index != first or None in others:
                del found[index]
        if first is not None and None not in others:
            found[first] = replace(found[first], members=tuple(filter(None, (first, *others))))
        else:
            self.lacking.setdefault(rule, (begin, next(key for n, key in enumerate(rule.keys) if n not in members)))

    def _by_rule(self, index: int, start: int, found: Found) -> _Step:
        rule, begin = found.rule, self._begin(start, found.rule)
        if not found.targets:
            return _Step(None, Reason.MAPPED, ended=index)
        if begin.there is None:
            self.blocked.setdefault(rule, Miss(start, -1, ended=begin.ended))
            return _Step(None, Reason.MAPPED, rule, begin.ended)
        parts = []
        for place in (0,) if rule.is_reversed else rule.order:
            there = self._resolved(begin.there, found.targets[place])
            if there is None:
                misses = self.missed.setdefault(rule, [])
                if not misses or misses[-1].start != start or self._is_other(misses[-1], rule):
                    misses.append(Miss(start, begin.there, found.targets[place], module=index))
                return _Step(None, Reason.MAPPED, rule, index)
            parts.append(there)
        self.resolved.setdefault(rule, set()).add(self.source.class_name(index))
        step = _Step(parts[0], Reason.MAPPED, rule, parts=tuple(parts))
        if rule.is_reversed:  # what is in them is led on from the first alone
            is_first = found.key == rule.order[0]
            return replace(step if is_first else replace(step, there=None, ended=index), listed=(start, found))
        if len(parts) > 1:
            return step
        there, why = self._numbered(index, parts[0], rule)
        if there is None:
            return _Step(None, why, rule, index)
        return _Step(there, why, rule, parts=(there,))

    def _begin(self, start: int, rule: Rule) -> _Step:
        """Return from where a line leads on: one about what holds the model from there, though the model is the root."""
        is_around = start == self._model and rule.section in self.read.around
        return self._around if is_around and self._around is not None else self._steps[start]

    def _of_model(self, index: int, start: int, step: _Step) -> _Step:
        """Lead the model itself, and what is in it, to where a line about its wrapper says.

        What holds the model returns what the model returns. So where lines lead the one to a module and the other to a part
        of that, as ``Float16Module`` to ``Qwen2ForCausalLM`` and its ``GPTModel`` to ``model``, the model is which of both
        is as large as it is, and its parts begin where the line says.
        """
        before, rule = self._steps[start] if start >= 0 else step, self.read.inner
        if rule is not None and step.there is not None:
            there = self._resolved(step.there, rule.targets[0])
            if there is None:
                self.missed.setdefault(rule, []).append(Miss(index, step.there, rule.targets[0], module=index))
                return step
            self.resolved.setdefault(rule, set()).add(self.source.class_name(index))
            self._around, before = step, step
            step = _Step(there, Reason.MAPPED, rule, parts=(there,))
        if step.rule is None or step.there is None or before.there is None or len(step.parts) != 1:
            return step
        outer, inner = self.target.unwrapped(before.there), self.target.unwrapped(step.there)
        if outer == self._model_there != inner and self.known_there.is_as_large(outer, inner, self.known, index):
            return replace(step, parts=(outer,))
        return step

    def _leave_to_one(self, found: dict[int, Place]) -> None:
        """Of a model and a part of it that both lead to the other side's model, let the one have it that is as large."""
        places = (index for index, place in found.items() if place.parts == (self._model_there,))
        both = {index for index in places if self.source.wrapped(index) is None}
        for index in both - {self._model} if self._model in both else ():
            is_whole = self.known.is_as_large(self._model, index, self.known_there, self._model_there)
            found.pop(index if is_whole else self._model, None)

    def _is_other(self, miss: Miss, rule: Rule) -> bool:
        """Return True if a member of a list is of no class that others have which a rule with a number leads on."""
        classes = self.resolved.get(rule, set())
        is_member = "{" in rule.source[-1] and bool(classes)
        return is_member and self.source.class_name(miss.module) not in classes

    def wrongly_missed(self, rule: Rule) -> list[Miss]:
        """Return where a rule did not lead to a module, but for members of lists that it cannot mean: a norm behind layers."""
        return [miss for miss in self.missed.get(rule, ()) if not self._is_other(miss, rule)]

    def ended(self, index: int) -> int:
        """Return the first module on the way to one that has no place, the module itself where all have one."""
        ended = self._steps[index].ended
        return index if ended < 0 else ended

    def _by_name(self, index: int, parent: int) -> _Step:
        before, name = self._steps[parent], self.source.name(index)
        if before.there is None:
            is_held = before.listed is not None and self.source.wrapped(parent) == name
            return before if is_held else _Step(None, before.reason, ended=before.ended)
        if self.stepped_here.get(parent) == index:
            return _Step(before.there, before.reason, before.rule, parts=before.parts)
        there, moved = self._same_name(parent, before.there, name)
        reason = moved or before.reason
        if there is not None and self.source.wrapped(parent) == name:
            return _Step(there, reason, before.rule, parts=before.parts, listed=before.listed)
        return _Step(there, reason, ended=index if there is None else -1)

    def _same_name(self, here: int, there: int, name: str) -> tuple[int | None, Reason | None]:
        """Return the target's module of a name, and why it is not the one of that name if it is another one."""
        holds = self.source.wrapped(here)
        if holds == name:
            return (self.target.children[there][name] if self.target.wrapped(there) == name else there), None
        if holds is not None:  # something beside what a wrapper holds
            is_wrapper = self.target.wrapped(there) not in (None, name)
            return (self.target.children[there].get(name) if is_wrapper else None), None
        inner = self.target.unwrapped(there)
        wanted, why = self._laid(here, family(name), inner, family(name)).get(name, (name, None))
        return (None if wanted is None else self.target.child(inner, wanted)), why

    def _laid(self, here: int, which: str, there: int, which_there: str) -> Laying:
        """Return the target's name of each member of a list, None for none; nothing where all keep theirs."""
        key = here, which, there, which_there
        if key not in self._lists:
            mine, theirs = (
                families(tree.children[parent]).get(name, [])
                for tree, parent, name in ((self.source, here, which), (self.target, there, which_there))
            )
            names = {number(name): name for name in theirs}
            laid = laid_side_by_side(
                _members(self.known, self.weights_here, here, mine),
                _members(self.known_there, self.weights_there, there, theirs),
            )
            if laid is not None and laid.instead:
                self.doubts.append((here, there, laid))
            common = [number(name) for name in mine if number(name) in names]
            if laid is None or all(laid.numbers.get(each) == each for each in common):
                self._lists[key] = {}
            else:
                to = {name: laid.numbers.get(number(name), -1) for name in mine}
                self._lists[key] = {name: (names.get(other), laid.reason) for name, other in to.items()}
        return self._lists[key]

    def _numbered(self, index: int, there: int, rule: Rule) -> tuple[int | None, Reason]:
        """Return the member of a list that a rule with a number in the last name leads to.

        One that counts otherwise on either side, ``{2*i}`` or ``{i+8}``, is taken at its word.
        """
        is_numbered = "{" in rule.source[-1] and "{" in rule.target[-1]
        is_of_list = is_numbered and family(self.target.name(there)) != self.target.name(there)
        if not is_of_list or counts(rule.source[-1:]) or counts(rule.target[-1:]):
            return there, Reason.MAPPED
        above, above_there = self.source.modules[index].parent, self.target.modules[there].parent
        name, name_there = self.source.name(index), self.target.name(there)
        laid = self._laid(above, family(name), above_there, family(name_there))
        wanted, why = laid.get(name, (name_there, Reason.MAPPED))
        return (None if wanted is None else self.target.children[above_there][wanted]), why

    def _resolved(self, there: int, path: Sequence[str]) -> int | None:
        """Return the target module at a path; wrappers that it names need not be there, and need not be named."""
        if there in self._holders:
            whole = self._at(self._holders[there], path)
            if whole is not None:
                return whole
        return self._at(there, path)

    def _at(self, there: int, path: Sequence[str]) -> int | None:
        for name in path:
            found = self.target.child(there, name)
            if found is not None:
                there = found
            elif name not in NAMES or self.target.unwrapped(self.target.root) != self.target.unwrapped(there):
                return None
        return there

    def _step_over(self, index: int, step: _Step, taken: Sequence[tuple[int, Found | None]]) -> None:
        """Look through a module that only holds another one, where the other side has that one in its place.

        Not through one of which a line of the mapping names what it holds.
        """
        is_several = len(step.parts) > 1 or step.listed is not None
        if step.there is None or is_several or self.source.wrapped(index) is not None:
            return
        there = self.target.unwrapped(step.there)
        held_there = _held(self.known_there, there, self.known, index)
        held_here = _held(self.known, index, self.known_there, there)
        if held_here is not None and taken[held_here][1] is not None:
            held_here = None
        if held_there is not None and self._leads_to(index, self.target.name(held_there)):
            held_there = None
        if held_there is not None and held_here is None:
            self.stepped_there[there] = held_there
            self._holders[held_there] = there
            step.there, step.parts = held_there, (held_there,) if step.parts else ()
        elif held_here is not None and held_there is None:
            self.stepped_here[index] = held_here

    def _leads_to(self, index: int, name: str) -> bool:
        """Return True if a line for a module names what its counterpart only holds."""
        sections = (each for each in self.mapping.sections if index in self.sections.members[each.name])
        rules = (rule for section in sections for rule in section.rules)
        return any((name,) in ((rule.source,) if rule.is_reversed else rule.targets) for rule in rules)

    def _place(self, index: int, step: _Step) -> Place | None:
        if (step.there is None and step.listed is None) or index in self.stepped_here:
            return None
        parts = tuple(part for part in step.parts or (step.there,) if part is not None)
        if self.source.wrapped(index) is None:
            parts = tuple(map(self.target.unwrapped, parts))
        elif step.there is None or self.target.wrapped(step.there) is None:
            return None
        else:
            parts = (step.there,)
        return Place(parts, step.reason, step.rule, len(parts) == 1 and parts[0] != step.there)


def _members(known: Known, weights: Fingerprint, parent: int, names: Iterable[str]) -> list[Member]:
    """Return the members of a list as `laid_side_by_side` looks at them."""
    places = [(name, known.tree.children[parent][name]) for name in names]
    return [Member(number(name), known.tree.class_name(at), weights(at), known.shapes_below(at)) for name, at in places]


def several_models(tree: Tree) -> Note | None:
    """Return what to write where a tree is a list of several models, parts of one: None where it is not."""
    count = len(tree.children[tree.root])
    if tree.class_name(tree.root) != "list" or count < 2:
        return None
    layers = next(
        (module.path for i, module in enumerate(tree.modules) if "#" in families(tree.children[i]) and i != tree.root),
        "",
    )
    names = [name for name in layers.split(".")[1:] if name not in NAMES]
    return note("several-models-in-a-list", count=count, key=".".join([*names, "{i}"]))


def _held(known: Known, index: int, other: Known, like: int) -> int | None:
    """Return what a module only holds, where it is of the class of another one, and the module itself is not."""
    tree, children = known.tree, known.tree.children[index]
    if len(children) != 1 or tree.class_name(index) == other.tree.class_name(like) or index in known.slots:
        return None
    (inner,) = children.values()
    is_alike = tree.class_name(inner) == other.tree.class_name(like)
    return inner if is_alike and tree.wrapped(index) is None and tree.wrapped(inner) is None else None


# Giving every module of the target to one of the source


def settled(walk: Walk, places: Mapping[int, Place]) -> list[int]:
    """Return the modules of the source that get what they were led to: rules go before equal names.

    Raises MappingError where two keys name the same module of the target.
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


# What a mapping leaves out: modules with all that is in them, but for what a line of it names


class LeftOut(NamedTuple):
    """What the patterns of ``ignore`` fit."""

    here: frozenset[int]
    """modules of the side that the mapping is written from"""
    there: frozenset[int]
    unused: list[str]
    """lines that fit nothing"""


def left_out(mapping: LayerMapping, source: Tree, target: Tree, places: Mapping[int, Place]) -> LeftOut:
    """Return what a mapping leaves out of both sides."""
    (mine, used), (theirs, used_there) = _matched(mapping, source), _matched(mapping, target)
    listed = [each for n, each in enumerate(mapping.ignored) if n not in used | used_there and not each.is_optional]
    lines = [(place.members or (index,), place.parts) for index, place in places.items() if place.rule is not None]
    kept = [each for each in lines if mine.isdisjoint(each[0])]
    return LeftOut(
        _with_all_inside(source, mine, {index for indices, _ in kept for index in indices}),
        _with_all_inside(target, theirs, {part for _, parts in kept for part in parts}),
        [f"line {each.line}: ignore: {each.name}" for each in listed],
    )


def _matched(mapping: LayerMapping, tree: Tree) -> tuple[set[int], set[int]]:
    """Return the modules that patterns fit, and these patterns."""
    found, used, patterns = set[int](), set[int](), mapping.ignored
    for index, fits in enumerate(Patterns([each.path for each in patterns]).fitting(tree) if patterns else ()):
        fitting = {n for n in fits if patterns[n].class_name in ("", tree.class_name(index))}
        if fitting and index == tree.root:
            first = patterns[min(fitting)]
            raise MappingError(f"{mapping.where(first.line)}: ignore: {first.name} leaves out the whole model")
        used |= fitting
        found |= {index} if fitting else set()
    return found, used


def _with_all_inside(tree: Tree, named: Set[int], kept: Set[int]) -> frozenset[int]:
    found: set[int] = set()
    for index, module in enumerate(tree.modules):
        if index in named or (module.parent in found and index not in kept):
            found.add(index)
    return frozenset(found)
