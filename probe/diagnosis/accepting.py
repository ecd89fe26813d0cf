"""Holds the tensors of a comparison against an acceptance table, step by step; the verdict does not depend on it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from probe.answer.acceptance import Acceptance, Decision, ItemResult, Outcome, Where
from probe.answer.metrics import UNKNOWN, Measure, bound_of, lets_zeros_pass
from probe.answer.presets import Item, Preset, Scope
from probe.answer.result import Divergence
from probe.answer.result import Verdict as Decided
from probe.notes import Note, note
from probe.records import Phase, Role
from probe.store.reading.reader import Reader
from probe.verdict.judge.verdicts import State, Verdict, Verdicts
from probe.verdict.noise.model import SIXTEEN_BITS
from probe.verdict.noise.tolerances import measured
from probe.verdict.rows import micro_of, place_of
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

_MOSTLY = 0.5
"""share of a row's tensors from which on it is said that zeros would pass too"""
_LOSS, _LOGITS = "loss", "logits"
_COUNTS = frozenset({"", "no-limit", "needs-values"})
"""codes of verdicts that say nothing of whether two tensors are to agree"""
_PHASE = {Scope.FORWARD: Phase.FORWARD, Scope.BACKWARD: Phase.BACKWARD, Scope.GRADIENTS: Phase.GRADIENT}


@dataclass(slots=True)
class _Row:
    """A row of the table under way."""

    item: Item
    largest: Measure = Measure(-math.inf)
    where: Where | None = None
    first_open: Where | None = None
    counts: Counter[str] = field(default_factory=Counter)
    """by the fields of `ItemResult`"""

    def take(self, measure: Measure, where: Where | None, is_wide: bool = False) -> None:
        """Take in an error."""
        if measure.figure > self.largest.figure:
            self.largest, self.where = measure, where
        self.counts.update(judged=1, wide=int(is_wide))

    def result(self, is_recorded: bool) -> ItemResult:
        """Return the row as it came out."""
        absent = Outcome.NOT_COMPARED if is_recorded else Outcome.NOT_RECORDED
        outcome = Outcome.PASS if self.counts["judged"] else absent
        measure, where = (self.largest, self.where) if self.counts["judged"] else (UNKNOWN, None)
        if self.counts["judged"] and measure.figure > bound_of(self.item.tolerance):
            outcome = Outcome.FAIL
        elif self.counts["open"]:
            outcome, measure, where = Outcome.NEEDS_VALUES, UNKNOWN, self.first_open
        return ItemResult(self.item, outcome, measure, where, **self.counts)


