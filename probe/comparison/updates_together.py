"""Updates of parameters: what is known of each, and what all of them together show."""

from __future__ import annotations

import functools
import math
import statistics
from typing import NamedTuple

from probe.comparison import tolerance
from probe.comparison.events import StepPairs
from probe.comparison.ledger import State
from probe.comparison.own_size import OwnSize
from probe.comparison.own_writes import LOOK, error_of_sources, is_own, is_seen_by_calls
from probe.comparison.settings import decay_rounding
from probe.comparison.step_half import Event, StepHalf
from probe.comparison.update_findings import Fault, UpdateFindings
from probe.comparison.walk import StepWalk
from probe.records import MASTER, REPLACED, Phase, Role
from probe.statistics import unit_roundoff

_INIT, _UPDATE = (f"{phase.label}:" for phase in (Phase.INIT, Phase.UPDATE))
_LARGE = 256
"""elements of an update that counts with others"""
_SEVERAL = 4
"""updates from which on they are judged together"""
TIMES = "times as long as A's"
_OF_LENGTH = "look at the learning rate and its schedule, at Adam's bias correction and eps"
DIFFERS = "the update differs, "
"""how it is said that an update differs, and of which gradient that is known to agree"""


class _Part(NamedTuple):
    """One of the updates that are judged together."""

    event: Event
    error: float
    """‖A−B‖"""
    size: int
    gradient: float
    """relative error of the gradient that was used"""
    rounding: float
    """what rounding the new parameter makes of the update"""
    norm: float


class _Moment(NamedTuple):
    """A state of a parameter."""

    event: Event
    cancelled: float
    """how much larger the gradients are that cancelled out in it"""


class _Trained(NamedTuple):
    """What an update changes."""

    rows: tuple[int | None, int | None]
    """of the parameter before the update, in A and in B"""
    dtypes: set[str]
    """of what is trained on both sides: the parameter, or its copy"""


