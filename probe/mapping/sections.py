"""Which sections of a mapping are for which modules of a tree: looked up by class and along the paths, not one by one."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from probe.errors import MappingError
from probe.mapping.patterns import ANY, ONE, Names, any_number, binds, counts, filled
from probe.mapping.rules import LayerMapping, ParameterRule, PathPattern, Rule, Section
from probe.structure.tree import Tree

_States = frozenset[tuple[int, int]]
"""(pattern, how many of its components are used up) of all patterns that still fit a path"""


@dataclass(frozen=True, slots=True)
class Found:
    """A rule that names a module, with numbers in place of its placeholders."""

    rule: Rule
    targets: tuple[Names, ...]
    """empty where the rule is for other numbers of a list only, as ``h.{2*i}``: what is left has no partner"""
    key: int = 0
    """which of the rule's keys it is"""


class Patterns:
    """Path patterns, by number, that are followed along a tree, all at once."""

    def __init__(self, patterns: list[PathPattern]) -> None:
        self._names = [pattern.names for pattern in patterns]
        self._of_root = frozenset(number for number, names in enumerate(self._names) if not names)
        self._start = self._closed({(number, 0) for number in range(len(patterns))})
        self._next: dict[tuple[_States, str], _States] = {}

    def fitting(self, tree: Tree) -> Iterator[frozenset[int]]:
        """Yield for every module the patterns that it fits; names that wrappers give may be left out of a pattern."""
        seen: list[_States] = []
        fits: dict[_States, frozenset[int]] = {}
        for index, module in enumerate(tree.modules):
            if module.parent < 0:
                states = self._start
            else:
                before, name = seen[module.parent], tree.name(index)
                states = self._after(before, name)
                if tree.wrapped(module.parent) == name:
                    states |= before
            seen.append(states)
            if states not in fits:
                fits[states] = frozenset(n for n, used in states if used == len(self._names[n]))
            yield fits[states] if module.parent < 0 else fits[states] - self._of_root

    def _after(self, states: _States, name: str) -> _States:
        if (states, name) not in self._next:
            new = set()
            for number, used in states:
                wanted = self._names[number][used] if used < len(self._names[number]) else None
                if wanted == ANY:
                    new.add((number, used))
                elif wanted is not None and (wanted == ONE or binds(name, wanted, {}) is not None):
                    new.add((number, used + 1))
            self._next[states, name] = self._closed(new)
        return self._next[states, name]

    def _closed(self, states: set[tuple[int, int]]) -> _States:
        """Add what comes where ``**`` stands for nothing."""
        pending = list(states)
        while pending:
            number, used = pending.pop()
            further = (number, used + 1)
            if used < len(self._names[number]) and self._names[number][used] == ANY and further not in states:
                states.add(further)
                pending.append(further)
        return frozenset(states)


class RuleSet:
    """The rules of all sections that are for a module."""

    def __init__(self, sections: tuple[Section, ...], mapping: LayerMapping) -> None:
        self.mapping = mapping
        self.longest = 0
        self._by_first: dict[str, list[tuple[tuple[int, ...], Rule, int]]] = {}
        for section in sections:
            for rule in section.rules:
                for number, key in enumerate(rule.keys):
                    first = "" if "{" in key[0] else key[0]
                    self._by_first.setdefault(first, []).append((_rank(key, section), rule, number))
                    self.longest = max(self.longest, len(key))
        for bucket in self._by_first.values():
            bucket.sort(key=lambda entry: entry[0], reverse=True)
        self.params = self._params(sections)
        self._counting = [
            (rule, any_number(key))
            for section in sections
            for rule in section.rules
            for key in rule.keys
            if counts(key)
        ]

    def claiming(self, tree: Tree, here: int, names: Names) -> Rule | None:
        """Return a rule that is for some numbers only of what names lead to, whichever number it is there."""
        return next((rule for rule, key in self._counting if consumed(tree, here, names, key) is not None), None)

    def find(self, tree: Tree, here: int, names: Names) -> Found | None:
        """Return the rule whose key leads from a module to the one that the names lead to."""
        fitting = []
        for first in self._firsts(tree, here, names):
            for rank, rule, number in self._by_first.get(first, ()):
                if fitting and rank < fitting[0][0]:
                    break
                bindings = consumed(tree, here, names, rule.keys[number])
                if bindings is not None:
                    targets = (rule.source,) if rule.is_reversed else rule.targets
                    found = Found(rule, tuple(filled(target, bindings) for target in targets), number)
                    fitting.append((rank, found))
        if not fitting:
            return None
        best = max(rank for rank, _ in fitting)
        equal = [found for rank, found in fitting if rank == best]
        for other in equal[1:]:
            if _said(other) != _said(equal[0]):
                raise MappingError(
                    f"{self.mapping.where(equal[0].rule.line, other.rule.line)}: {equal[0].rule.section} and "
                    f"{other.rule.section} fit {'.'.join(names)} equally well and say different things: name more of the "
                    "path in one of them"
                )
        return equal[0]

    def _firsts(self, tree: Tree, here: int, names: Names) -> list[str]:
        """Return the components with which a key may begin; the empty one stands for placeholders."""
        firsts = ["", names[0]]
        for name, following in itertools.pairwise(names):
            if tree.wrapped(here) != name:
                break
            here = tree.children[here][name]
            firsts.append(following)
        return list(dict.fromkeys(firsts)) if self._by_first else []

    def _params(self, sections: tuple[Section, ...]) -> dict[Names, ParameterRule]:
        chosen: dict[Names, tuple[tuple[int, ...], ParameterRule]] = {}
        for section in sections:
            for rule in section.params:
                rank = tuple(map(int, section.rank))
                other = chosen.get(rule.source)
                if other is not None and other[0] == rank and _of_parameter(other[1]) != _of_parameter(rule):
                    raise MappingError(
                        f"{self.mapping.where(other[1].line, rule.line)}: {other[1].section} and {rule.section} fit the same "
                        f"module equally well and say different things of {'.'.join(rule.source)}: name more of the path"
                    )
                if other is None or other[0] < rank:
                    chosen[rule.source] = (rank, rule)
        return {source: rule for source, (_, rule) in chosen.items()}


