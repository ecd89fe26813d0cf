"""What stands beside a verdict: hints, known differences, guessed pairs, lines of the mapping, settings.

None of it moves a place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from probe.answer.failing import unless_it_fails
from probe.answer.metrics import PARAMETER_ROLES
from probe.answer.result import Divergence, Kind, NodeRef
from probe.answer.runs import have_equal_settings
from probe.diagnosis.facts import settings_note
from probe.diagnosis.known_differences import KnownDifferences
from probe.diagnosis.parts import with_parts
from probe.diagnosis.told import findings_in_order
from probe.matching import LostLine, Matching, Pair, Reason
from probe.matching.changes import Change, ChangeKind
from probe.notes import Note, note
from probe.records import Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.distance.measure import measure
from probe.verdict.judge.settings import differing_settings, idle, unknown_settings
from probe.verdict.judge.verdicts import Finding, Verdicts
from probe.verdict.steps.step import Step

if TYPE_CHECKING:
    from probe.answer.settings import DifferingSetting

_AT_A_WRONG_LINE = 0.5
"""most confidence in the models being wrong where a line of the mapping may be"""


class Beside:
    """What two recordings say beside the numbers of a finding; ``notes`` are on the answer as a whole."""

    def __init__(self, a: Reader, b: Reader, matching: Matching) -> None:
        self.readers, self.matching = (a, b), matching
        self.trees = Tree(a.modules), Tree(b.modules)
        self.guesses = Guesses(matching, *self.trees)
        self.known = KnownDifferences(a, b)
        self.notes: list[Note] = list(self.guesses.notes())

    def hint(self, look: Callable[[], Iterable[Note]], name: str) -> None:
        """Take in what is to be said of a step; where looking fails, that."""
        self.notes += unless_it_fails(lambda: [*look()], [], name, "", self.notes)

    def findings_of(self, step: Step, findings: Iterable[Finding]) -> list[tuple[Finding, Divergence]]:
        """Return the findings of a step in causal order, with all that stands beside them."""
        told = list(findings_in_order(step, findings))
        if not told:
            return []
        # which runs that agree do not need
        from probe.diagnosis.choosing import with_hints
        from probe.diagnosis.evidence import evidence_of
        from probe.diagnosis.optimizer.naming import with_kind, with_settings_by_numbers

        evidence = [evidence_of(step, finding, said) for said, finding in told]
        found = [with_parts(step, finding.event, said) for said, finding in told]
        of = {id(said): each for said, each in zip(found, evidence, strict=True)}
        beside = []
        for said, (_, finding) in zip(with_hints(found, lambda each: of[id(each)], self.notes), told, strict=True):
            said = with_structure(step, finding, with_kind(step, finding, said))
            said = self.known.named(with_settings_by_numbers(step, finding, said, self.notes))
            beside.append((finding, self._at_wrong_line(self.guesses.weighed(said))))
        return beside

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
        if have_equal_settings(*self.readers):
            return list(findings), ()
        from probe.answer.settings import settings_that_differ, unseen_settings, with_settings

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


def _modules_around(refs: Iterable[NodeRef], tree: Tree) -> set[int]:
    """Return the modules of places, and those that hold them, but for the model itself."""
    found = set()
    for ref in refs:
        index = tree.by_path.get(ref.path, -1)
        while index > 0:
            found.add(index)
            index = tree.modules[index].parent
    return found


# What is said of pairs of modules that neither the mapping nor the path names


@dataclass
class Guesses:
    """What was paired without a mapping."""

    matching: Matching
    tree_a: Tree
    tree_b: Tree

    @cached_property
    def pairs(self) -> dict[tuple[str, str], Pair]:
        """By both paths."""
        guessed = [pair for pair in self.matching.pairs if pair.confidence < 1]
        return {(self.tree_a.path(pair.a), self.tree_b.path(pair.b)): pair for pair in guessed}

    def notes(self) -> Iterator[Note]:
        """Say how many pairs were found by structure and values, and which is the least sure; parameters beside modules."""
        yield from self._names()
        found = [pair for pair in self.pairs.values() if self.tree_a.wrapped(pair.a) is None]
        if not found:
            return
        least = min(found, key=lambda pair: pair.confidence)
        by_values = sum(pair.reason is Reason.SAME_VALUES for pair in found)
        yield note(
            "pairs-found-without-mapping", by_values=by_values, by_structure=len(found) - by_values, total=len(self.matching.pairs),
            confidence=least.confidence, a=self.tree_a.path(least.a), b=self.tree_b.path(least.b),
        )  # fmt: skip

    def _names(self) -> Iterator[Note]:
        """Say which parameters are a pair though their names, or how they lie, do not say it."""
        sides = ("A", self.tree_a, self.matching.views_a), ("B", self.tree_b, self.matching.views_b)
        for letter, tree, views in sides:
            found: dict[tuple[str, str, str, bool], list[float]] = {}
            for (module, slot), view in views.items():
                if view.confidence < 1:
                    key = slot, tree.class_name(module), view.name, bool(view.axes)
                    found.setdefault(key, []).append(view.confidence)
            guesses = tuple((*key, len(sure), min(sure)) for key, sure in found.items())
            if guesses:
                yield note("parameters-paired-by-guess", side=letter, guesses=guesses)

    def weighed(self, finding: Divergence) -> Divergence:
        """Let a finding at modules, or parameters, that may be no pair be no surer than the pair is, and say so."""
        return self._weighed_by_modules(self._weighed_by_parameters(finding))

    def _weighed_by_parameters(self, finding: Divergence) -> Divergence:
        if finding.role not in PARAMETER_ROLES:
            return finding
        sides = (finding.a, self.tree_a, self.matching.views_a), (finding.b, self.tree_b, self.matching.views_b)
        found = [
            (views.get((tree.by_path[ref.path], ref.slot.partition(".")[0])), ref)
            for refs, tree, views in sides for ref in refs[:1] if ref.path in tree.by_path
        ]  # fmt: skip
        guess = min(((view.confidence, ref.slot, view.name) for view, ref in found if view), default=(1.0, "", ""))
        if guess[0] == 1:
            return finding
        sure, slot, name = guess
        return _less_sure(finding, note("guessed-parameter", slot=slot.partition(".")[0], name=name, confidence=sure))

    def _weighed_by_modules(self, finding: Divergence) -> Divergence:
        pair = self.pairs.get((finding.a[0].path, finding.b[0].path)) if finding.a and finding.b else None
        if pair is None:
            return finding
        return _less_sure(finding, note("guessed-pair", by=pair.reason.value, confidence=pair.confidence))


def _less_sure(finding: Divergence, fact: Note) -> Divergence:
    """Return a finding that is no surer than a fact is."""
    sure = finding.confidence * fact.facts["confidence"]
    return replace(finding, confidence=sure, facts=(*finding.facts, fact))


# What the structure of both models says of a finding: what was changed, swapped, or is tied on one side alone

_OF_CALLS = {ChangeKind.RECOMPUTED, ChangeKind.CALLED_OTHERWISE}
"""an order of calls may do nothing: it stands in the notes"""
_AT_MOST = 0.05
"""error of what two calls are given that stand in each other's place"""


