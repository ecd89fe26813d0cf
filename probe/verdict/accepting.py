"""Holds the tensors of a comparison against an acceptance table, step by step; the verdict does not depend on it."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from probe.comparison.acceptance.result import ItemResult, Outcome, Where
from probe.comparison.noise.presets import Item, Preset, Scope
from probe.comparison.noise.tolerated import UNKNOWN, Measure, bound_of, lets_zeros_pass
from probe.records import Phase, Role
from probe.store.reading.reader import Reader
from probe.verdict.judge.verdicts import State, Verdict, Verdicts
from probe.verdict.noise.model import SIXTEEN_BITS
from probe.verdict.noise.tolerances import largest_place, measured
from probe.verdict.rows import micro_of
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

_LOSS, _LOGITS = "loss", "logits"
_COUNTS = frozenset({"", "no-limit", "needs-values"})
"""codes of verdicts that say nothing of whether two tensors are to agree"""
_PHASE = {Scope.FORWARD: Phase.FORWARD, Scope.BACKWARD: Phase.BACKWARD, Scope.GRADIENTS: Phase.GRADIENT}


@dataclass(frozen=True, slots=True)
class _Row:
    """A row of the table under way."""

    found: ItemResult
    first_open: Where | None = None

    def take(self, measure: Measure, where: Where | None, is_wide: bool = False) -> _Row:
        """Take in an error."""
        found = self.found
        is_larger = math.isnan(found.measure.figure) or measure.figure > found.measure.figure
        kept, at = (measure, where) if is_larger else (found.measure, found.where)
        found = replace(found, measure=kept, where=at, judged=found.judged + 1, wide=found.wide + is_wide)
        return replace(self, found=found)

    def counted(self, name: str) -> _Row:
        """Count a pair of tensors that no figure is known of."""
        return replace(self, found=replace(self.found, **{name: getattr(self.found, name) + 1}))

    def result(self, is_recorded: bool) -> ItemResult:
        """Return the row as it came out."""
        found = self.found
        if found.judged and found.measure.figure > found.bound:
            return replace(found, outcome=Outcome.FAIL)
        if found.open:
            return replace(found, outcome=Outcome.NEEDS_VALUES, measure=UNKNOWN, where=self.first_open)
        absent = Outcome.NOT_COMPARED if is_recorded else Outcome.NOT_RECORDED
        return replace(found, outcome=Outcome.PASS if found.judged else absent)


class AcceptanceTally:
    """What was measured of each row of a table so far; `probe.comparison.acceptance.deciding` reads it."""

    def __init__(self, preset: Preset, a: Reader, b: Reader) -> None:
        self.preset = preset
        empty = {item.scope: ItemResult(item, Outcome.NOT_RECORDED) for item in preset.items}
        self.rows = {scope: _Row(found) for scope, found in empty.items()}
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

    def results(self) -> tuple[ItemResult, ...]:
        """Return all rows as they came out."""
        both = self._phases[0] & self._phases[1]
        seen = {scope: _PHASE.get(scope, Phase.FORWARD) in both for scope in self.rows} | {Scope.LOSS: self._has_loss}
        return tuple(row.result(seen[scope]) for scope, row in self.rows.items())

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
                    self.rows[scope] = self._held(self.rows[scope], step, event, judged.get(event))
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
        is_absolute = row.found.item.tolerance.metric in ("max_abs", "mean_abs")
        self.rows[Scope.LOSS] = row.take(Measure(gap if is_absolute else gap / max(abs(x), 1e-300)), None)

    def _held(self, row: _Row, step: Step, event: Event, judged: Verdict | None) -> _Row:
        """Hold a tensor against the bound of a row."""
        error, item = step.error(event), row.found.item
        assert event.a is not None
        if _spot(event) in self._excused:
            return row.counted("excused")
        if error is None:
            return row.counted("uncompared")
        found = Measure(math.inf) if math.isinf(error.size) else measured(item.tolerance, step, event, error)
        if judged is not None and judged.state is State.INTRODUCED:
            self.of_findings.setdefault(id(event), (item, found))
        is_larger = not found.is_known or found.figure > bound_of(item.tolerance)
        is_first = row.found.judged == 0 or found.figure > row.found.measure.figure
        where = self._where(step, event, error.size, judged) if is_larger or is_first else None
        if not found.is_known:
            return replace(row.counted("open"), first_open=row.first_open or where)
        self.total += 1
        self.sixteen += event.a.u > SIXTEEN_BITS
        largest = event.a.largest
        return row.take(found, where, bool(largest) and lets_zeros_pass(item.tolerance, largest, event.a.rms))

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
            largest_place(step, event),
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