class SectionIndex:
    """The sections of a mapping as they are for the modules of one tree."""

    def __init__(self, mapping: LayerMapping, tree: Tree) -> None:
        self.members: dict[str, list[int]] = {section.name: [] for section in mapping.sections}
        self._sets: list[RuleSet | None] = [None] * len(tree)
        scoped = [section for section in mapping.sections if section.path is not None]
        bare: dict[str, list[Section]] = {}
        for section in mapping.sections:
            if section.path is None:
                bare.setdefault(section.class_name, []).append(section)
        known: dict[tuple[frozenset[int], str], tuple[tuple[Section, ...], RuleSet | None]] = {}
        patterns = Patterns([section.path for section in scoped if section.path is not None])
        for index, fits in enumerate(patterns.fitting(tree)):
            key = fits, tree.class_name(index)
            if key not in known:
                there = [scoped[n] for n in sorted(fits) if scoped[n].class_name in ("", key[1])]
                sections = (*there, *bare.get(key[1], ()))
                known[key] = sections, RuleSet(sections, mapping) if sections else None
            sections, self._sets[index] = known[key]
            for section in sections:
                self.members[section.name].append(index)

    def rules(self, index: int) -> RuleSet | None:
        """Return the rules for a module, None where there are none."""
        return self._sets[index]


def ways(tree: Tree, sections: SectionIndex) -> Iterator[tuple[int, Found | None]]:
    """Yield, for every module, from where its place is told: the module and the key that leads from there, or its parent.

    Of all modules on the way from the root the outermost goes first whose keys name the module; so the longest key
    wins. Below a key that was used only those count at which the way made a stop.
    """
    stops: list[tuple[int, ...]] = []
    depths: list[int] = []
    for index, module in enumerate(tree.modules):
        before, start, found, claiming = (), -1, None, None
        depths.append(0)
        if module.parent >= 0:
            before, start = stops[module.parent], module.parent
            depths[index] = depths[start] + (tree.wrapped(start) != tree.name(index))
            for number, stop in enumerate(before):
                rules = sections.rules(stop)
                if rules is not None and depths[index] - depths[stop] <= rules.longest:
                    names = _names(tree, stop, index)
                    found = rules.find(tree, stop, names)
                    claiming = claiming or rules.claiming(tree, stop, names)
                if found is not None:
                    before, start = before[: number + 1], stop
                    break
            if found is None and claiming is not None:
                found = Found(claiming, ())
        stops.append((*before, index) if sections.rules(index) is not None else before)
        yield start, found


def _names(tree: Tree, start: int, index: int) -> Names:
    names = []
    while index != start:
        names.append(tree.name(index))
        index = tree.modules[index].parent
    return tuple(reversed(names))


def consumed(tree: Tree, here: int, names: Names, key: Names) -> dict[str, str] | None:
    """Return what a key's placeholders stand for if it leads where names lead; it may leave names of wrapped modules out."""
    used, bindings = 0, {}
    for part in key:
        while used < len(names):
            bound = binds(names[used], part, bindings)
            is_wrapper = tree.wrapped(here) == names[used]
            here = tree.children[here][names[used]]
            used += 1
            if bound is not None:
                bindings = bound
                break
            if not is_wrapper:
                return None
        else:
            return None
    return bindings if used == len(names) else None


def _rank(source: Names, section: Section) -> tuple[int, ...]:
    return len(source), sum("{" not in name for name in source), *map(int, section.rank)


def _said(found: Found) -> tuple[object, ...]:
    rule = found.rule
    more = (rule.targets, found.key) if rule.is_reversed else ()
    params = tuple(map(_of_parameter, rule.params))
    return found.targets, rule.split, rule.transpose, rule.permute, rule.rotary, params, more


def _of_parameter(rule: ParameterRule) -> tuple[object, ...]:
    return rule.source, rule.targets, rule.split, rule.transpose, rule.permute, rule.is_reversed, rule.reshape
