"""Judging what the optimizer did: the gradients it used, the update δ, its state, its hyper-parameters.

The update δ = p₁ − p₀ is judged, not the parameter: Adam turns rounding errors of vanishing gradients into
parameter differences that are larger than those of real faults.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from probe.comparison import tolerance
from probe.comparison.events import Event, StepPairs
from probe.comparison.ledger import State, common_factor
from probe.comparison.metrics import Metrics, Status
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.comparison.walk import StepWalk
from probe.records import Phase, Role
from probe.sketch import WIDTH
from probe.statistics import unit_roundoff

_NUMERIC = ("lr", "weight_decay", "momentum", "dampening", "betas", "eps", "alpha", "nesterov", "amsgrad", "maximize",
            "rho", "initial_accumulator_value", "lr_decay", "lambd")  # fmt: skip
_SAME = 1e-9
_PARALLEL = 0.9

ParameterKey = tuple[int, str]
"""(pair of modules, slot)"""


@dataclass(frozen=True, slots=True)
class _Fault:
    """One parameter whose update is wrong."""

    event: Event
    limit: float
    """the largest relative error that would have been noise; NaN where something else tells"""
    text: str
    hint: str = ""
    is_weak: bool = False
    """sign flips of vanishing gradients under Adam could look like this"""


class UpdateJudge:
    """The update phase of one step; findings go to the step's walk."""

    def __init__(self, walk: StepWalk, pairs: StepPairs, state: State) -> None:
        self.walk, self.pairs, self.state = walk, pairs, state
        self.settings = _different_settings(pairs)
        """parameters whose hyper-parameters differ: {name: (A's, B's)}"""

    def judge(self) -> None:
        """Judge the phase, in the order of cause and effect."""
        used = self._used_gradients()
        if used:
            self._report(used, "gradients as the optimizer used them", Role.PARAM_GRAD)
            return
        updates = self._without_weak(self._updates())
        self._report(updates, "updates", Role.DELTA)
        if not updates:
            self._report(self._states(), "optimizer states", Role.STATE)
        if not self.walk.findings and self.settings:
            texts = sorted({_settings_text(differing) for differing in self.settings.values()})
            self.walk.warnings.append(
                f"the optimizers are set differently for {len(self.settings)} parameters ({'; '.join(texts)}), which "
                "does not show in this step's numbers"
            )
        self._remember_parameters()

    def _used_gradients(self) -> list[_Fault]:
        faults = []
        unjudged: list[tuple[float, float, float]] = []
        for event in self._two_sided(Role.PARAM_GRAD):
            metrics = event.metrics
            assert metrics is not None
            key = (event.pair, event.slot_a)
            raw = self.state.gradients.get(key)
            u = self.walk.u(event)
            limit = tolerance.USED.limit(u, raw if raw is not None else 1.0)
            wrong = metrics.is_known and raw is not None and raw <= 0.1 and metrics.rel_l2 > limit
            if self.walk.settle(event, limit, wrong, raw or 0.0):
                text = "the gradient that backward left agrees, the one that the optimizer used differs"
                faults.append(_Fault(event, limit, text, "look at clipping, unscaling and the reduction over ranks"))
            if raw is None and math.isfinite(metrics.rel_l2):
                norm = max(metrics.norm_a, metrics.norm_b)
                unjudged.append((metrics.rel_l2 * norm, norm, u))
            self.state.gradients[key] = metrics.rel_l2 if metrics.is_known else 1.0
        self._doubt_unjudged(unjudged)
        return faults

    def _doubt_unjudged(self, parts: list[tuple[float, float, float]]) -> None:
        """Gradients that nothing else was recorded of can be told to differ, but not why."""
        total = math.hypot(*(norm for _, norm, _ in parts))
        error = math.hypot(*(error for error, _, _ in parts)) / total if total else 0.0
        if error > math.sqrt(max((u for *_, u in parts), default=0.0)):
            self.walk.doubts.append(
                f"step {self.pairs.step}: the gradients that the optimizer used differ (rel {error:.1e}), and those that "
                "backward left were not recorded on both sides: record the phases backward and gradient too"
            )

    def _updates(self) -> list[_Fault]:
        faults = []
        for event in self.pairs.parameter_events(Phase.UPDATE, Role.DELTA):
            if event.is_one_sided:
                fault = self._one_sided_update(event)
                limit = math.nan
            else:
                fault, limit = self._update_fault(event)
                self.walk.settle(event, limit, fault is not None and not fault.is_weak, 1.0)
            if fault is not None:
                faults.append(fault)
        return faults

    def _one_sided_update(self, event: Event) -> _Fault | None:
        pair = self.pairs.matching.pairs[event.pair]
        slot = f"init:{event.slot_a or event.slot_b}"
        on_both = slot in self.pairs.rows_a.get((0, pair.a, 0), Role.PARAM) and slot in self.pairs.rows_b.get(
            (0, pair.b, 0), Role.PARAM
        )
        if not on_both or self.pairs.is_unwatched(event) or not (self.pairs.micros_a and self.pairs.micros_b):
            return None
        side = "A" if event.row_a >= 0 else "B"
        other = "B" if side == "A" else "A"
        return _Fault(event, math.nan, f"only {side}'s optimizer updates this parameter",
                      f"{other}'s optimizer was not given this parameter")  # fmt: skip

    def _update_fault(self, event: Event) -> tuple[_Fault | None, float]:
        """Return the fault, if there is one, and the bound of the relative error."""
        metrics = event.metrics
        assert metrics is not None
        key = (event.pair, event.slot_a)
        error = self.state.gradients.get(key, 0.0)
        parameter = self._norm_of_parameter(event)
        if not metrics.is_known or parameter is None:
            return None, math.nan
        size = math.prod(self.pairs.a.shapes[event.row_a])
        u = self._parameter_u(event)
        larger = max(metrics.norm_a, metrics.norm_b)
        if not larger:
            return None, 0.0
        bound = tolerance.update_bound(error, u, parameter / larger, size)
        if min(metrics.norm_a, metrics.norm_b) == 0.0 and larger > 4 * u * parameter:
            side = "B" if metrics.norm_b == 0.0 else "A"
            return self._fault(event, math.nan, f"{side} does not change this parameter at all"), bound
        if error > tolerance.UPDATE_ERROR_LIMIT:
            return None, math.nan
        decay = self._decay(event, metrics, u * parameter)
        if decay is not None:
            return self._fault(event, math.nan, *decay), bound
        noise = math.sqrt(error) + u * parameter / larger
        weak = self._is_adaptive(event) and error > tolerance.NOISY_GRADIENT
        if abs(metrics.norm_ratio - 1) > max(tolerance.RATIO_LIMIT, noise):
            text = f"B's update is {metrics.norm_ratio:.4g} times as long as A's"
            weak = weak and 0.5 < metrics.norm_ratio < 2
            return self._fault(event, math.nan, text, "look at the learning rate and its schedule", weak), bound
        if bound < tolerance.UPDATE_BOUND_LIMIT and metrics.rel_l2 > bound:
            text = "the update differs, the gradient that was used agrees"
            return self._fault(event, bound, text, weak=self._is_adaptive(event)), bound
        return None, bound

    def _is_adaptive(self, event: Event) -> bool:
        """Tell whether the optimizer divides by a gradient's own size, as Adam does: it keeps a second moment."""
        module = self.pairs.matching.pairs[event.pair].a
        states = self.pairs.rows_a.get((0, module, 0), Role.STATE)
        return sum(slot.startswith(f"update:{event.slot_a}.") for slot in states) > 1

    def _without_weak(self, faults: list[_Fault]) -> list[_Fault]:
        """Leave out weak evidence, unless many parameters show it or their settings differ."""
        judged = sum(e.phase is Phase.UPDATE and e.role is Role.DELTA for e, _, _ in self.walk.events)
        if len(faults) > max(2, tolerance.SYSTEMATIC * judged):
            return faults
        return [fault for fault in faults if not fault.is_weak or _parameter(fault.event) in self.settings]

    def _decay(self, event: Event, metrics: Metrics, rounding: float) -> tuple[str, str] | None:
        """Tell whether the difference of the updates is parallel to the parameter: weight decay."""
        before_a, before_b = self._row_before(self.pairs.a, event, "a"), self._row_before(self.pairs.b, event, "b")
        if before_a is None or before_b is None:
            return None
        difference = self.pairs.b.sketches[event.row_b] - self.pairs.a.sketches[event.row_a]
        parameter = self.pairs.a.sketches[before_a]
        length, weight = float(np.linalg.norm(difference)), float(np.linalg.norm(parameter))
        if not weight or length < 8 * rounding or math.prod(self.pairs.a.shapes[event.row_a]) < WIDTH // 4:
            return None
        along = float(difference @ parameter) / weight**2
        if abs(along) * weight < _PARALLEL * length:
            return None
        text = f"the difference of the updates is parallel to the parameter ({along:+.2e} of it)"
        return text, "look at the weight decay of this parameter's group"

    def _fault(self, event: Event, limit: float, text: str, hint: str = "", weak: bool = False) -> _Fault:
        return _Fault(event, limit, text, hint or "look at the optimizer's settings for this parameter", weak)

    def _states(self) -> list[_Fault]:
        faults = []
        for event in self._two_sided(Role.STATE):
            metrics = event.metrics
            assert metrics is not None
            parameter = event.slot_a.partition(".")[0]
            error = self.state.gradients.get((event.pair, parameter), 0.0)
            error = max(error, self.state.optimizer.get((event.pair, event.slot_a), 0.0))
            limit = tolerance.STATE.limit(self.walk.u(event), error)
            wrong = metrics.is_known and error <= tolerance.UPDATE_ERROR_LIMIT and metrics.rel_l2 > limit
            self.state.optimizer[event.pair, event.slot_a] = metrics.rel_l2 if metrics.is_known else 1.0
            if self.walk.settle(event, limit, wrong, error):
                name = event.slot_a.partition(".")[2]
                text = (
                    f"the optimizer's {name} differs (B is {metrics.norm_ratio:.4g} times A), gradient and update agree"
                )
                faults.append(_Fault(event, limit, text, "look at the betas and at what the state began with"))
        return faults

    def _two_sided(self, role: Role) -> list[Event]:
        return [e for e in self.pairs.parameter_events(Phase.UPDATE, role) if not e.is_one_sided]

    # Reporting

    def _report(self, faults: list[_Fault], plural: str, role: Role) -> None:
        if not faults:
            return
        judged = {_parameter(e) for e, _, _ in self.walk.events if e.phase is Phase.UPDATE and e.role is role}
        concerned = {_parameter(fault.event) for fault in faults}
        judged |= concerned
        if len(concerned) > max(2, tolerance.MOST * len(judged)):
            self._report_all(faults, f"the {plural} of {len(concerned)} of {len(judged)} parameters differ")
            return
        for fault in faults:
            differing = self.settings.get(_parameter(fault.event))
            hint = f"the settings differ: {_settings_text(differing)}" if differing else fault.hint
            refs = self.walk.refs(fault.event.pair, None, fault.event.slot_a or fault.event.slot_b,
                                   fault.event.slot_b or fault.event.slot_a)  # fmt: skip
            kind = Kind.MISSING if fault.event.is_one_sided else Kind.UPDATE
            self._append(fault, kind, refs, (fault.text,), hint)

    def _report_all(self, faults: list[_Fault], text: str) -> None:
        """One finding for the optimizer as a whole."""
        first = faults[0]
        texts = [text, *common_factor(fault.event for fault in faults), f"the first of them: {first.text}"]
        common = {_settings_text(differing) for differing in self.settings.values()}
        hint = f"the settings differ: {'; '.join(sorted(common))}" if common else first.hint
        self._append(first, Kind.UPDATE, self.walk.root_refs(first.event), tuple(texts), hint)

    def _append(
        self, fault: _Fault, kind: Kind, refs: tuple[tuple[NodeRef, ...], tuple[NodeRef, ...]],
        evidence: tuple[str, ...], hint: str,
    ) -> None:  # fmt: skip
        confidence = 0.97 if self.settings else 0.9
        self.walk.findings.append(
            Divergence(Phase.UPDATE, fault.event.role, kind, confidence, *refs, fault.event.metrics, fault.limit,
                       evidence, hint)
        )  # fmt: skip

    # Parameters

    def _row_before(self, side: object, event: Event, which: str) -> int | None:
        """Return the row of a parameter as it was before the update."""
        pair = self.pairs.matching.pairs[event.pair]
        rows, module, slot = (
            (self.pairs.rows_a, pair.a, event.slot_a) if which == "a" else (self.pairs.rows_b, pair.b, event.slot_b)
        )
        found = rows.get((0, module, 0), Role.PARAM)
        row = found.get(f"init:{slot}") or found.get(f"update:{slot}")
        return row[0] if row else None

    def _norm_of_parameter(self, event: Event) -> float | None:
        row = self._row_before(self.pairs.a, event, "a")
        return None if row is None else self.pairs.a.columns["norm"][row]

    def _parameter_u(self, event: Event) -> float:
        rows = (self._row_before(self.pairs.a, event, "a"), self._row_before(self.pairs.b, event, "b"))
        sides = (self.pairs.a, self.pairs.b)
        return max(unit_roundoff(s.dtypes[r]) for s, r in zip(sides, rows, strict=True) if r is not None)

    def _remember_parameters(self) -> None:
        """Keep the errors of the updated parameters: the next step begins with them."""
        pooled: dict[int, list[tuple[float, float, float]]] = {}
        for event in self._two_sided_parameters():
            metrics = event.metrics
            assert metrics is not None
            if metrics.is_known and metrics.status is not Status.NONFINITE:
                norm = max(metrics.norm_a, metrics.norm_b)
                pooled.setdefault(event.pair, []).append((metrics.rel_l2 * norm, norm, self.walk.u(event)))
        self.walk.pool(pooled, tolerance.UPDATED_GAIN)

    def _two_sided_parameters(self) -> list[Event]:
        return self._two_sided(Role.PARAM)


