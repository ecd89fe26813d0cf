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
from probe.comparison.notes import note
from probe.comparison.result import Divergence
from probe.comparison.run_summary import summary_of
from probe.comparison.steps.common_steps import Shift
from probe.errors import ConfigError
from probe.mapping import LayerMapping, load_mapping
from probe.matching import Direction, Matching
from probe.matching.enclosing import with_enclosing
from probe.ranks.opening import open_reader
from probe.records import DirectionName, MetricName, Phase, PresetName, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.answer import answer_of
from probe.verdict.beside import Beside
from probe.verdict.coverage.but_for import left_out_of
from probe.verdict.coverage.doubts import Doubts, tells_of_models
from probe.verdict.coverage.tally import Tally
from probe.verdict.judge.judging import Weights
from probe.verdict.judge.verdicts import Finding, Verdicts
from probe.verdict.judge.walk import judge
from probe.verdict.noise.ladder import ladder
from probe.verdict.noise.rung import Noise, StepNoise
from probe.verdict.ranks import let_see, lost_parts, unused_dims, with_copies
from probe.verdict.side import Side
from probe.verdict.steps.orders import with_orders
from probe.verdict.steps.step import Step

if TYPE_CHECKING:
    from probe.verdict.accepting import AcceptanceTally
    from probe.verdict.ahead import Ahead


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
        pairs = pairs_of(first, second, parsed, chosen, strict, min_confidence)
        table = _acceptance_table(preset, first, second) if preset is not None else None
        with (
            _ahead(first, second, scheduler, resume) as early,
            ladder(first, second, parsed.judging, noise, reference, rules, (atol, rtol, metric)) as rung,
        ):
            shown = progress or (lambda done, total: None)
            return _compare(first, second, pairs, shift, min_coverage, shown, rung, table, early)


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


def pairs_of(
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
    return with_enclosing(found, sides[0][1], sides[1][1])


def matching_of(a: Reader, b: Reader, mapping: LayerMapping) -> Matching:
    """Return which module of B each of A is, and which weights lie in one."""
    return completed(pairs_of(a, b, mapping), a, b)


def _compare(
    a: Reader,
    b: Reader,
    pairs: Matching,
    shift: Shift,
    min_coverage: float,
    progress: Callable[[int, int], None],
    rung: Noise,
    table: AcceptanceTally | None,
    ahead: Ahead | None,
) -> Comparison:
    guards = Guards(a, b, Tree(a.modules), Tree(b.modules), shift)
    steps = guards.common_steps()
    matching, orders = with_orders(pairs, a, b, (steps[0], steps[0] + shift.to_b) if steps else None)
    let_see(a, b, matching)
    beside = Beside(a, b, matching)
    notes = [*unused_dims(a, b, dict(matching.dims)), *guards.notes, *matching.notes, *orders, *guards.reasons]
    tally = Tally((a, b), matching)
    doubts = Doubts(tally, (summary_of(a, tally.trees[0]), summary_of(b, tally.trees[1])), notes, list(guards.reasons))
    found: list[Divergence] = []
    unshown: list[Divergence] = []
    before: Weights | None = None
    done: list[tuple[int, int]] = []
    for number in steps:
        there = number + shift.to_b
        before = before if done and done[-1][0] == number - 1 else None
        begins = before is None
        step = Step(
            Side(a, number, matching.views_a, begins=begins), Side(b, there, matching.views_b, begins=begins), matching
        )
        if ahead is not None:
            ahead.measure(step)
        noise = rung.at(step)
        verdicts = judge(step, before, noise)
        done.append((number, there))
        tally.add(step, verdicts)
        if table is not None:
            table.add(step, verdicts)
        progress(len(done), len(steps))
        shown = with_copies(step, beside.findings_of(step, _shown(verdicts, True)))
        unshown += [each for _, each in beside.findings_of(step, _shown(verdicts, False))]
        found += doubts.of_step(step, verdicts, shown)
        doubts.notes += lost_parts(step)
        if found and len(done) < len(steps):
            doubts.notes.append(note("later-steps-not-judged", count=len(steps) - len(done), step=number))
        if not found:
            doubts.doubt(*beside.doubts_of(step, verdicts))
        if found or doubts.is_over or _are_both_broken(step):
            break
        before = weights_after(step, noise)
    if table is not None and found:
        for number in steps[len(done) :]:
            other = Side(b, number + shift.to_b, matching.views_b)
            table.measure(Step(Side(a, number, matching.views_a), other, matching))
    found = doubts.of_answer(found, done, min_coverage)
    if not found and unshown and tells_of_models(tally, min_coverage):
        found = unshown[:1]
    elif unshown:
        doubts.notes += unshown[0].facts
    found, settings = beside.settings_of(found)
    doubts.notes[:0] = beside.notes
    left = left_out_of(doubts, done, shift, min_coverage)
    return answer_of((a, b), matching, doubts, tuple(found), done, left, settings, rung, table)


def _shown(verdicts: Verdicts, is_shown: bool) -> list[Finding]:
    return [finding for finding in verdicts.findings if finding.is_shown is is_shown]


def weights_after(step: Step, noise: StepNoise) -> Weights:
    """Return the weights that a step left, what the optimizer keeps, and buffers, with their errors."""
    roles = Role.PARAM, Role.STATE, Role.BUFFER
    events = [event for role in roles for event in step.parameters.events(Phase.UPDATE, role)]
    known = [(event, error) for event in events if (error := step.error(event)) is not None]
    return [(event, error, noise.excess(event, error)) for event, error in known]


def _are_both_broken(step: Step) -> bool:
    """Return True if weights of both sides hold NaN or infinity."""
    events = step.parameters.events(Phase.UPDATE, Role.PARAM)
    return any(sum(each.a.bad) and sum(each.b.bad) for each in events if each.a is not None and each.b is not None)
