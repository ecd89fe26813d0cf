"""Open two recordings, pair them, judge their steps in turn, assemble the answer."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.answer.comparison import Comparison
from probe.answer.failing import unless_it_fails
from probe.answer.guards import Guards
from probe.answer.result import Divergence, Verdict
from probe.answer.runs import summary_of
from probe.answer.shift import Shift
from probe.contents.unshown import cannot_show
from probe.defaults import MIN_CONFIDENCE, MIN_COVERAGE
from probe.diagnosis.beside import Beside, with_change
from probe.diagnosis.last_tokens import at_last_tokens
from probe.diagnosis.narrower import batch_variant, look_for_narrower
from probe.dumps.given import recording_of
from probe.mapping import LayerMapping, load_mapping
from probe.matching import Direction, Matching
from probe.matching.paired import paired_modules, with_enclosing
from probe.notes import Note, note
from probe.operations.pairing import with_operations
from probe.operations.prefix import behind_prefix
from probe.operations.told import of_operations, with_operations_told
from probe.ranks.opening import open_reader
from probe.records import DirectionName, MetricName, Phase, PresetName, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.answer import answer_of
from probe.verdict.coverage.but_for import left_out_of
from probe.verdict.coverage.doubts import Doubts, tells_of_models
from probe.verdict.coverage.tally import Tally
from probe.verdict.judge.judging import Before
from probe.verdict.judge.verdicts import Finding, State, Verdicts
from probe.verdict.judge.walk import judge
from probe.verdict.judge.weights import known_of
from probe.verdict.noise.ladder import ladder
from probe.verdict.noise.rung import Noise, StepNoise
from probe.verdict.ranks import let_see, lost_parts, unused_dims, with_copies
from probe.verdict.side import Side
from probe.verdict.steps.orders import with_orders
from probe.verdict.steps.step import Step

if TYPE_CHECKING:
    from probe.diagnosis.accepting import AcceptanceTally
    from probe.verdict.ahead import Ahead


def compare(
    a: str | os.PathLike[str],
    b: str | os.PathLike[str],
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
    """Compare two recordings and name the first place where they really diverge.

    Parameters
    ----------
    a, b
        files written by `probe.start`, recordings that `probe.open` opened, or other tools' dumps as `probe import` reads
        them; A is the baseline if one side is trusted
    mapping
        a layer mapping: a YAML file, the name of one that comes with probe, a dict, or None
    steps
        ``"100:0"``: step 100 of A is step 0 of B, and so on from there; by default steps pair by their numbers
    direction
        ``"a-to-b"`` or ``"b-to-a"``: which side the mapping is written from; found out when None
    strict
        a line of the mapping that does nothing is an error, not a warning
    min_coverage
        below this share of paired module calls, "aligned" becomes "undecided"
    min_confidence
        pairs of modules that were found by structure or values and are less sure than this are not compared; 1 leaves
        only what the mapping says and what has the same path
    noise
        further legitimate runs of A (other kernels, another batch split, `probe.noise_run`): what they differ by is
        noise
    reference
        a run of A's model in higher precision: what counts is how much further from it B is than A
    atol, rtol, metric
        a fixed tolerance for every tensor, in the place of what is known of noise: ``allclose`` (default), ``max_abs``,
        ``mean_abs``, ``max_rel``, ``rel_l2`` or ``cosine``
    rules
        fixed tolerances for some modules, or leaving them unjudged: a YAML file, or a list of dicts with ``path``, and
        ``atol``, ``rtol``, ``metric`` or ``ignore``
    preset
        an acceptance table to hold the runs against beside the verdict, such as ``paddlenlp/qwen2-0.5b``: see
        ``acceptance`` of the answer
    scheduler
        who puts the ranks of many files together and compares values: ``"processes"`` (of this machine, one of each
        core) or ``"processes:4"``; ``"tcp://host:8786"``, the scheduler of a Dask cluster whose workers find the
        recordings under the same paths; None: this process. The answer is the same
    resume
        a file in which what was found of values is kept: a comparison that was interrupted goes on from there
    progress
        called with (done, total) steps

    Raises
    ------
    StoreError, FormatError
        a file cannot be read
    MappingError
        the mapping cannot be used
    ConfigError
        the direction is none, ``steps`` is not two numbers, or the options for noise contradict each other or do not
        fit A; the scheduler is not known, or ``resume`` is a file of another comparison
    """
    parsed, shift = load_mapping(mapping), Shift.of(steps)
    a, b, reference = recording_of(a), recording_of(b), recording_of(reference)
    noise = [*map(recording_of, [noise] if isinstance(noise, (str, os.PathLike)) else noise)]
    with open_reader(a, dict(parsed.dims)) as first, open_reader(b, dict(parsed.dims)) as second:
        first.require_steps()
        second.require_steps()
        pairs = pairs_of(first, second, parsed, Direction.named(direction), strict, min_confidence)
        table = _acceptance_table(preset, first, second) if preset is not None else None
        with (
            _ahead(first, second, scheduler, resume) as early,
            ladder(first, second, parsed.judging, noise, reference, rules, (atol, rtol, metric)) as rung,
        ):
            shown = progress or (lambda done, total: None)
            return _compare(first, second, pairs, shift, min_coverage, shown, rung, table, early)


def _acceptance_table(preset: str, a: Reader, b: Reader) -> AcceptanceTally:
    from probe.answer.presets import preset_named  # which few comparisons ask for
    from probe.diagnosis.accepting import AcceptanceTally

    return AcceptanceTally(preset_named(preset), a, b)


def _ahead(
    a: Reader, b: Reader, scheduler: str | None, resume: str | Path | None
) -> contextlib.AbstractContextManager[Ahead | None]:
    if scheduler is None and resume is None:
        return contextlib.nullcontext()
    from probe.verdict.ahead import Ahead  # which few comparisons ask for

    return Ahead(a, b, scheduler, resume)


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
    found, unshown = list[Divergence](), list[Divergence]()
    before: Before | None = None
    done: list[tuple[int, int]] = []
    for number in steps:
        there = number + shift.to_b
        before = before if done and done[-1][0] == number - 1 else None
        step, begun = _paired((a, b), (number, there), matching, before is None)
        doubts.notes += begun
        if ahead is not None and not begun:  # other processes read the sides as they lie
            ahead.measure(step)
        beside.hint(partial(at_last_tokens, step), "last tokens")
        noise = rung.at(step)
        verdicts = judge(step, before, noise)
        beside.hint(partial(look_for_narrower, step, verdicts, is_first=before is None), "narrower")
        beside.hint(partial(batch_variant, step, noise), "batch-variant")
        done.append((number, there))
        tally.add(step, verdicts)
        if table is not None:
            table.add(step, verdicts)
        progress(len(done), len(steps))
        shown = with_copies(step, beside.findings_of(step, of_operations(_shown(verdicts, True))))
        unshown += [each for _, each in beside.findings_of(step, _shown(verdicts, False))]
        told = (with_change(each, tally.changes) for each in doubts.of_step(step, verdicts, shown))
        found += [with_operations_told(step, each) for each in told]
        doubts.notes += lost_parts(step)
        if found and len(done) < len(steps):
            doubts.notes.append(note("later-steps-not-judged", count=len(steps) - len(done), step=number))
        if not found:
            doubts.doubt(*beside.doubts_of(step, verdicts))
        if found or doubts.is_over or _are_both_broken(step):
            break
        before = left_by(step, noise, verdicts, before)
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
    accepted = table.accepted if table is not None else None
    answer = answer_of((a, b), matching, doubts, tuple(found), done, left, settings, rung, accepted)
    if answer.verdict is not Verdict.ALIGNED:
        return answer
    failed: list[Note] = []
    blind = unless_it_fails(lambda: cannot_show(a, [step for step, _ in done]), (), "cannot show", "", failed)
    return replace(answer, cannot_show=blind, notes=(*answer.notes, *failed))


def _paired(
    readers: tuple[Reader, Reader], steps: tuple[int, int], matching: Matching, begins: bool
) -> tuple[Step, list[Note]]:
    """Return a step of both sides, and what is to be said if one begins behind a cached prefix."""
    views = matching.views_a, matching.views_b
    a, b = (Side(*each, begins=begins) for each in zip(readers, steps, views, strict=True))
    said = behind_prefix(a, b, matching)
    return Step(a, b, with_operations(matching, a, b)), said


def _shown(verdicts: Verdicts, is_shown: bool) -> list[Finding]:
    return [finding for finding in verdicts.findings if finding.is_shown is is_shown]


def left_by(step: Step, noise: StepNoise, verdicts: Verdicts, before: Before | None) -> Before:
    """Return what a step left; of weights that no update left, what calls found last, or what there was before."""
    begun, weights, kept = before or Before(), [], {}
    alone = dict(begun.alone)
    for event in (
        each for role in (Role.PARAM, Role.STATE, Role.BUFFER) for each in step.parameters.events(Phase.UPDATE, role)
    ):
        error = step.error(event)
        excess = noise.excess(event, error) if error is not None else None
        if event.role is Role.PARAM and not event.is_paired:
            alone[event.place] = event
        elif event.role is Role.PARAM and error is not None:
            weights.append((replace(event, phase=Phase.INIT), error, excess))
        elif error is not None:
            kept[event.place] = error.size, error.size if excess is None else excess, event
    places, found = {event.place for event, *_ in weights}, {}
    for event, error, excess in (*(begun.weights or known_of(step, Role.PARAM)), *begun.found.values()):
        module = event.place[0] if event.place is not None else -1
        wants = module in step.pair_of and step.a.wants(Phase.UPDATE, module)
        wants = wants and step.b.wants(Phase.UPDATE, step.pair_of[module].b)
        if wants and event.place not in places and verdicts.state(event) is not State.HEALED:
            last = verdicts.written.get(event.place, ())
            found[event.place] = last[-1][1:] if last else (replace(event, phase=Phase.FORWARD), error, excess)
    roots = [event for node in step.nodes if node.parent is None for event in node.outputs]
    returned = {(e.a.hash, e.b.hash): error.size for e in roots if e.a and e.b and (error := step.error(e))}
    return Before(weights, found, {at: each for at, each in alone.items() if at not in places}, kept, returned)


def _are_both_broken(step: Step) -> bool:
    """Return True if weights of both sides hold NaN or infinity."""
    events = step.parameters.events(Phase.UPDATE, Role.PARAM)
    return any(sum(each.a.bad) and sum(each.b.bad) for each in events if each.a is not None and each.b is not None)
