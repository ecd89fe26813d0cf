"""Judging what the optimizer did: the gradients it used, the update δ, its state, its hyper-parameters.

The update δ = p₁ − p₀ is judged, not the parameter: Adam turns rounding errors of vanishing gradients into
parameter differences that are larger than those of real faults.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from probe.comparison import tolerance
from probe.comparison.combined import is_finite
from probe.comparison.drift import drifted, share_of_update
from probe.comparison.metrics import Metrics, Status
from probe.comparison.optimizers.clipping import SUMMED_IN, apart_by_summing
from probe.comparison.own_writes import is_own
from probe.comparison.scaled_gradients import USED, ScaledGradients
from probe.comparison.settings import decays, unknown_settings
from probe.comparison.skipped_steps import is_change, skipped_on_one_side
from probe.comparison.step_half import Event, StepHalf
from probe.comparison.tolerance import Level
from probe.comparison.update_findings import Fault
from probe.comparison.updates_together import TIMES
from probe.records import Phase, Role
from probe.sketch import WIDTH
from probe.statistics import unit_roundoff

_FEW = 16
"""updates that a weight is long at most which they alone have made"""
_PARALLEL = 0.9
_ROUNDINGS = 8
"""unit roundoffs of a parameter that updates which differ along it must be apart to tell weight decay"""
_BOTH_ROUND = 2
"""the same where the settings differ: each side rounds the new parameter once, and by one unit at most"""
_SINGLE = 8
"""elements below which both sides may have rounded all of a parameter as far as they can"""
_FLOAT16_LEAST = 2.0**-24
_SAME = 0.01
"""share of an update up to which rounding may take it away from the state that it is a multiple of"""


class UpdateJudge(ScaledGradients):
    """The update phase of one step; findings go to the step's walk."""

    def judge(self) -> None:
        """Judge the phase, in the order of cause and effect."""
        used = self._used_gradients()
        if self._is_scaled(used):
            return
        if used:
            self._report(used, USED, Role.PARAM_GRAD)
            return
        behind = bool(self.walk.findings)
        updates = self._without_weak(self._updates())
        changed = [*self._judged(Role.DELTA), *(fault.event for fault in updates if fault.event.is_one_sided)]
        skipped = None if behind else skipped_on_one_side(self.walk, self.pairs, changed)
        if skipped is not None:
            self.walk.findings.append(skipped)
            return
        together = [] if behind else self._of_all_updates(updates)
        if not together:
            self._report(updates, "updates", Role.DELTA)
        updates = together or updates
        if not updates and not behind:
            updates = self._unseen_updates()
            self._report(updates, "updates", Role.PARAM)
        states = [] if updates else self._states()
        self._report(states, "optimizer states", Role.STATE)
        if behind and not updates and not states:
            self._report_behind()
        if not self.walk.findings and self.settings:
            self._report(self._hidden_decays(), "weight decays", Role.DELTA)
        if not self.walk.findings and self.settings:
            self._report_unshown()
        unknown = "" if self.walk.findings else unknown_settings(self.pairs)
        if unknown:
            self.walk.warnings.append(
                f"the optimizers have other settings of which it is not known what they do: {unknown}; the updates agree"
            )
        if self.state.goes_on:
            self._remember_parameters()

    def _used_gradients(self) -> list[Fault]:
        faults = []
        unjudged: list[tuple[float, float, float]] = []
        together, apart = self._error_together(), apart_by_summing(self.pairs, self._two_sided(Role.PARAM_GRAD))
        as_left = {(j.event.pair, j.event.slot_a) for j in self.walk.events if j.event.phase is Phase.GRADIENT}
        for event in self._two_sided(Role.PARAM_GRAD):
            metrics = event.metrics
            assert metrics is not None
            key = (event.pair, event.slot_a)
            raw = self.state.gradients.get(key) if key in as_left else None  # not of the step before
            u = self.walk.u(event)
            given = Level()
            given.add(max(raw, together) if raw is not None else 1.0, 0.0)
            held = self.walk.noise.held(event, metrics.rel_l2, tolerance.USED, u, given)
            held = held.widened(held.limit + apart)
            limit = held.limit
            wrong = metrics.is_known and raw is not None and raw <= 0.1 and held.is_wrong
            if self.walk.settle(event, limit, wrong, raw or 0.0, error=held.error, held=held):
                text = "the gradient that backward left agrees, the one that the optimizer used differs"
                hint = "look at clipping, unscaling and the reduction over ranks"
                if not min(metrics.norm_a, metrics.norm_b):
                    text += f": {'B' if metrics.norm_a else 'A'}'s optimizer is given zeros"
                faults.append(Fault(event, limit, text, hint, sources=raw or 0.0))
            if raw is None and math.isfinite(metrics.rel_l2):
                norm = max(metrics.norm_a, metrics.norm_b)
                unjudged.append((metrics.rel_l2 * norm, norm, u))
            least = (raw or 0.0) if metrics.is_lower_bound else 0.0
            self.state.gradients[key] = max(metrics.rel_l2, least) if metrics.is_known else 1.0
        if apart > tolerance.USED.limit(SUMMED_IN, 0.0) and not faults:
            self.walk.warnings.append(
                f"all gradients that the optimizer used are longer or shorter in B by {apart:.1e}: the norm that both are clipped by is a "
                "sum of many squares in float32, whose rounding can do that"
            )
        self._doubt_unjudged(unjudged)
        return faults

    def _error_together(self) -> float:
        """Return the error of all gradients as backward left them, as one vector: clipping divides each by that one's norm."""
        parts = []
        for event in (j.event for j in self.walk.events if j.event.phase is Phase.GRADIENT):
            if event.metrics is not None and math.isfinite(event.metrics.rel_l2):
                norm = max(event.metrics.norm_a, event.metrics.norm_b)
                parts.append((event.metrics.rel_l2 * norm, norm))
        total = math.hypot(*(norm for _, norm in parts))
        return math.hypot(*(error for error, _ in parts)) / total if total else 0.0

    def _doubt_unjudged(self, parts: list[tuple[float, float, float]]) -> None:
        """Gradients that nothing else was recorded of can be told to differ, but not why."""
        total = math.hypot(*(norm for _, norm, _ in parts))
        error = math.hypot(*(error for error, _, _ in parts)) / total if total else 0.0
        if error > math.sqrt(max((u for *_, u in parts), default=0.0)):
            self.walk.doubts.append(
                f"step {self.pairs.step}: the gradients that the optimizer used differ (rel {error:.1e}), and those that "
                "backward left were not recorded on both sides: record the phases backward and gradient too"
            )

    def _updates(self) -> list[Fault]:
        faults = []
        for event in self.pairs.parameter_events(Phase.UPDATE, Role.DELTA):
            if event.is_one_sided:
                fault = self._one_sided_update(event)
                limit = math.nan
            else:
                fault, limit = self._update_fault(event)
                if fault is not None and self.walk.noise.explains_update(event):
                    fault = None
                if event.pair in self.walk.uncalled:
                    fault = None
                if fault is not None and math.isnan(fault.limit):
                    limit = math.nan  # it was not the relative error that told
                error = self.state.gradients.get((event.pair, event.slot_a), 0.0)
                self.walk.settle(event, limit, fault is not None and not fault.is_weak, error)
            if fault is not None:
                faults.append(fault)
        return faults

    def _one_sided_update(self, event: Event) -> Fault | None:
        on_both = self.pairs.is_initial_on_both(event)
        if not on_both or self.pairs.is_unwatched(event) or not (self.pairs.micros_a and self.pairs.micros_b):
            return None
        half = self.pairs.half("A" if event.row_a >= 0 else "B")
        columns, row = half.side.columns, half.row(event)
        if not columns["requires_grad"][row] and not is_change(half.side, row):
            return None  # it is frozen, and was handed over all the same
        lacking = self.pairs.half(half.other)
        if is_own(half, event):
            return self._one_sided_write(event, half, lacking)
        hint = f"{lacking.name}'s optimizer was not given this parameter"
        if not lacking.side.reader.groups_of(lacking.side.step):
            if self._are_replaced(lacking):
                return None
            if is_finite(half.side, row) and self._is_rounded_away(event, lacking, columns["norm"][row]):
                return None
            hint = (
                f"no optimizer was seen to step in {lacking.name}, and at its probe.step() this weight was as before: is it updated, or "
                "copied back from what is, and is probe.step() called behind that?"
            )
        return Fault(event, math.nan, f"only {half.name} updates this parameter", hint)

    def _is_rounded_away(self, event: Event, lacking: StepHalf, update: float) -> bool:
        """Tell whether a side that left a weight as it was rounds away what the other side changed it by."""
        module, side = lacking.modules[event.pair], lacking.side
        rows = lacking.rows.get((0, module, 0), Role.PARAM)
        same = [taken[-1] for slot, taken in rows.items()
                if side.canonical(module, slot.partition(":")[2]) == self.pairs.canonical(event)]  # fmt: skip
        return any(update <= side.roundoffs[row] * side.columns["norm"][row] for row in same)

    def _update_fault(self, event: Event) -> tuple[Fault | None, float]:
        """Return the fault, if there is one, and the bound of the relative error."""
        metrics = event.metrics
        assert metrics is not None
        error = self._error_of_sources(event)
        parameter = self._norm_of_parameter(event)
        if not metrics.is_known:
            return self._fault_of_length(event, metrics, error), math.nan
        if parameter is None:
            return None, math.nan
        size = math.prod(self.pairs.a.shapes[event.row_a])
        u = self._parameter_u(event)
        larger = max(metrics.norm_a, metrics.norm_b)
        if metrics.status is Status.NONFINITE and error <= tolerance.UPDATE_ERROR_LIMIT:
            return self._fault(event, math.nan, "the update is not finite everywhere", self._about_eps(event)), math.nan
        if not larger:
            return None, 0.0
        bound = tolerance.update_bound(error, u, parameter / larger, size)
        if error > tolerance.UPDATE_ERROR_LIMIT:
            return None, math.nan
        if min(metrics.norm_a, metrics.norm_b) == 0.0 and larger > 4 * u * parameter:
            side = "B" if metrics.norm_b == 0.0 else "A"
            return self._fault(event, math.nan, f"{side} does not change this parameter at all"), bound
        are_set_otherwise = bool(self.settings) and self._parameter(event) in self.settings
        roundings = _BOTH_ROUND if are_set_otherwise else _ROUNDINGS
        decay = self._decay(event, metrics, roundings * u * parameter + self._rounding * larger)
        if decay is not None:
            return self._fault(event, math.nan, *decay), bound
        noise = math.sqrt(error) + u * parameter / larger
        if size < _SINGLE:  # no sum in which roundings are small by chance
            noise += _BOTH_ROUND * u * parameter / (min(metrics.norm_a, metrics.norm_b) or larger)
        # what is really wrong with one parameter's rate keeps the direction; rounding that is divided by itself does not
        noisy = error > tolerance.NOISY_GRADIENT or not metrics.cosine >= tolerance.SCATTERED
        weak = noisy and self._is_adaptive(event)
        if abs(metrics.norm_ratio - 1) > max(tolerance.RATIO_LIMIT, noise):
            text = f"B's update is {metrics.norm_ratio:.4g} {TIMES}"
            weak = weak and 0.5 < metrics.norm_ratio < 2
            return self._fault(event, math.nan, text, "look at the learning rate and its schedule", weak), bound
        if bound < tolerance.UPDATE_BOUND_LIMIT and metrics.rel_l2 > bound:
            return self._fault(event, bound, self._differs(event), weak=self._is_adaptive(event)), bound
        return None, bound

    def _fault_of_length(self, event: Event, metrics: Metrics, error: float) -> Fault | None:
        """Judge an update that cannot be compared, of a fused weight that no optimizer was seen to change, by its length alone."""
        if error > tolerance.UPDATE_ERROR_LIMIT or not (0 < metrics.norm_ratio < math.inf):
            return None
        if abs(math.log(metrics.norm_ratio)) <= math.log(tolerance.ESTIMATED_LENGTH):
            return None
        text = f"B's update is about {metrics.norm_ratio:.2g} {TIMES}"
        return self._fault(
            event, math.nan, text, "look at the learning rate, and at how what is trained is copied back"
        )

    def _unseen_updates(self) -> list[Fault]:
        """Report weights that differ by more than both sides' updates are long, where the updates could not be compared.

        That is known of steps whose beginning was recorded, and agrees.
        """
        unknown = {
            (e.pair, e.slot_a) for e in self._judged(Role.DELTA) if e.metrics is not None and not e.metrics.is_known
        }
        if not unknown:
            return []
        begun = {(e.pair, e.slot_a): _distance(e.metrics) for e in self.pairs.initial_weights}
        faults = []
        for event in self._two_sided(Role.PARAM):
            key, row = (event.pair, event.slot_a), self._row_of_update(event)
            if key not in unknown or row is None or key not in begun:
                continue
            update, distance = self.pairs.a.norm(row), _distance(event.metrics)
            norm = self._norm_of_parameter(event) or 0.0
            allowed = (
                begun[key]
                + tolerance.UPDATES_APART * update
                + tolerance.INIT.limit(self._parameter_u(event), 0.0) * norm
            )
            if distance > allowed and update:
                text = f"the weight differs by {distance / update:.2g} times A's update, and began alike; the updates were not compared"
                faults.append(
                    self._fault(
                        event, math.nan, text, "look at how what is trained is copied back, and at the learning rate"
                    )
                )
        return faults

    def _row_of_update(self, event: Event) -> int | None:
        rows = self.pairs.rows_a.get((0, self.pairs.matching.pairs[event.pair].a, 0), Role.DELTA)
        found = rows.get(f"{Phase.UPDATE.label}:{event.slot_a}")
        return found[-1] if found else None

    def _hidden_decays(self) -> list[Fault]:
        """Return parameters whose weight decay differs by less than both sides may round.

        Numbers cannot show that: of a weight in bfloat16, rounding gives back the whole decay, step by step. The settings
        alone can. Where the numbers could show it and do not, something is wrong with what was recorded: that stays a doubt.
        """
        shares = decays(self.pairs)
        faults = []
        for event in self._two_sided(Role.DELTA):
            a, b = shares.get(self._parameter(event), (0.0, 0.0))
            if self._parameter(event) in self.settings and 0 < abs(a - b) < _BOTH_ROUND * self._parameter_u(event):
                text = (
                    f"its weight decay takes away {a:.3g} of it in A and {b:.3g} in B, and rounding to "
                    f"{', '.join(sorted(self._dtypes_of(event)))} hides that: the settings tell, the numbers cannot"
                )
                faults.append(Fault(event, math.nan, text))
        return faults

    def _without_weak(self, faults: list[Fault]) -> list[Fault]:
        """Leave out weak evidence, unless many parameters show it or their settings differ."""
        if len(faults) > 2 and len(faults) > tolerance.SYSTEMATIC * len(self._judged(Role.DELTA)):
            return faults
        return [fault for fault in faults if not fault.is_weak or self._parameter(fault.event) in self.settings]

    def _decay(self, event: Event, metrics: Metrics, rounding: float) -> tuple[str, str] | None:
        """Tell whether the difference of the updates is parallel to the parameter: weight decay."""
        before_a, before_b = self._trained(event).rows
        if before_a is None or before_b is None:
            return None
        sketches = [self.pairs.b.sketch(event.row_b), self.pairs.a.sketch(event.row_a), self.pairs.a.sketch(before_a)]
        after_b, after_a, parameter = sketches
        if after_b is None or after_a is None or parameter is None:
            return None
        difference = after_b - after_a
        length = math.sqrt(difference.dot(difference))
        if length < rounding or math.prod(self.pairs.a.shapes[event.row_a]) < WIDTH // 4:
            return None
        weight = float(np.linalg.norm(parameter))
        if not weight:
            return None
        along = float(difference @ parameter) / weight**2
        if abs(along) * weight < _PARALLEL * length:
            return None
        update = float(np.linalg.norm(after_a))
        if weight <= _FEW * update and abs(float(difference @ after_a)) >= _PARALLEL * length * update:
            return None  # of a weight that updates alone have made, longer ones leave the same
        text = f"the difference of the updates is parallel to the parameter ({along:+.2e} of it)"
        return text, "look at the weight decay of this parameter's group"

    def _about_eps(self, event: Event) -> str:
        """Say so when an optimizer's eps is zero in the parameter's own dtype."""
        for side in (self.pairs.a, self.pairs.b):
            for group in side.reader.groups_of(side.step):
                eps = group.hyper.get("eps")
                is_tiny = isinstance(eps, float) and 0 < eps < _FLOAT16_LEAST
                if is_tiny and "float16" in self._dtypes_of(event):
                    return f"the optimizer's eps {eps} is 0 in float16: a vanishing gradient is divided by 0"
        return "look at what the optimizer divides by"

    def _states(self) -> list[Fault]:
        faults = []
        for event, cancelled in (moment for moments in self._moments.values() for moment in moments):
            metrics = event.metrics
            assert metrics is not None
            parameter = event.slot_a.partition(".")[0]
            error = self.state.gradients.get((event.pair, parameter), 0.0)
            error = max(error, self.state.optimizer.get((event.pair, event.slot_a), 0.0))
            given = Level()
            given.add(error, 0.0)
            held = self.walk.noise.held(event, metrics.rel_l2, tolerance.STATE, self.walk.u(event), given)
            held = held.widened(held.limit * cancelled + self._rounding)
            limit, is_wrong = held.limit, held.is_wrong
            is_longer = abs(metrics.norm_ratio - 1) > max(tolerance.RATIO_LIMIT, math.sqrt(error))
            if metrics.is_known and (is_wrong or is_longer) and self._is_divided(event):
                limit, held, is_wrong = math.nan, None, is_longer and not self._is_as_long_as_update(event)
            wrong = metrics.is_known and error <= tolerance.UPDATE_ERROR_LIMIT and is_wrong
            self.state.optimizer[event.pair, event.slot_a] = metrics.rel_l2 if metrics.is_known else 1.0
            if self.walk.settle(event, limit, wrong, error, error=held.error if held is not None else None, held=held):
                name = event.slot_a.partition(".")[2]
                text = (
                    f"the optimizer's {name} differs (B is {metrics.norm_ratio:.4g} times A), gradient and update agree"
                )
                hint = "look at the betas and at what the state began with"
                faults.append(Fault(event, limit, text, hint, sources=error))
        return faults

    def _is_divided(self, event: Event) -> bool:
        """Tell whether a state sums up gradients that were divided by their own size, as RMSprop's momentum: the update is a multiple of it.

        Rounding of vanishing gradients is as large in it as in the update, which was judged. Its length shows what is wrong with it alone.
        """
        return self._is_adaptive(event) and all(self._is_multiple_of_update(half, event) for half in self.pairs.halves)

    def _is_as_long_as_update(self, event: Event) -> bool:
        """Tell whether a state is as much longer in B as the update is, which was judged."""
        name, metrics = event.slot_a.partition(".")[0], event.metrics
        updates = (
            each.metrics for each in self._two_sided(Role.DELTA) if (each.pair, each.slot_a) == (event.pair, name)
        )
        found = next(updates, None)
        if found is None or metrics is None or not 0 < found.norm_ratio < math.inf:
            return False
        return abs(metrics.norm_ratio / found.norm_ratio - 1) <= tolerance.RATIO_LIMIT

    def _is_multiple_of_update(self, half: StepHalf, event: Event) -> bool:
        """Tell whether a parameter's update is a multiple of one of its states, up to the rounding of the new parameter."""
        name = half.slot(event).partition(".")[0]
        rows = half.rows.get((0, half.modules[event.pair], 0), Role.DELTA).get(f"{Phase.UPDATE.label}:{name}")
        before, _ = self._trained_on(half, replace(event, slot_a=name, slot_b=name))
        if not rows or before is None:
            return False
        update, state = half.side.sketch(rows[-1]), half.side.sketch(half.row(event))
        length = half.side.norm(rows[-1])
        if update is None or state is None or not length or not state.any():
            return False
        rest = update - state * (float(update @ state) / float(state @ state))
        rounding = _ROUNDINGS * unit_roundoff(half.side.dtypes[before]) * half.side.norm(before) / length
        return float(np.linalg.norm(rest)) <= min(rounding, _SAME) * float(np.linalg.norm(update))

    def _remember_parameters(self) -> None:
        """Keep the errors of the updated parameters: the next step begins with them."""
        pooled: dict[int, list[tuple[float, float, float]]] = {}
        excess: dict[int, float] = {}
        for event in self._two_sided(Role.PARAM):
            metrics = event.metrics
            assert metrics is not None
            if metrics.is_known and metrics.status is not Status.NONFINITE:
                norm = max(metrics.norm_a, metrics.norm_b)
                error = max(metrics.rel_l2 * norm, self._unseen_error(event))
                for owner in self.walk.owners.get((event.pair, event.slot_a), [event.pair]):
                    pooled.setdefault(owner, []).append((error, norm, self.walk.u(event)))
                    excess[owner] = max(excess.get(owner, 0.0), self.walk.noise.excess(event, metrics.rel_l2))
        self.walk.pool(pooled, tolerance.UPDATED_GAIN)
        for owner in pooled.keys() - {owner for owner, found in excess.items() if found}:
            self.state.parameters[owner].excess = 0.0
        self.state.drifted = drifted(self.pairs, self.state)

    def _unseen_error(self, event: Event) -> float:
        """Return how large the error of an updated parameter may be where statistics alone bound it from below."""
        row = self._row_of_update(event) if event.metrics is not None and event.metrics.is_lower_bound else None
        if row is None:
            return 0.0
        update, u = self.pairs.a.columns["norm"][row], self.walk.u(event)
        gradient = self.state.gradients.get((event.pair, event.slot_a), 0.0)
        return update * share_of_update(
            gradient, u, self.pairs.a.shapes[event.row_a], is_adaptive=self._is_adaptive(event)
        )


def _distance(metrics: Metrics | None) -> float:
    """Return ‖A−B‖ as far as it is known: from below where statistics alone are, 0.0 where nothing is."""
    if metrics is None or not metrics.is_known or not math.isfinite(metrics.rel_l2):
        return 0.0
    if metrics.is_lower_bound:
        return abs(metrics.norm_b - metrics.norm_a)
    return metrics.rel_l2 * max(metrics.norm_a, metrics.norm_b)
