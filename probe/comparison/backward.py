"""Walking the backward pass of a step in causal order: which module passes back what it should not."""

from __future__ import annotations

import functools
import math
from fnmatch import fnmatchcase

from probe.comparison import causes, conditioning, tolerance
from probe.comparison.flow import Flow, Use, turns
from probe.comparison.given import lone_caller
from probe.comparison.ledger import kind_of_finding, scale_hint
from probe.comparison.loss import LossWalk
from probe.comparison.result import Divergence, Kind
from probe.comparison.scaling import factor_of, loss_scale_of, meaning_of, scaling_text
from probe.comparison.sharded import side_with_parts
from probe.comparison.step_half import Event, Node
from probe.comparison.tolerance import Level
from probe.records import Phase, Role

_KINKS = ("*ReLU*", "*MaxPool*", "Hard*", "*shrink", "Threshold")
"""classes whose derivative jumps"""
_NORMS = "*Norm*"
_OF_CANCELLED = 4
"""unit roundoffs, or errors of what came, that are left of a gradient which a normalisation has cancelled out"""
_CUT_OFF = 0.1
"""share of zeros from which on a gradient has passed a function that cuts elements off"""
_PARALLEL = 0.9
"""from this cosine between error and value on, the error is a multiple of the value"""


class BackwardWalk(LossWalk):
    """Judges the gradients that run back through the modules."""

    def judge_backward(self, micro: int) -> None:
        """Judge the gradients that ran back through the modules of a micro-batch."""
        self._backward = {None: Level()}
        self._flow, self._has_flow = Flow(self.pairs, micro), True
        found = self.pairs.node_events(micro, backward=True)
        events = [(n, e) for n, e in found if e.metrics is not None and not e.is_one_sided]
        events.sort(key=lambda pair: self._flow.order(*pair))
        self._other_totals = {(Role.GRAD_TOTAL, *place) for place in self._with_mask | self._with_addend}
        self._other_totals |= {(Role.GRAD_INPUT, *place) for place in self._with_addend}
        self._other_totals |= {(Role.GRAD_OUTPUT, *place) for place in self._with_border}
        for called, passed_back in turns(self.pairs, micro, events):
            self._backward[None].merge_known(self._forward, called)
            self._judge_turn(passed_back)

    def _judge_turn(self, events: list[tuple[Node, Event]]) -> None:
        """Judge the gradients that ran back before the model was called anew."""
        self._look_for_scaling(events)
        for node, event in events:
            factor = self._compensated.get((node, event.slot_a), 1.0) if event.role is Role.GRAD_OUTPUT else 1.0
            if factor != 1:
                event.metrics = self.pairs.measured(event, event.factor / factor)
        for node, event in events:
            if self._is_inside_rearranged(node) or (event.role, node, event.slot_a) in self._other_totals:
                self.settle(event, math.nan, False, verdict="not judged")
            else:
                self._judge_backward_event(node, event)

    def _look_for_scaling(self, events: list[tuple[Node, Event]]) -> None:
        """Where B's gradients begin as a multiple of A's, compare all of them without that factor."""
        tops = [(n, e) for n, e in events if n.parent is None and e.role is Role.GRAD_OUTPUT] or events[:1]
        if not tops:
            return
        node, first = tops[0]
        factor = 1.0
        later = self.scaling is not None and all(finding.phase is Phase.LOSS for finding in self.findings)
        is_behind = not later and all(finding.phase in (Phase.INIT, Phase.FORWARD) for finding in self.findings)
        if (later or is_behind) and self._last_outputs_known([node]):
            error = self._backward[None].error
            if self.findings:
                error = max(error, *(self._forward.get(each, Level()).error for each, _ in tops))
            limit = tolerance.BACKWARD.limit(max(self.u(event) for _, event in tops), error)
            find = loss_scale_of if self.findings and is_behind else factor_of
            factor = find(self.pairs, [event for _, event in tops], limit)
            if factor != 1 or all(event.metrics is not None and event.metrics.rel_l2 <= limit for _, event in tops):
                self.factors.setdefault(node.micro, factor)
            elif self.scaling is not None:  # this loss is wrong beside its scale, which is no other one
                factor = self.scaling[0]
        self._factors.append(factor)
        if factor == 1:
            return
        outputs = (
            "the model's outputs differ by less than that"
            if is_behind and self.findings
            else "the model's outputs agree"
        )
        facts = (outputs, scaling_text(factor))
        self._note_scaling(factor, Phase.LOSS, first, facts, node)
        for _, event in events:
            event.metrics = self.pairs.measured(event, factor)

    def _note_scaling(
        self, factor: float, phase: Phase, event: Event, facts: tuple[str, ...], node: Node | None = None
    ) -> None:
        """Keep the finding that B's gradients are a multiple of A's until it is known whether the optimizer used them so."""
        if self.scaling is not None:
            return
        meaning = meaning_of(factor, len(self.pairs.micros_a), len(self.pairs.micros_b))
        slots = (event.slot_a, event.slot_b) if node is not None else ("", "")
        refs = self.root_refs() if node is None else self.refs(node.pair, node, *slots)
        finding = Divergence(
            phase, event.role, Kind.INTRODUCED, self._confidence(event, None), *refs, event.metrics,
            tolerance.BACKWARD.limit(self.u(event), 0.0), facts, meaning, event=event,
        )  # fmt: skip
        self.scaling = factor, finding

    def _judge_backward_event(self, node: Node, event: Event) -> None:
        metrics = event.metrics
        assert metrics is not None
        if event.role is Role.GRAD_OUTPUT and metrics.is_known:
            norm = max(metrics.norm_a, metrics.norm_b)
            self._grad_norm[event.pair] = math.hypot(self._grad_norm.get(event.pair, 0.0), norm)
        if not metrics.is_known:
            self.settle(event, math.nan, False)
            return
        if self._is_sum_of_parts(node, event):
            self.settle(event, math.nan, False, verdict="not judged")
            return
        use = self._flow.use_of(node, event)
        consumers = [] if use is None else [consumer for consumer, _ in use.consumers]
        sources = Level()
        # what was given the tensor may be far from here: cross attention
        sources.merge_known(self._backward, (node, *node.ancestors(), None, *consumers))
        sources.merge_known(self._forward, (node,) if node.parent is None else (node, node.parent))
        digest = self._flow.digest_of(node, event) if node.parent is None else None
        if digest is not None and event.role is Role.GRAD_OUTPUT:
            sources.merge_known(self._passed_back, (digest,))
        u = max(self.u(event), sources.u)
        from_loss = self._is_from_loss(node, event, use, digest)
        rule = self._rule_of_loss(node, event) if from_loss else tolerance.BACKWARD
        if not self.findings and (not from_loss or self._is_most_of_loss(node, event)):
            has_scale = from_loss and self._begins_alike
            size = math.prod(self.pairs.a.shapes[event.row_a])
            rule = tolerance.backward_rule(metrics, size, lambda: self.peaks(event), rule, has_scale)
        else:
            rule = rule.with_scale(None)
        held = self.noise.held(event, metrics.rel_l2, rule, u, sources)
        held = held.widened(max(self._limit_at_a_kink(node, event, use), self.underflow_limit(event)))
        held = held.widened(self._limit_beside(node, event, use, held.limit))
        if held.is_wrong and event.role is Role.GRAD_OUTPUT:  # where all queries are alike, so are all errors
            scores = conditioning.score_size(self.pairs, node.parent)
            held = held.widened(held.limit * scores / tolerance.SCORES)
        held = held.widened(_OF_CANCELLED * self._cancelled_by_norm(node, event) * max(u, sources.error))
        if from_loss:
            held = held.widened(self._rounding_of_alignments(node, event))
        is_behind = from_loss and any(finding.phase is Phase.BACKWARD for finding in self.findings)
        wrong = held.is_wrong and not sources.tainted and not is_behind  # what is returned may be used inside, too
        self.settle(event, held.limit, wrong, sources.error, error=held.error, held=held)
        if wrong:
            self._charge_gradient(node, event)
        own = Level()
        own.add(metrics.rel_l2, self.u(event), self.noise.excess(event, metrics.rel_l2))
        if metrics.is_lower_bound:
            own.add(sources.error, 0.0, sources.excess)
        self._backward.setdefault(node.parent, Level()).merge(own)
        if node.parent is not None:
            self._inside.setdefault(node.parent.pair, Level()).merge(own)
        if digest is not None and event.role is not Role.GRAD_OUTPUT:
            self._passed_back.setdefault(digest, Level()).merge(own)
        if event.role is Role.GRAD_OUTPUT:
            self._backward.setdefault(node, Level()).merge(own)
            self._arrived.setdefault(node.pair, Level()).merge(own)

    def _others_agree(self, node: Node, event: Event) -> bool:
        """Tell whether a call has other outputs, to which the same gradient comes back on both sides."""
        found = [
            judged.verdict for judged in self.events
            if judged.event is not event and judged.event.role is Role.GRAD_OUTPUT and judged.event.pair == node.pair
            and (judged.event.micro, judged.event.call) == (event.micro, event.call)
        ]  # fmt: skip
        return bool(found) and all(verdict in ("equal", "noise") for verdict in found)

    def _is_sum_of_parts(self, node: Node, event: Event) -> bool:
        """Tell whether a call passes back what a rank's part of its output gives, where the other side has the whole of it.

        What all ranks pass back may be added up behind the module, as DTensor does; what is then used is judged there.
        """
        if event.role is not Role.GRAD_INPUT:
            return False
        halves, reader = self.pairs.halves, (self.pairs.a.reader, self.pairs.b.reader)
        if reader[0].info.world_size == reader[1].info.world_size:
            return False
        rows = [half.rows.get(half.key(node), Role.OUTPUT) for half in halves]
        for slot in rows[0].keys() & rows[1].keys():
            shapes = [half.side.shapes[each[slot][0]] for half, each in zip(halves, rows, strict=True)]
            if side_with_parts(*reader, *shapes):
                return True
        return False

    def _is_from_loss(self, node: Node, event: Event, use: Use | None, digest: object) -> bool:
        """Tell whether a gradient comes from the loss alone: no other call used what the model returned."""
        if node.parent is not None or event.role is not Role.GRAD_OUTPUT or use is None or use.consumers:
            return False
        models = {top.pair for top in self.pairs.nodes.values() if top.parent is None}
        return len(models) == 1 and digest not in self._passed_back

    def _limit_at_a_kink(self, node: Node, event: Event, use: Use | None) -> float:
        """Return the largest error that is noise behind a function with a kink, 0.0 behind others.

        It is no such error if it is a multiple of the gradient.
        """
        assert event.metrics is not None
        if event.role is Role.GRAD_OUTPUT:
            is_kink = use is not None and not use.consumers and self._is_cut_off(event)
        else:
            is_kink = _is_kink(self._class_a(self._module_a(node)))
        forward = self._forward.get(node, Level()).error
        if not is_kink or not forward or not abs(event.metrics.coherence) < _PARALLEL:
            return 0.0
        limit = tolerance.kink_limit(forward, self._passed_on(event))
        return limit if event.role is not Role.GRAD_OUTPUT else tolerance.UNSEEN_KINK * limit

    def _passed_on(self, event: Event) -> int:
        """Return how many elements could be passed back: where most of a gradient is zero, twice as many as are not."""
        size = math.prod(self.pairs.a.shapes[event.row_a])
        return min(size, 2 * (size - self.pairs.a.columns["zeros"][event.row_a]))

    def _is_cut_off(self, event: Event) -> bool:
        """Tell whether single elements of a gradient are zero on both sides, as behind ReLU, and not whole rows (padding)."""
        shape = self.pairs.a.shapes[event.row_a]
        zeros = [half.side.columns["zeros"][half.row(event)] for half in self.pairs.halves]
        return bool(shape) and min(zeros) > _CUT_OFF * math.prod(shape) and any(count % shape[-1] for count in zeros)

    def _limit_beside(self, node: Node, event: Event, use: Use | None, limit: float) -> float:
        """Return the error that is noise because what the same code passes back beside it is as far off, absolutely.

        Softmax's derivative sums to zero: what attention passes back to the queries may be small, with the rounding of what
        it passes back to the values. What a scan passes back to its steps' sizes is a sum over all that came to it: where
        that cancels out, the error of what came stays. Sizes may differ: it is the error of an element that counts.
        """
        metrics = event.metrics
        assert metrics is not None
        is_result = event.role is Role.GRAD_OUTPUT and use is not None and not use.consumers
        is_given = event.role is Role.GRAD_INPUT and use is not None and not use.producers
        if node.parent is None or not (is_result or is_given):
            return 0.0
        norm = max(metrics.norm_a, metrics.norm_b) / math.sqrt(math.prod(self.pairs.a.shapes[event.row_a]) or 1)
        beside = self._beside.get(node.parent, 0.0)
        if metrics.rel_l2 <= limit:
            self._beside[node.parent] = max(beside, metrics.rel_l2 * norm)
        return tolerance.SIBLING_GAIN * beside / norm if norm and is_result else 0.0

    def _cancelled_by_norm(self, node: Node, event: Event) -> float:
        """Return how many times larger what a normalisation passes back would be, had it not cancelled out; 0.0 for others.

        It takes away from a gradient what lies along its output: of one that does, rounding is left. The rest it makes as
        many times larger as it makes its input.
        """
        assert event.metrics is not None
        if event.role is not Role.GRAD_INPUT or not _is_norm(self._class_a(self._module_a(node))):
            return 0.0
        key = node.micro, self._module_a(node), node.call
        roles = Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT
        found = [list(self.pairs.rows_a.get(key, role).values()) for role in roles]
        if any(len(rows) != 1 for rows in found):
            return 0.0
        given, made, arrived = (self.pairs.a.columns["norm"][rows[0][0]] for rows in found)
        left = given * max(event.metrics.norm_a, event.metrics.norm_b)
        return made * arrived / left if left else 0.0

    def _charge_gradient(self, node: Node, event: Event) -> None:
        assert event.metrics is not None
        kind = kind_of_finding(event.metrics)
        hint = scale_hint(event.metrics, "a factor in backward")
        text = causes.born(self.pairs, node, event)
        born = (text,) if text else ()
        if event.role is Role.GRAD_INPUT:
            facts = (
                "the gradient of its output agrees" if node.pair in self._arrived else "the gradient of its output was not compared",
                f"what it passes back to its input {event.slot_a} differs", *born,
            )  # fmt: skip
            self._add(Phase.BACKWARD, kind, event, node.pair, tolerance.BACKWARD, facts, node=node,
                      hint=hint or "look at this module's backward, and at custom autograd functions in it")  # fmt: skip
            return
        is_compensated = event.role is Role.GRAD_OUTPUT and (node, event.slot_a) in self._compensated
        place = node.parent if is_compensated else self._flow.culprit(node, event)
        if place is None:
            caller = lone_caller(self.pairs, node)
            if caller:
                self.doubts.append(
                    f"step {self.pairs.step}: the gradient of {self._path_a(node.pair)}'s output {event.slot_a} differs (rel "
                    f"{event.metrics.rel_l2:.1e}); {caller}, which calls it, has no call that it could be compared with: "
                    "where one side calls that more often, record it alone, and sums of gradients are compared"
                )
                return
            if not self._last_outputs_known([node]):
                self.doubts.append(
                    f"step {self.pairs.step}: the gradient that comes back to the model's output {event.slot_a} differs "
                    f"(rel {event.metrics.rel_l2:.1e}), and the outputs were not compared: record the phase forward too"
                )
                return
            facts = ("the model's outputs agree", "the gradient that comes back to them differs", *born)
            of_loss, others = "look at the loss function and at the loss scale", self._others_agree(node, event)
            if others and self._loss_agrees:
                facts += ("the loss agrees, and so does what comes back to the model's other outputs",)
                of_loss += f", or at what the model's own code makes of its output {event.slot_a}: the others may be made of it"
            self._add(Phase.LOSS, kind, event, node.pair, tolerance.BACKWARD, facts, node=node, hint=hint or of_loss)
            return
        what = "output" if event.role is Role.GRAD_OUTPUT else "input"
        facts = (
            f"the gradient of {self._path_a(node.pair)}'s {what} {event.slot_a} differs",
            "what every module passes back before it agrees",
            *born,
        )
        side = self._flow.swallowing_side(place)
        if side:
            facts += (f"{self._path_a(place.pair)} gets a gradient on both sides and passes nothing back in {side}",)
            hint = "look for detach(), no_grad() or .data in this module"
        self._add(Phase.BACKWARD, kind, event, place.pair, tolerance.BACKWARD, facts, node=place,
                  hint=hint or "look at the backward of this module's own code")  # fmt: skip


@functools.cache
def _is_kink(class_name: str) -> bool:
    return any(fnmatchcase(class_name, pattern) for pattern in _KINKS)


@functools.cache
def _is_norm(class_name: str) -> bool:
    return fnmatchcase(class_name, _NORMS)
