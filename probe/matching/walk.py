"""Walking from the root of one tree to a module, and the same way in the other, as a mapping says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from probe.mapping import LayerMapping, Rule
from probe.matching.lists import Fingerprint, aligned, distinctive, is_list
from probe.matching.result import Reason
from probe.tree import WRAPPERS, Tree

_WRAPPED_NAMES = {*WRAPPERS.values(), "0"}
"""names that wrappers, and a list of one model, give to what they hold"""


@dataclass(frozen=True, slots=True)
class Found:
    """Where a module of the source belongs in the target."""

    index: int
    reason: Reason
    rule: Rule | None
    """the rule that names the module itself, not one around it"""


@dataclass
class Walk:
    """Translates modules of ``source`` into modules of ``target``."""

    source: Tree
    target: Tree
    mapping: LayerMapping
    moved: dict[int, dict[str, str | None]] = field(default_factory=dict)
    """for lists of layers that were aligned by their weights: the target's name of each child, None for none"""
    resolved: dict[Rule, None] = field(default_factory=dict)
    """rules that led from a module of the source to one of the target"""
    unresolved: dict[Rule, list[int]] = field(default_factory=dict)
    """rules that named a module but led to none: below which modules of the source"""
    _sections: dict[str, list[Rule]] = field(default_factory=dict)

    def translate(self, index: int) -> Found | None:
        """Return the target module that takes the place of a source module, and the reason."""
        names = self.source.steps_to(index)
        here, there = self.source.root, self.target.root
        reason = Reason.SAME_PATH
        rule: Rule | None = None
        while names:
            rule, used = self._rule(here, names)
            if rule is not None:
                found = self._resolved(there, rule.target)
                if found is None:
                    places = self.unresolved.setdefault(rule, [])
                    if here not in places:
                        places.append(here)
                    return None
                self.resolved[rule] = None
                there, reason = found, Reason.MAPPED
            else:
                used = 1
                step = self._same_name(here, there, names[0])
                if step is None:
                    return None
                there, moved = step
                reason = Reason.SAME_VALUES if moved else reason
            for name in names[:used]:
                here = self.source.children[here][name]
            names = names[used:]
        if self.source.wrapped(index) is None:
            there = self.target.unwrapped(there)
        elif self.target.wrapped(there) is None:
            return None
        return Found(there, reason, rule)

    def _resolved(self, there: int, path: Sequence[str]) -> int | None:
        """Return the target module at a path; wrappers that it names need not be there."""
        for name in path:
            found = self.target.child(there, name)
            if found is not None:
                there = found
            elif name not in _WRAPPED_NAMES or self.target.unwrapped(self.target.root) != self.target.unwrapped(there):
                return None
        return there

    def _rule(self, here: int, names: Sequence[str]) -> tuple[Rule | None, int]:
        for rule in self._section(here):
            used = self._consumed(here, names, rule.source)
            if used:
                return rule, used
        return None, 0

    def _section(self, index: int) -> list[Rule]:
        is_root = index == self.source.root
        key = f"{self.source.class_name(index)}{'/' if is_root else ''}"
        if key not in self._sections:
            self._sections[key] = self.mapping.section(self.source.class_name(index), is_root)
        return self._sections[key]

    def _consumed(self, here: int, names: Sequence[str], key: Sequence[str]) -> int:
        """Return how many names a key stands for, names of wrapped modules left out of the key included."""
        used = 0
        for part in key:
            while used < len(names) and names[used] != part:
                if self.source.wrapped(here) != names[used]:
                    return 0
                here = self.source.children[here][names[used]]
                used += 1
            if used == len(names):
                return 0
            here = self.source.children[here][names[used]]
            used += 1
        return used

    def _same_name(self, here: int, there: int, name: str) -> tuple[int, bool] | None:
        moved = here in self.moved
        wanted = self.moved[here].get(name, name) if moved else name
        if wanted is None:
            return None
        holds = self.source.wrapped(here)
        if holds == name:
            return (self.target.children[there][name] if self.target.wrapped(there) == name else there), False
        if holds is not None:  # something beside what a wrapper holds
            beside = self.target.children[there].get(name) if self.target.wrapped(there) not in (None, name) else None
            return None if beside is None else (beside, False)
        found = self.target.child(self.target.unwrapped(there), wanted)
        return None if found is None else (found, moved)

    def align_lists(self, weights_here: Fingerprint, weights_there: Fingerprint) -> list[str]:
        """Where a list of layers is shorter on one side, pair its members by weights; return what was found."""
        said = []
        for index in range(len(self.source)):
            mine = self.source.children[index]
            if not is_list(mine):
                continue
            found = self.translate(index)
            theirs = self.target.children[found.index] if found else {}
            if not is_list(theirs) or len(mine) == len(theirs):
                continue
            names = aligned(
                distinctive({name: weights_here(child) for name, child in mine.items()}),
                distinctive({name: weights_there(child) for name, child in theirs.items()}),
            )
            if names is not None and any(names.get(name) != name for name in mine if name in theirs):
                self.moved[index] = {name: names.get(name) for name in mine}
                said.append(
                    f"{self.source.path(index) or 'the root'} has {len(mine)} members on one side and {len(theirs)} on "
                    "the other; they are paired by their initial weights"
                )
        return said