class AcceptanceTally:
    """What was measured of each row of a table so far."""

    def __init__(self, preset: Preset, a: Reader, b: Reader) -> None:
        self.preset = preset
        self.rows = {item.scope: _Row(item) for item in preset.items}
        self.steps: list[int] = []
        self.of_findings: dict[int, tuple[Item, Measure]] = {}
        """by the id of an event that the verdict calls wrong: the first row that it belongs to, and its error"""
        self.sixteen = self.total = 0
        self._excused: set[tuple[object, ...]] = set()
        self._phases: tuple[set[int], set[int]] = set(), set()
        self._has_loss = False
        self._vocabularies = {
            each.shape[0]
            for reader in (a, b)
            for each in reader.parameters
            if len(each.shape) == 2 and not each.is_buffer
            if "embed" in reader.modules[each.module].class_name.casefold()
        }

    def add(self, step: Step, verdicts: Verdicts) -> None:
        """Take in a step that was judged."""
        judged = verdicts.by_event
        self._excused |= {_spot(event) for event, each in judged.items() if _is_excused(each)}
        self._take(step, [event for event in judged if event.is_paired], judged)

    def measure(self, step: Step) -> None:
        """Take in a step behind the first that diverges, which is not judged."""
        events = [*step.parameters.events(Phase.GRADIENT, Role.PARAM_GRAD)]
        for node in step.nodes if step.batches.are_same else ():
            events += (*node.inputs, *node.outputs, *step.gradients(node))
        self._take(step, [event for event in events if event.is_paired], {})

    def accepted(self, verdict: Decided, findings: Sequence[Divergence], reasons: Sequence[Note]) -> Acceptance:
        """Return what the table says of a comparison.

        Nothing is accepted that could not be compared: a verdict that is undecided leaves the table undecided, unless something is
        beyond its bound.
        """
        both = self._phases[0] & self._phases[1]
        seen = {scope: _PHASE.get(scope, Phase.FORWARD) in both for scope in self.rows} | {Scope.LOSS: self._has_loss}
        items = tuple(row.result(seen[scope]) for scope, row in self.rows.items())
        outcomes = {each.outcome for each in items}
        if Outcome.FAIL in outcomes:
            decision = Decision.NOT_ACCEPTED
        elif outcomes == {Outcome.PASS} and verdict is not Decided.UNDECIDED:
            decision = Decision.ACCEPTED
        else:
            decision = Decision.UNDECIDED
        notes = (
            *self._disagreement(items, decision, verdict, findings, reasons),
            *_lacking(items),
            *self._caveats(items),
        )
        return Acceptance(self.preset, decision, items, tuple(self.steps), notes)

    def _disagreement(
        self,
        items: Sequence[ItemResult],
        decision: Decision,
        verdict: Decided,
        findings: Sequence[Divergence],
        reasons: Sequence[Note],
    ) -> Iterator[Note]:
        """Say where the table and the verdict disagree, and why."""
        if decision is Decision.ACCEPTED and findings:
            yield self._smaller_fault(findings[0])
        elif decision is Decision.NOT_ACCEPTED and verdict is Decided.ALIGNED:
            yield _larger_rounding(next(each for each in items if each.outcome is Outcome.FAIL))
        elif verdict is Decided.UNDECIDED and {each.outcome for each in items} == {Outcome.PASS}:
            yield note("accepted-but-undecided", why=reasons[0] if reasons else None)

    def _smaller_fault(self, first: Divergence) -> Note:
        """Say why a fault was accepted: it is smaller than the bound, or stands where the table does not look."""
        where = {"path": first.path, "phase": first.phase.label, "kind": first.kind.value}
        found = None if first.event is None else self.of_findings.get(id(first.event))
        if found is None:
            return note("fault-outside-of-table", **where)
        item, measure = found
        held = {"metric": item.tolerance.metric, "figure": measure.figure, "relation": measure.relation.value}
        return note("fault-below-bound", **where, item=item.scope.value, **held, bound=bound_of(item.tolerance))

    def _caveats(self, items: Sequence[ItemResult]) -> Iterator[Note]:
        """Say what the figures do not tell."""
        for each in items:
            if each.outcome is Outcome.PASS and each.wide > _MOSTLY * each.judged:
                yield note("zeros-would-be-accepted", item=each.item.scope.value, count=each.wide, total=each.judged)
        if self.sixteen:
            yield note("preset-made-for-float32", count=self.sixteen, total=self.total)
        excused, uncompared = max(each.excused for each in items), max(each.uncompared for each in items)
        if excused or uncompared:
            yield note("acceptance-leaves-out", excused=excused, uncompared=uncompared)

    def _take(self, step: Step, events: Sequence[Event], judged: Mapping[Event, Verdict]) -> None:
        self.steps.append(step.a.step)
        for half, phases in zip((step.a, step.b), self._phases, strict=True):
            phases.update(half.phases)
        floats = [event for event in events if event.a and event.b and "integer" not in (event.a.kind, event.b.kind)]
        losses = {event for event in floats if _is_top(event) and event.a is not None and not event.a.form}
        logits = self._logits(floats, losses) if Scope.LOGITS in self.rows else []
        for event in floats:
            for scope in _scopes(event, losses, logits):
                if scope in self.rows:
                    self._hold(self.rows[scope], step, event, judged.get(event))
        if Scope.LOSS in self.rows:
            self._take_loss(step)
            self._has_loss |= bool(losses)

    def _take_loss(self, step: Step) -> None:
        """Take in the numbers that the program logged as its loss."""
        x, y = (half.scalars.get(_LOSS) for half in (step.a, step.b))
        if x is None or y is None:
            return
        self._has_loss = True
        row, is_same = self.rows[Scope.LOSS], x == y or (math.isnan(x) and math.isnan(y))
        gap = abs(x - y) if math.isfinite(x) and math.isfinite(y) else 0.0 if is_same else math.inf
        is_absolute = row.item.tolerance.metric in ("max_abs", "mean_abs")
        row.take(Measure(gap if is_absolute else gap / max(abs(x), 1e-300)), None)

    def _hold(self, row: _Row, step: Step, event: Event, judged: Verdict | None) -> None:
        """Hold a tensor against the bound of a row."""
        error, item = step.error(event), row.item
        assert event.a is not None
        if error is None or _spot(event) in self._excused:
            row.counts["excused" if _spot(event) in self._excused else "uncompared"] += 1
            return
        found = Measure(math.inf) if math.isinf(error.size) else measured(item.tolerance, step, event, error)
        if judged is not None and judged.state is State.INTRODUCED:
            self.of_findings.setdefault(id(event), (item, found))
        is_larger = not found.is_known or found.figure > min(bound_of(item.tolerance), row.largest.figure)
        where = self._where(step, event, error.size, judged) if is_larger else None
        if not found.is_known:
            row.counts["open"] += 1
            row.first_open = row.first_open or where
            return
        self.total += 1
        self.sixteen += event.a.u > SIXTEEN_BITS
        largest = event.a.largest
        row.take(found, where, bool(largest) and lets_zeros_pass(item.tolerance, largest, event.a.rms))

    def _where(self, step: Step, event: Event, size: float, judged: Verdict | None) -> Where:
        module = event.node.a.module if event.node is not None else event.place[0] if event.place is not None else 0
        other = step.b.reader.modules[step.pair_of[module].b].path if module in step.pair_of else ""
        is_plain = judged is not None and (judged.check is None or not judged.check.measure)
        assert event.a is not None
        return Where(
            step.a.step,
            micro_of(event),
            event.phase,
            event.role,
            step.path(module),
            event.slot_a,
            other,
            event.slot_b,
            event.node.a.number if event.node is not None else 0,
            place_of(event, step.error(event)),
            size,
            judged.limit if judged is not None and is_plain else math.nan,
            event.a.largest,
        )

    def _logits(self, events: Sequence[Event], losses: Collection[Event]) -> list[Event]:
        """Return the events that are logits.

        By their name; else what the model returns over its vocabulary; else the last output over the vocabulary, of
        each micro-batch; of models without one all that they return.
        """
        outputs = [event for event in events if event.role is Role.OUTPUT and event.phase is Phase.FORWARD]
        top = [event for event in outputs if _is_top(event) and event not in losses]
        named = [each for each in top if _LOGITS in (_last(each.slot_a), _last(each.slot_b))]
        over = [event for event in outputs if event.a is not None and {*event.a.shape[-1:]} & self._vocabularies]
        last = {micro_of(event): event for event in sorted(over, key=lambda each: each.at)}
        return named or [event for event in top if event in over] or list(last.values()) or top


