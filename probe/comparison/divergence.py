"""Comparing two recordings: guards, matching, every step in turn, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.comparison import vacuous
from probe.comparison.answer import Comparison
from probe.comparison.between_steps import StepWeights, changed_otherwise
from probe.comparison.changes import OF_ORDER, changed_calls
from probe.comparison.conspicuous import Conspicuous, sticking_out
from probe.comparison.events import StepPairs
from probe.comparison.flags import differing_flags
from probe.comparison.flip import flip_of
from probe.comparison.flow import passes
from probe.comparison.given import GivenTally, differing_batches, inverted_masks
from probe.comparison.guards import Guards
from probe.comparison.guesses import MIN_CONFIDENCE, Guesses, with_guesses
from probe.comparison.hints import with_hints
from probe.comparison.known_differences import KnownDifferences
from probe.comparison.ladder import NoiseOptions, ladder
from probe.comparison.ledger import State
from probe.comparison.logged import Logged
from probe.comparison.metrics import Metrics, Status
from probe.comparison.misled import Misled
from probe.comparison.noise import BUILT_IN, Noise
from probe.comparison.one_to_many import completed
from probe.comparison.paired_step import paired_step
from probe.comparison.result import (
    Divergence,
    Kind,
    NodeRef,
    SlotResult,
    Verdict,
    cause_order,
    independent,
)  # fmt: skip
from probe.comparison.step_half import ONE_SIDED
from probe.comparison.steps import Shift
from probe.comparison.tally import Tally
from probe.comparison.uncompared import Uncompared
from probe.comparison.unseen import unseen_of
from probe.comparison.updates import UpdateJudge
from probe.comparison.vocabulary_notes import notes
from probe.comparison.walk import StepWalk
from probe.errors import ConfigError
from probe.mapping import load_mapping
from probe.matching import Direction, Known, Matching, Reason, match
from probe.matching.automatic import outline_of
from probe.matching.changes import changes_of
from probe.matching.initial_weights import fingerprints
from probe.matching.unneeded import needing_no_partner
from probe.records import NEVER_STEPPED, Phase, Role
from probe.store.reader import Reader
from probe.tree import Tree

MIN_COVERAGE = 0.5
_MOST_NAMED = 4
_SUMMED = "gradients came in another number of backward passes on each side: their sums are compared"

Progress = Callable[[int, int], None]


def compare(
    a: str | Path,
    b: str | Path,
    mapping: str | Path | Mapping[str, Any] | None = None,
    *,
    steps: str | tuple[int, int] | None = None,
    direction: str | None = None,
    strict: bool = False,
    min_coverage: float = MIN_COVERAGE,
    min_confidence: float = MIN_CONFIDENCE,
    noise: str | Path | Sequence[str | Path] = (),
    reference: str | Path | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    metric: str | None = None,
    rules: str | Path | Sequence[Mapping[str, Any]] | None = None,
    preset: str | None = None,
    progress: Progress | None = None,
) -> Comparison:
    """Compare two recordings and name the first place where they really diverge.

    Parameters
    ----------
    a, b
        files written by `probe.start`; A is the baseline where one side is the trusted one
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
        an acceptance table, such as ``p-forward`` or ``paddlenlp/qwen2-0.5b``
    progress
        called with (done, total) steps

    Raises
    ------
    StoreError, FormatError
        a file cannot be read
    MappingError
        the mapping cannot be used
    ConfigError
        the direction is none, ``steps`` is not two numbers, or the options for noise contradict each other or do not fit A
    """
    shift = Shift.of(steps)
    parsed = load_mapping(mapping)
    with Reader(a) as first, Reader(b) as second:
        first.require_steps()
        second.require_steps()
        chosen = None if direction is None else _direction(direction)
        options = NoiseOptions(noise, reference, atol, rtol, metric, rules, preset)
        with ladder(first, second, options, parsed.judging) as rung:
            run = _Run(first, second, rung, shift)
            return run.compared(parsed, chosen, strict, min_coverage, min_confidence, progress)


def _direction(name: str) -> Direction:
    try:
        return Direction(name)
    except ValueError:
        known = " or ".join(repr(each.value) for each in Direction)
        raise ConfigError(f"direction={name!r} is not known; expected {known}") from None


class _Run:
    """The comparison under way."""

    def __init__(self, a: Reader, b: Reader, noise: Noise, shift: Shift) -> None:
        self.a, self.b, self.noise, self.shift = a, b, noise, shift
        self.tree_a, self.tree_b = Tree(a.modules), Tree(b.modules)
        self.known = KnownDifferences(a, b)
        self.given = GivenTally()
        self.steps: list[tuple[int, int]] = []
        self.warnings: list[str] = []
        self.modes: dict[int, tuple[bool, bool]] = {}
        self.findings: list[Divergence] = []
        self.unshown: Divergence | None = None
        """what differs in the optimizers' settings alone, in the first step in which it does"""
        self.conspicuous: Conspicuous | None = None
        """the first that sticks out though it is noise by all that is known"""
        self.doubts: list[str] = []
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
        weights = fingerprints(self.a, self.tree_a, self.b, self.tree_b)
        sides = (self.a, self.tree_a), (self.b, self.tree_b)
        certain = match(*(Known(tree, side.parameters, side.info.model_config) for side, tree in sides), mapping,
                        *weights, direction, strict)  # fmt: skip
        guessed = certain if mapping.sections or mapping.ignored else with_guesses(certain, *sides, min_confidence)
        steps = self._guard()
        matching = completed(guessed, self.a, self.b)
        self.guesses = Guesses(matching, self.tree_a, self.tree_b)
        self.changes = changes_of(matching, self.tree_a, self.tree_b)
        self.misled = Misled(matching, self.tree_a, self.tree_b, self.changes)
        if matching.only_a or matching.only_b:
            outlines = outline_of(self.a, self.tree_a), outline_of(self.b, self.tree_b)
            self.tally.unneeded = needing_no_partner(matching, *outlines, self.changes)
        self.warnings[:0] = [*self.guesses.notes(), *matching.warnings]
        state = State()
        for done, step in enumerate(steps):
            state.goes_on = done + 1 < len(steps)
            self._step(self._pairs(step, matching), state)
            if progress is not None:
                progress(done + 1, len(steps))
            if self.ends:
                break
            if self.findings:
                rest = len(steps) - done - 1
                if rest:
                    what = (
                        "1 later step is not judged: it inherits"
                        if rest == 1
                        else f"{rest} later steps are not judged: they inherit"
                    )
                    self.warnings.append(f"{what} what is wrong in step {step}")
                break
        return self._answer(matching, min_coverage)

    def _pairs(self, step: int, matching: Matching) -> StepPairs:
        self.steps.append((step, step + self.shift.to_b))
        return paired_step(self.a, self.b, *self.steps[-1], matching, self.changes)

    def _guard(self) -> list[int]:
        """Look for what makes a comparison worthless; return the steps that both have."""
        guards = Guards(self.a, self.b, self.tree_a, self.tree_b, self.shift)
        steps = guards.common_steps()
        self.warnings += guards.warnings
        for text in guards.doubts:
            self._doubt(text)
        return steps

    def _doubt(self, text: str) -> None:
        self.warnings.append(text)
        self.doubts.append(text)

    # One step

    def _step(self, pairs: StepPairs, state: State) -> None:
        state.carried, state.returned = state.returned, set()
        if pairs.summed and _SUMMED not in self.warnings:
            self.warnings.append(_SUMMED)
        walk = StepWalk(pairs, state, self.tree_a, self.noise.at(pairs))
        before, self.weights = self.weights, StepWeights.of(pairs)
        changed = changed_otherwise(pairs, before, self.weights)
        if changed is not None:
            changed.pass_on(walk)
        walk.judge_init()
        if pairs.same_micros:
            for micro, is_backward in passes(pairs):
                if is_backward:
                    walk.judge_backward(micro)
                    continue
                walk.judge_forward(micro)
                if micro == pairs.micros_a[-1]:
                    walk.judge_loss(self.a.scalars_of(pairs.step), self.b.scalars_of(pairs.step_b))
            for micro in sorted({node.micro for node in pairs.nodes.values() if node.micro < 0}, reverse=True):
                walk.judge_forward(micro)
            if not pairs.micros_a:
                walk.judge_loss(self.a.scalars_of(pairs.step), self.b.scalars_of(pairs.step_b))
            walk.judge_buffers()
        elif self._steps_run_together(pairs):
            self._collect(pairs, walk)
            return
        else:
            self._other_split(pairs, walk)
        walk.judge_drift()
        walk.warn_of_order()
        walk.warn_of_padding()
        walk.judge_gradients()
        UpdateJudge(walk, pairs, state).judge()
        walk.judge_written()
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
        name = "A" if sides["A"] else "B"
        self.ends = True
        self._doubt(
            f"{NEVER_STEPPED} in {name}: it has {len(pairs.micros_a if sides['A'] else pairs.micros_b)} forwards in one step, the other "
            f"{len(pairs.micros_b if sides['A'] else pairs.micros_a)}; call it at the end of each step and record again"
        )
        return True

    def _other_split(self, pairs: StepPairs, walk: StepWalk) -> None:
        """The batch was split into micro-batches differently: check that it is the same data."""
        text = f"A ran {len(pairs.micros_a)} micro-batches, B {len(pairs.micros_b)}"
        if not pairs.micros_a or not pairs.micros_b:
            self._doubt(f"step {pairs.step}: {text}")
            return
        if pairs.share:
            self._doubt(
                f"{pairs.share}: forward and backward are not compared, gradients of the whole batch are; give both the same part, or "
                "compare with a run of as many ranks"
            )
            return
        differing = differing_batches(pairs)
        if differing:
            walk.charge_batches(f"{text}, and {differing}")
            return
        self.warnings.append(f"step {pairs.step}: {text}: forward and backward are not compared, sums of gradients are")

    def _collect(self, pairs: StepPairs, walk: StepWalk) -> None:
        walk.judge_inputs()
        lacking = pairs.lacks_initial
        if walk.findings and lacking and pairs.step:
            self.ends = True
            first = min(walk.findings, key=cause_order).path or "the root"
            self._doubt(
                f"step {pairs.step} differs, first at {first}, but {lacking} did not record with what weights it began: "
                "record the same steps on both sides, best from 0 on"
            )
            walk.findings.clear()
        found = with_hints(pairs, independent(sorted(walk.findings, key=cause_order)), self.warnings)
        self.findings += map(self.misled.weighed, map(self.guesses.weighed, map(self.known.named, found)))
        self.unshown = self.unshown or walk.unshown
        self.warnings += walk.warnings
        self.warnings += [*notes(pairs, walk.events), *inverted_masks(walk.events)]
        self.modes |= walk.modes
        for text in walk.doubts:
            self._doubt(text)
        self.given.add(pairs, walk.events, walk.lacking_inputs())
        self.warnings += self.tally.add(pairs, walk.events)
        if not self.findings:
            logged = self.a.scalars_of(pairs.step), self.b.scalars_of(pairs.step_b)
            self.warnings += [*self.logged.said(pairs.step, *logged), *differing_flags(pairs, walk.events)]
            self.uncompared.add(pairs, walk.events)
        if not self.findings and self.conspicuous is None:
            self.conspicuous = sticking_out(pairs, walk.events)
        if pairs.same_micros:
            self.changes += tuple(changed_calls(pairs, self.tree_a, self.tree_b))
            self._doubt_order(walk)

    def _doubt_order(self, walk: StepWalk) -> None:
        """Doubt the step if weights stand at other places and nothing shows whether they run there too."""
        changed = next((change for change in self.changes if change.kind in OF_ORDER), None)
        if changed is not None and not any(judged.event.phase is Phase.FORWARD for judged in walk.events):
            self._doubt(f"{changed.text}; whether they run there too was not recorded: record the phase forward")

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

    def _answer(self, matching: Matching, min_coverage: float) -> Comparison:
        tally = self.tally
        known, coverage = tally.known, tally.coverage
        if self.findings and coverage.total and coverage.share < min_coverage:
            first = self.findings[0]
            text = f"only {coverage.paired} of {coverage.total} module calls of {coverage.smaller} have a counterpart: is it the same model?"
            self.findings[0] = replace(first, confidence=first.confidence / 2, evidence=(*first.evidence, text))
        if not known and not self.findings:
            self._doubt(vacuous.nothing_compared([reader.info.config.get("task") for reader in (self.a, self.b)]))
        if coverage.share < min_coverage and coverage.total:
            self._doubt(
                f"only {coverage.paired} of {coverage.total} module calls of {coverage.smaller} have a counterpart "
                f"(--min-coverage {min_coverage:.0%}): give a layer mapping with -lm"
            )
        if coverage.not_comparable > len(known) > 0:
            self._doubt(
                f"{coverage.not_comparable} of {len(tally.slots)} pairs of tensors could not be compared, first: {_first(tally.slots)}"
            )
        are_trained = any(
            slot.role is Role.DELTA and max(slot.metrics.norm_a, slot.metrics.norm_b) > 0 for slot in known
        )
        nan = tally.nan or ("" if are_trained else next(iter(tally.overflowed.values()), ""))
        if nan and not self.findings:
            self._doubt(f"{nan}: what is computed from it cannot be judged")
        self.warnings += [*tally.uncompared_weights(), *vacuous.notes(known)]
        if not self.findings:
            self.warnings += self.uncompared.notes()
            for text in vacuous.doubts(known, tally.roots, tally.groups, has_others=bool(tally.weights_left)):
                self._doubt(text)
        infinite = [
            slot for slot in known
            if slot.metrics.status is Status.NONFINITE and slot.step not in tally.overflowed and slot.verdict != "not judged"
        ]  # fmt: skip
        if infinite and not self.findings:
            self._doubt(_told_of_infinite(infinite[0]))
        self.warnings += self.noise.warnings()
        for text in self.noise.doubts(tally.slots):
            self._doubt(text)
        is_told = bool(known) and not (coverage.total and coverage.share < min_coverage)
        if self.unshown is not None and not self.findings and is_told:
            self.findings = [self.unshown]  # of another model, other settings say nothing
        elif self.unshown is not None:
            self.warnings += self.unshown.evidence
        verdict = Verdict.DIVERGED if self.findings else Verdict.UNDECIDED if self.doubts else Verdict.ALIGNED
        if self.a.info.run_id == self.b.info.run_id:
            verdict = Verdict.UNDECIDED
        if verdict is Verdict.ALIGNED and self.conspicuous is not None and self.noise.name == BUILT_IN:
            self.warnings.append(self.conspicuous.text)
        changes = tuple(dict.fromkeys(self.changes))
        found = {text for finding in self.findings for text in finding.evidence}
        self.warnings[:0] = [change.text for change in changes if change.text not in found]
        return Comparison(
            verdict, tuple(self.findings), coverage, tuple(dict.fromkeys(self.warnings)), self.noise.name, tuple(tally.slots),
            matching, str(self.a.path), str(self.b.path), *self._only(),
            self.given.inputs, tuple(dict.fromkeys(self.doubts)), flip_of(verdict, self.findings, tally.slots),
            unseen_of(verdict, self.noise.name, tally.slots),
            (*vacuous.other_phases(tally.phases, [reader.info.config.get("phases") for reader in (self.a, self.b)]),
             *vacuous.left_out(coverage, tally.weights_left, tally.weights_ignored, min_coverage),
             *vacuous.other_modes(self.modes.values()), *vacuous.overflowed(tally.overflowed)), tuple(self.steps), changes,
            *(tuple(tree.path(index) for index in sorted(ignored)) for tree, ignored in
              ((self.tree_a, matching.ignored_a), (self.tree_b, matching.ignored_b))),
        )  # fmt: skip


def _named(findings: Iterable[Divergence], side: str) -> set[str]:
    """Return the paths of a side that findings name."""
    return {ref.path for finding in findings for ref in (finding.a if side == "A" else finding.b)}


def _told_of_infinite(slot: SlotResult) -> str:
    """Say which pair of tensors is not finite in the same places, where none is to blame for it."""
    where = f"{slot.phase.label} {slot.role.label} {slot.slot_a} of {slot.path_a or 'the root'}"
    return f"step {slot.step}: {where} has NaN or Inf on one side, or on both in other places"


def _first(slots: Iterable[SlotResult]) -> str:
    """Return the first pair of tensors that could not be compared, and why."""
    slot = next(slot for slot in slots if not slot.metrics.is_known)
    return f"{slot.role.label} {slot.slot_a} of {slot.path_a or 'the root'}, {slot.metrics.reason}"


__all__ = ["MIN_CONFIDENCE", "ONE_SIDED", "Comparison", "Kind", "Metrics", "NodeRef", "Reason", "compare"]