def with_structure(step: Step, finding: Finding, said: Divergence) -> Divergence:
    """Return a finding with the calls that its code makes in another order, and what is tied on one side alone."""
    order = _other_order(step, finding)
    if order is not None:
        return replace(said, facts=(order, *said.facts), advice=note("order-of-calls"))
    tied = _tied_on_one_side(step, finding)
    return said if tied is None else replace(said, advice=tied)


def _other_order(step: Step, finding: Finding) -> Note | None:
    """Return which calls run in another order, of the code that answers for what a module was given."""
    node = finding.event.node if finding.event is not None else None
    if finding.code != "caller" or node is None or node.parent is None:
        return None
    inner = [each for each in node.parent.inner if each.a.micro == node.a.micro]
    orders = sorted(inner, key=lambda each: each.a.begin), sorted(inner, key=lambda each: each.b.begin)
    moved = [(mine, theirs) for mine, theirs in zip(*orders, strict=True) if mine is not theirs]
    if not moved:
        return None
    one, other = moved[0]
    given = next(iter(one.a.of(Role.INPUT).values()), None), next(iter(other.b.of(Role.INPUT).values()), None)
    error = measure(*given) if given[0] is not None and given[1] is not None else None
    if error is None or error.size > _AT_MOST:  # one is not given what the other is given there: their order is free
        return None
    if len(moved) == 2:
        return note("calls-are-swapped", one=one.a.path, other=other.a.path)
    return note("called-where-another-is", a=one.a.path, b=other.b.path)


def _tied_on_one_side(step: Step, finding: Finding) -> Note | None:
    """Return which parameter of the module that answers is tied on one side alone, and to which."""
    index = next((at for at, each in enumerate(step.a.reader.modules) if each.path == finding.paths[0]), None)
    if index not in step.pair_of:
        return None
    there = step.pair_of[index].b
    for _, name in step.a.weights_of(index):
        tied = step.parameters.tied_a.get((index, name)), step.parameters.tied_b.get((there, name))
        if bool(tied[0]) != bool(tied[1]):
            half, own, side, other = (step.a, index, "A", "B") if tied[0] else (step.b, there, "B", "A")
            to = next((place for place in tied[0] or tied[1] or () if place[0] != own), (own, name))
            path = f"{half.reader.modules[to[0]].path}.{to[1]}".lstrip(".")
            return note("tied-there", slot=name, to=path, side=side, other=other)
    return None


def with_change(finding: Divergence, changes: Iterable[Change]) -> Divergence:
    """Return a finding in a module's own code with what alone was changed in it, or in a list that it holds."""
    changed = [each for each in changes if each.kind not in _OF_CALLS and finding.blame]
    found = [each for each in changed if any(map(_is_in, (finding.a, finding.b), (each.a, each.b)))]
    if len(found) != 1:
        return finding
    is_of_layers = finding.kind is Kind.MISSING and found[0].kind in (ChangeKind.INSERTED, ChangeKind.REMOVED)
    advice = note("number-of-layers") if is_of_layers else finding.advice
    more = tuple(each for each in finding.facts if each.code != "calls-are-swapped")  # the same in other words
    return replace(finding, facts=(found[0].note, *more), advice=advice)


def _is_in(refs: Sequence[NodeRef], paths: Sequence[str]) -> bool:
    """Return True if one of some paths is, or lies in, a module or a list of modules that it holds."""
    names = [path.split(".") for path in paths]
    own = [ref.path.split(".") if ref.path else [] for ref in refs]
    return any(name[: len(each)] == each and len(name) - len(each) < 3 for each in own for name in names)
