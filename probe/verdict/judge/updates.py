"""The optimizer: the gradient that it used, its update δ, its state, its settings."""

from __future__ import annotations

import math

from probe.notes import note
from probe.numbers.statistics import smallest_rounding
from probe.records import Phase, Role
from probe.verdict.distance.error import Error, View
from probe.verdict.judge.judging import MOST, Judging, Wrong, bounded, common_factor, explained_state
from probe.verdict.judge.settings import Setting, differing_settings, idle, trained_alike
from probe.verdict.judge.verdicts import State, Verdict
from probe.verdict.judge.written import own_updates, sources_of_change
from probe.verdict.noise.limits import length_limit, update_limit, widened
from probe.verdict.noise.model import FORWARD, SIXTEEN_BITS, STATE, UPDATE_BLIND, UPDATE_NORM
from probe.verdict.side import Place
from probe.verdict.steps.events import Event

_PARALLEL = 0.9
_UNKNOWN = 0.1
"""error of a gradient from which on it says nothing about its update"""
_ADAPTIVE = ("ada", "lion", "rmsprop", "lamb")
_WEAK, _STRONG = 0.2, 3.0
"""of adaptive optimizers: so few updates are no finding unless so far off, as rounding flips whole steps"""
_BETAS = 2e-4
"""what 1 − β in float32 makes of a second moment, between frameworks"""
_TOGETHER = 0.85
"""share of the updates that are then longer, or shorter"""


def judge_updates(judging: Judging, gradients: dict[Place, float], factor: float) -> None:
    """Judge a step of the optimizer; what lies behind a finding is not judged."""
    if not judging.verdicts.is_over:
        _Updates(judging, gradients, factor).judge()


