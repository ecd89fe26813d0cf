"""Walking one step in causal order: what is introduced where.

Every event is held against the errors of its direct sources. One whose error is more than they and rounding
explain is a finding, and is charged to the module whose code lies between: `StepWalk` for what the model
computes, `probe.comparison.updates` for what the optimizer does with it.
"""

from __future__ import annotations

import math

from probe.comparison import tolerance
from probe.comparison.events import Event, Node
from probe.comparison.flow import Flow
from probe.comparison.forward import ForwardWalk
from probe.comparison.ledger import common_factor, kind_of_finding, scale_hint
from probe.comparison.result import Kind
from probe.comparison.tolerance import Level, Rule
from probe.records import Phase, Role


class StepWalk(ForwardWalk):
    """One step, judged."""

    # Backward

    def judge_backward(self, micro: int) -> None:
        """Judge the gradients that ran back through the modules of a micro-batch."""
        self._backward = {None: Level()}
        for node, level in self._forward.items():
            if node is None or node.parent is None:
                self._backward[None].merge(level)
        self._flow = Flow(self.pairs, micro)
        events = [(n, e) for n, e in self.pairs.node_events(micro, backward=True)]
        for node, event in sorted(events, key=lambda pair: self._flow.order(*pair)):
            if event.metrics is not None:
                self._judge_backward_event(node, event)

    def _judge_backward_event(self, node: Node, event: Event) -> None:
        metrics = event.metrics
        assert metrics is not None
        if event.role is Role.GRAD_OUTPUT and metrics.is_known:
            norm = max(metrics.norm_a, metrics.norm_b)
            self._grad_norm[event.pair] = math.hypot(self._grad_norm.get(event.pair, 0.0), norm)
        if not metrics.is_known:
            self.settle(event, math.nan, False)
            return
        sources = Level()
        for place in (node, *node.ancestors(), None):
            sources.merge(self._backward.get(place, Level()))
        sources.merge(self._forward.get(node, Level()))
        if node.parent is not None:
            sources.merge(self._forward.get(node.parent, Level()))
        u = max(self.u(event), sources.u)
        limit = tolerance.BACKWARD.limit(u, sources.error)
        wrong = self.settle(event, limit, metrics.rel_l2 > limit and not sources.tainted, sources.error)
        if wrong:
            self._charge_gradient(node, event)
        own = Level(metrics.rel_l2, self.u(event))
        self._backward.setdefault(node.parent, Level()).merge(own)
        if event.role is Role.GRAD_OUTPUT:
            self._backward.setdefault(node, Level()).merge(own)
            self._arrived.setdefault(node.pair, Level()).merge(own)

    def _charge_gradient(self, node: Node, event: Event) -> None:
        assert event.metrics is not None
        kind = kind_of_finding(event.metrics)
        hint = scale_hint(event.metrics, "a factor in backward")
        if event.role is Role.GRAD_INPUT:
            facts = ("the gradient of its output agrees", f"what it passes back to its input {event.slot_a} differs")
            self._add(Phase.BACKWARD, kind, event, node.pair, tolerance.BACKWARD, facts, node=node,
                      hint=hint or "look at this module's backward, and at custom autograd functions in it")  # fmt: skip
            return
        place = self._flow.culprit(node, self._flow.use_of(node, event))
        if place is None:
            if not self._last_outputs_known([node]):
                self.doubts.append(
                    f"step {self.pairs.step}: the gradient that comes back to the model's output {event.slot_a} differs "
                    f"(rel {event.metrics.rel_l2:.1e}), and the outputs were not compared: record the phase forward too"
                )
                return
            facts = ("the model's outputs agree", "the gradient that comes back to them differs")
            self._add(Phase.LOSS, kind, event, node.pair, tolerance.BACKWARD, facts, node=node,
                      hint=hint or "look at the loss function and at the loss scale")  # fmt: skip
            return
        what = "output" if event.role is Role.GRAD_OUTPUT else "input"
        facts = (
            f"the gradient of {self._path_a(node.pair)}'s {what} {event.slot_a} differs",
            "what every module passes back before it agrees",
        )
        self._add(Phase.BACKWARD, kind, event, place.pair, tolerance.BACKWARD, facts, node=place,
                  hint=hint or "look at the backward of this module's own code")  # fmt: skip

    # Parameter gradients

    def judge_gradients(self) -> None:
        """Judge the gradients that backward left at the parameters."""
        events = list(self.pairs.parameter_events(Phase.GRADIENT, Role.PARAM_GRAD))
        unwatched = [event for event in events if event.is_one_sided and self.pairs.is_unwatched(event)]
        if unwatched and len(unwatched) < len(events):
            events = [event for event in events if event not in unwatched]
        both = [event for event in events if not event.is_one_sided]
        if both:
            self.findings += self._cut
        if events and not both:
            self.warnings.append("parameter gradients were recorded on one side only: they are not compared")
            return
        owners = self._owners()
        found, missing = [], []
        for event in events:
            if event.is_one_sided:
                missing.append(event)
            elif self._judge_parameter_gradient(event, owners):
                found.append(event)
        for event in missing if not self._cut else ():
            self._charge_missing_gradient(event)
        self._add_parameters(found, len(both), Phase.GRADIENT, tolerance.GRADIENT,
                             "the gradient of this parameter differs, the gradients at its module's output agree",
                             "gradients", "look at accumulation, loss scale and reduction over micro-batches or ranks")  # fmt: skip

    def _judge_parameter_gradient(self, event: Event, owners: dict[tuple[int, str], list[int]]) -> bool:
        metrics = event.metrics
        assert metrics is not None
        if not metrics.is_known:
            return self.settle(event, math.nan, False)
        pairs = owners.get((event.pair, event.slot_a), [event.pair])
        own = max(metrics.norm_a, metrics.norm_b)
        self.state.gradients[event.pair, event.slot_a] = metrics.rel_l2
        scale = max(own, math.sqrt(sum(self._grad_norm.get(pair, 0.0) ** 2 for pair in pairs)))
        error = metrics.rel_l2 * own / scale if scale and own else metrics.rel_l2
        sources = Level()
        for pair in pairs:
            sources.merge(self._arrived.get(pair, Level()))
        for node, level in self._forward.items():
            if node is not None and node.pair in pairs:
                sources.merge(level)
        if not any(pair in self._arrived for pair in pairs):
            for level in self._backward.values():
                sources.merge(level)
        u = max(self.u(event), sources.u)
        floor = 16 * u if not self._arrived else 0.0
        limit = tolerance.GRADIENT.limit(u, max(sources.error, floor))
        return self.settle(event, limit, error > limit and not sources.tainted, sources.error)

    def _owners(self) -> dict[tuple[int, str], list[int]]:
        """Return, for tied parameters, the pairs of all modules that hold them."""
        found = {}
        by_path = {module.path: i for i, module in enumerate(self.pairs.a.reader.modules)}
        for parameter in self.pairs.a.reader.parameters:
            holders = [by_path.get(name.rpartition(".")[0], -1) for name in parameter.names]
            pairs = [self.pairs.pair_of_a[holder] for holder in holders if holder in self.pairs.pair_of_a]
            first = self.pairs.pair_of_a.get(parameter.module)
            if first is not None:
                found[first, parameter.slot] = pairs
        return found

    def _charge_missing_gradient(self, event: Event) -> None:
        side = "A" if event.row_a >= 0 else "B"
        slot = event.slot_a or event.slot_b
        pair = self.pairs.matching.pairs[event.pair]
        known_a = self.pairs.rows_a.get((0, pair.a, 0), Role.PARAM)
        known_b = self.pairs.rows_b.get((0, pair.b, 0), Role.PARAM)
        on_both = f"init:{slot}" in known_a and f"init:{slot}" in known_b
        same_class = self._class_a(pair.a) == self._class_b(pair.b)
        if not on_both and not same_class:
            return
        other = "B" if side == "A" else "A"
        why = "requires_grad is off, or the parameter is cut off from the loss" if on_both else f"{other} lacks it"
        self._add(Phase.GRADIENT, Kind.MISSING, event, event.pair, tolerance.GRADIENT,
                  (f"{slot} gets a gradient on {side} only",), slot=slot,
                  hint=f"{slot} does not learn on {other}: {why}")  # fmt: skip

    def _add_parameters(
        self, found: list[Event], judged: int, phase: Phase, rule: Rule, text: str, plural: str, hint: str
    ) -> None:
        """Add findings about parameters: one for all where most are concerned and alike, else one for each."""
        blind = phase is Phase.GRADIENT and not self._arrived and len(found) > 1
        if blind or len(found) > max(2, tolerance.MOST * judged):
            said = [f"{len(found)} of {judged} {plural} differ", *common_factor(found)]
            if blind:
                said.append("the backward pass was not compared, so which of them comes first is not known")
            self._add(phase, Kind.INTRODUCED, found[0], None, rule, tuple(said), hint=hint, root=True)
            return
        for event in found:
            assert event.metrics is not None
            self._add(phase, kind_of_finding(event.metrics), event, event.pair, rule, (text,),
                      hint=scale_hint(event.metrics) or hint)  # fmt: skip