def _parameter(event: Event) -> ParameterKey:
    return event.pair, (event.slot_a or event.slot_b).partition(".")[0]


def _different_settings(pairs: StepPairs) -> dict[ParameterKey, dict[str, tuple[object, object]]]:
    """Return the hyper-parameters that differ, by parameter of A."""
    mine, theirs = _settings(pairs, "a"), _settings(pairs, "b")
    found = {}
    for key in mine.keys() & theirs.keys():
        a, b = mine[key], theirs[key]
        differing = {
            name: (a[name], b[name]) for name in _NUMERIC if name in a and name in b and not _alike(a[name], b[name])
        }
        if differing:
            found[key] = differing
    return found


def _settings(pairs: StepPairs, which: str) -> dict[ParameterKey, dict[str, object]]:
    side = pairs.a if which == "a" else pairs.b
    step = pairs.step if which == "a" else pairs.step_b
    index = pairs.pair_of_a if which == "a" else pairs.pair_of_b
    found = {}
    for at, group in side.reader.optimizer:
        if at == step:
            for number in group.parameters:
                parameter = side.reader.parameters[number]
                if parameter.module in index:
                    found[index[parameter.module], parameter.slot] = group.hyper
    return found


def _alike(a: object, b: object) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(_alike(x, y) for x, y in zip(a, b, strict=True))
    if isinstance(a, (int, float)) and isinstance(b, (int, float)):
        return math.isclose(a, b, rel_tol=1e-6, abs_tol=_SAME * 1e-6)
    return a == b


def _settings_text(differing: dict[str, tuple[object, object]]) -> str:
    return ", ".join(f"{name} {a} against {b}" for name, (a, b) in differing.items())