class _Updates:
    """One step of the optimizer under judgement."""

    def __init__(self, judging: Judging, gradients: dict[Place, float], factor: float) -> None:
        self.judging, self.step, self.gradients, self.factor = judging, judging.step, gradients, factor
        self.is_behind, self.lowest = bool(judging.verdicts.findings), judging.lowest_precision()
        self.used: dict[Place, float] = {}
        events = judging.step.parameters.events(Phase.GRADIENT, Role.PARAM_GRAD) if self._is_adaptive() else ()
        self.enlarged = {event.place: _of_smallest(event) for event in events}
        """by how much the smallest part of a gradient, by which adaptive optimizers divide, enlarges its error"""
        self.sizes: dict[Place, float] = {}
        """errors of updates"""
        self.grown: dict[Place, float] = {}
        """log of the ratio of the norms of gradients, where updates are multiples of them"""
        self.lengths: list[float] = []
        """log of the ratio of the norms of updates"""
        self.seen: list[tuple[Event, Error]] = []
        """updates of which the length was compared"""
        self.apart: set[Place] = set()
        """parameters of which what the optimizer keeps differs"""
        self.states: dict[Place | None, Event] = {}
        self.exact: set[Place] = set()
        """parameters of which the same bits were given to optimizers that differ in the rounding of kernels at most"""

    def judge(self) -> None:
        if self._is_scaled() or self._gradients_as_used():
            return
        wrong, settings = self._updates(), differing_settings(self.step)
        shown = [each for each in wrong if each.event.place in settings]
        wrong = self._strong(wrong)
        if shown:
            self._find_settings(settings, shown[0])
        elif len(wrong) < MOST * len(self.lengths) and (facts := self._longer_together()):
            self.judging.finds(Phase.UPDATE, ("",), None, UPDATE_NORM, "longer-updates", facts=facts)
        elif wrong:
            self._find(wrong, len(self.lengths) + sum(each.code == "no-update" for each in wrong))
        else:
            wrong, count = self._states()
            if settings:
                self._find_settings(settings, wrong[0] if wrong else None)
            elif wrong:
                self._find(wrong, count)

    # The gradient as used

    def _is_scaled(self) -> bool:
        """Find a loss of another scale, unless the optimizer used the gradients without it."""
        if self.factor == 1:
            return False
        events = self.step.parameters.events(Phase.UPDATE, Role.PARAM_GRAD)
        errors = {each.place: self.step.error(each) for each in events}
        known = [(error, raw) for at, raw in self.gradients.items() if raw < _UNKNOWN and (error := errors.get(at))]
        if known and 2 * sum(error.size <= 3 * max(self.lowest, raw) for error, raw in known) >= len(known):
            self.judging.verdicts.unused_factor = self.factor
            return False
        judged = self.judging.verdicts.by_event
        first = next((event for event in judged if event.phase is Phase.BACKWARD), None)
        error = self.step.error(first) if first is not None else None
        self.judging.finds(Phase.LOSS, ("",), first, 0.0, "loss-scale", error=error, facts=(self.factor,))
        return True

    def _gradients_as_used(self) -> bool:
        wrong, seen, alike = [], [], trained_alike(self.step) & self._begun_alike()
        for event in self.step.parameters.events(Phase.UPDATE, Role.PARAM_GRAD):
            error, raw = self.step.error(event), self.gradients.get(event.place or (-1, ""))
            if error is None or event.place is None:
                continue
            if raw is None:  # recorded as the optimizer used it alone: its update inherits what it is off
                self.gradients[event.place] = error.size
                self._add(event, error, math.nan, False)
                continue
            seen.append((event, error))
            self.used[event.place] = error.size
            self.exact.update({event.place} & alike if self.step.is_equal(event) else ())
            if not self._is_adaptive() and error.norm_a and error.norm_b:
                self.grown[event.place] = math.log(error.norm_b / error.norm_a)
            u = max(self.lowest, event.u)
            limit = widened(STATE.floor(u), its_gradient=STATE.gain * raw)
            check = self.judging.check(event, error, limit, STATE, u, raw, is_judged=raw < 0.3)
            if self.judging.judged(event, error, check):
                wrong.append(Wrong(check.share, event, error, check.limit, "used-gradient", check))
        if not wrong or self._is_clipped_by_rounded_norm(seen):
            return False
        self._find(wrong, len(seen))
        return True

    def _begun_alike(self) -> set[Place]:
        """Return the parameters that begin with the same bits, state included."""
        before = self.judging.before
        kept = (_parameter(place) for place, (size, *_) in before.kept.items() if place and size)
        is_same = {event.place for event, error, _ in before.weights if error.size == 0 and not error.is_bound}
        return {place for place in is_same if place is not None}.difference(kept)

    def _is_clipped_by_rounded_norm(self, seen: list[tuple[Event, Error]]) -> bool:
        """Return True if both sides clip to one norm, as far as float32 may sum so many squares."""
        most = max(event.a.size for event, _ in seen if event.a is not None)
        kept = [math.hypot(*(getattr(error, norm) for _, error in seen)) for norm in ("norm_a", "norm_b")]
        if abs(kept[1] - kept[0]) > min(max(most * 2**-25, self.lowest), UPDATE_NORM) * kept[0]:
            return False
        left = {event.place: event for event in self.step.parameters.events(Phase.GRADIENT, Role.PARAM_GRAD)}
        for side in (0, 1):
            pairs = [(event.both[side], left[event.place].both[side]) for event, _ in seen]
            taken = [x.norm / y.norm for x, y in pairs if x is not None and y is not None and y.norm]
            is_one = len(taken) == len(pairs) and max(taken) <= (1 + STATE.floor(self.lowest)) * min(taken)
            if not is_one or max(taken) >= 1:
                return False
        for place, size in self.used.items():
            self.gradients[place] = max(self.gradients.get(place, 0.0), size)
        if factor := common_factor([error for _, error in seen]):
            self.judging.verdicts.tell(note("clipped-by-a-rounded-norm", error=abs(factor - 1)))
        return True

    # Updates

    def _updates(self) -> list[Wrong]:
        weights = {event.place: event for event in self.step.parameters.events(Phase.UPDATE, Role.PARAM)}
        self.states = {event.place: event for event in self.step.parameters.events(Phase.UPDATE, Role.STATE)}
        states = self.states.values() if self.exact else ()
        self.apart = {_parameter(event.place) for event in states if not self.step.is_equal(event)}
        events = {event.place: event for event in self.step.parameters.events(Phase.UPDATE, Role.DELTA)}
        own, seen = {} if self.is_behind else own_updates(self.judging, weights, events), dict(self.gradients)
        largest = max((each.norm for _, change in own.values() for each in (change.a, change.b) if each), default=0.0)
        for place, (left, change) in own.items():
            length, norm = (max(each.norm for each in (e.a, e.b) if each) for e in (change, left))
            known, weight = sources_of_change(self.judging, left, seen)
            known = STATE.floor(self.lowest) * largest / length if known is None else known
            self.gradients[place] = max(known, weight * norm / length)
            weights[place], events[place] = left, change
        found = (self._update(event, weights.get(place)) for place, event in events.items())
        return [each for each in found if each is not None]

    def _update(self, event: Event, weight: Event | None) -> Wrong | None:
        if not event.is_paired:
            is_alone = self.step.lacks(event) and not self.is_behind
            return Wrong(math.inf, event, Error(math.inf), 0.0, "one-sided-update") if is_alone else None
        error, place = self.step.error(event), event.place
        assert event.a is not None and event.b is not None and place is not None
        larger = max(event.a.norm, event.b.norm)
        if error is not None and (not larger or self.step.is_equal(event)):
            self._add(event, error, 0.0, False)
        if error is not None and error.view is View.NON_FINITE and self.gradients.get(place, 1.0) <= _UNKNOWN:
            self._add(event, error, 0.0, True)
            return Wrong(math.inf, event, error, 0.0, "update")
        if error is None or weight is None or weight.a is None or not math.isfinite(error.size) or not larger:
            return None
        kept = max((self._kept(at)[0] for at in self.judging.before.kept if at and _parameter(at) == place), default=0)
        gradient = max(self.gradients.get(place, 0.0), self.used.get(place, 0.0))
        gradient = max(gradient, self.enlarged.get(place, 0.0) * max(gradient, STATE.floor(event.u)))
        if gradient > _UNKNOWN or (place not in self.gradients and (self.is_behind or min(event.a.norm, event.b.norm))):
            return None
        noise, limit = update_limit(max(gradient, kept), weight.u, weight.a.norm, larger, max(event.a.size, 1))
        is_exact = place in self.exact and place not in self.apart
        if is_exact:
            limit = widened(0.0, last_place=STATE.floor(2**-24) + 2 * weight.u * weight.a.norm / larger)
        stays = not min(event.a.norm, event.b.norm)
        if limit >= UPDATE_BLIND and noise >= (1.0 if stays else 0.5):  # where all of it may be rounded away
            return None
        if stays:
            self._add(event, error, limit, True)
            return Wrong(math.inf, event, error, 0.0, "no-update")
        ratio = math.log(event.b.norm / event.a.norm)
        grown = self.grown.get(place, 0.0)  # momentum takes a part of it over
        explained = math.copysign(min(abs(grown), abs(ratio)), ratio) if grown * ratio > 0 else 0.0
        self.lengths.append(ratio - explained)
        self.seen.append((event, error))
        self.sizes[place] = error.size
        bound = max(length_limit(noise, event.a.size), noise**2)
        found = None
        if error.size > limit and limit < UPDATE_BLIND:
            found = Wrong(error.size / limit, event, error, limit, "update-of-same-bits" if is_exact else "update")
        elif abs(ratio) > bound and noise < 0.5:
            found = Wrong(abs(ratio) / bound, event, error, bound, "length-of-update")
        elif event.a.size >= 16 and error.size > 4 * noise and _along_weight(event, weight) > _PARALLEL:
            found = Wrong(error.size / noise / 4, event, error, 4 * noise, "along-weight")
        if found is not None and self.judging.noise.explains(event, error):
            found = None
        is_by_size = found is None or found.code.startswith("update")
        self._add(event, error, limit if is_by_size else math.nan, found is not None)
        return found

    def _strong(self, wrong: list[Wrong]) -> list[Wrong]:
        """Return the updates that show something: few of adaptive ones may be elements whose gradient is rounding."""
        if not self._is_adaptive() or len(wrong) >= _WEAK * len(self.lengths):
            return wrong
        return [each for each in wrong if each.excess >= _STRONG]

    def _is_adaptive(self) -> bool:
        """Return True if updates have a length of their own, whatever that of the gradients."""
        names = [group.class_name.lower() for group in self.step.a.groups]
        return any(each in name for name in names for each in _ADAPTIVE)

    def _longer_together(self) -> tuple[float, int, float] | None:
        """Return the share of updates that are longer on one side, of how many, and the log of the typical ratio."""
        ordered, count = sorted(self.lengths), len(self.lengths)
        if count < 8:
            return None
        quarter, typical = count // 4, ordered[count // 2]  # what scatters little is one factor, which may be smaller
        spread = UPDATE_NORM if self.lowest > SIXTEEN_BITS else ordered[-1 - quarter] - ordered[quarter]
        share = max(longer := sum(ratio > 0 for ratio in ordered) / count, 1 - longer)
        is_longer = abs(typical) > min(UPDATE_NORM, 4 * max(_BETAS, spread)) and share >= _TOGETHER
        is_noise = is_longer and all(self.judging.noise.explains(*each) for each in self.seen)
        return (share, count, typical) if is_longer and not is_noise else None

    # State

    def _states(self) -> tuple[list[Wrong], int]:
        """Judge what the optimizer keeps: as far off as the gradients, or as the updates that it may be a sum of."""
        wrong, count = [], 0
        floor = _BETAS if self.step.is_across_frameworks else 0.0
        for event in self.step.parameters.events(Phase.UPDATE, Role.STATE):
            error, place = self.step.error(event), _parameter(event.place)
            if _counts_steps(event):
                are_known = event.a is not None and event.b is not None and event.a.is_known and event.b.is_known
                is_plain = are_known and (event.slot_a or event.slot_b).endswith("step")
                if is_plain and event.a and event.b and event.a.mean != event.b.mean:
                    wrong.append(Wrong(math.inf, event, error or Error(1.0), 0.0, "state"))
                continue
            if error is None or event.a is None or self.gradients.get(place, 1.0) > _UNKNOWN:
                continue
            count += 1
            u, raw = max(self.lowest, event.u), max(self.gradients[place], self.used.get(place, 0.0))
            kept, beyond = self._kept(event.place)
            limit = widened(STATE.floor(u), its_gradient=STATE.gain * raw, betas=floor)
            limit = widened(limit, of_updates=4 * self.sizes.get(place, 0.0), as_begun=4 * kept)
            limit = FORWARD.floor(u) if place in self.exact else limit
            is_small = error.apart < 4 * math.sqrt(event.a.size) * smallest_rounding(event.a.dtype)
            check = self.judging.check(event, error, limit, STATE, u, max(raw, beyond), is_judged=not is_small)
            if self.judging.judged(event, error, check):
                wrong.append(Wrong(check.share, event, error, check.limit, "state", check))
        return wrong, count

    def _kept(self, place: Place | None) -> tuple[float, float]:
        """Return error and excess of what a state was, as a share of what it is now: gradients may cancel it out."""
        error, excess, was = self.judging.before.kept.get(place, (0.0, 0.0, None))
        now = self.states[place].a if place in self.states else None
        if was is None or was.a is None or now is None or not was.a.norm > now.norm > 0:
            return error, excess
        return error * was.a.norm / now.norm, excess * was.a.norm / now.norm

    # Findings

    def _add(self, event: Event, error: Error, limit: float, is_wrong: bool) -> None:
        state = State.INTRODUCED if is_wrong else explained_state(event, error, bool(self.judging.verdicts.findings))
        self.judging.verdicts.add(Verdict(event, state, bounded(error.size), event.u, limit))

    def _find(self, wrong: list[Wrong], shown: int) -> None:
        """Name all, a group of the optimizer, or one parameter."""
        modules = {each.event.place[0] for each in wrong if each.event.place is not None}
        kinds = {self.step.a.reader.modules[module].class_name for module in modules}
        is_of_no_module = len(kinds) > 1 or wrong[0].code == "used-gradient"  # no module has code behind backward
        is_all = len(modules) > 1 and (len(wrong) >= MOST * max(shown, 1) or is_of_no_module)
        self.judging.finds_worst(Phase.UPDATE, wrong, shown, is_all)

    def _find_settings(self, settings: dict[Place, Setting], shown: Wrong | None = None) -> None:
        """Name the optimizer, or the modules of the parameters that are set otherwise."""
        if shown is None:
            passed = idle(self.step, self.judging.verdicts, settings)
            settings = {place: each for place, each in settings.items() if each.is_certain and place not in passed}
            if not settings:
                return
        paths = tuple(dict.fromkeys(self.step.path(place[0]) for place in settings))
        modules = {self.step.a.places[i][0] for group in self.step.a.groups for i in group.parameters}
        is_all = len(paths) >= MOST * len(modules)
        event, error = (shown.event, shown.error) if shown is not None else (None, None)
        known = {"error": error, "facts": tuple(settings.items()), "is_shown": shown is not None}
        self.judging.finds(Phase.UPDATE, ("",) if is_all else paths, event, math.nan, "settings", **known)


