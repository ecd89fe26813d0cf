"""`replay`: which modules of B are wrong by themselves."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from probe import session
from probe.adapters.replaying import Replaying, replaying_for
from probe.commands.defaults import MIN_CONFIDENCE
from probe.comparison.answer import Comparison
from probe.comparison.coverage.tally import Tally
from probe.comparison.distance.metrics import measure_pair
from probe.comparison.module_pairs import module_pairs
from probe.comparison.notes import Note, note
from probe.comparison.own_errors import Replayed
from probe.comparison.result import Inputs, SlotResult, Verdict, cause_order
from probe.comparison.run_summary import summary_of
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.paired_step import paired_step
from probe.comparison.steps.rows import Rows
from probe.comparison.steps.side import Side
from probe.errors import ConfigError, NotRecordedError, RecordingError
from probe.mapping import load_mapping
from probe.records import Phase, Role, Task
from probe.replaying.judging import Judge, Judgement, Passed
from probe.replaying.keeping import kept
from probe.replaying.left import Left
from probe.replaying.limits import Moved
from probe.replaying.moving import moved
from probe.replaying.partners import Pairing, Partner, matched, partners_of
from probe.replaying.plan import Changed, Plan
from probe.replaying.recorded import Recorded
from probe.replaying.traversal import Traversal
from probe.replaying.weights import put
from probe.replaying.writing import Written
from probe.store.reading.reader import Reader
from probe.structure.tree import Tree

NOISE = "rounding of each module alone, measured where it is in question"
_PASSES = 2
"""that measure rounding"""
_WEIGHTS = ("a", "b")


def replay(
    model: Any,
    recording: str | Path,
    mapping: str | Path | Mapping[str, Any] | None = None,
    *,
    step: int | None = None,
    weights: str = "a",
    inputs: Mapping[str, Any] | None = None,
    direction: str | None = None,
    strict: bool = False,
    min_confidence: float = MIN_CONFIDENCE,
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
        what the whole model is called with beside A's tensors, by name: ``{"use_cache": False}``
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
    _check(model, weights, inputs)
    parsed, replaying = load_mapping(mapping), replaying_for(model)
    refusal = replaying.adapter.refusal(model)
    if refusal:
        raise RecordingError(f"probe.replay(): {refusal}")
    folder = Path(tempfile.mkdtemp(prefix="probe-replay-"))
    try:
        with Reader(recording) as a:
            a.require_steps()
            run = _Replay(replaying, model, a, _chosen(a, step), folder, weights, dict(inputs or {}))
            run.prepare(parsed, direction, strict, min_confidence)
            answer = run.answered(Path(keep) if keep is not None else folder / "b.replay.h5")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(answer, shutil.rmtree, folder, ignore_errors=True)
    return answer


def _check(model: Any, weights: str, inputs: Mapping[str, Any] | None) -> None:
    if session.is_under_way():
        raise RecordingError("a recording is under way, which would record the replay too; call probe.stop() first")
    if isinstance(model, (list, tuple)):
        raise RecordingError(f"probe.replay() was given a {type(model).__name__}; expected one model")
    if weights not in _WEIGHTS:
        raise ConfigError(f"weights={weights!r} is not known; expected 'a' (as recorded in A) or 'b' (B's own)")
    if inputs is not None and not isinstance(inputs, Mapping):
        raise ConfigError(f"inputs={type(inputs).__name__} cannot be used; expected a dict of the model's arguments by name")


def _chosen(a: Reader, step: int | None) -> int:
    """Return the step to replay."""
    known = a.steps["step"].tolist()
    if step is None and known:
        return int(known[0])
    if step not in known:
        listed = ", ".join(map(str, known[:8])) + (" …" if len(known) > 8 else "")
        raise ConfigError(f"step {step} is not in {a.path.name}; it has {listed or 'none'}")
    return int(step)


@dataclass
class _Pass:
    """A pass that was made."""

    path: Path
    traversal: Traversal


class _Replay:
    """A replay under way."""

    def __init__(
        self, replaying: Replaying, model: Any, a: Reader, step: int, folder: Path, weights: str, inputs: dict[str, Any]
    ) -> None:  # fmt: skip
        self.replaying, self.model, self.a, self.step, self.folder = replaying, model, a, step, folder
        self.weights, self.inputs = weights, inputs
        self.notes: list[Note] = []
        self.own: tuple[str, ...] = ()
        """weights of B that have no counterpart in A"""

    def prepare(self, mapping: Any, direction: str | None, strict: bool, min_confidence: float) -> None:
        """Find out which module is which."""
        adapter = self.replaying.adapter
        begun = Written(adapter, self.model, self.folder / "b.begun.h5", self.step, Task.STATISTICS)
        begun.weights(Phase.INIT)
        begun.close()
        with Reader(begun.path) as b:
            self.pairing: Pairing = matched(self.a, b, mapping, direction, strict, min_confidence)
            self.partners: Mapping[int, Partner] = partners_of(self.pairing.complete, b)
        self.recorded = Recorded(self.a, self.step, self.pairing.complete)
        if not any(map(self.recorded.has_values, self.recorded.rows_of(Role.INPUT))):
            raise NotRecordedError(
                f'{self.a.path.name} holds no values of what modules were given in step {self.step}: record A with task="tensor"'
            )
        self.notes += self.pairing.complete.notes
        dtypes = {adapter.facts(each.tensor).dtype for each in adapter.parameters(self.model) if not each.is_buffer}
        self.casts = "float32" in dtypes or "float64" in dtypes

    def passed(self, path: Path, changed: Changed | None = None, *, substitutes: bool = True) -> _Pass:
        """Make a pass through B, which is left as it was."""
        adapter = self.replaying.adapter
        plan = Plan(self.replaying, self.model, self.recorded, self.partners, self.inputs, self.casts, changed, substitutes)
        with kept(self.replaying, self.model):
            if self.weights == "a":
                self.own = put(adapter, self.model, self.recorded, self.pairing.modules)
            if changed is not None:
                self._move_weights(changed)
            written = Written(adapter, self.model, path, self.step)
            try:
                traversal = Traversal(plan, written)
                written.weights(Phase.INIT)
                traversal.run()
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
        """Replay, and judge."""
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

        trees = Tree(self.a.modules), Tree(b.modules)
        tally = Tally(self.a, b, *trees)
        tally.add(pairs, judgement.events)
        findings = with_hints(pairs, sorted(judgement.findings, key=cause_order), self.notes)
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
            steps=((self.step, self.step),), pairs=module_pairs(self.pairing.complete, *trees),
            runs=(summary_of(self.a, trees[0]), summary_of(b, trees[1])),
            replayed=Replayed(len(replayed), len(pairs.nodes), lacking, self.weights),
        )  # fmt: skip

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
                there = None if key is None or slot.role is not Role.OUTPUT else rows.get(key, Role.OUTPUT).get(slot.slot_b)
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



