"""The optimizer: the gradient that it used, its update δ, its state, its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from probe.numbers.statistics import smallest_rounding
from probe.records import Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.judge.judging import MOST, Judging, bounded, common_factor
from probe.verdict.judge.settings import Setting, differing_settings, idle
from probe.verdict.judge.verdicts import State, Verdict
from probe.verdict.noise.model import STATE, UPDATE_BLIND, UPDATE_NORM, WEIGHTS, update_limit
from probe.verdict.noise.rung import Check
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


@dataclass(frozen=True)
class _Wrong:
    excess: float
    event: Event
    error: Error
    limit: float
    code: str
    check: Check | None = None


def judge_updates(judging: Judging, gradients: dict[Place, float], factor: float) -> None:
    """Judge a step of the optimizer; what lies behind a finding is not judged."""
    if judging.verdicts.findings:
        return
    _Updates(judging, gradients, factor).judge()


class _Updates:
    """One step of the optimizer under judgement."""

    def __init__(self, judging: Judging, gradients: dict[Place, float], factor: float) -> None:
        self.judging, self.step = judging, judging.step
        self.gradients, self.factor = gradients, factor
        self.lowest = judging.lowest_precision()
        self.used: dict[Place, float] = {}
        self.sizes: dict[Place, float] = {}
        """errors of updates"""
        self.grown: dict[Place, float] = {}
        """log of the ratio of the norms of gradients, where updates are multiples of them"""
        self.lengths: list[float] = []
        """log of the ratio of the norms of updates"""
        self.seen: list[tuple[Event, Error]] = []
        """updates of which the length was compared"""

    def judge(self) -> None:
        if self._is_scaled() or self._gradients_as_used():
            return
        wrong = self._strong(self._updates()) or self._skipped()
        settings = differing_settings(self.step)
        shown = [each for each in wrong if each.event.place in settings]
        if shown:
            self._find_settings(settings, shown[0])
        elif wrong:
            self._find(wrong, len(self.lengths))
        elif self._is_longer_together():
            facts = _longer_share(self.lengths), len(self.lengths), sorted(self.lengths)[len(self.lengths) // 2]
            self.judging.finds(Phase.UPDATE, ("",), None, UPDATE_NORM, "longer-updates", facts=facts)
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
        events = [
            (event, error)
            for event in self.step.parameters.events(Phase.UPDATE, Role.PARAM_GRAD)
            if (error := self.step.error(event)) is not None
            and self.gradients.get(event.place or (-1, ""), 1) < _UNKNOWN
        ]
        equal = sum(
            error.size <= 3 * max(self.lowest, self.gradients[event.place]) for event, error in events if event.place
        )
        if events and equal >= 0.5 * len(events):
            self.judging.verdicts.notes.append("scaled-gradients")
            return False
        judged = self.judging.verdicts.by_event
        first = next((event for event in judged if event.phase is Phase.BACKWARD), None)
        error = self.step.error(first) if first is not None else None
        self.judging.finds(Phase.LOSS, ("",), first, 0.0, "loss-scale", error=error, facts=(self.factor,))
        return True

    def _gradients_as_used(self) -> bool:
        wrong, count = [], 0
        for event in self.step.parameters.events(Phase.UPDATE, Role.PARAM_GRAD):
            error, raw = self.step.error(event), self.gradients.get(event.place or (-1, ""))
            if error is None or raw is None or event.place is None:
                continue
            count += 1
            self.used[event.place] = error.size
            if not self._is_adaptive() and error.norm_a and error.norm_b:
                self.grown[event.place] = math.log(error.norm_b / error.norm_a)
            u = max(self.lowest, event.u)
            limit = STATE.limit(u, raw)
            check = self.judging.check(event, error, limit, STATE, u, raw, is_judged=raw < 0.3)
            if self._judged(event, error, check):
                wrong.append(_Wrong(check.share, event, error, check.limit, "used-gradient", check))
        if wrong:
            self._find(wrong, count)
        return bool(wrong)

    # Updates

    def _updates(self) -> list[_Wrong]:
        weights = {event.place: event for event in self.step.parameters.events(Phase.UPDATE, Role.PARAM)}
        wrong: list[_Wrong] = []
        for event in self.step.parameters.events(Phase.UPDATE, Role.DELTA):
            found = self._update(event, weights.get(event.place))
            if found is not None:
                wrong.append(found)
        return wrong

    def _update(self, event: Event, weight: Event | None) -> _Wrong | None:
        if not event.is_paired:
            one = event.a if event.a is not None else event.b
            is_alone = one is not None and one.norm > 0 and self.step.parameters.both_have(event)
            return _Wrong(math.inf, event, Error(math.inf), 0.0, "one-sided-update") if is_alone else None
        error, place = self.step.error(event), event.place
        assert event.a is not None and event.b is not None and place is not None
        larger = max(event.a.norm, event.b.norm)
        if error is not None and not larger:
            self._add(event, error, 0.0, False)
        if error is None or weight is None or weight.a is None or not math.isfinite(error.size) or not larger:
            return None
        gradient = max(self.gradients.get(place, 0.0), self.used.get(place, 0.0))
        if gradient > _UNKNOWN or (place not in self.gradients and min(event.a.norm, event.b.norm)):
            return None
        noise, limit = update_limit(gradient, weight.u, weight.a.norm, larger, max(event.a.size, 1))
        if limit >= UPDATE_BLIND and noise >= 0.5:
            return None
        if not min(event.a.norm, event.b.norm):
            self._add(event, error, limit, True)
            return _Wrong(math.inf, event, error, 0.0, "no-update")
        ratio = math.log(event.b.norm / event.a.norm)
        grown = self.grown.get(place, 0.0)  # momentum takes a part of it over
        explained = math.copysign(min(abs(grown), abs(ratio)), ratio) if grown * ratio > 0 else 0.0
        self.lengths.append(ratio - explained)
        self.seen.append((event, error))
        self.sizes[place] = error.size
        bound = max(UPDATE_NORM, 4 * noise * (1 / math.sqrt(event.a.size) + 0.2), noise**2)
        found = None
        if error.size > limit and limit < UPDATE_BLIND:
            found = _Wrong(error.size / limit, event, error, limit, "update")
        elif abs(ratio) > bound and noise < 0.5:
            found = _Wrong(abs(ratio) / bound, event, error, bound, "length-of-update")
        elif event.a.size >= 16 and _along_weight(event, weight) > _PARALLEL and error.size > 4 * noise:
            found = _Wrong(error.size / noise / 4, event, error, 4 * noise, "along-weight")
        if found is not None and self.judging.noise.explains(event, error):
            found = None
        self._add(event, error, limit, found is not None)
        return found

    def _skipped(self) -> list[_Wrong]:
        """Return the weights that differ as only one side's optimizer made a step."""
        moved = [half.params.get((Phase.UPDATE, Role.DELTA), {}) for half in (self.step.a, self.step.b)]
        if any(moved) == all(moved):
            return []
        was = {event.place: error.size for event, error, _ in self.judging.before}
        wrong = []
        for event in self.step.parameters.events(Phase.UPDATE, Role.PARAM):
            error = self.step.error(event)
            limit = max(WEIGHTS.limit(event.u, 0), 2 * was.get(event.place, math.inf))
            if error is not None and error.size > limit and not self.judging.noise.explains(event, error):
                wrong.append(_Wrong(math.inf, event, error, 0.0, "no-update"))
        return wrong

    def _strong(self, wrong: list[_Wrong]) -> list[_Wrong]:
        """Return the updates that show something: few of adaptive ones may be elements whose gradient is rounding."""
        if not self._is_adaptive() or len(wrong) >= _WEAK * len(self.lengths):
            return wrong
        return [each for each in wrong if each.excess >= _STRONG]

    def _is_adaptive(self) -> bool:
        """Return True if updates have a length of their own, whatever that of the gradients."""
        names = [group.class_name.lower() for group in self.step.a.groups]
        return any(each in name for name in names for each in _ADAPTIVE)

    def _is_longer_together(self) -> bool:
        ordered = sorted(self.lengths)
        if len(ordered) < 8:
            return False
        is_longer = abs(ordered[len(ordered) // 2]) > UPDATE_NORM and _longer_share(ordered) >= _TOGETHER
        return is_longer and not all(self.judging.noise.explains(*each) for each in self.seen)

    # State

    def _states(self) -> tuple[list[_Wrong], int]:
        """Judge what the optimizer keeps: as far off as the gradients, or as the updates that it may be a sum of."""
        wrong, count = [], 0
        floor = _BETAS if self.step.is_across_frameworks else 0.0
        for event in self.step.parameters.events(Phase.UPDATE, Role.STATE):
            error = self.step.error(event)
            if error is None or event.place is None:
                continue
            assert event.a is not None
            place = event.place[0], event.place[1].partition(".")[0]
            if event.a.size == 1 and event.a.shape in ((), (1,)):
                if error.size > 1e-6 and event.place[1].endswith("step"):
                    wrong.append(_Wrong(math.inf, event, error, 0.0, "state"))
                continue
            if self.gradients.get(place, 1.0) > _UNKNOWN:
                continue
            count += 1
            u, raw = max(self.lowest, event.u), self.gradients[place]
            kept, beyond = self.judging.kept.get(event.place, (0.0, 0.0))
            limit = max(STATE.limit(u, raw), 4 * max(self.sizes.get(place, 0.0), kept), floor)
            is_small = error.apart < 4 * math.sqrt(event.a.size) * smallest_rounding(event.a.dtype)
            check = self.judging.check(event, error, limit, STATE, u, max(raw, beyond), is_judged=not is_small)
            if self._judged(event, error, check):
                wrong.append(_Wrong(check.share, event, error, check.limit, "state", check))
        return wrong, count

    # Findings

    def _add(self, event: Event, error: Error, limit: float, is_wrong: bool) -> None:
        state = State.INTRODUCED if is_wrong else State.AGREES if error.size else State.EQUAL
        self.judging.verdicts.add(Verdict(event, state, bounded(error.size), event.u, limit))

    def _judged(self, event: Event, error: Error, check: Check) -> bool:
        """Give an event its verdict; return True if it is wrong by itself."""
        is_wrong = check.is_wrong and not check.is_consequence
        state = State.INTRODUCED if is_wrong else State.INHERITS if check.is_wrong else State.AGREES
        state = State.OPEN if check.code else state if error.size else State.EQUAL
        verdict = Verdict(event, state, bounded(error.size), event.u, check.limit, code=check.code, check=check)
        self.judging.verdicts.add(verdict)
        return is_wrong

    def _find(self, wrong: list[_Wrong], shown: int) -> None:
        """Name all, a group of the optimizer, or one parameter."""
        worst = max(wrong, key=lambda each: each.excess)
        modules = list(dict.fromkeys(each.event.place[0] for each in wrong if each.event.place is not None))
        kinds = {self.step.a.reader.modules[module].class_name for module in modules}
        is_all = len(modules) > 1 and (len(wrong) >= MOST * max(shown, 1) or len(kinds) > 1)
        assert worst.event.place is not None
        path = "" if is_all else self.step.path(worst.event.place[0])
        facts = len(wrong), max(shown, len(wrong)), common_factor([each.error for each in wrong])
        paths, known = (path,), {"error": worst.error, "facts": facts, "check": worst.check}
        self.judging.finds(Phase.UPDATE, paths, worst.event, worst.limit, worst.code, **known)

    def _find_settings(self, settings: dict[Place, Setting], shown: _Wrong | None = None) -> None:
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
        self.judging.finds(
            Phase.UPDATE,
            ("",) if is_all else paths,
            event,
            math.nan,
            "settings",
            error=error,
            facts=tuple((place, each) for place, each in settings.items()),
            is_shown=shown is not None,
        )


def _longer_share(lengths: list[float]) -> float:
    """Return the share of the updates that are longer on the side on which more are."""
    longer = sum(ratio > 0 for ratio in lengths) / len(lengths)
    return max(longer, 1 - longer)


def _along_weight(event: Event, weight: Event) -> float:
    """Return the cosine between the difference of two updates and the weight."""
    assert event.a is not None and event.b is not None and weight.a is not None
    if event.a.sketch is None or event.b.sketch is None or weight.a.sketch is None:
        return 0.0
    difference = event.b.sketch - event.a.sketch
    length = math.sqrt(max(1e-300, float(difference @ difference) * float(weight.a.sketch @ weight.a.sketch)))
    return abs(float(difference @ weight.a.sketch)) / length
