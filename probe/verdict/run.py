"""Open two recordings, pair them, judge their steps in turn, assemble the answer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.commands.defaults import MIN_CONFIDENCE, MIN_COVERAGE
from probe.comparison.answer import Comparison
from probe.comparison.blame.guesses import paired_modules
from probe.comparison.coverage.guards import Guards
from probe.comparison.fusion.one_to_many import completed
from probe.comparison.notes import Note, note
from probe.comparison.result import Coverage, Divergence
from probe.comparison.steps.common_steps import Shift
from probe.errors import ConfigError
from probe.mapping import LayerMapping, load_mapping
from probe.matching import Direction, Matching
from probe.matching.enclosing import with_enclosing
from probe.ranks.opening import open_reader
from probe.records import DirectionName, MetricName, Phase, PresetName, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.answer import Tally, answer_of, findings_in_order
from probe.verdict.coverage import left_out_of
from probe.verdict.judge.verdicts import Finding, State, Verdicts
from probe.verdict.judge.walk import Weights, judge
from probe.verdict.noise.ladder import ladder
from probe.verdict.noise.rung import Noise, StepNoise
from probe.verdict.side import Side
from probe.verdict.steps.step import Step

if TYPE_CHECKING:
    from probe.verdict.accepting import AcceptanceTally
    from probe.verdict.ahead import Ahead

_MOST_OPEN = 0.03
"""share of the tensors behind another routing from which on nothing is decided"""


def compare(
    a: str | Path,
    b: str | Path,
    mapping: str | Path | Mapping[str, Any] | None = None,
    *,
    steps: str | tuple[int, int] | None = None,
    direction: DirectionName | None = None,
    strict: bool = False,
    min_coverage: float = MIN_COVERAGE,
    min_confidence: float = MIN_CONFIDENCE,
    noise: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    reference: str | os.PathLike[str] | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    metric: MetricName | None = None,
    rules: str | Path | Sequence[Mapping[str, Any]] | None = None,
    preset: PresetName | None = None,
    scheduler: str | None = None,
    resume: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Comparison:
    """Compare two recordings and name the first place where they really diverge; see `probe.compare`.

    Raises
    ------
    StoreError, FormatError
        a file cannot be read
    MappingError
        the mapping cannot be used
    ConfigError
        the direction is none, ``steps`` is not two numbers, the options for noise contradict each other or do not fit
        A, the scheduler is not known, or ``resume`` is a file of another comparison
    """
    parsed, shift = load_mapping(mapping), Shift.of(steps)
    with open_reader(a, dict(parsed.dims)) as first, open_reader(b, dict(parsed.dims)) as second:
        first.require_steps()
        second.require_steps()
        chosen = _direction(direction) if direction is not None else None
        matching = matching_of(first, second, parsed, chosen, strict, min_confidence)
        table = _acceptance_table(preset, first, second) if preset is not None else None
        with (
            _ahead(first, second, scheduler, resume) as early,
            ladder(first, second, parsed.judging, noise, reference, rules, (atol, rtol, metric)) as rung,
        ):
            shown = progress or (lambda done, total: None)
            return _compare(first, second, matching, shift, min_coverage, shown, rung, table, early)


def _acceptance_table(preset: str, a: Reader, b: Reader) -> AcceptanceTally:
    from probe.comparison.noise.presets import preset_named  # which few comparisons ask for
    from probe.verdict.accepting import AcceptanceTally

    return AcceptanceTally(preset_named(preset), a, b)


def _ahead(
    a: Reader, b: Reader, scheduler: str | None, resume: str | Path | None
) -> contextlib.AbstractContextManager[Ahead | None]:
    if scheduler is None and resume is None:
        return contextlib.nullcontext()
    from probe.verdict.ahead import Ahead  # which few comparisons ask for

    return Ahead(a, b, scheduler, resume)


def _direction(name: str) -> Direction:
    try:
        return Direction(name)
    except ValueError:
        known = " or ".join(repr(each.value) for each in Direction)
        raise ConfigError(f"direction={name!r} is not known; expected {known}") from None


def matching_of(
    a: Reader,
    b: Reader,
    mapping: LayerMapping,
    direction: Direction | None = None,
    strict: bool = False,
    min_confidence: float = MIN_CONFIDENCE,
) -> Matching:
    """Return which module of B each of A is."""
    sides = (a, Tree(a.modules)), (b, Tree(b.modules))
    found = paired_modules(*sides, mapping, direction, strict, min_confidence)
    return completed(with_enclosing(found, sides[0][1], sides[1][1]), a, b)


def _compare(
    a: Reader,
    b: Reader,
    matching: Matching,
    shift: Shift,
    min_coverage: float,
    progress: Callable[[int, int], None],
    rung: Noise,
    table: AcceptanceTally | None,
    ahead: Ahead | None,
) -> Comparison:
    guards = Guards(a, b, Tree(a.modules), Tree(b.modules), shift)
    steps = guards.common_steps()
    tally, notes, reasons = Tally(), [*guards.notes, *matching.notes], list(guards.reasons)
    found: list[Divergence] = []
    unshown: list[Divergence] = []
    before: Weights | None = None
    done: list[tuple[int, int]] = []
    for number in steps:
        there = number + shift.to_b
        step = Step(Side(a, number, matching.views_a), Side(b, there, matching.views_b), matching)
        if ahead is not None:
            ahead.measure(step)
        noise = rung.at(step)
        verdicts = judge(step, before, noise)
        done.append((number, there))
        tally.add(step, verdicts)
        if table is not None:
            table.add(step, verdicts)
        progress(len(done), len(steps))
        found += findings_in_order(step, _shown(verdicts, True))
        unshown += findings_in_order(step, _shown(verdicts, False))
        if found:
            if len(done) < len(steps):
                notes.append(note("later-steps-not-judged", count=len(steps) - len(done), step=number))
            break
        reasons += _doubts(verdicts, tally.coverage(), min_coverage)
        if _are_both_broken(step):
            break
        before = weights_after(step, noise)
    if table is not None and found:
        for number in steps[len(done) :]:
            other = Side(b, number + shift.to_b, matching.views_b)
            table.measure(Step(Side(a, number, matching.views_a), other, matching))
    left = left_out_of(tally.seen, (a, b), done, shift, tally.coverage(), tally.rows, min_coverage)
    return answer_of((a, b), matching, tally, tuple(found or unshown[:1]), notes, reasons, done, left, rung, table)


def _shown(verdicts: Verdicts, is_shown: bool) -> list[Finding]:
    return [finding for finding in verdicts.findings if finding.is_shown is is_shown]


def _doubts(verdicts: Verdicts, coverage: Coverage, min_coverage: float) -> list[Note]:
    """Return why a step that shows nothing wrong does not show that nothing is."""
    found = [note("loss-not-judged")] if "loss-not-judged" in verdicts.notes else []
    if coverage.share < min_coverage:
        paired, total = coverage.paired, coverage.total
        found.append(note("few-calls-have-a-counterpart", paired=paired, total=total, side=coverage.smaller))
    states = [each.state for event, each in verdicts.by_event.items() if event.phase is Phase.FORWARD]
    hidden = states.count(State.OPEN)
    if verdicts.routed and hidden > _MOST_OPEN * len(states):
        found.append(note("behind-other-routing", count=hidden, total=len(states)))
    return found


def weights_after(step: Step, noise: StepNoise) -> Weights:
    """Return the weights that a step left, with their errors."""
    events = ((event, step.error(event)) for event in step.parameters.events(Phase.UPDATE, Role.PARAM))
    return [(event, error, noise.excess(event, error)) for event, error in events if error is not None]


def _are_both_broken(step: Step) -> bool:
    """Return True if weights of both sides hold NaN or infinity."""
    events = step.parameters.events(Phase.UPDATE, Role.PARAM)
    return any(sum(each.a.bad) and sum(each.b.bad) for each in events if each.a is not None and each.b is not None)
