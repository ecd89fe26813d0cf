"""Findings that a line of the mapping may have made: a wrong line is the first thing to look at, and not the models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from probe.comparison.coverage.changes import OF_ORDER
from probe.comparison.notes import Note, note, within
from probe.comparison.result import Divergence, Kind
from probe.matching import LostLine, Matching
from probe.matching.changes import Change
from probe.structure.tree import Tree

MOST_CONFIDENCE = 0.5
"""in a finding that a line of the mapping explains as well"""
_MOST_NAMED = 4
_OF_ORDER = {
    "axes-in-order", "order-of-building", "order-of-calls", "parts-stand-in-another-order", "permuted", "rows-stand-in-another-order",
    "same-numbers-in-another-order", "weights-of-another-layer",
}  # fmt: skip
"""codes of advice on an order"""
_HINTS_OF_ORDER = {"gate and up", "order of queries, keys and values", "permuted", "some heads"}
"""names of hints that are"""


@dataclass
class MappingErrors:
    """What lines of a mapping may be to blame for.

    Parameters
    ----------
    changes
        of the lists of both models, as they were paired
    """

    matching: Matching
    tree_a: Tree
    tree_b: Tree
    changes: Sequence[Change]

    def weighed(self, finding: Divergence) -> Divergence:
        """Return a finding with the line that may have made it as its first evidence and its hint, less sure; or as it is."""
        lost = [each for each in self.matching.lost_lines if self._is_of(finding, each)]
        if lost:
            first = lost[0]
            told = [each.note for each in lost[:_MOST_NAMED]]
            advice = note("mend-lines-first", lines=tuple(each.where for each in lost), said=first.note)
        else:
            pairs = self._crossed_of(finding)
            if not pairs:
                return finding
            lines = self.matching.lines
            a, b = pairs[0]
            told = [note("mapping-says-pair", a=self.tree_a.path(a), b=self.tree_b.path(b), line=lines[a])]
            named = tuple(dict.fromkeys(lines[a] for a, _ in pairs))
            advice = note("lines-pair-in-another-order", lines=named, otherwise=finding.advice)
        return replace(
            finding,
            confidence=min(finding.confidence, MOST_CONFIDENCE),
            facts=(*told, *finding.facts),
            advice=advice,
        )

    def _is_of(self, finding: Divergence, line: LostLine) -> bool:
        """Tell whether a finding is about modules that lack a partner for a line, or names them as not compared."""
        sides = (finding.a, self.tree_a, line.a), (finding.b, self.tree_b, line.b)
        if line.is_parameter:
            modules = ({tree.by_path.get(ref.path) for ref in refs} & lost for refs, tree, lost in sides)
            return finding.kind is Kind.MISSING and any(modules)
        if any(_inside([ref.path for ref in refs], tree, lost) for refs, tree, lost in sides):
            return True
        named = _named((*finding.facts, finding.advice))
        return any(tree.path(index) in named for _, tree, lost in sides for index in lost)

    def _crossed_of(self, finding: Divergence) -> list[tuple[int, int]]:
        """Return the pairs in another order, as lines of the mapping say, that a finding lies in or rests on."""
        rests_on_change = any(change.note in finding.facts for change in self._orders)
        if not (
            finding.kind in (Kind.INIT, Kind.MISSING, Kind.SHAPE) or rests_on_change or _is_of_order(finding.advice)
        ):
            return []
        named = _named(finding.advice)
        paths_a, paths_b = ({*(ref.path for ref in refs), *named} for refs in (finding.a, finding.b))
        return [
            (a, b) for a, b in self._crossed
            if _inside(paths_a, self.tree_a, {a, self._same_a.get(b, a)})
            or _inside(paths_b, self.tree_b, {b, self._same_b.get(a, b)})
        ]  # fmt: skip

    @cached_property
    def _orders(self) -> list[Change]:
        return [change for change in self.changes if change.kind in OF_ORDER]

    @cached_property
    def _crossed(self) -> list[tuple[int, int]]:
        """Pairs that a line of the mapping makes and that stand in another order, or leave a partner of the same path."""
        moved = {path for change in self._orders for path in change.a}
        found = []
        for pair in self.matching.pairs:
            if pair.a not in self.matching.lines:
                continue
            paths = self.tree_a.path(pair.a), self.tree_b.path(pair.b)
            is_crossed = paths[0] != paths[1] and pair.a in self._same_b and pair.b in self._same_a
            if is_crossed or paths[0] in moved:
                found.append((pair.a, pair.b))
        return found

    @cached_property
    def _same_a(self) -> dict[int, int]:
        """A's module of the same path, by B's."""
        return {
            i: self.tree_a.by_path[m.path] for i, m in enumerate(self.tree_b.modules) if m.path in self.tree_a.by_path
        }

    @cached_property
    def _same_b(self) -> dict[int, int]:
        return {a: b for b, a in self._same_a.items()}


def _named(said: object) -> set[str]:
    """Return the texts among the facts of notes: paths are."""
    return {each for each in within(said) if isinstance(each, str)}


def _is_of_order(advice: Note | None) -> bool:
    """Tell whether advice is about layers, heads or elements that stand in another order."""
    return any(
        each.code in _OF_ORDER or each.facts.get("name") in _HINTS_OF_ORDER
        for each in within(advice)
        if isinstance(each, Note)
    )


def _inside(paths: Iterable[str], tree: Tree, modules: Set[int]) -> bool:
    """Tell whether one of some paths lies in one of some modules, or is one."""
    for path in paths:
        index = tree.by_path.get(path, -1)
        while index >= 0:
            if index in modules:
                return True
            index = tree.modules[index].parent
    return False
