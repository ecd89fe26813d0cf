"""Findings that a line of the mapping may have made: a wrong line is the first thing to look at, and not the models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property

from probe.comparison.changes import OF_ORDER
from probe.comparison.result import Divergence, Kind
from probe.matching import LostLine, Matching
from probe.matching.changes import Change
from probe.tree import Tree

MOST_CONFIDENCE = 0.5
"""in a finding that a line of the mapping explains as well"""
_MOST_NAMED = 4


@dataclass
class Misled:
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
            said = first.text.partition(": ")[2] if first.text.startswith("the mapping's line ") else first.text
            texts = [each.text for each in lost[:_MOST_NAMED]]
            hint = f"mend {_joined([each.where for each in lost])} first: {said}"
        else:
            pairs = self._crossed_of(finding)
            if not pairs:
                return finding
            lines = self.matching.lines
            a, b = pairs[0]
            texts = [f"the mapping says that A's {self.tree_a.path(a)} is B's {self.tree_b.path(b)}: {lines[a]}"]
            named = list(dict.fromkeys(lines[a] for a, _ in pairs))
            hint = (
                f"look at {_joined(named)} first: {'they pair' if len(named) > 1 else 'it pairs'} layers in another order; "
                f"if that is meant so, {finding.hint or 'look at the models'}"
            )
        return replace(
            finding,
            confidence=min(finding.confidence, MOST_CONFIDENCE),
            evidence=(*texts, *finding.evidence),
            hint=hint,
        )

    def _is_of(self, finding: Divergence, line: LostLine) -> bool:
        """Tell whether a finding is about modules that lack a partner for a line, or names them as not compared."""
        sides = (finding.a, self.tree_a, line.a), (finding.b, self.tree_b, line.b)
        if line.is_parameter:
            modules = ({tree.by_path.get(ref.path) for ref in refs} & lost for refs, tree, lost in sides)
            return finding.kind is Kind.MISSING and any(modules)
        if any(_inside([ref.path for ref in refs], tree, lost) for refs, tree, lost in sides):
            return True
        words = _words(*finding.evidence, finding.hint)
        return any(tree.path(index) in words for _, tree, lost in sides for index in lost)

    def _crossed_of(self, finding: Divergence) -> list[tuple[int, int]]:
        """Return the pairs in another order, as lines of the mapping say, that a finding lies in or rests on."""
        texts = {change.text for change in self._orders if change.text in finding.evidence}
        is_of_order = finding.kind in (Kind.INIT, Kind.MISSING, Kind.SHAPE) or bool(texts) or "order" in finding.hint
        if not is_of_order:
            return []
        named = _words(finding.hint)
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


def _words(*texts: str) -> set[str]:
    return {word.strip(",;:") for text in texts for word in text.split()}


def _inside(paths: Iterable[str], tree: Tree, modules: Set[int]) -> bool:
    """Tell whether one of some paths lies in one of some modules, or is one."""
    for path in paths:
        index = tree.by_path.get(path, -1)
        while index >= 0:
            if index in modules:
                return True
            index = tree.modules[index].parent
    return False


def _joined(lines: Sequence[str]) -> str:
    """Write ``line 2 of m.yaml``, ``line 3 of m.yaml`` as ``line 2, line 3 of m.yaml``."""
    more = f" and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
    parts = [line.rpartition(" of ") for line in lines[:_MOST_NAMED]]
    return f"{', '.join(part[0] for part in parts)}{more} of {parts[0][2]}"
