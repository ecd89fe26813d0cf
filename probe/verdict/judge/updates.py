"""The optimizer: the gradient that it used, its update δ, its state, its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass

from probe.numbers.statistics import smallest_rounding
from probe.records import OptimizerGroup, Phase, Role
from probe.verdict.distance.error import Error
from probe.verdict.judge.judging import MOST, Judging, bounded
from probe.verdict.judge.verdicts import State, Verdict
from probe.verdict.noise.model import STATE, UPDATE_BLIND, UPDATE_NORM, WEIGHTS, update_limit
from probe.verdict.side import Place, Side
from probe.verdict.steps.events import Event

_PARALLEL = 0.9
_UNKNOWN = 0.1
"""error of a gradient from which on it says nothing about its update"""
_APART = 4.0
"""how much further apart weights may be than they and their updates were: sketches estimate"""
_ADAPTIVE = ("ada", "lion", "rmsprop", "lamb")
_WEAK, _STRONG = 0.2, 3.0
"""of adaptive optimizers: so few updates are no finding unless so far off, as rounding flips whole steps"""
_BETAS = 2e-4
"""what 1 − β in float32 makes of a second moment, between frameworks"""
_TOGETHER = 0.85
"""share of the updates that are then longer, or shorter"""
_IGNORED = ("foreach", "fused", "capturable", "differentiable", "initial_lr", "maximize", "params", "name")


Setting = tuple[str, object, object]
"""name, and what A and B set it to"""


@dataclass(frozen=True)
class _Wrong:
    excess: float
    event: Event
    error: Error
    limit: float
    code: str


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
        self.lengths: list[float] = []
        """log of the ratio of the norms of updates"""

    def judge(self) -> None:
        if self._is_scaled() or self._gradients_as_used():
            return
        wrong = self._strong(self._updates()) or self._written()
        settings = differing_settings(self.judging)
        shown = [each for each in wrong if each.event.place in settings]
        if shown:
            self._find_settings(settings, shown[0])
        elif wrong:
            self._find(wrong, len(self.lengths))
        elif self._is_longer_together():
            self.judging.finds(Phase.UPDATE, ("",), None, UPDATE_NORM, "longer-updates")
        elif not self._states() and settings:
            self._find_settings(settings)

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
        self.judging.finds(Phase.LOSS, ("",), None, 0.0, "loss-scale", facts=(f"{self.factor:g}",))
        return True

    def _gradients_as_used(self) -> bool:
        wrong, count = [], 0
        for event in self.step.parameters.events(Phase.UPDATE, Role.PARAM_GRAD):
            error, raw = self.step.error(event), self.gradients.get(event.place or (-1, ""))
            if error is None or raw is None or event.place is None:
                continue
            count += 1
            self.used[event.place] = error.size
            limit = STATE.limit(max(self.lowest, event.u), raw)
            is_wrong = raw < 0.3 and error.size > limit
            self._add(event, error, limit, is_wrong)
            if is_wrong:
                wrong.append(_Wrong(error.size / limit, event, error, limit, "used-gradient"))
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
        self.lengths.append(ratio)
        self.sizes[place] = error.size
        bound = max(UPDATE_NORM, 4 * noise * (1 / math.sqrt(event.a.size) + 0.2), noise**2)
        found = None
        if error.size > limit and limit < UPDATE_BLIND:
            found = _Wrong(error.size / limit, event, error, limit, "update")
        elif abs(ratio) > bound and noise < 0.5:
            found = _Wrong(abs(ratio) / bound, event, error, bound, "length-of-update")
        elif event.a.size >= 16 and _along_weight(event, weight) > _PARALLEL and error.size > 4 * noise:
            found = _Wrong(error.size / noise / 4, event, error, 4 * noise, "along-weight")
        self._add(event, error, limit, found is not None)
        return found

    def _written(self) -> list[_Wrong]:
        """Judge the weights that the step left: what they were before, moved by their updates."""
        parameters = self.step.parameters
        was = {event.place: error.apart for event, error in self.judging.before if not error.is_bound}
        moved = [half.params.get((Phase.UPDATE, Role.DELTA), {}) for half in (self.step.a, self.step.b)]
        updates = {event.place: event for event in parameters.events(Phase.UPDATE, Role.DELTA)}
        wrong = []
        for event in parameters.events(Phase.UPDATE, Role.PARAM) if any(moved) else ():
            error, place = self.step.error(event), event.place
            update = self.step.error(updates[place]) if place in updates else None
            if (
                error is None
                or place not in was
                or not math.isfinite(error.size)
                or (place in updates and (update is None or update.is_bound))
            ):
                continue
            apart = was[place] + (update.apart if update is not None else 0.0)
            limit = max(WEIGHTS.limit(event.u, 0), _APART * apart / max(error.norm_a, error.norm_b, 1e-300))
            if error.size > limit:
                wrong.append(
                    _Wrong(error.size / limit, event, error, limit, "no-update" if not all(moved) else "written")
                )
        return wrong

    def _strong(self, wrong: list[_Wrong]) -> list[_Wrong]:
        """Return the updates that show something: few of adaptive ones may be elements whose gradient is rounding."""
        names = [group.class_name.lower() for group in self.step.a.groups]
        is_adaptive = any(each in name for name in names for each in _ADAPTIVE)
        if not is_adaptive or len(wrong) >= _WEAK * len(self.lengths):
            return wrong
        return [each for each in wrong if each.excess >= _STRONG]

    def _is_longer_together(self) -> bool:
        ordered = sorted(self.lengths)
        if len(ordered) < 8:
            return False
        longer = sum(ratio > 0 for ratio in ordered) / len(ordered)
        return abs(ordered[len(ordered) // 2]) > UPDATE_NORM and max(longer, 1 - longer) >= _TOGETHER

    # State

    def _states(self) -> bool:
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
            limit = max(
                STATE.limit(max(self.lowest, event.u), self.gradients[place]), 4 * self.sizes.get(place, 0.0), floor
            )
            is_small = error.apart < 4 * math.sqrt(event.a.size) * smallest_rounding(event.a.dtype)
            self._add(event, error, limit, error.size > limit and not is_small)
            if error.size > limit and not is_small:
                wrong.append(_Wrong(error.size / limit, event, error, limit, "state"))
        if wrong:
            self._find(wrong, count)
        return bool(wrong)

    # Findings

    def _add(self, event: Event, error: Error, limit: float, is_wrong: bool) -> None:
        state = State.INTRODUCED if is_wrong else State.AGREES if error.size else State.EQUAL
        self.judging.verdicts.add(Verdict(event, state, bounded(error.size), event.u, limit))

    def _find(self, wrong: list[_Wrong], shown: int) -> None:
        """Name all, a group of the optimizer, or one parameter."""
        worst = max(wrong, key=lambda each: each.excess)
        modules = list(dict.fromkeys(each.event.place[0] for each in wrong if each.event.place is not None))
        kinds = {self.step.a.reader.modules[module].class_name for module in modules}
        is_all = len(modules) > 1 and (len(wrong) >= MOST * max(shown, 1) or len(kinds) > 1)
        assert worst.event.place is not None
        path = "" if is_all else self.step.path(worst.event.place[0])
        self.judging.finds(Phase.UPDATE, (path,), worst.event, worst.limit, worst.code, error=worst.error)

    def _find_settings(self, settings: dict[Place, Setting], shown: _Wrong | None = None) -> None:
        """Name the optimizer, or the modules of the parameters that are set otherwise."""
        paths = tuple(dict.fromkeys(self.step.path(place[0]) for place in settings))
        modules = {self.step.a.places[i][0] for group in self.step.a.groups for i in group.parameters}
        is_all = len(paths) >= MOST * len(modules)
        event, error = (shown.event, shown.error) if shown is not None else (None, None)
        facts = tuple({str(each): each for each in settings.values()}.values())
        self.judging.finds(
            Phase.UPDATE,
            ("",) if is_all else paths,
            event,
            0.0,
            "settings",
            error=error,
            facts=facts,
            is_shown=shown is not None,
        )


def differing_settings(judging: Judging) -> dict[Place, Setting]:
    """Return, by parameter of A, the settings of optimizers of one class that differ."""
    step = judging.step
    if step.is_across_frameworks:
        return {}
    mine, theirs = _groups(step.a), _groups(step.b)
    found = {}
    for place, group in mine.items():
        there = step.parameters.partner(place, theirs)
        other = theirs.get(there) if there is not None else None
        if other is None or other.class_name != group.class_name:
            continue
        for name in group.hyper.keys() & other.hyper.keys():
            if name not in _IGNORED and not _is_same(group.hyper[name], other.hyper[name]):
                found[place] = name, group.hyper[name], other.hyper[name]
    return found


def _groups(side: Side) -> dict[Place, OptimizerGroup]:
    return {side.places[i]: group for group in side.groups for i in group.parameters}


def _is_same(x: object, y: object) -> bool:
    if isinstance(x, int | float) and isinstance(y, int | float):
        return math.isclose(x, y, rel_tol=1e-6, abs_tol=1e-15)
    return x == y


def _along_weight(event: Event, weight: Event) -> float:
    """Return the cosine between the difference of two updates and the weight."""
    assert event.a is not None and event.b is not None and weight.a is not None
    if event.a.sketch is None or event.b.sketch is None or weight.a.sketch is None:
        return 0.0
    difference = event.b.sketch - event.a.sketch
    length = math.sqrt(max(1e-300, float(difference @ difference) * float(weight.a.sketch @ weight.a.sketch)))
    return abs(float(difference @ weight.a.sketch)) / length
