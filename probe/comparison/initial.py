"""Judging the weights that a step begins with."""

from __future__ import annotations

import functools
import math

from probe.comparison import tolerance
from probe.comparison.buffers import BufferWalk
from probe.comparison.combined import canonical_shape
from probe.comparison.elsewhere import Elsewhere
from probe.comparison.known_differences import EXACT
from probe.comparison.ledger import scale_hint
from probe.comparison.metrics import Status, kind_of
from probe.comparison.parts import other_order
from probe.comparison.result import Kind
from probe.comparison.sharded import side_with_parts
from probe.comparison.step_half import Event
from probe.comparison.tolerance import Level
from probe.records import Phase, Role

_REORDERED = 0.01
"""from this error on, equal sums cannot be those of a weight that only changed a little"""
_OF_RUNNING = "look at how running statistics are loaded or converted: training does not use them, evaluation does"


class InitialWalk(BufferWalk):
    """Judges what the modules begin a step with."""

    def judge_init(self) -> None:
        """Judge the weights that the step began with."""
        found, judged = [], 0
        pooled: dict[int, list[tuple[float, float, float]]] = {}
        for event in self.pairs.initial_weights:
            if event.is_one_sided:
                if self.pairs.lacks_parameter(event):
                    self._note_missing(event)
                continue
            metrics = event.metrics
            assert metrics is not None
            judged += 1
            if self._learns(event)[0] != self._learns(event)[1]:
                self._frozen.add(self.pairs.matching.pairs[event.pair].a)
            u = self.u(event)
            held = self.noise.start(event, self._init_limit(u))
            is_judged = held.verdict != "not judged" and not self.pairs.is_padded(event)
            if metrics.status is Status.NOT_COMPARABLE and is_judged:
                self._form_mismatch(event)
            if self.settle(event, held.limit, metrics.is_known and held.is_wrong, error=held.error, held=held):
                found.append(event)
            if metrics.is_known:
                norm = max(metrics.norm_a, metrics.norm_b)
                for owner in self.owners.get((event.pair, event.slot_a), [event.pair]):
                    pooled.setdefault(owner, []).append((metrics.rel_l2 * norm, norm, u))
        self.pool(pooled)
        self._doubt_parts()
        if not self.pairs.step:
            self._judge_running_statistics()
        if self.pairs.step and not self._have_parted(pooled):
            self._drifted = found
        elif len(found) > max(1, tolerance.MOST * judged) and len({event.pair for event in found}) > 1:
            self._charge_all_weights(found, judged)
        else:
            for event in found:
                self._add(Phase.INIT, Kind.INIT, event, event.pair, tolerance.INIT, (f"the weights differ {self._when}",),
                          hint=self._elsewhere.said(event) or self._not_recorded
                          or other_order(self.pairs, event, self._judged[id(event)].limit) or self._reordered(event)
                          or scale_hint(event.metrics) or "look at how this weight is loaded or converted")  # fmt: skip

    def _judge_running_statistics(self) -> None:
        """Judge with what running statistics the models begin: training does not use them, and evaluation will."""
        for event in self.pairs.parameter_events(Phase.INIT, Role.BUFFER):
            metrics = event.metrics
            if metrics is None or not metrics.is_known or not self.is_running(event):
                continue
            held = self.noise.start(event, self._init_limit(self.u(event)))
            if self.settle(event, held.limit, held.is_wrong, error=held.error, held=held):
                self._add(Phase.INIT, Kind.INIT, event, event.pair, tolerance.INIT,
                          (f"the running statistics differ {self._when}",), hint=_OF_RUNNING)  # fmt: skip

    def _init_limit(self, u: float) -> float:
        """Return the largest error that is noise; weights that steps before have changed drift apart."""
        return tolerance.INIT.limit(u, 0.0) * (tolerance.DRIFT if self.pairs.step else 1)

    def _have_parted(self, pooled: dict[int, list[tuple[float, float, float]]]) -> bool:
        """Tell whether all weights together differ by more than rounding in the steps before explains."""
        parts = [part for each in pooled.values() for part in each]
        total = math.hypot(*(norm for _, norm, _ in parts))
        error = math.hypot(*(error for error, _, _ in parts))
        return error > total * self._init_limit(max((u for *_, u in parts), default=0.0))

    def judge_drift(self) -> None:
        """Doubt a step that begins with some other weights if what the model returns differs too."""
        if not self._drifted:
            return
        outputs = [
            j for j in self.events if j.event.role is Role.OUTPUT and self._is_top(j.event) and not math.isnan(j.error)
        ]
        if outputs and all(j.error <= self._init_limit(self.u(j.event)) for j in outputs):
            return
        first = self._drifted[0]
        assert first.metrics is not None
        self.doubts.append(
            f"{len(self._drifted)} parameters differ {self._when}, first {first.slot_a} of {self._path_a(first.pair)} (rel "
            f"{first.metrics.rel_l2:.1e}): {self._not_recorded}"
        )

    def _is_top(self, event: Event) -> bool:
        key = (event.micro, self.pairs.matching.pairs[event.pair].a, event.call)
        return key in self.pairs.nodes and self.pairs.nodes[key].parent is None

    def _charge_all_weights(self, found: list[Event], judged: int) -> None:
        text = f"{len(found)} of {judged} parameters differ {self._when}"
        other = "the two runs do not start from the same weights: load or convert one side's into the other"
        hint = self._moved(found) or self._not_recorded or other
        self._add(Phase.INIT, Kind.INIT, found[0], None, tolerance.INIT, (text,), hint=hint, root=True)

    @property
    def _when(self) -> str:
        step = self.pairs.step
        return f"before step {step}; step {step - 1} was not recorded" if step else "before the first step"

    @property
    def _not_recorded(self) -> str:
        step = self.pairs.step
        return (
            f"record the steps before {step} too: the runs part there, or do not start from the same weights"
            if step
            else ""
        )

    def _reordered(self, event: Event) -> str:
        """Say so when B's weight has A's numbers at other places."""
        metrics, a, b = event.metrics, self.pairs.a.columns, self.pairs.b.columns
        assert metrics is not None
        i, j = event.row_a, event.row_b
        same = (
            metrics.rel_l2 > _REORDERED
            and all(a[name][i] == b[name][j] for name in ("min", "max", "zeros"))
            and math.isclose(metrics.norm_ratio, 1, rel_tol=EXACT)
            and math.isclose(a["mean"][i], b["mean"][j], rel_tol=EXACT, abs_tol=EXACT * a["rms"][i])
        )
        return (
            "B has the same numbers in another order: it is transposed, or its rows or parts are swapped; look at how this "
            "weight is converted"
            if same
            else ""
        )

    @functools.cached_property
    def _elsewhere(self) -> Elsewhere:
        return Elsewhere(self.pairs)

    def _moved(self, found: list[Event]) -> str:
        """Say so when most of the weights that differ stand at another place in B: layers in another order."""
        weights = [j.event for j in self.events if j.event.phase is Phase.INIT and j.event.role is Role.PARAM]
        places = {self.pairs.b.digest(event.row_b): event.pair for event in reversed(weights)}
        columns = self.pairs.a.columns
        there = {
            event.pair: places.get(self.pairs.a.digest(event.row_a))
            for event in found
            if columns["min"][event.row_a] < columns["max"][event.row_a]
        }
        moved = [(mine, theirs) for mine, theirs in there.items() if theirs is not None and theirs != mine]
        if 2 * len(moved) <= len({event.pair for event in found}):
            return ""
        mine, theirs = moved[0]
        return f"what {self._path_a(mine)} has in A, {self._path_b(theirs)} has in B: look at the order of the layers"

    def pool(self, pooled: dict[int, list[tuple[float, float, float]]], gain: float = 1.0) -> None:
        """Keep one error per module for its parameters: of all of them, taken as one vector."""
        for pair, parts in pooled.items():
            total = math.sqrt(sum(norm**2 for _, norm, _ in parts))
            error = math.sqrt(sum(error**2 for error, _, _ in parts)) / total if total else 0.0
            self.state.parameters[pair] = level = Level()
            level.add(gain * error, max(u for *_, u in parts))

    def _doubt_parts(self) -> None:
        """Doubt a step of which one side holds weights in parts, as under tensor parallelism: what is whole on both sides is compared."""
        if not self._in_parts:
            return
        first, count = self._in_parts[0], len(self._in_parts)
        places = [
            f"rank {half.side.reader.info.rank} of {half.side.reader.info.world_size}" for half in self.pairs.halves
        ]
        weights = "1 weight is" if count == 1 else f"{count} weights are"
        self.doubts.append(
            f"A is {places[0]}, B {places[1]}: {weights} held in parts on one side, first {first.slot_a} of {self._path_a(first.pair)} "
            f"({first.metrics.reason if first.metrics else ''}); what a rank holds is compared with a run that is split alike"
        )

    def _form_mismatch(self, event: Event) -> None:
        """A parameter has another shape, or integers where the other side has floats."""
        a, b = self.pairs.a, self.pairs.b
        shapes = canonical_shape(a, event.row_a), canonical_shape(b, event.row_b)
        sizes = [math.prod(shape) for shape in shapes]
        kinds = [kind_of(side.dtypes[row]) for side, row in ((a, event.row_a), (b, event.row_b))]
        if side_with_parts(a.reader, b.reader, *shapes, of_weight=True):
            self._in_parts.append(event)
            self.state.in_parts.add((self.pairs.matching.pairs[event.pair].a, event.slot_a))
            return
        if not self._are_alike(event.pair) or event.metrics is None:
            return
        if kinds[0] != kinds[1]:
            self._add(Phase.INIT, Kind.DTYPE, event, event.pair, tolerance.INIT, (event.metrics.reason,),
                      hint="the two models do not hold this parameter in the same kind of numbers")  # fmt: skip
        elif sizes[0] != sizes[1]:
            self._add(Phase.INIT, Kind.SHAPE, event, event.pair, tolerance.INIT, (event.metrics.reason,),
                      hint="the two models are not built with the same sizes")  # fmt: skip