def _scopes(event: Event, losses: Collection[Event], logits: Collection[Event]) -> Iterator[Scope]:
    """Yield the rows that a tensor belongs to, those of the model as a whole first."""
    if event in losses:
        yield Scope.LOSS
        return
    if event in logits:
        yield Scope.LOGITS
    if _is_top(event):
        yield Scope.OUTPUTS
    is_weight = event.role in (Role.PARAM, Role.BUFFER)
    yield from (scope for scope, phase in _PHASE.items() if event.phase is phase and not is_weight)


def _is_excused(verdict: Verdict) -> bool:
    """Return True if two tensors need not agree; of what the model returns only a rule says so."""
    is_healed = verdict.state is State.HEALED and _is_top(verdict.event)
    return verdict.code not in _COUNTS and not is_healed


def _is_top(event: Event) -> bool:
    """Return True for what the whole model returned, or what the program called by itself did."""
    is_output = event.phase is Phase.FORWARD and event.role is Role.OUTPUT
    return is_output and event.node is not None and event.node.parent is None


def _last(slot: str) -> str:
    return slot.rpartition(".")[2]


def _spot(event: Event) -> tuple[object, ...]:
    """Return what a tensor is in whatever step."""
    module = event.node.a.module if event.node is not None else event.place
    return event.phase, event.role, module, event.slot_a


def _larger_rounding(failed: ItemResult) -> Note:
    """Say why what is noise was refused: the bound does not know how large the numbers are."""
    held, where = {"metric": failed.item.tolerance.metric, "figure": failed.measure.figure}, failed.where
    at: dict[str, object] = {"path": None, "rel": math.nan, "limit": math.nan, "largest": math.nan}
    if where is not None and math.isfinite(where.rel_l2):
        at = {"path": where.path_a, "rel": where.rel_l2, "limit": where.limit, "largest": where.largest}
    return note("rounding-beyond-bound", item=failed.item.scope.value, **held, bound=failed.bound, **at)


def _lacking(items: Sequence[ItemResult]) -> Iterator[Note]:
    """Say what to record for the rows that could not be judged."""
    needy = [each for each in items if each.outcome is Outcome.NEEDS_VALUES]
    if needy:
        names = tuple(each.item.scope.value for each in needy)
        yield note("acceptance-needs-values", items=names, count=sum(each.open for each in needy))
    absent = tuple(each.item.scope.value for each in items if each.outcome is Outcome.NOT_RECORDED)
    if absent:
        yield note("acceptance-not-recorded", items=absent)
