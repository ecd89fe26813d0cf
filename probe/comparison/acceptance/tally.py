"""Holding the tensors of a comparison against an acceptance table, step by step."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from probe.comparison.acceptance.result import ItemResult, Outcome, Where
from probe.comparison.ledger.known import Judged
from probe.comparison.noise.presets import Item, Preset, Scope
from probe.comparison.noise.tolerance import SIXTEEN_BIT
from probe.comparison.noise.tolerated import UNKNOWN, Measure, bound_of, largest_of, lets_zeros_pass, measured
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import kind_of, squeezed
from probe.comparison.steps.step_half import Event
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role
from probe.store.reading.reader import Reader

_LOSS = "loss"
_LOGITS = "logits"
_COUNTS = frozenset({"", "no-limit", "needs-values"})
"""exemptions of the verdict that say nothing of whether two tensors are to agree"""
_PHASE = {Scope.FORWARD: Phase.FORWARD, Scope.BACKWARD: Phase.BACKWARD, Scope.GRADIENTS: Phase.GRADIENT}
_OF_FORWARD = (Scope.OUTPUTS, Scope.LOGITS)

Spot = tuple[Phase, Role, int, str]
"""phase, role, pair of modules and slot of a tensor, in whatever step"""


@dataclass
class Row:
    """A row of the table under way."""

    item: Item
    measure: Measure = UNKNOWN
    where: Where | None = None
    judged: int = 0
    open: int = 0
    uncompared: int = 0
    excused: int = 0
    wide: int = 0
    first_open: Where | None = None

    def take(self, measure: Measure, where: Where | None) -> None:
        """Take in an error."""
        self.judged += 1
        if math.isnan(self.measure.figure) or measure.figure > self.measure.figure:
            self.measure, self.where = measure, where

    def result(self, is_recorded: bool) -> ItemResult:
        """Return the row as it came out."""
        if self.judged and self.measure.figure > bound_of(self.item.tolerance):
            outcome = Outcome.FAIL
        elif self.open:
            outcome = Outcome.NEEDS_VALUES
        elif self.judged:
            outcome = Outcome.PASS
        else:
            outcome = Outcome.NOT_COMPARED if is_recorded else Outcome.NOT_RECORDED
        is_open = outcome is Outcome.NEEDS_VALUES
        measure, where = (UNKNOWN, self.first_open) if is_open else (self.measure, self.where)
        return ItemResult(self.item, outcome, measure, where, self.judged, self.open, self.uncompared, self.excused, self.wide)  # fmt: skip


class Tally:
    """What was measured of each row of a table so far.

    Parameters
    ----------
    preset
        the table
    a, b
        the recordings
    """

    def __init__(self, preset: Preset, a: Reader, b: Reader) -> None:
        self.preset, self.a, self.b = preset, a, b
        self.rows = {item.scope: Row(item) for item in preset.items}
        self.steps: list[int] = []
        self.of_findings: dict[int, tuple[Item, Measure]] = {}
        """by the id of an event that the verdict calls wrong: the first row that it belongs to, and its error"""
        self.sixteen = self.total = 0
        self._excused: set[Spot] = set()
        self._phases: tuple[set[int], set[int]] = set(), set()
        """by side, those of which anything was recorded"""
        self._has_loss = False
        self._vocabularies = _vocabularies(a), _vocabularies(b)

    def add(self, pairs: StepPairs, events: Iterable[Judged]) -> None:
        """Take in a step that was judged."""
        kept = list(events)
        self._excused |= {_spot(each.event) for each in kept if each.exemption not in _COUNTS}
        self._take(pairs, [each.event for each in kept], {id(each.event): each for each in kept})

    def measure(self, pairs: StepPairs) -> None:
        """Take in a step behind the first that diverges, which is not judged."""
        micros = sorted({node.micro for node in pairs.nodes.values()}) if pairs.same_micros else []
        events = [event for micro in micros for backward in (False, True)
                  for _, event in pairs.node_events(micro, backward=backward)]  # fmt: skip
        if pairs.share is None:
            events += pairs.parameter_events(Phase.GRADIENT, Role.PARAM_GRAD)
        self._take(pairs, [event for event in events if not event.is_one_sided], {})

    def results(self) -> tuple[ItemResult, ...]:
        """Return all rows as they came out."""
        both = self._phases[0] & self._phases[1]
        return tuple(
            row.result(self._has_loss if scope is Scope.LOSS else _PHASE.get(scope, Phase.FORWARD) in both)
            for scope, row in self.rows.items()
        )

    def _take(self, pairs: StepPairs, events: Sequence[Event], judged: dict[int, Judged]) -> None:
        self.steps.append(pairs.step)
        for half, phases in zip(pairs.halves, self._phases, strict=True):
            phases.update(half.side.columns["phase"])
        floats = [event for event in events if event.metrics is not None and _is_float(pairs, event)]
        losses = {id(event) for event in floats if _is_top(pairs, event) and not squeezed(pairs.a.shapes[event.row_a])}
        logits = {id(event) for event in self._logits(pairs, floats, losses)} if Scope.LOGITS in self.rows else set()
        for event in floats:
            for scope in _scopes(pairs, event, losses, logits):
                if scope in self.rows:
                    self._held(self.rows[scope], pairs, event, judged.get(id(event)))
        if Scope.LOSS in self.rows:
            self._take_loss(self.rows[Scope.LOSS], pairs)
            self._has_loss |= bool(losses)

    def _take_loss(self, row: Row, pairs: StepPairs) -> None:
        """Take in the numbers that were given to ``probe.step`` as loss."""
        x, y = (half.side.reader.scalars_of(half.side.step).get(_LOSS) for half in pairs.halves)
        if x is None or y is None:
            return
        self._has_loss = True
        gap = (
            abs(x - y) if math.isfinite(x) and math.isfinite(y) else 0.0 if x == y or (x != x and y != y) else math.inf
        )
        wanted = row.item.tolerance
        row.take(Measure(gap if wanted.metric in ("max_abs", "mean_abs") else gap / max(abs(x), 1e-300)), None)

    def _held(self, row: Row, pairs: StepPairs, event: Event, judged: Judged | None) -> None:
        """Hold a tensor against the bound of a row."""
        metrics, wanted = event.metrics, row.item.tolerance
        assert metrics is not None
        if _spot(event) in self._excused:
            row.excused += 1
            return
        if not metrics.is_known:
            row.uncompared += 1
            return
        share = partial(pairs.worst_share, event, wanted.atol, wanted.rtol)
        is_finite = math.isfinite(metrics.rel_l2)
        found = measured(wanted, metrics, pairs.a, event.row_a, share) if is_finite else Measure(math.inf)
        if judged is not None and judged.verdict == "introduced":
            self.of_findings.setdefault(id(event), (row.item, found))
        largest = largest_of(pairs.a, event.row_a)
        where = self._where(pairs, event, largest, judged)
        if not found.is_known:
            row.open += 1
            row.first_open = row.first_open or where
            return
        row.take(found, where)
        row.wide += bool(largest) and lets_zeros_pass(wanted, largest, float(pairs.a.columns["rms"][event.row_a]))
        self.total += 1
        self.sixteen += unit_roundoff(pairs.a.dtypes[event.row_a]) > SIXTEEN_BIT

    def _where(self, pairs: StepPairs, event: Event, largest: float, judged: Judged | None) -> Where:
        pair, metrics = pairs.matching.pairs[event.pair], event.metrics
        assert metrics is not None
        limit = math.nan if judged is None or judged.check is not None and judged.check.measure else judged.limit
        return Where(
            event.step, event.micro, event.phase, event.role, self.a.modules[pair.a].path, event.slot_a,
            self.b.modules[pair.b].path, event.slot_b, event.call, metrics.max_abs_at, metrics.rel_l2, limit, largest,
        )  # fmt: skip

    def _logits(self, pairs: StepPairs, events: Sequence[Event], losses: Container[int]) -> list[Event]:
        """Return the events that are logits.

        By their name; else what the model returns over its vocabulary; else the last output over the vocabulary, of each
        micro-batch; of models without one all that they return.
        """
        outputs = [event for event in events if event.role is Role.OUTPUT and event.phase is Phase.FORWARD]
        top = [event for event in outputs if _is_top(pairs, event) and id(event) not in losses]
        named = [
            event for event in top if _LOGITS in (event.slot_a.rpartition(".")[2], event.slot_b.rpartition(".")[2])
        ]
        known = self._vocabularies[0] | self._vocabularies[1]
        return named or [each for each in top if _last_axis(pairs, each) in known] or list(
            {each.micro: each for each in sorted(outputs, key=partial(_order, pairs)) if _last_axis(pairs, each) in known}.values()
        ) or top  # fmt: skip


def _scopes(pairs: StepPairs, event: Event, losses: Container[int], logits: Container[int]) -> Iterator[Scope]:
    """Yield the rows that a tensor belongs to, those of the model as a whole first."""
    if id(event) in losses:
        yield Scope.LOSS
        return
    if id(event) in logits:
        yield Scope.LOGITS
    if event.phase is Phase.FORWARD and event.role is Role.OUTPUT and _is_top(pairs, event):
        yield Scope.OUTPUTS
    is_weight = event.role in (Role.PARAM, Role.BUFFER)
    yield from (scope for scope, phase in _PHASE.items() if event.phase is phase and not is_weight)


def _is_float(pairs: StepPairs, event: Event) -> bool:
    return all(kind_of(dtype) != "integer" for dtype in (pairs.a.dtypes[event.row_a], pairs.b.dtypes[event.row_b]))


def _is_top(pairs: StepPairs, event: Event) -> bool:
    """Tell whether a tensor is what the whole model returned, or what the program called by itself did."""
    if event.phase is not Phase.FORWARD or event.role is not Role.OUTPUT:
        return False
    node = pairs.nodes.get((event.micro, pairs.matching.pairs[event.pair].a, event.call))
    return node is not None and node.parent is None


def _last_axis(pairs: StepPairs, event: Event) -> int:
    shape = pairs.a.shapes[event.row_a]
    return shape[-1] if shape else 0


def _order(pairs: StepPairs, event: Event) -> int:
    return int(pairs.a.columns["order"][event.row_a])


def _spot(event: Event) -> Spot:
    return event.phase, event.role, event.pair, event.slot_a


def _vocabularies(reader: Reader) -> set[int]:
    """Return how many rows the embeddings of a model have."""
    return {
        each.shape[0] for each in reader.parameters
        if len(each.shape) == 2 and not each.is_buffer and "embed" in reader.modules[each.module].class_name.casefold()
    }  # fmt: skip


__all__ = ["Tally"]
