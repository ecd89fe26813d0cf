"""Lines of a mapping that did nothing, and what they may have meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from probe.mapping import TOP, ParameterRule, Rule, Section
from probe.mapping.nearest import alike, did_you_mean
from probe.mapping.patterns import Names, places
from probe.mapping.rules import written
from probe.mapping.sections import SectionIndex
from probe.matching.bundles import Bundles
from probe.matching.walk import Miss, Walk, several_models
from probe.tree import Tree

_SOME = 20
"""modules of a section in which a name is looked for"""


def complaints(walk: Walk, bundles: Bundles, other: SectionIndex, source: str, unused: Iterable[str]) -> list[str]:
    """Return what is wrong with a mapping, line by line, in the order of unused keys, then missing targets.

    Parameters
    ----------
    other
        the mapping's sections in the target
    source
        ``A`` or ``B``: the side that the mapping is read from
    unused
        what of ``ignore`` fits nothing
    """
    found = _Complaints(walk, bundles, other, source)
    keys = [text for section in walk.mapping.sections for text in found.of_section(section)]
    ignored = [f"the mapping's {text} fits nothing on either side" for text in unused]
    return [*keys, *ignored, *found.lost().values()]


def lost(walk: Walk, bundles: Bundles, other: SectionIndex, source: str) -> dict[Rule | ParameterRule, str]:
    """Return what is said of lines that lead to nothing on the other side; as `complaints`."""
    return _Complaints(walk, bundles, other, source).lost()


class _Complaints:
    def __init__(self, walk: Walk, bundles: Bundles, other: SectionIndex, source: str) -> None:
        self.walk, self.bundles, self.other, self.side = walk, bundles, other, source
        self.members = walk.sections.members

    def lost(self) -> dict[Rule | ParameterRule, str]:
        """Return what is said of lines that lead to nothing: of modules, then of parameters."""
        rules = (rule for rule in self.walk.mapping.rules if self.walk.wrongly_missed(rule) and not rule.is_optional)
        places = ((rule, place) for rule, place in self.bundles.missing.items() if not rule.is_optional)
        return {rule: self.of_missing(rule) for rule in rules} | {
            rule: self.of_parameter(rule, *place) for rule, place in places
        }

    def of_section(self, section: Section) -> Iterator[str]:
        """Yield what is wrong with the keys of a section."""
        has_keys = section.rules or section.params
        if has_keys and not self.members[section.name]:
            if not section.is_optional:
                yield f"the mapping's line {section.line}: {section.name}: {self._no_such_module(section)}"
            return
        for rule in section.rules:
            if rule.is_optional:
                continue
            lacking = self.walk.lacking.get(rule)
            if lacking is not None and rule not in self.walk.missed:
                near = nearest_path(self.walk.source, [lacking[0]], lacking[1])
                place = self.walk.source.path(lacking[0]) or "the root"
                yield f"the mapping's {rule} is not used for {place}: there is no {written(lacking[1])}{near}"
            elif rule not in self.walk.resolved and rule not in self.walk.missed:
                yield f"the mapping's {rule} {self._unused(rule)}"
        members = self.members[section.name]
        lines = [(param, members) for param in section.params]
        for rule in section.rules:
            lines += [(param, self._named_by(rule)) for param in rule.params]
        for param, modules in lines:
            if not (param.is_optional or param in self.bundles.used or param in self.bundles.missing):
                yield f"the mapping's {param} {self._unused_parameter(modules, param)}"

    def _named_by(self, rule: Rule) -> list[int]:
        """Return the modules of the source that a line is about."""
        members = self.members[rule.section]
        return [each for index in members for key in rule.keys for each, _ in places(self.walk.source, index, key)]

    def _no_such_module(self, section: Section) -> str:
        source, target = self.walk.source, self.walk.target
        if self.other.members[section.name]:
            return f"only {self._other_side} has such modules, and the mapping is read from {self.side}"
        if section.path is None or section.class_name:
            classes = _classes(source) | _classes(target)
            if section.class_name not in classes:
                return f"no module is of this class{did_you_mean(section.class_name, sorted(classes))}"
        return "no module is at such a path"

    @property
    def _other_side(self) -> str:
        return "B" if self.side == "A" else "A"

    def _unused(self, rule: Rule) -> str:
        blocked = self.walk.blocked.get(rule)
        if blocked is not None:
            return self._no_way(blocked)
        members = self.members[rule.section]
        source = self.walk.source
        if any(True for key in rule.keys for index in members for _ in places(source, index, key)):
            return "is never used: lines with longer keys, or for the path, go before it"
        near = nearest_path(source, members[:_SOME], rule.keys[0])
        return f"names nothing that is there{near}"

    def _no_way(self, blocked: Miss) -> str:
        source = self.walk.source
        start, ended = blocked.start, blocked.ended
        parent = source.modules[ended].parent
        chunks = several_models(source) if parent == source.root else ""
        if chunks:
            return f"is not used: {source.path(start)} ({source.class_name(start)}) has no counterpart; {chunks}"
        around = len(source.path(parent)) + 1 if source.path(parent) else 0
        onwards = source.path(start)[len(source.path(ended)) :].split(".")[1:2]
        first = source.path(ended)[around:]
        lines = [f"{first}: …", *(f"{first}.{name}: …" for name in onwards)]
        since = f", since {source.path(ended)} has none" if ended != start else ""
        return (
            f"is not used: {source.path(start)} ({source.class_name(start)}) has no counterpart{since}; a line "
            f"{' or '.join(lines)} in section {source.class_name(parent) if parent else TOP} would say where it is"
        )

    def _unused_parameter(self, modules: list[int], rule: ParameterRule) -> str:
        source = self.bundles.source
        have = [index for index in modules if self._has(index, rule)]
        if have:
            return self._no_way(Miss(have[0], -1, ended=self.walk.ended(have[0]))) + self._alone(have, rule)
        slots = {slot for index in modules[:_SOME] for slot in source.slots.get(source.tree.unwrapped(index), {})}
        return f"names no parameter that is there{did_you_mean(written(rule.source), sorted(slots))}"

    def _has(self, index: int, rule: ParameterRule) -> bool:
        """Tell whether what a line names of this side is there."""
        if rule.is_reversed:
            found, lacking = self.bundles.rows(self.bundles.source, index, rule)
            return bool(found) and lacking is None
        return self.bundles.source.parameter(index, rule.source) is not None

    def _alone(self, modules: list[int], rule: ParameterRule) -> str:
        """Return what to write where a weight alone is to be compared, without its module."""
        path = self.walk.source.path(modules[0])
        if len(modules) > 1 or rule.is_reversed or not path:
            return ""
        return f"; {path}.{written(rule.source)}: …, below params in {TOP}, would compare the weight alone"

    def of_missing(self, rule: Rule) -> str:
        """Say which target is not there, and what is near."""
        misses = self.walk.wrongly_missed(rule)
        place = self.walk.source.path(misses[0].start) or self.walk.source.path(misses[0].module)
        some = f" for {place}" if rule in self.walk.resolved else ""
        more = f" and {len(misses) - 1} more" if some and len(misses) > 1 else ""
        which = f" ({written(misses[0].target)})" if len(rule.targets) > 1 and not rule.is_reversed else ""
        near = self._same_path(misses[0]) or nearest_path(self.walk.target, [misses[0].there], misses[0].target)
        if not near and not some:
            near = self._elsewhere(misses[0])
        return f"the mapping's {rule} leads to nothing on the other side{which}{some}{more}{near}"

    def _same_path(self, miss: Miss) -> str:
        """Return the module of the target that has the path which the line names in the source, unless another is as near."""
        source, tree = self.walk.source, self.walk.target
        start, wanted = source.path(miss.start), written(miss.target)
        path = source.path(miss.module)[len(start) + 1 if start else 0 :]
        around = f"{tree.path(miss.there)}." if miss.there >= 0 and tree.path(miss.there) else ""
        if miss.there < 0 or not path or f"{around}{path}" not in tree.by_path:
            return ""
        near = nearest_path(tree, [miss.there], miss.target)
        return "" if near and alike(near[len("; did you mean ") : -1], wanted) else f"; did you mean {path}?"

    def _elsewhere(self, miss: Miss) -> str:
        """Return where a target is that is not below the module in question."""
        tree = self.walk.target
        end = f".{written(miss.target)}"
        path = next((module.path for module in tree.modules if f".{module.path}".endswith(end)), None)
        return "" if path is None else f"; {path} is there, outside of {tree.path(miss.there) or 'the root'}"

    def of_parameter(self, rule: ParameterRule, index: int, path: Names) -> str:
        """Say which parameter is not there."""
        place = self.walk.source.path(index) or "the root"
        return f"the mapping's {rule} leads to nothing on the other side for {place}: there is no {written(path)}"


def nearest_path(tree: Tree, starts: Iterable[int], path: Names) -> str:
    """Return ``; did you mean x?`` with the path below some modules that is most like one, or nothing."""
    known: dict[str, None] = {}
    for start in starts:
        known.update(dict.fromkeys(_paths(tree, start, len(path) + 1)))
    return did_you_mean(written(path), known)


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
