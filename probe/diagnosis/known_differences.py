"""Naming a known difference between two frameworks where a finding sits in the classes that it concerns."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from probe.answer.result import Divergence, Kind, NodeRef
from probe.notes import note
from probe.records import OptimizerGroup
from probe.store.reading.reader import Reader

if TYPE_CHECKING:
    from probe.diagnosis.table_of_known_differences import Habit, KnownDifference

_EXACT = 1e-6
"""relative difference up to which sums over the same numbers in another order are equal"""
_LIKE_TORCH = "/mindspore/mint/"
"""where MindSpore keeps classes that do as those of PyTorch"""
_MOST = 3


class KnownDifferences:
    """What is known of the frameworks of two recordings."""

    def __init__(self, a: Reader, b: Reader) -> None:
        self._readers = (a, b)
        self._frameworks = (a.info.framework, b.info.framework)
        self._rows = _rows_between(*self._frameworks) if len({*self._frameworks}) > 1 else []

    def named(self, finding: Divergence) -> Divergence:
        """Return a finding whose hint names the known differences that may explain it."""
        names = [row.name for row in self._rows if self._concerns(row, finding)][:_MOST]
        if not names:
            return finding
        a, b = self._frameworks
        return replace(finding, advice=note("known-differences", first=finding.advice, names=tuple(names), a=a, b=b))

    def _concerns(self, row: KnownDifference, finding: Divergence) -> bool:
        if finding.phase not in row.phases or finding.step < row.first_step:
            return False
        if (row.roles and finding.role not in row.roles) or (row.kinds and finding.kind not in row.kinds):
            return False
        if row.is_one_sided and not _is_one_sided(finding):
            return False
        if (
            finding.kind is Kind.INIT
            and finding.metrics
            and math.isclose(finding.metrics.norm_ratio, 1, rel_tol=_EXACT)
        ):
            return False  # what is drawn from another distribution has another norm
        if not any(fnmatchcase(ref.slot, row.slots) for ref in (*finding.a, *finding.b)):
            return False
        sides = zip(self._readers, self._frameworks, (finding.a, finding.b), strict=True)
        if not row.is_of_optimizer:
            return all(_has(row.habits[name], _classes(reader, refs)) for reader, name, refs in sides)
        steps = [(refs or finding.a or finding.b)[0].step for refs in (finding.a, finding.b)]
        groups = [reader.groups_of(step) for reader, step in zip(self._readers, steps, strict=True)]
        both = zip(self._frameworks, groups, strict=True)
        fitting = [_has(row.habits[name], (group.class_name for group in each)) for name, each in both]
        return all(fitting) and not (row.settings and _agree(row.settings, *groups))


def _rows_between(a: str, b: str) -> list[KnownDifference]:
    from probe.diagnosis.table_of_known_differences import KNOWN_DIFFERENCES  # a file, which few comparisons need

    both = [row for row in KNOWN_DIFFERENCES if a in row.habits and b in row.habits]
    return [row for row in both if row.habits[a].does != row.habits[b].does]


def _has(habit: Habit, names: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for name in names for pattern in habit.classes)


def _is_one_sided(finding: Divergence) -> bool:
    metrics = finding.metrics
    return finding.kind is Kind.MISSING or (metrics is not None and 0.0 in (metrics.norm_a, metrics.norm_b))


def _classes(reader: Reader, refs: tuple[NodeRef, ...]) -> list[str]:
    """Return the classes of places, but for those that a framework has copied from another one."""
    paths = {ref.path for ref in refs}
    copied = {m.path for m in reader.modules if m.path in paths and _LIKE_TORCH in m.file.replace("\\", "/")}
    return [ref.class_name for ref in refs if ref.path not in copied]


def _agree(names: tuple[str, ...], a: Iterable[OptimizerGroup], b: Iterable[OptimizerGroup]) -> bool:
    """Return True if all groups of both sides have the same setting; one that a side does not have is 0 there."""
    found = [next((group.hyper[name] for name in names if name in group.hyper), None) for group in (*a, *b)]
    values = [float(value) if isinstance(value, (int, float)) else 0.0 for value in found]
    return math.isclose(min(values), max(values), rel_tol=1e-6)
