"""Lines of a mapping that did nothing, and what they may have meant."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from probe.mapping import TOP, LayerMapping, ParameterRule, Rule, Section
from probe.mapping.nearest import alike, nearest
from probe.mapping.patterns import Names, places
from probe.mapping.rules import written
from probe.mapping.sections import SectionIndex
from probe.matching.bundles import Bundles
from probe.matching.result import LostLine
from probe.matching.walk import Miss, Walk, several_models
from probe.notes import Note, note
from probe.structure.tree import Tree

_SOME = 20
"""modules of a section in which a name is looked for"""


class Complaints:
    """What is wrong with a mapping, line by line, as read from a ``side``; ``other`` are its sections in the target."""

    def __init__(self, walk: Walk, bundles: Bundles, other: SectionIndex, side: str) -> None:
        self.walk, self.bundles, self.other, self.side = walk, bundles, other, side
        self.members = walk.sections.members

    def all(self, unused: Iterable[str]) -> list[Note]:
        """Return all of it: unused keys, then what of ``ignore`` fits nothing, then missing targets."""
        keys = [said for section in self.walk.mapping.sections for said in self.of_section(section)]
        return [*keys, *(note("ignore-fits-nothing", line=line) for line in unused), *self.lost.values()]

    @functools.cached_property
    def lost(self) -> dict[Rule | ParameterRule, Note]:
        """What is said of lines that lead to nothing on the other side: of modules, then of parameters."""
        source = self.walk.source
        rules = (rule for rule in self.walk.read.rules if self.walk.wrongly_missed(rule) and not rule.is_optional)
        places = ((rule, place) for rule, place in self.bundles.missing.items() if not rule.is_optional)
        return {rule: self.of_missing(rule) for rule in rules} | {
            rule: note("line-leads-to-no-parameter", rule=str(rule), path=source.path(index), name=written(name))
            for rule, (index, name) in places
        }

    def of_section(self, section: Section) -> Iterator[Note]:
        """Yield what is wrong with the keys of a section."""
        has_keys = section.rules or section.params
        if has_keys and not self.members[section.name]:
            if not section.is_optional:
                yield note(
                    "section-of-no-module", line=section.line, section=section.name, why=self._no_such_module(section)
                )
            return
        for rule in section.rules:
            if rule.is_optional:
                continue
            lacking = self.walk.lacking.get(rule)
            if lacking is not None and rule not in self.walk.missed:
                near = nearest_path(self.walk.source, [lacking[0]], lacking[1])
                path, name = self.walk.source.path(lacking[0]), written(lacking[1])
                yield note("line-lacks-a-part", rule=str(rule), path=path, name=name, near=near)
            elif rule not in self.walk.resolved and rule not in self.walk.missed:
                yield note("line-unused", rule=str(rule), why=self._unused(rule))
        members = self.members[section.name]
        lines = [(param, members) for param in section.params]
        for rule in section.rules:
            lines += [(param, self._named_by(rule)) for param in rule.params]
        for param, modules in lines:
            if not (param.is_optional or param in self.bundles.used or param in self.bundles.missing):
                yield note("line-unused", rule=str(param), why=self._unused_parameter(modules, param))

    def _named_by(self, rule: Rule) -> list[int]:
        """Return the modules of the source that a line is about."""
        members = self.members[rule.section]
        return [each for index in members for key in rule.keys for each, _ in places(self.walk.source, index, key)]

    def _no_such_module(self, section: Section) -> Note:
        source, target = self.walk.source, self.walk.target
        if self.other.members[section.name]:
            return note("modules-of-the-other-side", side=self.side, other="B" if self.side == "A" else "A")
        if section.path is None or section.class_name:
            classes = _classes(source) | _classes(target)
            if section.class_name not in classes:
                return note("no-module-of-the-class", near=_near(section.class_name, sorted(classes)))
        return note("no-module-at-the-path")

    def _unused(self, rule: Rule) -> Note:
        blocked = self.walk.blocked.get(rule)
        if blocked is not None:
            return self._no_way(blocked)
        members = self.members[rule.section]
        source = self.walk.source
        if any(True for key in rule.keys for index in members for _ in places(source, index, key)):
            return note("line-behind-others")
        return note("line-names-nothing", near=nearest_path(source, members[:_SOME], rule.keys[0]))

    def _no_way(self, blocked: Miss, alone: str = "") -> Note:
        """Say that a module has no counterpart, and which line would say where it is.

        ``alone`` is the key of a line that would compare a weight alone, without its module.
        """
        source = self.walk.source
        start, ended = blocked.start, blocked.ended
        parent = source.modules[ended].parent
        of = {"path": source.path(start), "class_name": source.class_name(start), "alone": alone}
        models = several_models(source) if parent == source.root else None
        if models is not None:
            return note("module-in-a-list-without-counterpart", models=models, **of)
        around = len(source.path(parent)) + 1 if source.path(parent) else 0
        onwards = source.path(start)[len(source.path(ended)) :].split(".")[1:2]
        first = source.path(ended)[around:]
        keys = (first, *(f"{first}.{name}" for name in onwards))
        since = source.path(ended) if ended != start else None
        section = source.class_name(parent) if parent else TOP
        return note("module-without-counterpart", since=since, keys=keys, section=section, **of)

    def _unused_parameter(self, modules: list[int], rule: ParameterRule) -> Note:
        source = self.bundles.source
        have = [index for index in modules if self._has(index, rule)]
        if have:
            return self._no_way(Miss(have[0], -1, ended=self.walk.ended(have[0])), self._alone(have, rule))
        slots = {slot for index in modules[:_SOME] for slot in source.slots.get(source.tree.unwrapped(index), {})}
        return note("line-names-no-parameter", near=_near(written(rule.source), sorted(slots)))

    def _has(self, index: int, rule: ParameterRule) -> bool:
        """Return True if what a line names of this side is there."""
        if rule.is_reversed:
            found, lacking = self.bundles.rows(self.bundles.source, index, rule)
            return bool(found) and lacking is None
        return self.bundles.source.parameter(index, rule.source) is not None

    def _alone(self, modules: list[int], rule: ParameterRule) -> str:
        """Return the key of a line that compares a weight alone, without its module, or nothing."""
        path = self.walk.source.path(modules[0])
        if len(modules) > 1 or rule.is_reversed or not path:
            return ""
        return f"{path}.{written(rule.source)}"

    def of_missing(self, rule: Rule) -> Note:
        """Say which target is not there, and what is near."""
        misses = self.walk.wrongly_missed(rule)
        place = self.walk.source.path(misses[0].start) or self.walk.source.path(misses[0].module)
        is_partly = rule in self.walk.resolved
        near = self._same_path(misses[0]) or nearest_path(self.walk.target, [misses[0].there], misses[0].target)
        elsewhere = "" if near or is_partly else self._elsewhere(misses[0])
        return note(
            "line-leads-to-nothing", rule=str(rule), path=place if is_partly else None, count=len(misses), near=near,
            target=written(misses[0].target) if len(rule.targets) > 1 and not rule.is_reversed else "",
            elsewhere=elsewhere, outside=self.walk.target.path(misses[0].there) if elsewhere else "",
        )  # fmt: skip

    def _same_path(self, miss: Miss) -> str:
        """Return the path in the target that the line names in the source, unless another is as near."""
        source, tree = self.walk.source, self.walk.target
        start, wanted = source.path(miss.start), written(miss.target)
        path = source.path(miss.module)[len(start) + 1 if start else 0 :]
        around = f"{tree.path(miss.there)}." if miss.there >= 0 and tree.path(miss.there) else ""
        if miss.there < 0 or not path or f"{around}{path}" not in tree.by_path:
            return ""
        near = nearest_path(tree, [miss.there], miss.target)
        return "" if near and alike(near, wanted) else path

    def _elsewhere(self, miss: Miss) -> str:
        """Return the path of a target that is not below the module in question, or nothing."""
        tree = self.walk.target
        end = f".{written(miss.target)}"
        return next((module.path for module in tree.modules if f".{module.path}".endswith(end)), "")


def nearest_path(tree: Tree, starts: Iterable[int], path: Names) -> str:
    """Return the path below some modules that is most like one, with its placeholders for numbers, or nothing."""
    known: dict[str, None] = {}
    for start in starts:
        known.update(dict.fromkeys(_paths(tree, start, len(path) + 1)))
    left = (name for name in path if "{" in name)
    near = _near(written(path), known).split(".")
    return ".".join(next(left, name) if name.isdigit() else name for name in near)


def _near(word: str, known: Iterable[str]) -> str:
    return next(iter(nearest(word, known)), "")


def _paths(tree: Tree, index: int, depth: int) -> Iterator[str]:
    """Yield relative paths below a module, the shorter ones first."""
    level = [("", tree.unwrapped(index))]
    for _ in range(depth):
        level = [
            (f"{path}.{name}" if path else name, tree.unwrapped(child))
            for path, here in level
            for name, child in tree.children[here].items()
        ]
        yield from (path for path, _ in level)


def _classes(tree: Tree) -> set[str]:
    return {module.class_name for module in tree.modules}


# Lines that may be to blame for what is found: those that lead to nothing, and which line made a pair


def lost_lines(
    walk: Walk,
    bundles: Bundles,
    notes: Mapping[Rule | ParameterRule, Note],
    partner: Mapping[int, int],
    left: Iterable[int],
    here: str,
) -> tuple[LostLine, ...]:
    """Return the lines that lead to nothing, with the modules of both sides that may lack a partner for it.

    In the source these are what the line names, or the module of the parameter. In the target these are what is left
    in the place that holds what the line names, and what has the same path.

    ``notes`` has what is said of each line, ``partner`` the partners of modules of the source (``here``, A or B),
    ``left`` the target's modules without one.
    """
    source, target, lonely = walk.source, walk.target, list(left)
    found = []
    for rule, said in notes.items():
        is_parameter = isinstance(rule, ParameterRule)
        if isinstance(rule, ParameterRule):
            mine = {bundles.missing[rule][0]}
            theirs = {partner[index] for index in mine if index in partner}
        else:
            mine = {miss.module for miss in walk.wrongly_missed(rule)}
            around = {partner.get(source.modules[index].parent) for index in mine}
            paths = {source.path(index) for index in mine}
            theirs = {i for i in lonely if target.modules[i].parent in around or target.path(i) in paths}
        ends = frozenset(mine), frozenset(theirs)
        line = where(rule, walk.mapping)
        found.append(LostLine(line, said, *(ends if here == "A" else ends[::-1]), is_parameter))
    return tuple(found)


def where(rule: Rule | ParameterRule, mapping: LayerMapping) -> str:
    """Return ``line 4 of m.yaml``; of a mapping without lines what the line says."""
    return f"{f'line {rule.line}' if rule.line else rule} of {Path(mapping.name).name}"
