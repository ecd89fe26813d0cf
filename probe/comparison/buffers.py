"""What a step made of the buffers: running statistics."""

from __future__ import annotations

import math
from collections.abc import Sequence

from probe.comparison import tolerance
from probe.comparison.charge import Charger
from probe.comparison.result import Kind
from probe.comparison.running_variance import RunningVariance
from probe.comparison.step_half import Event
from probe.comparison.tolerance import Level
from probe.records import Phase, Role

_RUNNING = ("running_mean", "running_var")


class BufferWalk(Charger):
    """Judges running statistics: where the inputs agree, so must they."""

    def judge_buffers(self) -> None:
        """Judge what the step made of the buffers."""
        before = {(e.pair, e.slot_a): e for e in self.pairs.parameter_events(Phase.INIT, Role.BUFFER)}
        variance = RunningVariance(self.pairs, self.state)
        explained: list[str] = []
        counted: list[Event] = []
        for event in self.pairs.parameter_events(Phase.UPDATE, Role.BUFFER):
            metrics = event.metrics
            if event.is_one_sided or metrics is None:
                continue
            key = (event.pair, event.slot_a)
            if self._has_other_integers(event, before.get(key)):
                counted.append(event)
            sources = self._sources_of_buffer(event, before.get(key))
            held = self.noise.held(event, metrics.rel_l2, tolerance.FORWARD, max(self.u(event), sources.u), sources)
            held = held.widened(held.limit * self._cancelled(event))
            limit = held.limit
            wrong = metrics.is_known and self.u(event) > 0 and held.is_wrong
            is_as_expected = variance.explains(event, before.get(key), limit)
            if wrong and is_as_expected:
                explained.append(self._path_a(event.pair))
                wrong, limit = False, math.nan  # it was not the size of the error that told
            if self.settle(event, limit, wrong, sources.error, error=held.error, held=held):
                facts = (f"the buffer {event.slot_a} differs after the step, before it and at the inputs both agree",)
                self._add(Phase.FORWARD, Kind.INTRODUCED, event, event.pair, tolerance.FORWARD, facts,
                          hint="look at how this module updates its running statistics: momentum, biased variance")  # fmt: skip
            if metrics.is_known:
                self.state.buffers[key] = metrics.rel_l2
        self._tell_of_integers(counted)
        if explained and not self.state.variance_was_told:
            self.state.variance_was_told = True
            self.warnings.append(variance.told_of(explained))

    def _has_other_integers(self, event: Event, old: Event | None) -> bool:
        """Tell whether the step made other integers of a buffer of which both sides had the same."""
        metrics, began = event.metrics, self.state.buffers.get((event.pair, event.slot_a))
        if began is None and old is not None and old.metrics is not None:
            began = old.metrics.rel_l2
        return metrics is not None and metrics.of_integers and metrics.rel_l2 > 0 and began == 0

    def _tell_of_integers(self, counted: Sequence[Event]) -> None:
        """Say which buffers hold other integers behind a step: counters, indices. Rounding may have chosen those, so none is a finding."""
        if not counted:
            return
        first, others = counted[0], len(counted) - 1
        share = "" if first.metrics is None else f" ({first.metrics.rel_l2:.2%} of its elements)"
        self.warnings.append(
            f"after step {self.pairs.step} the buffer {first.slot_a} of {self._path_a(first.pair)} holds other integers{share}"
            f"{f', and so do {others} more' if others else ''}; before it both agree"
        )

    def is_running(self, event: Event) -> bool:
        """Tell whether a buffer is a running statistic."""
        module = self.pairs.matching.pairs[event.pair].a
        return bool(event.slot_a) and self.pairs.a.canonical(module, event.slot_a) in _RUNNING

    def _cancelled(self, event: Event) -> float:
        """Return how much larger than a running mean the numbers are that it is the mean of: their rounding stays."""
        pair, metrics = self.pairs.matching.pairs[event.pair], event.metrics
        assert metrics is not None
        mean = max(metrics.norm_a, metrics.norm_b)
        if self.pairs.a.canonical(pair.a, event.slot_a) != "running_mean" or not mean:
            return 1.0
        given = [
            self.pairs.a.columns["rms"][rows[0]]
            for node in self.pairs.nodes.values()
            if node.pair == event.pair
            for rows in self.pairs.rows_a.get((node.micro, pair.a, node.call), Role.INPUT).values()
        ]
        size = math.prod(self.pairs.a.shapes[event.row_a])
        return max(1.0, max(given, default=0.0) * math.sqrt(size) / mean)

    def _sources_of_buffer(self, event: Event, old: Event | None) -> Level:
        """Return the errors of the buffer before the step, and of what its module was given."""
        sources = Level()
        sources.add(self.state.buffers.get((event.pair, event.slot_a), 0.0), 0.0)
        if old is not None and old.metrics is not None and old.metrics.is_known:
            sources.add(old.metrics.rel_l2, self.u(event))
            is_judged = self.is_running(old) and not self.pairs.step
            if old.metrics.rel_l2 > tolerance.FORWARD.limit(self.u(event), 0.0) and not is_judged:
                name = f"{event.slot_a} of {self._path_a(event.pair)}"
                self.warnings.append(f"the buffer {name} differs {self._when} (rel {old.metrics.rel_l2:.1e})")
        for node, level in self._forward.items():
            if node is not None and node.pair == event.pair:
                sources.merge(level)
        return sources
