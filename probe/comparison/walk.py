"""Walking one step in causal order: what is introduced where.

Every event is held against the errors of its direct sources. One whose error is more than they and rounding
explain is a finding, and is charged to the module whose code lies between: `StepWalk` for what the model
computes, `probe.comparison.updates` for what the optimizer does with it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from probe.comparison import causes, tolerance
from probe.comparison.gradient_sources import GradientSources
from probe.comparison.ledger import kind_of_finding, scale_hint
from probe.comparison.parts import without_gradient
from probe.comparison.reduced import reduced_within_backward
from probe.comparison.result import Divergence, Kind
from probe.comparison.scaling import common_factor, factor_of, factor_of_all
from probe.comparison.settings import different_settings, settings_text
from probe.comparison.side import kind_of
from probe.comparison.step_half import Event, Node, StepHalf
from probe.comparison.tied import untied
from probe.comparison.tolerance import Level
from probe.records import Phase, Role


class StepWalk(GradientSources):
    """One step, judged; what is its own are the gradients of the parameters."""

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
            have = all(half.rows.has(Phase.GRADIENT, Role.PARAM_GRAD) for half in self.pairs.halves)
            which = "of weights that have no counterpart" if have else "recorded on one side only"
            self.warnings.append(f"parameter gradients are {which}: they are not compared")
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
        owners, is_later = self.owners, bool(self.state.gradients)
        self._errors_beside = {} if self._arrived else self._largest_beside(both)
        self._norms_beside = self._largest_norms(both) if self._arrived else {}
        self._largest_behind = 0.0
        backwards = [event for event in reversed(both) if self._judge_parameter_gradient(event, owners)]
        found = self._reduced_alike(backwards[::-1])
        if not self._cut:
            self._charge_missing_gradients([event for event in events if event.is_one_sided])
        if found and is_later and not self._arrived and not self.pairs.same_micros:
            self._doubt_gradients(found, len(both))
        elif len(set(self._factors)) <= 1:  # else sums of gradients with several factors cannot agree
            self._add_gradients(found, len(both))

    def _reduced_alike(self, found: list[Event]) -> list[Event]:
        """Leave aside gradients that one side adds up over ranks within backward, the other behind it, and that are used alike."""
        side = reduced_within_backward(
            self.pairs, found, lambda event: tolerance.USED.limit(self.u(event), self.state.worst.error)
        )
        if not side or self.findings:
            return found
        is_alone = self.pairs.half(side).side.reader.info.world_size < 2
        how = (
            f"{side} is one process, the other side adds gradients up over ranks behind backward"
            if is_alone
            else f"{side} adds its gradients up over ranks within backward, the other side behind it"
        )
        self.warnings.append(f"{how}: as backward left them they are not judged, as the optimizer used them they agree")
        for event in found:
            judged = self._judged[id(event)]
            judged.verdict, judged.limit = "not judged", math.nan
            self.state.gradients[event.pair, event.slot_a] = 0.0
        return []

    def _doubt_gradients(self, found: list[Event], judged: int) -> None:
        """Leave open what is wrong with gradients of another split, once the weights differ: between the two nothing was compared."""
        worst = max(self._judged[id(event)].error for event in found)
        self.doubts.append(
            f"step {self.pairs.step}: {len(found)} of {judged} parameter gradients differ by up to {worst:.1e}; the batch was split "
            "otherwise, and what the weights' differences since the first step make of them was not compared: split it alike, or "
            "compare the first step alone"
        )
        for event in found:
            judged_so = self._judged[id(event)]
            judged_so.verdict, judged_so.limit = "not judged", math.nan

    def _look_for_common_factor(self, events: list[Event]) -> None:
        """Where no gradients of calls were compared: see whether B's parameter gradients are one multiple of A's."""
        if self._factors or self.findings or not events:
            return
        limit = tolerance.GRADIENT.limit(max(map(self.u, events)), 0.0)
        factor = factor_of(self.pairs, events, limit)
        if factor == 1:
            factor = factor_of_all(self.pairs, events, self._limit_of_blind(max(map(self.u, events))))
        if factor == 1:
            for event in events:
                event.factor = 1.0
            return
        facts = (f"{len(events)} of {len(events)} gradients differ", *common_factor(events), _BLIND)
        self._note_scaling(factor, Phase.GRADIENT, events[0], facts)
        for event in events:
            event.metrics = self.pairs.measured(event, factor)

    def _limit_of_blind(self, u: float) -> float:
        """Return what gradients may be off by, all of them together, where nothing on the way to them was compared."""
        u = max(u, self._coarsest)
        limit = tolerance.GRADIENT.limit(u, self._blind_sources(u))
        return max(limit, tolerance.BLIND_GAIN * math.sqrt(u)) if u > tolerance.SIXTEEN_BIT else limit

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
        scale = max(
            own,
            math.hypot(*map(self._norm_that_arrived, pairs)) or self._norms_beside.get(self._beside_key(event), 0.0),
        )
        error = metrics.rel_l2 * own / scale if scale and own else metrics.rel_l2
        u = max(self.u(event), sources.u, 0.0 if self._arrived else self._coarsest)
        given = Level()
        given.merge(sources)
        rounding = 0.0
        if not self._arrived:
            given.add(self._blind_sources(u), 0.0)
            rounding = tolerance.BLIND_GAIN * math.sqrt(u) if u > tolerance.SIXTEEN_BIT else 0.0
            beside = self._errors_beside.get(self._beside_key(event), 0.0) / (scale or 1.0)
            rounding = max(rounding, tolerance.SIBLING_GAIN * beside, tolerance.BLIND_GROWTH * self._largest_behind)
        rule = tolerance.GRADIENT
        if self._has_arrived(pairs) and not self.findings:
            size = math.prod(self.pairs.a.shapes[event.row_a])
            rule = tolerance.backward_rule(metrics, size, lambda: self.peaks(event), rule)
        held = self.noise.held(event, error, rule, u, given)
        held = held.widened(max(rounding, self.underflow_limit(event)))
        if held.is_wrong and self._arrived:
            held = held.widened(rule.gain * given.error * self._cancelled_in(event, pairs))
        wrong = held.is_wrong and not sources.tainted
        if not self._arrived and not wrong and u > tolerance.SIXTEEN_BIT:
            self._largest_behind = max(self._largest_behind, error)
        return self.settle(event, held.limit, wrong, sources.error, error=held.error, held=held)

    def _are_routed_otherwise(self) -> bool:
        """Tell whether integers that modules returned do not add up to the same over all micro-batches."""
        a, b = (_sums(half) for half in self.pairs.halves)
        return any(a.get(pair.a) != b.get(pair.b) for pair in self.pairs.matching.pairs)

    def judge_written(self) -> None:
        """Judge the weights that were written to in the middle of the step and not by an optimizer, if nothing else is wrong."""
        written = next((each for each in self._written.seen.values() if each.told), None)
        if written is not None and not self.findings:
            pair, slot = written.place
            differing = different_settings(self.pairs).get(
                (pair, self.pairs.a.canonical(self.pairs.matching.pairs[pair].a, slot))
            )
            hint = f"the settings differ: {settings_text([differing])}" if differing else _WRITING
            self.findings.append(Divergence(
                Phase.UPDATE, Role.PARAM, Kind.UPDATE, 0.9, *self.refs(pair, None, slot, written.slot_b), written.metrics,
                evidence=(_WRITTEN, written.told), hint=hint,
            ))  # fmt: skip
        self._doubt_unknown_writes()
        if self.state.goes_on:
            self._remember_written()

    def _doubt_unknown_writes(self) -> None:
        """Doubt a step that uses other weights of which it was not recorded what they were before: no update was judged there."""
        unknown = [each for each in self._written.seen.values() if not each.is_known and each.metrics.is_known]
        parts = [(each.metrics.rel_l2, max(each.metrics.norm_a, each.metrics.norm_b), each.u) for each in unknown]
        total = math.hypot(*(norm for _, norm, _ in parts))
        error = math.hypot(*(error * norm for error, norm, _ in parts)) / total if total else 0.0
        u = max((u for *_, u in parts), default=0.0)
        if not self.findings and error > tolerance.DRIFT * tolerance.INIT.limit(u, 0.0):
            self.doubts.append(
                f"step {self.pairs.step} uses weights that differ (rel {error:.1e}, all {len(parts)} together), and what changed them was not "
                "recorded: record the phases init and update too"
            )

    def _remember_written(self) -> None:
        """Keep the errors of weights that were written to and that the step does not end with a record of."""
        self.state.weights |= self._written.known()
        self.state.left_alone = self._written.left_alone()
        pooled: dict[int, list[tuple[float, float, float]]] = {}
        for written in self._written.not_left():
            norm = max(written.metrics.norm_a, written.metrics.norm_b)
            if written.metrics.is_known and math.isfinite(norm):
                for owner in self.owners.get(written.place, written.place[:1]):
                    pooled.setdefault(owner, []).append((written.metrics.rel_l2 * norm, norm, written.u))
        self.pool(pooled, tolerance.UPDATED_GAIN)

    def _charge_missing_gradients(self, events: list[Event]) -> None:
        """Charge parameters that learn on one side only to the call behind them that passes nothing back there, or each to itself."""
        for name in "AB":
            missing = [event for event in events if (event.row_a < 0) == (name == "A")]
            swallower = self._swallower(name) if missing else None
            if swallower is not None:
                ran = {node.pair for node in self.pairs.nodes.values() if node.begin < swallower.begin}
                before = [event for event in missing if event.pair in ran]
                if before:
                    self._charge_swallower(swallower, name, before)
                missing = [event for event in missing if event.pair not in ran]
            for event in missing:
                self._charge_missing_gradient(event)

    def _swallower(self, name: str) -> Node | None:
        """Return the last call that got a gradient on both sides and passed nothing back to its inputs on one."""
        if not self._has_flow or not self._flow.tells_what_is_passed_back(name):
            return None
        found = [node for node in self.pairs.nodes.values() if self._flow.swallowing_side(node) == name]
        return max(found, key=lambda node: node.begin, default=None)

    def _charge_swallower(self, node: Node, name: str, behind: list[Event]) -> None:
        count = len(behind)
        first = f"{behind[0].slot_a or behind[0].slot_b} of {self._path_a(behind[0].pair)}"
        facts = (
            f"{self._path_a(node.pair)} gets a gradient on both sides and passes nothing back in {name}",
            f"{first} gets none there" if count == 1 else f"{count} parameters before it get none there, first {first}",
        )
        self._append(Divergence(
            Phase.BACKWARD, Role.GRAD_INPUT, Kind.MISSING, 0.95, *self.refs(node.pair, node, "", ""), None, math.nan, facts,
            f"{name} cuts the graph here: look for detach(), no_grad() or .data in this module",
        ))  # fmt: skip

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
                said.append(self._why_blind())
            elif len(found) <= tolerance.MOST * judged:
                said.append(f"in {judged - able} of the others noise can hide as much")
            surest = max(found, key=lambda event: self._judged[id(event)].error / self._judged[id(event)].limit)
            is_odd = blind and not common_factor(found)
            if is_odd:
                about, hint = self._without_a_place(found, hint)
                said += about
            self._add(Phase.GRADIENT, Kind.INTRODUCED, surest, None, tolerance.GRADIENT, said, hint=hint, root=True)
            if is_odd:
                self.findings[-1] = replace(self.findings[-1], confidence=_NO_PLACE * self.findings[-1].confidence)
            return
        for event in found:
            assert event.metrics is not None
            arrived = self._has_arrived(self.owners.get((event.pair, event.slot_a), [event.pair]))
            text = f"the gradient of this parameter differs, {_ARRIVED if arrived else _UNCALLED}"
            frozen = without_gradient(self.pairs, event)
            kind = Kind.MISSING if frozen else kind_of_finding(event.metrics)
            told = causes.born(self.pairs, None, event)
            self._add(Phase.GRADIENT, kind, event, event.pair, tolerance.GRADIENT, (text, told) if told else (text,),
                      hint=frozen or untied(self.pairs, event) or self._zero_rows(event) or scale_hint(event.metrics) or hint)  # fmt: skip

    def _why_blind(self) -> str:
        """Say why it is not known where gradients become wrong."""
        counts = {"A": len(self.pairs.micros_a), "B": len(self.pairs.micros_b)}
        if self.pairs.same_micros or self.pairs.share:
            return _BLIND
        none = next((name for name, count in counts.items() if not count), "")
        if none:
            return f"no forward was recorded in {none}, so neither forward nor backward was compared"
        return (
            f"A ran {counts['A']} micro-batches and B {counts['B']}: under another split neither forward nor backward is compared, "
            "and the fault may lie anywhere"
        )

    def _without_a_place(self, found: list[Event], hint: str) -> tuple[list[str], str]:
        """Return what to say, and to look at, where gradients have no common factor and nothing before them was compared."""
        counts = len(self.pairs.micros_a), len(self.pairs.micros_b)
        how = "with the same split" if min(counts) and not self.pairs.same_micros else "with forward and backward"
        more = f"record both sides {how}: that names the first module that differs"
        ratios = [event.metrics.norm_ratio for event in found if event.metrics is not None and event.metrics.norm_a]
        ratio = float(np.median(ratios)) if ratios else math.nan
        if not abs(ratio - 1) < _SAME_SIZE:
            return [], f"{more}; or {hint}"
        return [
            f"they are as large as A's (norm B/A {ratio:.4g} at the median): no factor of accumulation or loss scale"
        ], more

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
        zeros = [half.side.columns["zeros"][half.row(event)] for half in self.pairs.halves]
        shape = self.pairs.a.shapes[event.row_a]
        more = abs(zeros[0] - zeros[1])
        if len(shape) != 2 or "Embedding" not in self._classes(event.pair)[0] or not more or more % shape[1]:
            return ""
        side = "A" if zeros[0] > zeros[1] else "B"
        rows = more // shape[1]
        return f"{rows} more {'row is' if rows == 1 else 'rows are'} zero on {side}: look at padding_idx"


_WRITTEN = "this weight is written to before a call uses it, otherwise than by an optimizer's update, and differs then"
_WRITING = "look at what writes to weights between two forwards: averaging (EMA, momentum encoders), perturbing (SAM), clipping"
_ARRIVED = "the gradients at its module's output agree"
_UNCALLED = "what leads to it was not compared: its module is not called, its caller uses the weight"
_NO_PLACE = 0.6
"""what is left of the confidence where gradients are all that was compared, and differ by no common factor"""
_SAME_SIZE = 0.05
"""accumulation, a loss scale or a reduction that is wrong changes the norms of gradients by more"""
_BLIND = "the backward pass was not compared, so which of them comes first is not known"


def _sums(half: StepHalf) -> dict[int, tuple[int, int]]:
    """Return how many integers each module returned in a step, and their sum."""
    found, side = {}, half.side
    for module, taken in half.rows.by_module(Role.OUTPUT).items():
        integers = [row for row in taken if kind_of(side.dtypes[row]) == "integer"]
        counts = [math.prod(side.shapes[row]) for row in integers]
        total = sum(count * side.columns["mean"][row] for count, row in zip(counts, integers, strict=True))
        found[module] = sum(counts), round(total)
    return found
