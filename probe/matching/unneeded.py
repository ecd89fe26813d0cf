"""What has no counterpart and needs none: what hands on what it is given, what only holds others, functions on one side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from probe.matching.automatic.likeness import NEVER_ALIKE
from probe.matching.automatic.outline import Outline
from probe.matching.changes import Change, ChangeKind
from probe.matching.result import Matching
from probe.structure.tree import Tree

_MISSED = (ChangeKind.INSERTED, ChangeKind.REMOVED)


def needing_no_partner(
    matching: Matching, a: Outline, b: Outline, changes: Sequence[Change] = ()
) -> tuple[frozenset[int], frozenset[int]]:
    """Return the modules of A, and of B, that are left and of which nothing is missed.

    Containers, and other modules without weights that only hold what has a partner or needs none; Identity; a Dropout
    that drops nothing; modules whose weights are compared with those of others; and what computes without weights,
    where nothing of its kind is left on the other side: there it is a function. Layers that were inserted or removed,
    by ``changes``, are missed, whatever they are.
    """
    sides = _Side(a, "A", matching, changes), _Side(b, "B", matching, changes)
    sides[0].look(sides[1])
    sides[1].look(sides[0])
    return frozenset(sides[0].unneeded), frozenset(sides[1].unneeded)


def listed(tree: Tree, modules: Iterable[int]) -> str:
    """Write modules as ``24 Dropout, 3 ModuleList``."""
    counts = Counter(tree.class_name(index) for index in sorted(modules))
    return ", ".join(f"{count} {name}" for name, count in counts.most_common())


class _Side:
    def __init__(self, outline: Outline, name: str, matching: Matching, changes: Sequence[Change]) -> None:
        self.outline, self.tree = outline, outline.tree
        self.left, self.partner = set(matching.only(name)), matching.partners(name)
        self._compared = matching.compared_apart(name)
        missed = (change.a if name == "A" else change.b for change in changes if change.kind in _MISSED)
        tops = {outline.tree.by_path[path] for paths in missed for path in paths}
        self._missed = {index for top in tops for index in outline.tree.subtree(top)}
        self.unneeded: set[int] = set()

    def look(self, other: _Side) -> None:
        """Go through what is left, from the inside out."""
        for index in sorted(self.left, reverse=True):
            if index not in self._missed and self._is_unneeded(index, other):
                self.unneeded.add(index)

    def _is_unneeded(self, index: int, other: _Side) -> bool:
        inside = self.tree.children[index].values()
        if any(child in self.left and child not in self.unneeded for child in inside):
            return False
        if self.outline.weights[index]:
            return {
                (index, weight.recorded) for weight in self.outline.weights[index] if weight.recorded
            } <= self._compared
        if inside or self.outline.adds_nothing(index):
            return True
        name, kind = self.tree.class_name(index), self.outline.kind(index)
        if index in self.outline.unmeasured or "dropout" in name.lower() or (self.outline.lacks_sizes and not kind):
            return False
        return kind in NEVER_ALIKE or not any(self._is_like(index, each, other) for each in other.left)

    def _is_like(self, index: int, there: int, other: _Side) -> bool:
        """Return True if a module that is left on the other side may be the partner."""
        kind = self.outline.kind(index)
        is_one = self.tree.class_name(index) == other.tree.class_name(there)
        if other.tree.children[there] or not (is_one or (kind and kind == other.outline.kind(there))):
            return False
        return other.around(there) == self.partner.get(self.around(index))

    def around(self, index: int) -> int:
        """Return the innermost module around one that has a partner, −1 if none has."""
        return next((each for each in self.tree.ancestors(index) if each in self.partner), -1)
