"""What a mapping leaves out: modules with all that is in them, but for what a line of it names."""

from __future__ import annotations

from collections.abc import Mapping, Set

from probe.errors import MappingError
from probe.mapping import LayerMapping
from probe.mapping.sections import Patterns
from probe.matching.walk import Place
from probe.structure.tree import Tree


class Ignoring:
    """The patterns of ``ignore``, on both sides.

    Parameters
    ----------
    source, target
        the tree that the mapping is written from, and the other one
    """

    def __init__(self, mapping: LayerMapping, source: Tree, target: Tree) -> None:
        self.mapping = mapping
        self._used: set[int] = set()
        self._source, self._target = source, target
        self._named = self._matched(source), self._matched(target)

    @property
    def unused(self) -> list[str]:
        """Lines that fit nothing."""
        listed = enumerate(self.mapping.ignored)
        return [
            f"line {each.line}: ignore: {each.name}"
            for n, each in listed
            if n not in self._used and not each.is_optional
        ]

    def ignored(self, places: Mapping[int, Place]) -> tuple[frozenset[int], frozenset[int]]:
        """Return the modules that are left out of the source, and of the target."""
        mine, theirs = self._named
        lines = [(place.members or (index,), place.parts) for index, place in places.items() if place.rule is not None]
        kept = [each for each in lines if mine.isdisjoint(each[0])]
        here = _with_all_inside(self._source, mine, {index for indices, _ in kept for index in indices})
        return here, _with_all_inside(self._target, theirs, {part for _, parts in kept for part in parts})

    def _matched(self, tree: Tree) -> set[int]:
        found: set[int] = set()
        patterns = self.mapping.ignored
        if patterns:
            for index, fits in enumerate(Patterns([each.path for each in patterns]).fitting(tree)):
                fitting = {n for n in fits if patterns[n].class_name in ("", tree.class_name(index))}
                self._used |= fitting
                if fitting:
                    found.add(index)
                if index == tree.root and fitting:
                    first = patterns[min(fitting)]
                    raise MappingError(
                        f"{self.mapping.where(first.line)}: ignore: {first.name} leaves out the whole model"
                    )
        return found


def _with_all_inside(tree: Tree, named: Set[int], kept: Set[int]) -> frozenset[int]:
    found: set[int] = set()
    for index, module in enumerate(tree.modules):
        if index in named or (module.parent in found and index not in kept):
            found.add(index)
    return frozenset(found)
