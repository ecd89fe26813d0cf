"""Comparing two recordings: matching, guards, every step in turn, the verdict."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.commands.defaults import MIN_CONFIDENCE, MIN_COVERAGE
from probe.comparison.answer import Comparison
from probe.comparison.asked_for import (
    acceptance_table,
    accepted,
    measuring_ahead,
    outlines_of,
    settings_that_differ,
    unused_dims_of,
)
from probe.comparison.blame.guesses import Guesses, paired_modules
from probe.comparison.blame.mapping_errors import MappingErrors
from probe.comparison.blame.ranks import lost_parts, with_parts, with_ranks
from probe.comparison.blame.values import blame_batches, lacking_inputs
from probe.comparison.coverage import trivial_comparison
from probe.comparison.coverage.changes import OF_ORDER, changed_calls
from probe.comparison.coverage.conspicuous import Conspicuous, sticking_out
from probe.comparison.coverage.detection_limit import limit_of_detection
from probe.comparison.coverage.doubts import different_models, mostly_not_comparable, not_finite, without_gradients
from probe.comparison.coverage.flags import differing_flags
from probe.comparison.coverage.guards import Guards
from probe.comparison.coverage.left_out import LeftOut
from probe.comparison.coverage.left_weights import sides_without_updates, weighed_by_weights
from probe.comparison.coverage.logged import Logged
from probe.comparison.coverage.table import Covered, find_left_out
from probe.comparison.coverage.tally import Tally
from probe.comparison.coverage.uncompared import Uncompared
from probe.comparison.coverage.verdict_margin import margin_of
from probe.comparison.distance.metrics import Metrics, Status
from probe.comparison.failing import unless_it_fails
from probe.comparison.fusion.one_to_many import completed
from probe.comparison.fusion.row_orders import refuted_orders
from probe.comparison.fusion.vocabulary_notes import notes as vocabulary_notes
from probe.comparison.ledger.known import State, Walk
from probe.comparison.module_pairs import module_pairs
from probe.comparison.noise.interface import Noise
from probe.comparison.noise.ladder import NoiseOptions, ladder
from probe.comparison.notes import Note, note
from probe.comparison.optimizer.behind_last_step import changed_behind
from probe.comparison.result import (
    Coverage,
    Divergence,
    Kind,
    NodeRef,
    SlotResult,
    Verdict,
    cause_order,
    independent,
)  # fmt: skip
from probe.comparison.run_summary import summary_of
from probe.comparison.steps.common_steps import Shift
from probe.comparison.steps.dataflow import passes
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.paired_step import paired_step
from probe.comparison.steps.step_half import ONE_SIDED
from probe.comparison.walk.backward import judge_backward
from probe.comparison.walk.buffers import judge_buffers
from probe.comparison.walk.forward import judge_forward, resolve_other_sizes, warn_of_order
from probe.comparison.walk.inputs import GivenTally, differing_batches, inverted_masks
from probe.comparison.walk.loss import judge_inputs, judge_loss
from probe.comparison.walk.non_optimizer_changes import StepWeights, changed_otherwise
from probe.comparison.walk.parameter_gradients import judge_gradients, judge_written
from probe.comparison.walk.update_findings import Updating
from probe.comparison.walk.updates import judge_updates
from probe.comparison.walk.values import warn_of_padding
from probe.comparison.walk.weights import judge_drift, judge_init
from probe.errors import ConfigError
from probe.mapping import load_mapping
from probe.matching import Direction, Matching, Reason
from probe.matching.automatic.weights.lying import may_lie_otherwise
from probe.matching.changes import changes_of
from probe.ranks.opening import is_of_ranks, open_reader
from probe.records import NEVER_STEPPED, DirectionName, MetricName, Phase, PresetName, Role
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

if TYPE_CHECKING:
    from probe.comparison.acceptance.tally import Tally as AcceptanceTally
    from probe.comparison.ahead import Ahead
    from probe.comparison.settings import DifferingSetting

Progress = Callable[[int, int], None]


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
    progress: Progress | None = None,
) -> Comparison:
    """Compare two recordings and name the first place where they really diverge.

    Parameters
    ----------
    a, b
        files written by `probe.start`, or recordings that `probe.open` opened; A is the baseline where one side is the trusted one
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
        further legitimate runs of A (other kernels, another batch split, `probe.noise_run`): what they differ by is noise
    reference
        a run of A's model in higher precision: what counts is how much further from it B is than A
    atol, rtol, metric
        a fixed tolerance for every tensor, in the place of what is known of noise: ``allclose`` (default), ``max_abs``,
        ``mean_abs``, ``max_rel``, ``rel_l2`` or ``cosine``
    rules
        fixed tolerances for some modules, or leaving them unjudged: a YAML file, or a list of dicts with ``path``, and
        ``atol``, ``rtol``, ``metric`` or ``ignore``
    preset
        an acceptance table to hold the runs against beside the verdict, such as ``paddlenlp/qwen2-0.5b``: see ``acceptance``
        of the answer
    scheduler
        who puts the ranks of many files together and compares values: ``"processes"`` (of this machine, one of each core) or
        ``"processes:4"``; ``"tcp://host:8786"``, the scheduler of a Dask cluster whose workers find the recordings under the same paths;
        None: this process. The answer is the same
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
        the direction is none, ``steps`` is not two numbers, or the options for noise contradict each other or do not fit A; the
        scheduler is not known, or ``resume`` is a file of another comparison
    """
    shift = Shift.of(steps)
    parsed = load_mapping(mapping)
    dims = dict(parsed.dims)
    with open_reader(a, dims) as first, open_reader(b, dims) as second:
        first.require_steps()
        second.require_steps()
        chosen = None if direction is None else _direction(direction)
        options = NoiseOptions(noise, reference, atol, rtol, metric, rules)
        table = None if preset is None else acceptance_table(preset, first, second)
        others = measuring_ahead(first, second, scheduler, resume)
        with others as ahead, ladder(first, second, options, parsed.judging) as rung:
            run = _Run(first, second, rung, shift, table, ahead, dims)
            return run.compared(parsed, chosen, strict, min_coverage, min_confidence, progress)


def _direction(name: str) -> Direction:
    try:
        return Direction(name)
    except ValueError:
        known = " or ".join(repr(each.value) for each in Direction)
        raise ConfigError(f"direction={name!r} is not known; expected {known}") from None


class _Run:
    """The comparison under way."""

    def __init__(
        self, a: Reader, b: Reader, noise: Noise, shift: Shift, table: AcceptanceTally | None, ahead: Ahead | None,
        dims: Mapping[str, str],
    ) -> None:  # fmt: skip
        self.a, self.b, self.noise, self.shift, self.table, self.ahead = a, b, noise, shift, table, ahead
        self.dims = dims
        self.tree_a, self.tree_b = Tree(a.modules), Tree(b.modules)
        from probe.diagnosis.known_differences import (
            KnownDifferences,  # named beside the verdict, never on the way to it
        )

        self.known = KnownDifferences(a, b)
        self.given = GivenTally()
        self.steps: list[tuple[int, int]] = []
        self.runs = summary_of(a, self.tree_a), summary_of(b, self.tree_b)
        self.notes: list[Note] = []
        self.modes: dict[int, tuple[bool, bool]] = {}
        self.findings: list[Divergence] = []
        self.unshown: Divergence | None = None
        """what differs in the optimizers' settings alone, in the first step in which it does"""
        self.conspicuous: Conspicuous | None = None
        """the first that sticks out though it is noise by all that is known"""
        self.reasons: list[Note] = []
        self.tally = Tally(a, b, self.tree_a, self.tree_b)
        self.uncompared = Uncompared()
        self.logged = Logged()
        self.ends = False
        """whether later steps cannot be judged"""
        self.weights: StepWeights | None = None
        """what the step before left"""

    def compared(
        self, mapping: Any, direction: Direction | None, strict: bool, min_coverage: float, min_confidence: float,
        progress: Progress | None,
    ) -> Comparison:  # fmt: skip
        sides = (self.a, self.tree_a), (self.b, self.tree_b)
        guessed = paired_modules(*sides, mapping, direction, strict, min_confidence)
        steps = self._guard()
        matching = self._packed(guessed, steps)
        self.guesses = Guesses(matching, self.tree_a, self.tree_b)
        self.changes = changes_of(matching, self.tree_a, self.tree_b)
        self.mapping_errors = MappingErrors(matching, self.tree_a, self.tree_b, self.changes)
        if matching.only_a or matching.only_b:
            from probe.matching.unneeded import needing_no_partner

            self.tally.unneeded = needing_no_partner(
                matching, *outlines_of((self.a, self.tree_a), (self.b, self.tree_b)), self.changes
            )
        self.notes[:0] = [*self.guesses.notes(), *matching.notes]
        state = State()
        for done, step in enumerate(steps):
            state.goes_on = done + 1 < len(steps)
            pairs = self._pairs(step, matching)
            if self.ahead is not None:
                self.ahead.measure(pairs)
            self._step(pairs, state)
            if progress is not None:
                progress(done + 1, len(steps))
            if self.ends:
                break
            if self.findings:
                rest = len(steps) - done - 1
                if rest:
                    self.notes.append(note("later-steps-not-judged", count=rest, step=step))
                break
        if self.table is not None and not self.ends:
            for step in steps[len(self.steps) :]:
                self.table.measure(paired_step(self.a, self.b, step, step + self.shift.to_b, matching, self.changes))
        return self._answer(matching, min_coverage)

    def _packed(self, guessed: Matching, steps: Sequence[int]) -> Matching:
        """Return a matching with what lies in one weight, and with the orders of rows that hold in all layers."""
        if not may_lie_otherwise(guessed, self.a, self.b):
            return completed(guessed, self.a, self.b)
        from probe.matching.automatic.weights.packing import notes_of_orders, packed_as_read

        outlines = outlines_of((self.a, self.tree_a), (self.b, self.tree_b))
        packing = packed_as_read(guessed, *outlines)
        matching = completed(packing.matching, self.a, self.b)
        if packing.found:
            shown = (paired_step(self.a, self.b, step, step + self.shift.to_b, matching) for step in steps[:1])
            refuted = [bundle for pairs in shown for bundle in refuted_orders(pairs, packing.found)]
            packing = packing.without(refuted if steps else packing.found)
            matching = completed(packing.matching, self.a, self.b)
        self.notes += [*packing.notes, *packing.lost, *notes_of_orders(packing, *outlines)]
        return matching

    def _pairs(self, step: int, matching: Matching) -> StepPairs:
        self.steps.append((step, step + self.shift.to_b))
        return paired_step(self.a, self.b, *self.steps[-1], matching, self.changes)

    def _guard(self) -> list[int]:
        """Look for what makes a comparison worthless; return the steps that both have."""
        guards = Guards(self.a, self.b, self.tree_a, self.tree_b, self.shift)
        steps = guards.common_steps()
        self.notes += [*unused_dims_of(self.a, self.b, self.dims), *guards.notes]
        self._doubt(*guards.reasons)
        return steps

    def _doubt(self, *reasons: Note, is_first: bool = False) -> None:
        self.notes += reasons
        at = 0 if is_first else len(self.reasons)
        self.reasons[at:at] = reasons

    # One step

    def _step(self, pairs: StepPairs, state: State) -> None:
        state.carried, state.returned = state.returned, set()
        if pairs.joined:
            self.notes.append(note("micro-batches-joined", step=pairs.step, count=pairs.joined))
        if pairs.joined_evaluations:
            self.notes.append(note("evaluations-joined", step=pairs.step, count=pairs.joined_evaluations))
        if pairs.summed:
            self.notes.append(note("gradients-summed-over-passes"))
        walk = Walk(pairs, state, self.tree_a, self.noise.at(pairs))
        before, self.weights = self.weights, StepWeights.of(pairs)
        changed = changed_otherwise(pairs, before, self.weights)
        if changed is not None:
            changed.pass_on(walk)
        judge_init(walk)
        if pairs.same_micros:
            for micro, is_backward in passes(pairs):
                if is_backward:
                    judge_backward(walk, micro)
                    continue
                judge_forward(walk, micro)
                if micro == pairs.micros_a[-1] and not pairs.joined:  # what was logged may be of one of several
                    judge_loss(walk, self.a.scalars_of(pairs.step), self.b.scalars_of(pairs.step_b))
            for micro in sorted({node.micro for node in pairs.nodes.values() if node.micro < 0}, reverse=True):
                judge_forward(walk, micro)
            if not pairs.micros_a:
                judge_loss(walk, self.a.scalars_of(pairs.step), self.b.scalars_of(pairs.step_b))
            resolve_other_sizes(walk)
            judge_buffers(walk)
        elif self._steps_run_together(pairs):
            self._collect(pairs, walk)
            return
        else:
            self._other_split(pairs, walk)
        judge_drift(walk)
        warn_of_order(walk)
        warn_of_padding(walk)
        judge_gradients(walk)
        judge_updates(Updating(walk, pairs, state))
        judge_written(walk)
        if changed is not None:
            changed.report(walk)
        self._collect(pairs, walk)

    def _steps_run_together(self, pairs: StepPairs) -> bool:
        """Tell whether one side alone did not tell its steps apart: what lies in its only step belongs to several."""
        sides = {
            name: any(NEVER_STEPPED in text for _, _, text in reader.notes)
            for name, reader in (("A", self.a), ("B", self.b))
        }
        if sides["A"] == sides["B"]:
            return False
        name, ran = "A" if sides["A"] else "B", (len(pairs.micros_a), len(pairs.micros_b))
        mine, theirs = ran if sides["A"] else ran[::-1]
        self.ends = True
        self._doubt(note("steps-not-told-apart", side=name, forwards=mine, of_other=theirs))
        return True

    def _other_split(self, pairs: StepPairs, walk: Walk) -> None:
        """The batch was split into micro-batches differently: check that it is the same data."""
        split = {"a": len(pairs.micros_a), "b": len(pairs.micros_b)}
        if not pairs.micros_a or not pairs.micros_b:
            self._doubt(without_gradients(self.runs) or note("no-micro-batch-on-one-side", step=pairs.step, **split))
            return
        if pairs.share is not None:
            self._doubt(note("part-of-batch-not-compared", share=pairs.share))
            return
        differing = differing_batches(pairs)
        if differing:
            blame_batches(walk, note("micro-batches-of-other-data", input=differing, **split))
            return
        self.notes.append(note("micro-batches-differ", step=pairs.step, **split))

    def _collect(self, pairs: StepPairs, walk: Walk) -> None:
        judge_inputs(walk)
        lacking = pairs.lacks_initial
        if walk.ledger.findings and lacking and pairs.step:
            self.ends = True
            first = min(walk.ledger.findings, key=cause_order).path
            self._doubt(note("weights-at-step-unknown", step=pairs.step, path=first, side=lacking))
            walk.ledger.findings.clear()
        if walk.ledger.findings or self._copies_differ(pairs):
            self.findings += self._with_hints(pairs, independent(self._with_ranks(pairs, walk.ledger.findings)))
        self.notes += lost_parts(pairs)
        self.unshown = self.unshown or walk.ledger.unshown
        self.notes += walk.ledger.notes
        self.notes += [*vocabulary_notes(pairs, walk.ledger.events), *inverted_masks(walk.ledger.events)]
        self.modes |= walk.forward.modes
        self._doubt(*walk.ledger.reasons)
        self.given.add(pairs, walk.ledger.events, lacking_inputs(walk))
        self.notes += self.tally.add(pairs, walk.ledger.events)
        if self.table is not None:
            self.table.add(pairs, walk.ledger.events)
        if self.findings and len(self.steps) > 1:
            left, unrecorded = self.tally.weights_left, sides_without_updates(pairs)
            self.findings = [weighed_by_weights(finding, left, unrecorded) for finding in self.findings]
        if not self.findings:
            logged = self.a.scalars_of(pairs.step), self.b.scalars_of(pairs.step_b)
            self.notes += [*self.logged.said(pairs.step, *logged), *differing_flags(pairs, walk.ledger.events)]
            self.uncompared.add(pairs, walk.ledger.events)
        if not self.findings and self.conspicuous is None:
            self.conspicuous = sticking_out(pairs, walk.ledger.events)
        if pairs.same_micros:
            self.changes += tuple(changed_calls(pairs, self.tree_a, self.tree_b))
            self._doubt_order(walk)

    def _copies_differ(self, pairs: StepPairs) -> bool:
        """Tell whether ranks of a side hold other copies of one tensor."""
        return any(is_of_ranks(side.reader) and side.reader.step(side.step).differences for side in (pairs.a, pairs.b))

    def _with_ranks(self, pairs: StepPairs, findings: Sequence[Divergence]) -> list[Divergence]:
        return with_ranks(pairs, sorted(findings, key=cause_order))

    def _with_hints(self, pairs: StepPairs, findings: Sequence[Divergence]) -> Iterator[Divergence]:
        from probe.diagnosis.choosing import with_hints
        from probe.diagnosis.of_pairs import evidence_of

        hinted = with_hints(findings, lambda finding: evidence_of(pairs, finding), self.notes)
        found = (with_parts(pairs, finding) for finding in hinted)
        return map(self.mapping_errors.weighed, map(self.guesses.weighed, map(self.known.named, found)))

    def _doubt_order(self, walk: Walk) -> None:
        """Doubt the step if weights stand at other places and nothing shows whether they run there too."""
        changed = next((change for change in self.changes if change.kind in OF_ORDER), None)
        if changed is not None and not any(judged.event.phase is Phase.FORWARD for judged in walk.ledger.events):
            self._doubt(note("order-of-calls-not-recorded", change=changed.note))

    # The answer

    def _only(self) -> Iterator[tuple[str, ...]]:
        """Yield the modules only in A, only in B, and those that need no partner; what is to blame does need one."""
        unneeded = []
        for name, tree, ran, only in zip(
            "AB",
            (self.tree_a, self.tree_b),
            self.tally.ran_unneeded,
            (self.tally.only_a, self.tally.only_b),
            strict=True,
        ):
            paths = [tree.path(index) for index in ran]
            blamed = _named(self.findings, name).intersection(paths)
            unneeded.append(tuple(path for path in paths if path not in blamed))
            yield (*only, *(path for path in paths if path in blamed))
        yield from unneeded

    def _left_out(self, coverage: Coverage, min_coverage: float) -> Iterator[LeftOut]:
        """Yield what the verdict says nothing of."""
        return find_left_out(Covered(
            (self.a, self.b), self.steps, self.shift, self.tally, coverage, self.modes, self.uncompared.buffers, min_coverage
        ))  # fmt: skip

    def _settings(self) -> tuple[DifferingSetting, ...]:
        """Return the settings that differ; name them in the findings that they belong to, the others in notes."""
        found = unless_it_fails(
            lambda: settings_that_differ(self.a, self.b, self.findings), (), "settings", "", self.notes
        )
        if found:
            from probe.comparison.settings import unseen_settings, with_settings

            self.findings = with_settings(self.findings, found)
            self.notes += unseen_settings(found)
        return found

    def _doubt_coverage(self, known: Sequence[SlotResult], coverage: Coverage, min_coverage: float) -> None:
        """Doubt an answer that too few modules or tensors of the two models stand behind, and a finding too."""
        tally = self.tally
        is_small = bool(coverage.total) and coverage.share < min_coverage
        if self.findings and is_small:
            first = self.findings[0]
            told = note(
                "few-calls-have-a-counterpart", paired=coverage.paired, total=coverage.total, side=coverage.smaller
            )
            self.findings[0] = replace(first, confidence=first.confidence / 2, facts=(*first.facts, told))
        if not _of_models(known) and not self.findings:
            tasks = [reader.info.config.get("task") for reader in (self.a, self.b)]
            self._doubt(trivial_comparison.nothing_compared(tasks))
        if is_small:
            self._doubt(different_models(self.runs, coverage, min_coverage), is_first=True)
        if coverage.not_comparable > len(known) > 0:
            self._doubt(mostly_not_comparable(coverage.not_comparable, tally.slots))

    def _doubt_numbers(self, known: Sequence[SlotResult]) -> None:
        """Doubt an answer behind NaN, or over zeros, and note what took part in no comparison, where nothing was found."""
        tally = self.tally
        self.notes += [*tally.uncompared_weights(), *trivial_comparison.notes(known)]
        if self.findings:
            return
        are_trained = any(
            slot.role is Role.DELTA and max(slot.metrics.norm_a, slot.metrics.norm_b) > 0 for slot in known
        )
        nan = tally.nan or (None if are_trained else next(iter(tally.overflowed.values()), None))
        if nan is not None:
            self._doubt(note("not-judged-behind-nan", nan=nan))
        self.notes += self.uncompared.notes()
        self.notes += changed_behind((self.a, self.b), self.steps[-1]) if self.steps else ()
        self._doubt(*trivial_comparison.reasons(known, tally.roots, tally.groups, has_others=bool(tally.weights_left)))
        infinite = [
            slot for slot in known
            if slot.metrics.status is Status.NONFINITE and slot.step not in tally.overflowed and slot.verdict != "not judged"
        ]  # fmt: skip
        if infinite:
            self._doubt(not_finite(infinite[0]))

    def _answer(self, matching: Matching, min_coverage: float) -> Comparison:
        tally = self.tally
        known, coverage = tally.known, tally.coverage
        self._doubt_coverage(known, coverage, min_coverage)
        self._doubt_numbers(known)
        self.notes += self.noise.notes()
        self._doubt(*self.noise.reasons(tally.slots))
        is_told = bool(_of_models(known)) and not (coverage.total and coverage.share < min_coverage)
        if self.unshown is not None and not self.findings and is_told:
            self.findings = [self.unshown]  # of another model, other settings say nothing
        elif self.unshown is not None and not any(finding.is_read for finding in self.findings):
            self.notes += self.unshown.facts
        verdict = Verdict.DIVERGED if self.findings else Verdict.UNDECIDED if self.reasons else Verdict.ALIGNED
        if self.a.info.run_id == self.b.info.run_id:
            verdict = Verdict.UNDECIDED
        if verdict is Verdict.ALIGNED and self.conspicuous is not None and self.noise.is_built_in:
            self.notes.append(self.conspicuous.note)
        settings = self._settings()
        changes = tuple(dict.fromkeys(self.changes))
        found = {each for finding in self.findings for each in finding.facts}
        self.notes[:0] = [change.note for change in changes if change.note not in found]
        return Comparison(
            verdict, tuple(self.findings), coverage, tuple(dict.fromkeys(self.notes)), self.noise.name, tuple(tally.slots),
            matching, str(self.a.path), str(self.b.path), *self._only(),
            self.given.inputs, tuple(dict.fromkeys(self.reasons)), margin_of(verdict, self.findings, tally.slots),
            limit_of_detection(verdict, self.noise.uses_built_in, tally.slots),
            tuple(self._left_out(coverage, min_coverage)), tuple(self.steps), changes,
            *(tuple(tree.path(index) for index in sorted(ignored)) for tree, ignored in
              ((self.tree_a, matching.ignored_a), (self.tree_b, matching.ignored_b))),
            pairs=module_pairs(matching, self.tree_a, self.tree_b), runs=self.runs, settings=settings,
            acceptance=accepted(self.table, verdict, self.findings, self.reasons),
        )  # fmt: skip


def _of_models(slots: Iterable[SlotResult]) -> list[SlotResult]:
    """Return those that say something of the models: any two optimizers count their steps."""
    return [slot for slot in slots if slot.role is not Role.STATE]


def _named(findings: Iterable[Divergence], side: str) -> set[str]:
    """Return the paths of a side that findings name."""
    return {ref.path for finding in findings for ref in (finding.a if side == "A" else finding.b)}


__all__ = ["ONE_SIDED", "Comparison", "Kind", "Metrics", "NodeRef", "Reason", "compare"]
