"""`replay`: which modules of B are wrong by themselves."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from probe.answer.comparison import Comparison
from probe.answer.left_out import unjudged
from probe.answer.margin import margin_of
from probe.answer.result import Divergence, SlotResult, Verdict
from probe.answer.runs import Replayed, module_pairs, summary_of
from probe.defaults import MIN_CONFIDENCE
from probe.diagnosis.told import findings_in_order
from probe.errors import ConfigError, NotRecordedError
from probe.matching import Matching
from probe.notes import Note, note
from probe.operations.pairing import with_operations
from probe.records import DirectionName, Phase, Role, SideName
from probe.replaying.judging import Judge
from probe.replaying.keeping import kept
from probe.replaying.limits import OtherPass
from probe.replaying.passing.left import Passed, by_place
from probe.replaying.passing.traversal import Traversal
from probe.replaying.passing.writing import Written
from probe.replaying.prepared import (
    Changed,
    PairingOptions,
    Prepared,
    as_tensors,
    in_folder,
    prepared,
    require_side,
    verbs_for,
)
from probe.replaying.weights import put
from probe.reproducibility.perturbing import moved
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree
from probe.verdict.coverage.tally import Tally
from probe.verdict.judge.verdicts import Verdicts
from probe.verdict.side import Side
from probe.verdict.steps.calls import Group
from probe.verdict.steps.step import Step

NOISE = "rounding of each module alone, measured where it is in question"
_PASSES = 2
"""that measure rounding"""


def replay(
    model: Any,
    recording: str | os.PathLike[str],
    mapping: str | Path | Mapping[str, Any] | None = None,
    *,
    step: int | None = None,
    weights: SideName = "a",
    inputs: Mapping[str, Any] | None = None,
    direction: DirectionName | None = None,
    strict: bool = False,
    min_confidence: float = MIN_CONFIDENCE,
    reference: bool = False,
    keep: str | Path | None = None,
) -> Comparison:
    """Run each module of a model alone with what was recorded of its counterpart, and name all that are wrong by themselves.

    Each is given A's arguments and, backwards, A's gradients of what it returned; where its code calls a module that has a counterpart, it goes
    on with what A's returned. So errors are neither inherited nor added up. The model is left as it was.

    Parameters
    ----------
    model
        B: of torch, PaddlePaddle, or MindSpore in PyNative mode
    recording
        of A, made with ``task="tensor"``
    mapping, direction, strict, min_confidence
        as for `probe.compare`
    step
        which of A's steps; the first that was recorded when None
    weights
        ``"a"``: each module has A's weights, as the step began with them; ``"b"``: its own, which are compared too
    inputs
        what the whole model is called with beside A's tensors, by name, ``{"use_cache": False}``; arrays become tensors
    reference
        run a copy of B in float64 too, and say of each finding which side is further from that
    keep
        where to keep what was computed, as a recording; a temporary file, as long as the answer lives, when None

    Returns
    -------
    Comparison
        ``divergences`` are all modules that are wrong by themselves; ``replayed`` tells what was not replayed, and why

    Raises
    ------
    RecordingError
        a recording is under way, or nothing of the model can be run
    NotRecordedError
        the recording holds no values
    MappingError, ConversionError, ConfigError, StoreError, FormatError
        the mapping, a weight, an option or the file cannot be used
    """
    require_side(weights)
    if inputs is not None and not isinstance(inputs, Mapping):
        raise ConfigError(
            f"inputs={type(inputs).__name__} cannot be used; expected a dict of the model's arguments by name"
        )
    options = PairingOptions(mapping, direction, strict, min_confidence)
    replaying = verbs_for(model, "probe.replay()")

    def answered(folder: Path) -> Comparison:
        with prepared(replaying, model, recording, step, folder, options) as ready:
            given = (each for call in ready.recorded.calls for each in call.of(Role.INPUT).values())
            if not any(each.has_values for each in given):
                raise NotRecordedError(
                    f"{ready.recorded.reader.path.name} holds no values of what modules were given in step "
                    f'{ready.recorded.step}: record A with task="tensor"'
                )
            run = _Replay(ready, folder, weights, as_tensors(replaying, model, inputs or {}), reference)
            return run.answered(Path(keep) if keep is not None else folder / "b.replay.h5")

    return in_folder("probe-replay-", answered)


class _Replay:
    """A replay under way."""

    def __init__(
        self, ready: Prepared, folder: Path, weights: SideName, inputs: dict[str, Any], is_to_refer: bool
    ) -> None:
        self.plan, self.folder = replace(ready, inputs=inputs), folder
        self.replaying, self.model, self.step = ready.replaying, ready.model, ready.recorded.step
        self.weights, self.is_to_refer = weights, is_to_refer
        self.notes: list[Note] = list(ready.pairing.complete.notes)
        self.own: tuple[str, ...] = ()
        """weights of B that have no counterpart in A"""

    def passed(
        self, path: Path, changed: Changed | None = None, *, substitutes: bool = True, is_wide: bool = False
    ) -> Passed:
        """Record a pass through B, or a copy of it in float64; B is left as it was before the pass."""
        with kept(self.replaying, self.model):
            if changed is not None:
                self._move_weights(changed)
            model = self.replaying.wide(self.model) if is_wide else self.model
            casts = self.plan.casts and not is_wide
            plan = replace(self.plan, model=model, casts=casts, changed=changed, substitutes=substitutes)
            written = Written(self.replaying.adapter, model, path, self.step)
            try:
                traversal = Traversal(plan, written)
                if substitutes:  # of a run by itself only what modules return is asked for
                    written.weights(Phase.INIT)
                traversal.run()
                if substitutes:
                    written.gradients(traversal.backward.gradients)
                    written.weights(Phase.UPDATE, buffers_only=True)
                written.close()
            except BaseException:
                written.abandon()
                raise
        return traversal.passed

    def _move_weights(self, changed: Changed) -> None:
        adapter, calls = self.replaying.adapter, self.plan.recorded.calls if self.plan.casts else ()
        autocast = next((call.autocast for call in calls if call.autocast), "")
        for each in adapter.parameters(self.model):
            if not each.is_buffer:
                with adapter.quiet():
                    adapter.assign(each.tensor, changed(adapter.values(each.tensor), autocast))

    def answered(self, path: Path) -> Comparison:
        """Replay, and judge; B is left as it was."""
        if self.weights != "a":
            return self._judged(path)
        with kept(self.replaying, self.model):
            self.own = put(self.replaying.adapter, self.model, self.plan.recorded, self.plan.pairing.modules)
            return self._judged(path)

    def _judged(self, path: Path) -> Comparison:
        passed, matching = self.passed(path), self.plan.pairing.complete
        with Reader(path) as b, contextlib.ExitStack() as opened:
            sides = self.plan.recorded.side, Side(b, self.step, matching.views_b)
            step = Step(*sides, with_operations(matching, *sides), _numbered)
            judge = Judge(step, passed, lambda: [self._moved(step, number, opened) for number in range(_PASSES)])
            return self._answer(step, judge.judged(), passed)

    def _moved(self, step: Step, number: int, opened: contextlib.ExitStack) -> OtherPass:
        """Make a pass that measures rounding."""
        generator = np.random.default_rng([self.step, number])
        path = self.folder / f"b.moved{number}.h5"
        self.passed(path, lambda values, autocast: moved(values, generator, autocast))
        return OtherPass(opened.enter_context(Reader(path)), step)

    def _answer(self, step: Step, verdicts: Verdicts, passed: Passed) -> Comparison:
        a, b = step.a.reader, step.b.reader
        tally = Tally((a, b), step.matching)
        tally.add(step, verdicts)
        findings = self._findings(step, verdicts)
        if self.is_to_refer and findings:
            findings = self._referred(findings, step)
        if self.own:
            self.notes.append(note("replay-own-weights", names=self.own))
        modules = {node.a.module for node in step.nodes}
        reasons = () if modules else (note("replay-nothing"),)
        verdict = Verdict.DIVERGED if findings else Verdict.UNDECIDED if reasons else Verdict.ALIGNED
        rows = tuple(self._with_errors_in_run(tally.rows, step))
        left = tuple(unjudged(rows, {})) if passed.uncached else ()
        return Comparison(
            verdict, tuple(findings), tally.coverage(), (*self.notes, *reasons), NOISE, rows, step.matching, str(a.path),
            str(b.path), *tally.alone(findings), reasons=reasons, flip=margin_of(verdict, findings, rows),
            steps=((self.step, self.step),), pairs=module_pairs(step.matching, *tally.trees),
            runs=(summary_of(a, tally.trees[0]), summary_of(b, tally.trees[1])),
            replayed=Replayed(len(modules), len(step.nodes), passed.notes(), self.weights), left_out=left,
        )  # fmt: skip

    def _findings(self, step: Step, verdicts: Verdicts) -> list[Divergence]:
        """Return what is wrong, with hints; as sure as the pairs are."""
        from probe.diagnosis.beside import Guesses
        from probe.diagnosis.choosing import with_hints
        from probe.diagnosis.evidence import evidence_of

        guesses = Guesses(step.matching, Tree(step.a.reader.modules), Tree(step.b.reader.modules))
        told = list(findings_in_order(step, verdicts.findings))
        evidence = {said.event: evidence_of(step, finding, said) for said, finding in told}
        hinted = with_hints([said for said, _ in told], lambda said: evidence[said.event], self.notes)
        return [guesses.weighed(each) for each in hinted]

    def _referred(self, findings: list[Divergence], step: Step) -> list[Divergence]:
        """Add to findings how far both sides are from B's code in float64.

        A that is further computes something else, or less precisely, than B's code says; B that is further rounds more than A does.
        """
        path = self.folder / "b.wide.h5"
        try:
            self.passed(path, is_wide=True)
        except NotImplementedError:
            self.notes.append(note("replay-no-reference", framework=self.replaying.adapter.framework))
            return findings
        with Reader(path) as reader:
            return [_with_reference(each, OtherPass(reader, step)) for each in findings]

    def _with_errors_in_run(self, rows: Iterable[SlotResult], step: Step) -> Iterator[SlotResult]:
        """Add to what modules return by how much that is off in a run of B of its own: what it inherits included."""
        calls = ((node.a, event) for node in step.nodes for event in node.outputs)
        outputs = {(call.path, call.micro, call.number, event.slot_a): event for call, event in calls}
        path = self.folder / "b.run.h5"
        self.passed(path, substitutes=False)
        with Reader(path) as reader:
            run = OtherPass(reader, step)
            for row in rows:
                event = outputs.get((row.path_a, row.micro, row.call, row.slot_a)) if row.role is Role.OUTPUT else None
                error = None if event is None else run.error(event, event.a)
                yield row if error is None else replace(row, in_run=error)


def _numbered(a: Side, b: Side, matching: Matching, batches: object) -> list[tuple[Group, Group]]:
    """Return the calls that both sides made: those of a replay have A's numbers."""
    theirs = by_place(b.calls)
    partners = {pair.a: pair.b for pair in matching.pairs if pair.has_calls}
    keys = ((call, (call.micro, partners.get(call.module, -1), call.number)) for call in a.calls)
    return [((call,), (theirs[key],)) for call, key in keys if key in theirs]


def _with_reference(finding: Divergence, wide: OtherPass) -> Divergence:
    event: Any = finding.event
    a, b = (wide.error(event, each) if event is not None else None for each in (event and event.a, event and event.b))
    if a is None or b is None:
        return finding
    return replace(finding, facts=(*finding.facts, note("replay-reference", a=a, b=b)))
