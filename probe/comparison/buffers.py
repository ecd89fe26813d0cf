"""What a step made of the buffers: running statistics."""

from __future__ import annotations

import math

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
        begun = list(self.pairs.parameter_events(Phase.INIT, Role.BUFFER))
        before = {(e.pair, e.slot_a): e for e in begun}
        lone = {(e.pair, e.slot_a, e.slot_b): e for e in begun if e.is_one_sided}
        variance = RunningVariance(self.pairs, self.state)
        explained, alone = [], []
        for event in self.pairs.parameter_events(Phase.UPDATE, Role.BUFFER):
            metrics = event.metrics
            if event.is_one_sided and self._is_written(event, lone.get((event.pair, event.slot_a, event.slot_b))):
                alone.append(event)
            if event.is_one_sided or metrics is None:
                continue
            key = (event.pair, event.slot_a)
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
        if explained and not self.state.variance_was_told:
            self.state.variance_was_told = True
            self.warnings.append(variance.told_of(explained))
        if alone and not self.state.lone_buffers_were_told:
            self.state.lone_buffers_were_told = True
            self.warnings.append(self._told_of_alone(alone))

    def _is_written(self, event: Event, old: Event | None) -> bool:
        """Tell whether a buffer of floats that one side alone has is another one behind the step."""
        half = self.pairs.half("B" if event.row_a < 0 else "A")
        row = half.row(event)
        is_same = old is None or half.side.digest(half.row(old)) == half.side.digest(row)
        return half.side.roundoffs[row] > 0 and not is_same

    def _told_of_alone(self, alone: list[Event]) -> str:
        """Say which running statistics have no counterpart."""
        named = {}
        for name in "AB":
            half = self.pairs.half(name)
            found = [event for event in alone if (event.row_a < 0) == (name == "B")]
            if found:
                first = f"{half.slot(found[0])} of {half.path(half.modules[found[0].pair]) or 'the model'}"
                named[name] = f"{first}{f' and {len(found) - 1} more' if len(found) > 1 else ''}"
        if len(named) == 1:
            [(name, which)] = named.items()
            return f"running statistics that {name} alone has were not compared: {which}"
        return (
            f"running statistics were not compared, as the two sides call them otherwise: {named['A']} in A, {named['B']} in B; "
            "lines of params in a mapping pair them (docs/mapping.md)"
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