def _of_smallest(event: Event) -> float:
    """Return by how much a joined gradient is longer than its smallest part, which may have cancelled out."""
    tensors = [each for each in (event.a, event.b) if each is not None and each.parts]
    parts = [part.norm for each in tensors for row in each.parts for part in row if part.norm]
    return max(each.norm for each in tensors) / min(parts) if parts else 0.0


def _parameter(place: Place | None) -> Place:
    """Return the parameter that a state belongs to."""
    assert place is not None
    return place[0], place[1].partition(".")[0]


def _counts_steps(event: Event) -> bool:
    """Return True for a number that an optimizer counts its steps by, in whatever form."""
    is_number = event.a is None or (event.a.size == 1 and len(event.a.shape) < 2)
    return is_number and (event.slot_a or event.slot_b).endswith(("step", "pow_acc", "power"))


def _along_weight(event: Event, weight: Event) -> float:
    """Return the cosine between the difference of two updates and the weight before."""
    assert event.a is not None and event.b is not None and weight.a is not None
    if event.a.sketch is None or event.b.sketch is None or weight.a.sketch is None:
        return 0.0
    difference, before = event.b.sketch - event.a.sketch, weight.a.sketch - event.a.sketch
    length = math.sqrt(max(1e-300, float(difference @ difference) * float(before @ before)))
    return abs(float(difference @ before)) / length