class UpdatesTogether(UpdateFindings):
    """What is known of the updates of one step, and what is wrong with most of them."""

    def __init__(self, walk: StepWalk, pairs: StepPairs, state: State) -> None:
        super().__init__(walk, pairs)
        self.state = state
        self._rounding = decay_rounding(pairs)
        self._source_errors: dict[tuple[int, str], float] = {}
        self._known_trained: dict[tuple[int, str, str], _Trained] = {}

    def _two_sided(self, role: Role) -> list[Event]:
        return [e for e in self.pairs.parameter_events(Phase.UPDATE, role) if not e.is_one_sided]

    def _error_of_sources(self, event: Event) -> float:
        """Return the error of what an update was made from: the gradient, and the states that it began with.

        Of a sum that nearly cancelled out, the error is larger.
        """
        key = event.pair, event.slot_a
        found = self._source_errors.get(key)
        if found is None and key not in self.state.gradients and self._is_own(event):
            known = self._error_of_sources
            found = error_of_sources(self.pairs, self.state, event, self._two_sided(Role.DELTA), known)
            self._source_errors[key] = found
        if found is None:
            moments = self._moments.get(key, ())
            before = max((self.state.optimizer.get((each.pair, each.slot_a), 0.0) for each, _ in moments), default=0.0)
            error = max(self.state.gradients.get(key, 0.0), before)
            found = self._source_errors[key] = error * max((cancelled for _, cancelled in moments), default=1.0)
        return found

    def _is_own(self, event: Event) -> bool:
        """Tell whether the program changes a weight by itself on one side or both."""
        return any(half.row(event) >= 0 and is_own(half, event) for half in self.pairs.halves)

    def _one_sided_write(self, event: Event, half: StepHalf, lacking: StepHalf) -> Fault | None:
        """Judge a weight that one side's program alone writes to: where calls use it, they tell what becomes of it."""
        if is_seen_by_calls(self.pairs, lacking, event):
            if not self.state.goes_on:
                self.walk.warnings.append(
                    f"step {self.pairs.step} is the last, and {half.name} alone writes to weights in it behind their calls: they are not "
                    "compared; record another step"
                )
            return None
        if not lacking.side.reader.info.tells_writes:
            self.walk.warnings.append(
                f"{half.name} writes to weights by itself (averages, updates by hand), which {lacking.name}'s recording does not tell: they "
                "are not compared"
            )
            return None
        hint = (
            f"in {lacking.name} nothing had written to it at its probe.step(): is it averaged (EMA) or updated, and is probe.step() called "
            "behind that?"
        )
        return Fault(event, math.nan, f"only {half.name} writes to this weight", hint)

    def _are_replaced(self, half: StepHalf) -> bool:
        """Tell, and say, whether a side's program uses other weights than those that were there at the beginning: they are not recorded."""
        if not any(text.startswith(REPLACED) for _, _, text in half.side.reader.notes):
            return False
        doubt = f"{half.name}'s weights were replaced after probe.start(), and what became of them is not recorded: no update was compared"
        if doubt not in self.walk.doubts:
            self.walk.doubts.append(doubt)
        return True

    def _cancelled(self, moment: Event) -> float:
        """Return how much larger than a first moment the gradients are that cancelled out in it: their rounding stays."""
        metrics, a = moment.metrics, self.pairs.a
        assert metrics is not None
        is_adaptive = self._is_adaptive(moment)
        norm = max(metrics.norm_a, metrics.norm_b)
        if not norm or (is_adaptive and a.columns["min"][moment.row_a] >= 0):  # a second moment
            return 1.0
        gradients = self.pairs.rows_a.get((0, self.pairs.matching.pairs[moment.pair].a, 0), Role.PARAM_GRAD)
        rows = gradients.get(f"{_UPDATE}{moment.slot_a.partition('.')[0]}")
        if rows is None:
            return 1.0
        share = tolerance.MOMENT if is_adaptive else 1.0
        return max(1.0, share * a.columns["norm"][rows[-1]] / norm)

    @functools.cached_property
    def _moments(self) -> dict[tuple[int, str], list[_Moment]]:
        """The states of each parameter."""
        found: dict[tuple[int, str], list[_Moment]] = {}
        for event in self._two_sided(Role.STATE):
            moment = _Moment(event, self._cancelled(event))
            found.setdefault((event.pair, event.slot_a.partition(".")[0]), []).append(moment)
        return found

    def _differs(self, event: Event) -> str:
        """Say that an update differs, and of which gradient it is known that it agrees: the one used, if that was seen."""
        are_seen = all(
            f"{_UPDATE}{half.slot(event)}" in half.rows.get((0, half.modules[event.pair], 0), Role.PARAM_GRAD)
            for half in self.pairs.halves
        )
        which = (
            "the gradient that was used agrees"
            if are_seen
            else "the gradient that backward left agrees, the one that was used was not seen"
        )
        return f"{DIFFERS}{which}"

    def _fault(self, event: Event, limit: float, text: str, hint: str = "", weak: bool = False) -> Fault:
        error = self.state.gradients.get((event.pair, event.slot_a), 0.0)
        if all(is_own(half, event) for half in self.pairs.halves if half.row(event) >= 0):
            hint = LOOK
        return Fault(event, limit, text, hint or "look at the optimizer's settings for this parameter", weak, error)

    def _is_adaptive(self, event: Event) -> bool:
        """Tell whether the optimizer divides a parameter's gradient by its own size, as Adam does."""
        return self._own_size.divides(self.pairs.matching.pairs[event.pair].a, event.slot_a.partition(".")[0])

    @functools.cached_property
    def _own_size(self) -> OwnSize:
        return OwnSize(self.pairs)

    def _trained(self, event: Event) -> _Trained:
        """Return what the update of a parameter changes, on both sides."""
        key = event.pair, event.slot_a, event.slot_b
        if key not in self._known_trained:
            (row_a, dtype_a), (row_b, dtype_b) = (self._trained_on(half, event) for half in self.pairs.halves)
            dtypes = {dtype for dtype in (dtype_a, dtype_b) if dtype is not None}
            self._known_trained[key] = _Trained((row_a, row_b), dtypes)
        return self._known_trained[key]

    @staticmethod
    def _trained_on(half: StepHalf, event: Event) -> tuple[int | None, str | None]:
        """Return the row of a parameter as it was before the update, and the dtype of what is trained: of its copy if it has one."""
        module, slot = (0, half.modules[event.pair], 0), half.slot(event)
        found = half.rows.get(module, Role.PARAM)
        rows = found.get(_INIT + slot) or found.get(_UPDATE + slot)
        before = rows[0] if rows else None
        copies = half.rows.get(module, Role.STATE).get(_UPDATE + slot + MASTER)
        trained = copies[-1] if copies else before
        return before, None if trained is None else half.side.dtypes[trained]

    def _norm_of_parameter(self, event: Event) -> float | None:
        row = self._trained(event).rows[0]
        return None if row is None else self.pairs.a.columns["norm"][row]

    def _parameter_u(self, event: Event) -> float:
        """Return the coarsest unit roundoff of what is trained: of a parameter, or of its copy."""
        return max(map(unit_roundoff, self._dtypes_of(event)))

    def _dtypes_of(self, event: Event) -> set[str]:
        """Return the dtypes of what is trained on both sides."""
        return self._trained(event).dtypes

    def _of_all_updates(self, updates: list[Fault]) -> list[Fault]:
        """Report what is wrong with the updates of all parameters where few or none show it alone."""
        are_longer = all(fault.text.endswith(TIMES) or fault.text.startswith(DIFFERS) for fault in updates)
        judged = self._judged(Role.DELTA)
        if not are_longer or len(updates) > tolerance.MOST * len(judged):
            return []
        return ([] if updates else self._updates_together(judged)) or self._updates_of_another_length(judged)

    def _updates_together(self, judged: list[Event]) -> list[Fault]:
        """Report all updates that divide by a gradient's size where, as one vector, they differ by more than chance flips.

        Each alone may differ by a few signs; all of them together rarely do.
        """
        parts = [part for part in map(self._sure_part, judged) if part is not None]
        if len(parts) < _SEVERAL:
            return []
        sizes = sum(part.size for part in parts)
        gradient = sum(part.size * part.gradient for part in parts) / sizes
        rounding = sum(part.size * part.rounding for part in parts) / sizes
        limit = tolerance.TOGETHER * tolerance.update_bound(gradient, rounding, 1.0, sizes)
        error = math.hypot(*(part.error for part in parts)) / math.hypot(*(part.norm for part in parts))
        typical = statistics.median([part.error / part.norm for part in parts])
        if min(error, typical) <= limit:  # that of a few could be gradients that vanish
            return []
        faults = [self._fault(part.event, limit, self._differs(part.event)) for part in parts]
        said = f"the updates of {len(parts)} parameters, as one vector, differ by {error:.1e}, of which chance makes {limit:.1e}"
        self._report_all(faults, said)
        return faults

    def _updates_of_another_length(self, judged: list[Event]) -> list[Fault]:
        """Report all updates where nearly all are longer, or shorter, in B: rounding makes as many longer as shorter."""
        found: list[tuple[Event, float, float]] = []
        for event in judged:
            metrics = event.metrics
            error = self._error_of_sources(event)
            if metrics is None or not metrics.is_known or error > tolerance.UPDATE_ERROR_LIMIT:
                continue
            if len(self._dtypes_of(event)) > 1:  # each rounds in its own way: a small update up to a unit, or away
                continue
            if 0 < metrics.norm_ratio < math.inf:
                found.append((event, math.log(metrics.norm_ratio), error))
        if len(found) < _SEVERAL:
            return []
        typical, error = (statistics.median(each) for each in ([r for _, r, _ in found], [e for *_, e in found]))
        alike = sum(ratio * typical > 0 for _, ratio, _ in found) / len(found)
        limit = max(tolerance.LENGTH_TOGETHER, error)
        if not any(self._parameter_u(event) > tolerance.SIXTEEN_BIT for event, *_ in found):
            spread = statistics.median(abs(ratio - typical) for _, ratio, _ in found)
            one_factor = max(tolerance.SAME_LENGTH, tolerance.OF_SPREAD * spread, tolerance.OF_GRADIENTS * error)
            limit = min(limit, one_factor)
        if abs(typical) <= limit or alike < tolerance.NEARLY_ALL:
            return []
        if all(self.walk.noise.explains_update(event) for event, *_ in found):
            return []
        faults = [self._fault(event, math.nan, self._differs(event), _OF_LENGTH) for event, *_ in found]
        longer, by = "longer" if typical > 0 else "shorter", abs(math.expm1(typical))
        said = f"the updates of {alike:.0%} of {len(found)} parameters are {longer} in B, typically by {by:.2g} of A's"
        self._report_all(faults, said, by_numbers=False)
        return faults

    def _sure_part(self, event: Event) -> _Part | None:
        """Return what an update is of all of them, where its gradient is no rounding."""
        metrics, parameter = event.metrics, self._norm_of_parameter(event)
        if metrics is None or not metrics.is_known or metrics.is_lower_bound or not parameter:
            return None
        size, norm = math.prod(self.pairs.a.shapes[event.row_a]), max(metrics.norm_a, metrics.norm_b)
        gradient = self._error_of_sources(event)
        is_sure = gradient <= tolerance.NOISY_GRADIENT and metrics.cosine >= tolerance.SCATTERED
        if not norm or size < _LARGE or not is_sure or not self._is_adaptive(event):
            return None
        if self.walk.noise.explains_update(event):
            return None
        return _Part(event, metrics.rel_l2 * norm, size, gradient, self._parameter_u(event) * parameter / norm, norm)
