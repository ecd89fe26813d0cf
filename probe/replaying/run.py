"""`replay`: which modules of B are wrong by themselves."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from probe.commands.defaults import MIN_CONFIDENCE
from probe.comparison.answer import Comparison
from probe.comparison.coverage.tally import Tally
from probe.comparison.coverage.verdict_margin import margin_of
from probe.comparison.distance.metrics import measure_pair
from probe.comparison.module_pairs import module_pairs
from probe.comparison.notes import Note, note
from probe.comparison.own_errors import Replayed
from probe.comparison.result import Divergence, Inputs, SlotResult, Verdict, cause_order
from probe.comparison.run_summary import summary_of
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.paired_step import paired_step
from probe.comparison.steps.rows import Rows
from probe.comparison.steps.side import Side
from probe.errors import ConfigError, NotRecordedError
from probe.mapping import load_mapping
from probe.records import DirectionName, Phase, Role, SideName
from probe.replaying.judgement.checks import Passed
from probe.replaying.judgement.judging import Judge, Judgement
from probe.replaying.judgement.limits import Moved
from probe.replaying.judgement.reference import with_reference
from probe.replaying.keeping import kept
from probe.replaying.moving import moved
from probe.replaying.passing.left import Left
from probe.replaying.passing.plan import Changed, Plan
from probe.replaying.passing.traversal import Traversal
from probe.replaying.passing.writing import Written
from probe.replaying.prepared import PairingOptions, Prepared, as_tensors, prepared, step_of, verbs_for
from probe.replaying.recorded import Recorded
from probe.replaying.weights import put
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

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
    if weights not in get_args(SideName):
        raise ConfigError(f"weights={weights!r} is not known; expected 'a' (as recorded in A) or 'b' (B's own)")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise ConfigError(
            f"inputs={type(inputs).__name__} cannot be used; expected a dict of the model's arguments by name"
        )
    parsed, replaying = load_mapping(mapping), verbs_for(model, "probe.replay()")
    folder = Path(tempfile.mkdtemp(prefix="probe-replay-"))
    try:
        with Reader(recording) as a:
            a.require_steps()
            options = PairingOptions(parsed, direction, strict, min_confidence)
            ready = prepared(replaying, model, a, step_of(a, step), folder, options)
            if not any(map(ready.recorded.has_values, ready.recorded.rows_of(Role.INPUT))):
                raise NotRecordedError(
                    f"{a.path.name} holds no values of what modules were given in step {ready.recorded.step}: record A with "
                    'task="tensor"'
                )
            run = _Replay(ready, folder, weights, as_tensors(replaying, model, inputs or {}))
            run.is_to_refer = reference
            answer = run.answered(Path(keep) if keep is not None else folder / "b.replay.h5")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(answer, shutil.rmtree, folder, ignore_errors=True)
    return answer


@dataclass
class _Pass:
    """A pass that was made."""

    path: Path
    traversal: Traversal


class _Replay:
    """A replay under way."""

    def __init__(self, prepared: Prepared, folder: Path, weights: SideName, inputs: dict[str, Any]) -> None:
        self.replaying, self.model, self.folder = prepared.replaying, prepared.model, folder
        self.a, self.step, self.recorded = prepared.recorded.reader, prepared.recorded.step, prepared.recorded
        self.pairing, self.partners, self.casts = prepared.pairing, prepared.partners, prepared.casts
        self.weights, self.inputs = weights, inputs
        self.notes: list[Note] = list(prepared.pairing.complete.notes)
        self.own: tuple[str, ...] = ()
        """weights of B that have no counterpart in A"""
        self.is_to_refer = False

    def passed(
        self, path: Path, changed: Changed | None = None, *, substitutes: bool = True, is_wide: bool = False
    ) -> _Pass:
        """Make a pass through B, or a copy of it in float64; B is left as it was before the pass."""
        adapter = self.replaying.adapter
        with kept(self.replaying, self.model):
            if changed is not None:
                self._move_weights(changed)
            model = self.replaying.wide(self.model) if is_wide else self.model
            casts = self.casts and not is_wide
            plan = Plan(self.replaying, model, self.recorded, self.partners, self.inputs, casts, changed, substitutes)
            written = Written(adapter, model, path, self.step)
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
        return _Pass(path, traversal)

    def _move_weights(self, changed: Changed) -> None:
        adapter = self.replaying.adapter
        autocast = next((call.autocast for call in self.recorded.calls if call.autocast), "") if self.casts else ""
        for each in adapter.parameters(self.model):
            if not each.is_buffer:
                with adapter.quiet():
                    adapter.assign(each.tensor, changed(adapter.values(each.tensor), autocast))

    def answered(self, path: Path) -> Comparison:
        """Replay, and judge; B is left as it was."""
        if self.weights != "a":
            return self._judged(path)
        with kept(self.replaying, self.model):
            self.own = put(self.replaying.adapter, self.model, self.recorded, self.pairing.modules)
            return self._judged(path)

    def _judged(self, path: Path) -> Comparison:
        first = self.passed(path)
        with Reader(path) as b:
            pairs = paired_step(self.a, b, self.step, self.step, self.pairing.complete)
            traversal = first.traversal
            same = b.info.framework == self.a.info.framework
            inner = frozenset(traversal.backward.with_inner)
            said = Passed(frozenset(traversal.unpulled), frozenset(traversal.skipped), inner, same)
            readers: list[Reader] = []
            try:
                judgement = Judge(pairs, said, lambda: self._moved(readers)).judged()
            finally:
                for reader in readers:
                    reader.close()
            return self._answer(pairs, b, judgement, traversal.left)

    def _moved(self, readers: list[Reader]) -> Moved:
        """Make the passes that measure rounding."""
        for number in range(_PASSES):
            generator = np.random.default_rng([self.step, number])

            def changed(values: np.ndarray, autocast: str, generator: np.random.Generator = generator) -> np.ndarray:
                return moved(values, generator, autocast)

            made = self.passed(self.folder / f"b.moved{number}.h5", changed)
            readers.append(Reader(made.path))
        return Moved(readers, self.step)

    def _answer(self, pairs: StepPairs, b: Reader, judgement: Judgement, left: Iterable[Left]) -> Comparison:
        from probe.diagnosis.choosing import with_hints
        from probe.diagnosis.of_pairs import evidence_of

        trees = Tree(self.a.modules), Tree(b.modules)
        tally = Tally(self.a, b, *trees)
        tally.add(pairs, judgement.events)
        ordered = sorted(judgement.findings, key=cause_order)
        findings = with_hints(ordered, lambda finding: evidence_of(pairs, finding), self.notes)
        if self.is_to_refer and findings:
            findings = self._referred(findings, pairs)
        lacking = tuple(each.note(self.a.modules[each.call.module].path) for each in _outermost(left, self.recorded))
        if self.own:
            self.notes.append(note("replay-own-weights", names=self.own))
        replayed = {node.pair for node in pairs.nodes.values()}
        reasons = () if replayed else (note("replay-nothing"),)
        verdict = Verdict.DIVERGED if findings else Verdict.UNDECIDED if reasons else Verdict.ALIGNED
        slots = tuple(self._with_errors_in_run(tally.slots, pairs))
        return Comparison(
            verdict, tuple(findings), tally.coverage, (*self.notes, *reasons), NOISE, slots, self.pairing.complete,
            str(self.a.path), str(b.path), tuple(tally.only_a), tuple(tally.only_b), inputs=Inputs(), reasons=reasons,
            flip=margin_of(verdict, findings, list(slots)), steps=((self.step, self.step),), pairs=module_pairs(self.pairing.complete, *trees),
            runs=(summary_of(self.a, trees[0]), summary_of(b, trees[1])),
            replayed=Replayed(len(replayed), len(pairs.nodes), lacking, self.weights),
        )  # fmt: skip

    def _referred(self, findings: list[Divergence], pairs: StepPairs) -> list[Divergence]:
        """Add to findings how far both sides are from B's code in float64."""
        try:
            made = self.passed(self.folder / "b.wide.h5", is_wide=True)
        except NotImplementedError:
            self.notes.append(note("replay-no-reference", framework=self.replaying.adapter.framework))
            return findings
        with Reader(made.path) as reader:
            return with_reference(findings, pairs, Side(reader, self.step))

    def _with_errors_in_run(self, slots: list[SlotResult], pairs: StepPairs) -> Iterable[SlotResult]:
        """Add to what modules return by how much that is off in a run of B of its own: what it inherits included."""
        made = self.passed(self.folder / "b.run.h5", substitutes=False)
        with Reader(made.path) as reader:
            side = Side(reader, self.step)
            rows = Rows.of(side)
            calls = {(node.micro, node.pair, node.call): pairs.half("B").key(node) for node in pairs.nodes.values()}
            index = {self.a.modules[pair.a].path: number for number, pair in enumerate(pairs.matching.pairs)}
            for slot in slots:
                key = calls.get((slot.micro, index.get(slot.path_a, -1), slot.call))
                there = (
                    None if key is None or slot.role is not Role.OUTPUT else rows.get(key, Role.OUTPUT).get(slot.slot_b)
                )
                if there is None:
                    yield slot
                    continue
                metrics = measure_pair(pairs.a, slot.row_a, side, there[0])
                yield replace(slot, in_run=metrics.rel_l2)


def _outermost(left: Iterable[Left], recorded: Recorded) -> list[Left]:
    """Return what was not replayed, without what lies inside of another call that was not, for no reason of its own."""
    found = list(left)
    not_called = {each.call.row for each in found if each.why.value == "replay-not-called"}
    kept_left = []
    for each in found:
        caller = recorded.caller(each.call)
        if each.call.row in not_called and caller is not None and caller.row in not_called:
            continue
        kept_left.append(each)
    return kept_left
