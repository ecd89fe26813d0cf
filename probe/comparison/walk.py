"""Walking one step in causal order: what is introduced where.

Every event is held against the errors of its direct sources. One whose error is more than they and rounding
explain is a finding, and is charged to the module whose code lies between: `StepWalk` for what the model
computes, `probe.comparison.updates` for what the optimizer does with it.
"""

from __future__ import annotations

import functools
import math
from fnmatch import fnmatchcase

import numpy as np

from probe.comparison import causes, tolerance
from probe.comparison.events import Event, Node, Rows
from probe.comparison.flow import Flow, Use
from probe.comparison.ledger import kind_of_finding, scale_hint
from probe.comparison.loss import LossWalk
from probe.comparison.parts import without_gradient
from probe.comparison.result import Divergence, Kind
from probe.comparison.scaling import common_factor, factor_of, meaning_of, scaling_text
from probe.comparison.side import Side, kind_of
from probe.comparison.tied import untied
from probe.comparison.tolerance import Level
from probe.records import Phase, Role
from probe.statistics import unit_roundoff

_KINKS = ("*ReLU*", "*MaxPool*", "Hard*", "*shrink", "Threshold")
"""classes whose derivative jumps"""
_CUT_OFF = 0.1
"""share of zeros from which on a gradient has passed a function that cuts elements off"""
_PARALLEL = 0.9
"""from this cosine between error and value on, the error is a multiple of the value"""


