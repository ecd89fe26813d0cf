"""What stands beside a verdict: hints, known differences, guessed pairs, lines of the mapping, settings.

None of it moves a place.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from probe.comparison.asked_for import settings_that_differ
from probe.comparison.blame.guesses import Guesses
from probe.comparison.failing import unless_it_fails
from probe.comparison.notes import Note, note
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.comparison.settings import DifferingSetting, unseen_settings, with_settings
from probe.diagnosis.choosing import with_hints
from probe.diagnosis.evidence import Evidence
from probe.diagnosis.known_differences import KnownDifferences
from probe.diagnosis.naming import with_settings_by_numbers
from probe.diagnosis.of_step import evidence_of
from probe.matching import LostLine, Matching
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.answer import findings_in_order
from probe.verdict.facts import settings_note
from probe.verdict.judge.settings import differing_settings, idle, unknown_settings
from probe.verdict.judge.verdicts import Finding, Verdicts
from probe.verdict.steps.step import Step

_AT_A_WRONG_LINE = 0.5
"""most confidence in the models being wrong where a line of the mapping may be"""


class Beside:
    """What two recordings say beside the numbers of a finding.

    Attributes
    ----------
    notes
        on the answer as a whole
    """

    def __init__(self, a: Reader, b: Reader, matching: Matching) -> None:
        self.readers, self.matching = (a, b), matching
        self.trees = Tree(a.modules), Tree(b.modules)
        self.guesses = Guesses(matching, *self.trees)
        self.known = KnownDifferences(a, b)
        self.notes: list[Note] = list(self.guesses.notes())

    def findings_of(self, step: Step, findings: Iterable[Finding]) -> list[tuple[Finding, Divergence]]:
        """Return the findings of a step in causal order, with all that stands beside them."""
        told = list(findings_in_order(step, findings))
        evidence = [evidence_of(step, finding, said) for said, finding in told]
        measured = [_with_largest(said, each) for (said, _), each in zip(told, evidence, strict=True)]
        of = {id(said): each for said, each in zip(measured, evidence, strict=True)}
        hinted = with_hints(measured, lambda said: of[id(said)], self.notes)
        hinted = [
            with_settings_by_numbers(step, finding, said, self.notes)
            for said, (_, finding) in zip(hinted, told, strict=True)
        ]
        weighed = [self._at_wrong_line(self.guesses.weighed(self.known.named(each))) for each in hinted]
        return [(finding, each) for (_, finding), each in zip(told, weighed, strict=True)]

    def doubts_of(self, step: Step, verdicts: Verdicts) -> list[Note]:
        """Return what optimizers that are set otherwise leave open, in a step that shows nothing wrong."""
        unknown = unknown_settings(step)
        self.notes += [note("settings-of-unknown-effect", settings=unknown)] if unknown else []
        settings = differing_settings(step)
        passed = idle(step, verdicts, settings)
        doubtful = [each for place, each in settings.items() if not each.is_certain or place in passed]
        return [note("settings-not-shown", count=len(doubtful), settings=settings_note(doubtful))] if doubtful else []

    def settings_of(self, findings: Sequence[Divergence]) -> tuple[list[Divergence], tuple[DifferingSetting, ...]]:
        """Return the findings with the settings that may be behind them, and all settings that differ."""
        found = unless_it_fails(lambda: settings_that_differ(*self.readers, findings), (), "settings", "", self.notes)
        self.notes += unseen_settings(found)
        return with_settings(findings, found), found

    def _at_wrong_line(self, finding: Divergence) -> Divergence:
        """Name the lines of the mapping that left a finding's modules without partners first."""
        lost = [line for line in self.matching.lost_lines if self._lies_in(finding, line)]
        told = [line.note for line in lost[:2]]
        advice = note("mend-lines-first", lines=tuple(line.where for line in lost), said=told[0]) if lost else None
        crossed = self._crossed(finding) if not lost and finding.kind is Kind.INIT else []
        if crossed:
            lines, (a, b) = self.matching.lines, crossed[0]
            paths = {"a": self.trees[0].path(a), "b": self.trees[1].path(b)}
            told = [note("mapping-says-pair", **paths, line=lines[a])]
            named = tuple(dict.fromkeys(lines[a] for a, _ in crossed))
            advice = note("lines-pair-in-another-order", lines=named, otherwise=finding.advice)
        if advice is None:
            return finding
        confidence = min(finding.confidence, _AT_A_WRONG_LINE)
        return replace(finding, confidence=confidence, facts=(*told, *finding.facts), advice=advice)

    def _crossed(self, finding: Divergence) -> list[tuple[int, int]]:
        """Return pairs that lines make, around a finding, though each side has a module of the other one's path."""
        (a, b), lines = self.trees, self.matching.lines
        paths = [(pair.a, pair.b, a.path(pair.a), b.path(pair.b)) for pair in self.matching.pairs if pair.a in lines]
        crossed = [(x, y, there) for x, y, here, there in paths if here != there and here in b.by_path]
        around = _modules_around(finding.a, a)
        return [(x, y) for x, y, there in crossed if there in a.by_path and {x, a.by_path[there]} & around]

    def _lies_in(self, finding: Divergence, line: LostLine) -> bool:
        sides = zip((finding.a, finding.b), self.trees, (line.a, line.b), strict=True)
        return any(_modules_around(refs, tree) & lost for refs, tree, lost in sides)


def _with_largest(finding: Divergence, evidence: Evidence | None) -> Divergence:
    """Return a finding with the largest difference of two elements, where values were recorded."""
    values = evidence.values if evidence is not None else None
    if values is None or finding.metrics is None or not values.is_whole or finding.metrics.of_integers:
        return finding
    apart = np.abs(values.difference)
    at = np.unravel_index(int(apart.argmax()), apart.shape)
    metrics = replace(finding.metrics, max_abs=float(apart[at]), max_abs_at=tuple(map(int, at)))
    return replace(finding, metrics=metrics)


def _modules_around(refs: Iterable[NodeRef], tree: Tree) -> set[int]:
    """Return the modules of places, and those that hold them, but for the model itself."""
    found = set()
    for ref in refs:
        index = tree.by_path.get(ref.path, -1)
        while index > 0:
            found.add(index)
            index = tree.modules[index].parent
    return found
