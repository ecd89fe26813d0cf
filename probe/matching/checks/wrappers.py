"""Lines of a mapping that count on wrappers: read for the model that these hold, whether the wrappers are there or not.

A mapping that was written for ``[DDP(Float16Module(GPTModel))]`` says the same of a bare ``GPTModel``: a wrapper adds nothing
to what its model computes, so what a line says of it is said of the model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from probe.mapping import TOP, LayerMapping, ParameterRule, Rule, Section
from probe.mapping.patterns import Names, PathPattern, places
from probe.structure.tree import WRAPPERS, Tree

_OF_LAYERS = {"BatchNorm3d"}
"""wrappers that stand around one layer, and not around a model"""
AROUND_MODELS = frozenset(WRAPPERS.keys() - _OF_LAYERS)
NAMES = frozenset({"0", *(name for wrapper, name in WRAPPERS.items() if wrapper not in _OF_LAYERS)})
"""names that wrappers, and a list of one model, give to what they hold"""


@dataclass(frozen=True, slots=True)
class LookedThrough:
    """A mapping as it is for two trees, whatever wrappers each of them has."""

    mapping: LayerMapping
    inner: Rule | None = None
    """the line that says which module of the target the wrapped model is, where the wrapper that it names is not there"""
    around: frozenset[str] = frozenset({TOP})
    """sections that are about what holds the model, and not about the model"""

    @property
    def rules(self) -> tuple[Rule, ...]:
        """Every line that leads from a module to another."""
        return self.mapping.rules if self.inner is None else (*self.mapping.rules, self.inner)


def with_wrappers(mapping: LayerMapping, a: Tree, b: Tree) -> tuple[Tree, Tree]:
    """Return the trees, in which a module that a line names in the place of a wrapper is one too, whatever its class.

    A line says that what is in a wrapper on one side is in a module on the other that holds nothing else.
    """
    sections = (each for each in mapping.sections if each.name == TOP or each.class_name in AROUND_MODELS)
    ends = [(rule.source, rule.target) for section in sections for rule in section.rules if len(rule.targets) == 1]
    found: tuple[set[int], set[int]] = (set(), set())
    for names in (*ends, *(pair[::-1] for pair in ends)):
        for (known, other), (key, path), held in (((a, b), names, found[1]), ((b, a), names, found[0])):
            if _stays_around(known, key):
                held.update(_holders(other, path))
    return Tree(a.modules, found[0]) if found[0] else a, Tree(b.modules, found[1]) if found[1] else b


def _holders(tree: Tree, path: Names) -> list[int]:
    """Return the modules of unknown classes on a path that hold nothing but the next one; none where one holds more."""
    here, found = tree.unwrapped(tree.root), []
    for name in path:
        inner = tree.children[here].get(name)
        if inner is None and name in NAMES:
            continue
        if inner is None or len(tree.children[here]) > 1 or tree.modules[here].n_params != tree.modules[inner].n_params:
            return []
        found.append(here)
        here = tree.unwrapped(inner)
    return found


def looked_through(mapping: LayerMapping, source: Tree, target: Tree) -> LookedThrough:
    """Return a mapping without what it says of wrappers that the source does not have.

    Lines from wrapper to wrapper say nothing. The section of a wrapper that is not there is about the model, with the paths that
    begin below it. A line for what the wrapper holds says where the model's own parts begin.
    """
    model = source.unwrapped(source.root)
    sections, around = [], {TOP}
    inner: Rule | None = None
    for section in mapping.sections:
        is_missing = _is_missing(section, source)
        if not (is_missing or section.name == TOP):
            sections.append(section)
            continue
        around.add(section.name)
        kept = []
        for rule in section.rules:
            if _is_of_wrappers(rule, source, target):
                continue
            found = _stripped(rule, source, model, is_missing)
            if all(found.keys) or found == rule:
                kept.append(found)
            else:
                inner = inner or rule
        params = (
            tuple(_stripped_parameter(each, source, model) for each in section.params) if is_missing else section.params
        )
        path = PathPattern(()) if is_missing else section.path
        made = replace(section, rules=tuple(kept), params=params, path=path, class_name="")
        if kept or params or not section.rules:
            sections.append(made)
    return LookedThrough(replace(mapping, sections=tuple(sections)), inner, frozenset(around))


def _is_missing(section: Section, tree: Tree) -> bool:
    """Return True if a section is about a wrapper that a tree does not have."""
    name = section.class_name
    return section.path is None and name in AROUND_MODELS and all(each.class_name != name for each in tree.modules)


def _is_of_wrappers(rule: Rule, source: Tree, target: Tree) -> bool:
    """Return True if a line says of a wrapper which wrapper it is."""
    theirs = (rule.source,) if rule.is_reversed else rule.targets
    return all(_stays_around(source, key) for key in rule.keys) and all(_stays_around(target, path) for path in theirs)


def _stays_around(tree: Tree, path: Names) -> bool:
    """Return True if a path leads to the model or to what wraps it, where names of wrappers that are not there say nothing."""
    here = tree.root
    for name in path:
        found = tree.child(here, name)
        if found is None and name not in NAMES:
            return False
        here = here if found is None else found
    return tree.unwrapped(here) == tree.unwrapped(tree.root)


def _stripped(rule: Rule, tree: Tree, model: int, is_missing: bool) -> Rule:
    """Return a line without the names of wrappers that are not there, as it is where it names something."""
    if not is_missing and any(True for key in rule.keys for _ in places(tree, tree.root, key)):
        return rule
    keys = tuple(_below(tree, model, key) for key in rule.keys)
    is_there = all(any(True for _ in places(tree, model, key)) for key in keys)
    if not is_missing and not is_there or not all(keys) and len(keys) > 1:
        return rule
    return replace(rule, targets=keys) if rule.is_reversed else replace(rule, source=keys[0])


def _stripped_parameter(rule: ParameterRule, tree: Tree, model: int) -> ParameterRule:
    if rule.is_reversed:
        return replace(rule, targets=tuple(_below(tree, model, path) for path in rule.targets))
    return replace(rule, source=_below(tree, model, rule.source))


def _below(tree: Tree, model: int, key: Names) -> Names:
    """Return a path without the names of wrappers that it begins with."""
    while key and key[0] in NAMES and key[0] not in tree.children[model]:
        key = key[1:]
    return key