class StepWalk(LossWalk):
    """One step, judged."""

    # Backward

    def judge_backward(self, micro: int) -> None:
        """Judge the gradients that ran back through the modules of a micro-batch."""
        self._backward = {None: Level()}
        for node, level in self._forward.items():
            if node is None or (node.micro == micro and node.parent is None):
                self._backward[None].merge(level)
        self._flow = Flow(self.pairs, micro)
        events = [(n, e) for n, e in self.pairs.node_events(micro, backward=True) if e.metrics is not None]
        events.sort(key=lambda pair: self._flow.order(*pair))
        self._look_for_scaling(events)
        for node, event in events:
            if self._is_inside_rearranged(node):
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
        if not self.findings and self._last_outputs_known([node]):
            limit = tolerance.BACKWARD.limit(max(self.u(event) for _, event in tops), self._backward[None].error)
            factor = factor_of(self.pairs, [event for _, event in tops], limit)
        self._factors.append(factor)
        if factor == 1:
            return
        facts = ("the model's outputs agree", scaling_text(factor))
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
        sources = Level()
        for place in (node, *node.ancestors(), None):
            sources.merge(self._backward.get(place, Level()))
        sources.merge(self._forward.get(node, Level()))
        if node.parent is not None:
            sources.merge(self._forward.get(node.parent, Level()))
        use = self._flow.use_of(node, event)
        for consumer in {consumer for consumer, _ in use.consumers} if use is not None else ():
            sources.merge(self._backward.get(consumer, Level()))  # it may be far from here: cross attention
        digest = self._flow.digest_of(node, event) if node.parent is None else None
        if digest is not None and event.role is Role.GRAD_OUTPUT:
            sources.merge(self._passed_back.get(digest, Level()))
        u = max(self.u(event), sources.u)
        held = self.noise.held(event, metrics.rel_l2, tolerance.BACKWARD, u, sources)
        held = held.widened(self._limit_at_a_kink(node, event, use))
        held = held.widened(self._limit_beside(node, event, use, held.limit))
        wrong = self.settle(
            event, held.limit, held.is_wrong and not sources.tainted, sources.error, error=held.error, held=held
        )
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

    def _limit_at_a_kink(self, node: Node, event: Event, use: Use | None) -> float:
        """Return the largest error that is noise behind a function with a kink, 0.0 behind others.

        It is no such error if it is a multiple of the gradient.
        """
        assert event.metrics is not None
        if event.role is Role.GRAD_OUTPUT:
            is_kink = use is not None and not use.consumers and self._is_cut_off(event)
        else:
            is_kink = any(fnmatchcase(self._classes(event.pair)[0], pattern) for pattern in _KINKS)
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
        zeros = [side.columns["zeros"][row] for side, row in ((self.pairs.a, event.row_a), (self.pairs.b, event.row_b))]
        return bool(shape) and min(zeros) > _CUT_OFF * math.prod(shape) and any(count % shape[-1] for count in zeros)

    def _limit_beside(self, node: Node, event: Event, use: Use | None, limit: float) -> float:
        """Return the error that is noise because what the same code passes back beside it is as far off, absolutely.

        Softmax's derivative sums to zero: what attention passes back to the queries may be small, with the rounding of what
        it passes back to the values.
        """
        metrics = event.metrics
        assert metrics is not None
        if event.role is not Role.GRAD_OUTPUT or node.parent is None or use is None or use.consumers:
            return 0.0
        norm = max(metrics.norm_a, metrics.norm_b)
        key = node.parent, math.prod(self.pairs.a.shapes[event.row_a])
        beside = self._beside.get(key, 0.0)
        if metrics.rel_l2 <= limit:
            self._beside[key] = max(beside, metrics.rel_l2 * norm)
        return tolerance.SIBLING_GAIN * beside / norm if norm else 0.0

    def _charge_gradient(self, node: Node, event: Event) -> None:
        assert event.metrics is not None
        kind = kind_of_finding(event.metrics)
        hint = scale_hint(event.metrics, "a factor in backward")
        text = causes.born(self.pairs, node, event)
        born = (text,) if text else ()
        if event.role is Role.GRAD_INPUT:
            facts = (
                "the gradient of its output agrees", f"what it passes back to its input {event.slot_a} differs", *born,
            )  # fmt: skip
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
            facts = ("the model's outputs agree", "the gradient that comes back to them differs", *born)
            self._add(Phase.LOSS, kind, event, node.pair, tolerance.BACKWARD, facts, node=node,
                      hint=hint or "look at the loss function and at the loss scale")  # fmt: skip
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

    # Parameter gradients

    def judge_gradients(self) -> None:
        """Judge the gradients that backward left at the parameters."""
        factor = self._factors[0] if self._factors else 1.0
        events = list(self.pairs.parameter_events(Phase.GRADIENT, Role.PARAM_GRAD, factor))
        unwatched = [event for event in events if event.is_one_sided and self.pairs.is_unwatched(event)]
        if unwatched and len(unwatched) < len(events):
            events = [event for event in events if event not in unwatched]
        both = [event for event in events if not event.is_one_sided]
        if both:
            self.findings = self._cut + self.findings  # other gradients behind a cut follow from it
        if events and not both:
            self.warnings.append("parameter gradients were recorded on one side only: they are not compared")
            return
        if not self._arrived and self._coarsest > tolerance.SIXTEEN_BIT and self._are_routed_otherwise():
            self.warnings.append(
                "the batch was split otherwise, and rounding has sent some elements another way (routing to experts): "
                "parameter gradients are not judged"
            )
            for event in both:
                assert event.metrics is not None
                self.settle(event, math.nan, False, verdict="not judged")
                self.state.gradients[event.pair, event.slot_a] = event.metrics.rel_l2
            return
        self._look_for_common_factor(both)
        owners = self.owners
        self._errors_beside = {} if self._arrived else self._largest_beside(both)
        found = [event for event in both if self._judge_parameter_gradient(event, owners)]
        for event in events if not self._cut else ():
            if event.is_one_sided:
                self._charge_missing_gradient(event)
        if len(set(self._factors)) <= 1:  # else sums of gradients with several factors cannot agree
            self._add_gradients(found, len(both))

    def _look_for_common_factor(self, events: list[Event]) -> None:
        """Where no gradients of calls were compared: see whether B's parameter gradients are one multiple of A's."""
        if self._factors or self.findings or not events:
            return
        limit = tolerance.GRADIENT.limit(max(map(self.u, events)), 0.0)
        factor = factor_of(self.pairs, events, limit)
        if factor == 1:
            return
        facts = (f"{len(events)} of {len(events)} gradients differ", *common_factor(events), _BLIND)
        self._note_scaling(factor, Phase.GRADIENT, events[0], facts)
        for event in events:
            event.metrics = self.pairs.measured(event, factor)

    def _judge_parameter_gradient(self, event: Event, owners: dict[tuple[int, str], list[int]]) -> bool:
        metrics = event.metrics
        assert metrics is not None
        if not metrics.is_known:
            return self.settle(event, math.nan, False)
        pairs = owners.get((event.pair, event.slot_a), [event.pair])
        own = max(metrics.norm_a, metrics.norm_b)
        sources = self._sources_of_gradient(pairs)
        known = max(metrics.rel_l2, sources.error) if metrics.is_lower_bound else metrics.rel_l2
        self.state.gradients[event.pair, event.slot_a] = known
        scale = max(own, math.hypot(*map(self._norm_that_arrived, pairs)))
        error = metrics.rel_l2 * own / scale if scale and own else metrics.rel_l2
        u = max(self.u(event), sources.u, 0.0 if self._arrived else self._coarsest)
        given = Level()
        given.merge(sources)
        rounding = 0.0
        if not self._arrived:
            given.add(self._blind_sources(u), 0.0)
            rounding = tolerance.BLIND_GAIN * math.sqrt(u) if u > tolerance.SIXTEEN_BIT else 0.0
            beside = self._errors_beside.get(self._beside_key(event), 0.0) / (scale or 1.0)
            rounding = max(rounding, tolerance.SIBLING_GAIN * beside)
        held = self.noise.held(event, error, tolerance.GRADIENT, u, given)
        held = held.widened(rounding)
        wrong = held.is_wrong and not sources.tainted
        return self.settle(event, held.limit, wrong, sources.error, error=held.error, held=held)

    def _blind_sources(self, u: float) -> float:
        """Return what gradients may be off by where nothing on the way to them was compared."""
        return max(16 * u if u <= tolerance.SIXTEEN_BIT else 0.0, self.state.worst.error)

    def _beside_key(self, event: Event) -> tuple[int, int]:
        """Return what gradients that the same code passes back side by side have in common: the caller, and the size."""
        module = self.pairs.matching.pairs[event.pair].a
        return self.pairs.a.reader.modules[module].parent, math.prod(self.pairs.a.shapes[event.row_a])

    def _largest_beside(self, events: list[Event]) -> dict[tuple[int, int], float]:
        """Return the largest absolute errors that are noise of parameter gradients, by caller and size.

        As with the gradients themselves (`_limit_beside`): those of queries may be small, with the rounding of the values'.
        """
        found: dict[tuple[int, int], float] = {}
        for event in events:
            metrics, u = event.metrics, max(self.u(event), self._coarsest)
            assert metrics is not None
            if metrics.is_known and metrics.rel_l2 <= tolerance.GRADIENT.limit(u, self._blind_sources(u)):
                key, error = self._beside_key(event), metrics.rel_l2 * max(metrics.norm_a, metrics.norm_b)
                found[key] = max(found.get(key, 0.0), error)
        return found

    def _norm_that_arrived(self, pair: int) -> float:
        """Return the norm of all gradients at a module's outputs, whether they were compared or only recorded."""
        if pair in self._grad_norm:
            return self._grad_norm[pair]
        modules = self.pairs.matching.pairs[pair]
        return max(self._recorded_norms[0].get(modules.a, 0.0), self._recorded_norms[1].get(modules.b, 0.0))

    @functools.cached_property
    def _recorded_norms(self) -> tuple[dict[int, float], dict[int, float]]:
        """For each side, the norm of all gradients at a module's outputs, by module."""
        sides = (self.pairs.a, self.pairs.rows_a), (self.pairs.b, self.pairs.rows_b)
        a, b = (
            {
                module: math.hypot(*(side.columns["norm"][row] for row in taken))
                for module, taken in rows.by_module(Role.GRAD_OUTPUT).items()
            }
            for side, rows in sides
        )
        return a, b

    def _are_routed_otherwise(self) -> bool:
        """Tell whether integers that modules returned do not add up to the same over all micro-batches."""
        a, b = _sums(self.pairs.a, self.pairs.rows_a), _sums(self.pairs.b, self.pairs.rows_b)
        return any(a.get(pair.a) != b.get(pair.b) for pair in self.pairs.matching.pairs)

    @functools.cached_property
    def _coarsest(self) -> float:
        """The unit roundoff of the least precise dtype that anything was computed in on either side."""
        dtypes = {
            dtype
            for side in (self.pairs.a, self.pairs.b)
            for dtype, role in zip(side.dtypes, side.columns["role"], strict=True)
            if role in (Role.OUTPUT, Role.GRAD_OUTPUT)
        }
        return max(map(unit_roundoff, dtypes), default=0.0)

    def _sources_of_gradient(self, pairs: list[int]) -> Level:
        """Return the errors of what the gradient of a parameter of these pairs of modules was computed from."""
        sources = Level()
        for pair in pairs:
            sources.merge(self._arrived.get(pair, Level()))
            sources.merge(self._inside.get(pair, Level()))
        for node, level in self._forward.items():
            if node is not None and node.pair in pairs and node not in self._rearranged:
                sources.merge(level)
        if not any(pair in self._arrived for pair in pairs):
            for level in self._backward.values():
                sources.merge(level)
        return sources

    def _charge_missing_gradient(self, event: Event) -> None:
        side = "A" if event.row_a >= 0 else "B"
        slot = event.slot_a or event.slot_b
        if event.pair in self.uncalled:
            return
        on_both = self.pairs.is_initial_on_both(event)
        if not on_both and (not self._are_alike(event.pair) or self._stands_elsewhere(event)):
            return
        other = "B" if side == "A" else "A"
        why = "requires_grad is off, or the parameter is cut off from the loss" if on_both else f"{other} lacks it"
        self._add(Phase.GRADIENT, Kind.MISSING, event, event.pair, tolerance.GRADIENT,
                  (f"{slot} gets a gradient on {side} only",), slot=slot,
                  hint=self._tied(event.pair, slot, side) or f"{slot} does not learn on {other}: {why}")  # fmt: skip

    def _add_gradients(self, found: list[Event], judged: int) -> None:
        """Add findings about gradients: one for all where most are concerned, else one for each."""
        hint = "look at accumulation, loss scale and reduction over micro-batches or ranks"
        blind = not self._arrived and len(found) > 1
        able = self._able_to_show(found)
        if blind or len(found) > max(2, tolerance.MOST * able):
            said = [f"{len(found)} of {judged} gradients differ", *common_factor(found)]
            if blind:
                said.append(_BLIND)
            elif len(found) <= tolerance.MOST * judged:
                said.append(f"in {judged - able} of the others noise can hide as much")
            surest = max(found, key=lambda event: self._judged[id(event)].error / self._judged[id(event)].limit)
            self._add(Phase.GRADIENT, Kind.INTRODUCED, surest, None, tolerance.GRADIENT, said, hint=hint, root=True)
            return
        text = "the gradient of this parameter differs, the gradients at its module's output agree"
        for event in found:
            assert event.metrics is not None
            frozen = without_gradient(self.pairs, event)
            kind = Kind.MISSING if frozen else kind_of_finding(event.metrics)
            told = causes.born(self.pairs, None, event)
            self._add(Phase.GRADIENT, kind, event, event.pair, tolerance.GRADIENT, (text, told) if told else (text,),
                      hint=frozen or untied(self.pairs, event) or self._zero_rows(event) or scale_hint(event.metrics) or hint)  # fmt: skip

    def _able_to_show(self, found: list[Event]) -> int:
        """Return how many gradients could show an error as large as the typical one that was found.

        Noise hides it in the others: behind a kink in 16 bits, by what flips there.
        """
        if not found:
            return 0
        typical = float(np.median([self._judged[id(event)].error for event in found]))
        return sum(
            j.limit < typical for j in self.events if (j.event.phase, j.event.role) == (Phase.GRADIENT, Role.PARAM_GRAD)
        )

    def _zero_rows(self, event: Event) -> str:
        """Say so when whole rows of an embedding's gradient are zero on one side only."""
        zeros = [side.columns["zeros"][row] for side, row in ((self.pairs.a, event.row_a), (self.pairs.b, event.row_b))]
        shape = self.pairs.a.shapes[event.row_a]
        more = abs(zeros[0] - zeros[1])
        if len(shape) != 2 or "Embedding" not in self._classes(event.pair)[0] or not more or more % shape[1]:
            return ""
        side = "A" if zeros[0] > zeros[1] else "B"
        rows = more // shape[1]
        return f"{rows} more {'row is' if rows == 1 else 'rows are'} zero on {side}: look at padding_idx"


_BLIND = "the backward pass was not compared, so which of them comes first is not known"


def _sums(side: Side, rows: Rows) -> dict[int, tuple[int, int]]:
    """Return how many integers each module returned in a step, and their sum."""
    found = {}
    for module, taken in rows.by_module(Role.OUTPUT).items():
        integers = [row for row in taken if kind_of(side.dtypes[row]) == "integer"]
        counts = [math.prod(side.shapes[row]) for row in integers]
        total = sum(count * side.columns["mean"][row] for count, row in zip(counts, integers, strict=True))
        found[module] = sum(counts), round(total)
    return found
