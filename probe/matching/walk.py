"""Every module of one tree, parents first, is led to its place in the other, as a mapping says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from probe.mapping import TOP, LayerMapping, Rule
from probe.mapping.patterns import Names
from probe.mapping.sections import Found, SectionIndex, ways
from probe.matching.lists import Fingerprint, aligned, distinctive, is_list
from probe.matching.result import Reason
from probe.tree import WRAPPERS, Tree

_WRAPPED_NAMES = {*WRAPPERS.values(), "0"}
"""names that wrappers, and a list of one model, give to what they hold"""


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


@dataclass
class Walk:
    """Translates modules of ``source`` into modules of ``target``."""

    source: Tree
    target: Tree
    mapping: LayerMapping
    sections: SectionIndex
    """of the source"""
    weights_here: Fingerprint
    weights_there: Fingerprint
    resolved: dict[Rule, None] = field(default_factory=dict)
    """rules that led from a module of the source to one of the target"""
    missed: dict[Rule, list[Miss]] = field(default_factory=dict)
    """rules that did not, where the way to where they begin is known"""
    blocked: dict[Rule, Miss] = field(default_factory=dict)
    """rules that did not because it is not: the first such place"""
    lacking: dict[Rule, tuple[int, Names]] = field(default_factory=dict)
    """rules that list several modules of the source of which one is not there: where they begin, and which"""
    said: list[str] = field(default_factory=list)
    _moved: dict[int, dict[str, str | None]] = field(default_factory=dict)
    """for lists of layers that were aligned by their weights: the target's name of each child, None for none"""
    _steps: list[_Step] = field(default_factory=list)

    def places(self) -> dict[int, Place]:
        """Return the place of every module of the source that has one."""
        found: dict[int, Place] = {}
        several: dict[tuple[int, Rule, Names], dict[int, int]] = {}
        for index, (start, key) in enumerate(ways(self.source, self.sections)):
            step = _Step(self.target.root, Reason.SAME_PATH)
            if start >= 0:
                step = self._by_name(index, start) if key is None else self._by_rule(index, start, key)
            self._steps.append(step)
            self._align_list(index, step)
            place = self._place(index, step)
            if place is not None:
                found[index] = place
                if step.listed is not None and self.source.wrapped(index) is None:
                    begin, named = step.listed
                    several.setdefault((begin, named.rule, named.targets[0]), {})[named.key] = index
        for (begin, rule, _), members in several.items():
            self._gather(found, begin, rule, members)
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
        rule, begin = found.rule, self._steps[start]
        if not found.targets:
            return _Step(None, Reason.MAPPED, ended=index)
        if begin.there is None:
            self.blocked.setdefault(rule, Miss(start, -1, ended=begin.ended))
            return _Step(None, Reason.MAPPED, rule, begin.ended)
        parts = []
        for number in (0,) if rule.is_reversed else rule.order:
            there = self._resolved(begin.there, found.targets[number])
            if there is None:
                misses = self.missed.setdefault(rule, [])
                if not misses or misses[-1].start != start:
                    misses.append(Miss(start, begin.there, found.targets[number]))
                return _Step(None, Reason.MAPPED, rule, index)
            parts.append(there)
        self.resolved[rule] = None
        if rule.is_reversed:  # what is in them is led on from the first alone
            is_first = found.key == rule.order[0]
            return _Step(
                parts[0] if is_first else None,
                Reason.MAPPED,
                rule,
                -1 if is_first else index,
                (parts[0],),
                (start, found),
            )
        return _Step(parts[0], Reason.MAPPED, rule, parts=tuple(parts))

    def _by_name(self, index: int, parent: int) -> _Step:
        before, name = self._steps[parent], self.source.name(index)
        if before.there is None:
            is_held = before.listed is not None and self.source.wrapped(parent) == name
            return before if is_held else _Step(None, before.reason, ended=before.ended)
        there, moved = self._same_name(parent, before.there, name)
        reason = Reason.SAME_VALUES if moved else before.reason
        if there is not None and self.source.wrapped(parent) == name:
            return _Step(there, reason, before.rule, parts=before.parts, listed=before.listed)
        return _Step(there, reason, ended=index if there is None else -1)

    def _same_name(self, here: int, there: int, name: str) -> tuple[int | None, bool]:
        """Return the target's module of a name, and whether weights say so."""
        moved = here in self._moved
        wanted = self._moved[here].get(name, name) if moved else name
        if wanted is None:
            return None, moved
        holds = self.source.wrapped(here)
        if holds == name:
            return (self.target.children[there][name] if self.target.wrapped(there) == name else there), False
        if holds is not None:  # something beside what a wrapper holds
            is_wrapper = self.target.wrapped(there) not in (None, name)
            return (self.target.children[there].get(name) if is_wrapper else None), False
        return self.target.child(self.target.unwrapped(there), wanted), moved

    def _resolved(self, there: int, path: Sequence[str]) -> int | None:
        """Return the target module at a path; wrappers that it names need not be there."""
        for name in path:
            found = self.target.child(there, name)
            if found is not None:
                there = found
            elif name not in _WRAPPED_NAMES or self.target.unwrapped(self.target.root) != self.target.unwrapped(there):
                return None
        return there

    def _place(self, index: int, step: _Step) -> Place | None:
        if step.there is None and step.listed is None:
            return None
        if self.source.wrapped(index) is None:
            parts = tuple(self.target.unwrapped(part) for part in step.parts or (step.there,) if part is not None)
        elif step.there is None:
            return None
        elif self.target.wrapped(step.there) is None:
            return None
        else:
            parts = (step.there,)
        return Place(parts, step.reason, step.rule, len(parts) == 1 and parts[0] != step.there)

    def _align_list(self, index: int, step: _Step) -> None:
        """Where a list of layers is shorter on one side, pair its members by weights; say what was found."""
        mine = self.source.children[index]
        place = self._place(index, step) if is_list(mine) else None
        theirs = self.target.children[place.parts[0]] if place else {}
        if not is_list(theirs) or len(mine) == len(theirs):
            return
        weights_here = {name: self.weights_here(child) for name, child in mine.items()}
        weights_there = {name: self.weights_there(child) for name, child in theirs.items()}
        if not any(weights_here.values()) or not any(weights_there.values()):
            return
        names = aligned(distinctive(weights_here), distinctive(weights_there))
        if names is not None and any(names.get(name) != name for name in mine if name in theirs):
            self._moved[index] = {name: names.get(name) for name in mine}
            self.said.append(
                f"{self.source.path(index) or 'the root'} has {len(mine)} members on one side and {len(theirs)} on "
                "the other; they are paired by their initial weights"
            )


def several_models(tree: Tree) -> str:
    """Return what to write where a tree is a list of several models, parts of one: ``""`` where it is not."""
    count = len(tree.children[tree.root])
    if tree.class_name(tree.root) != "list" or count < 2:
        return ""
    layers = next(
        (module.path for i, module in enumerate(tree.modules) if is_list(tree.children[i]) and i != tree.root), ""
    )
    names = [name for name in layers.split(".")[1:] if name not in _WRAPPED_NAMES]
    key = ".".join([*names, "{i}"])
    return (
        f"the {count} models in the list at the top are parts of the other side's one: below {TOP}, say of each where its parts "
        f"are, such as 0.{key}: layers.{{i}} and 1.{key}: layers.{{i+8}} if the first has 8 of the layers"
    )
