"""Naming the hyper-parameter by which the updates of two runs differ, where the numbers determine it."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from probe.answer.failing import unless_it_fails
from probe.answer.result import Divergence
from probe.diagnosis.optimizer.adam import Form, form_of
from probe.diagnosis.optimizer.gradients import treated_otherwise
from probe.diagnosis.optimizer.linear import solved
from probe.diagnosis.optimizer.rules import rule_of
from probe.diagnosis.optimizer.traces import Trace, traces_of
from probe.notes import Note, note, sides
from probe.records import Phase, Role
from probe.verdict.judge.judging import MOST
from probe.verdict.judge.verdicts import Finding
from probe.verdict.side import Place
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

_SAME = 2e-3
"""relative difference up to which two numbers that were solved for are one"""
_TO_SHOW = 0.01
"""share of a typical gradient from which on an eps shows"""
_FIT = 0.02
"""share of B's update that may stay unexplained where it is said to be a multiple of A's"""
_NEAR = 0.03
"""relative difference up to which two parameters name one value"""
_MOST_FORMS = 6
"""parameters of which the values are read"""
_MOST_NAMED = 4
_LARGE, _FEW = 64, 3
"""elements of a parameter, and parameters, from which on the lengths of updates say something of the learning rate"""
_SPREAD, _MOST_ALIKE = 0.01, 0.75
"""how far the ratios of these lengths may be apart, and the share of them that must be as near"""
_TO_TYPICAL = np.geomspace(1e-4, 1e3, 200)
"""eps, in typical elements of a gradient"""
LR, DECAY, BETA1, BETA2, MOMENTUM, DAMPENING, EPS = (
    "lr", "weight_decay", "beta1", "beta2", "momentum", "dampening", "eps",
)  # fmt: skip
_DIGITS = {BETA1: 4, BETA2: 4, EPS: 2}
"""that are shown; 3 of others"""
_NONE = {DECAY: 1e-6, MOMENTUM: 1e-4, DAMPENING: 1e-4}
"""below this there is none"""


@dataclass(frozen=True, slots=True)
class Named:
    """What differs between the two sides."""

    setting: str
    said: Note
    value: float = 0.0
    """where several parameters tell it, those within a few per cent are one"""


def with_settings_by_numbers(step: Step, finding: Finding, said: Divergence, warnings: list[Any]) -> Divergence:
    """Return a finding about updates with what its numbers say of settings; the advice, where none are recorded otherwise."""
    if said.phase is not Phase.UPDATE or not finding.is_shown:
        return said
    named: list[Note] = unless_it_fails(
        lambda: _named(step, finding, said), [], "settings by the numbers", said.path, warnings
    )
    if not named:
        return said
    facts = [note("by-the-numbers", said=each) for each in named]
    return replace(said, facts=(*said.facts, *facts), advice=said.advice if said.is_read else facts[0])


def _named(step: Step, finding: Finding, said: Divergence) -> list[Note]:
    if said.role is Role.PARAM_GRAD:
        done = treated_otherwise(step.a, step.b) if finding.paths == ("",) else None
        return [] if done is None else [done]
    updates = step.parameters.events(Phase.UPDATE, Role.DELTA)
    return named_settings(step, [each for each in updates if _is_concerned(step, finding, each)])


def _is_concerned(step: Step, finding: Finding, event: Event) -> bool:
    return event.is_paired and event.place is not None and finding.paths in (("",), (step.path(event.place[0]),))


def named_settings(step: Step, events: Iterable[Event]) -> list[Note]:
    """Return what differs by the updates δ that both sides made of some parameters; what holds for most of them first."""
    both_of = traces_of(step)
    counted: dict[Named, int] = {}
    steps: list[_Pair] = []
    total = forms = 0
    for event in events:
        total += 1
        both = both_of(event)
        if not all(trace.is_finite for trace in both):
            continue
        reader = _Pair(*both)
        found = list(reader.differences())
        if not found and forms < _MOST_FORMS:
            forms += 1
            found = list(reader.forms())
        for named in dict.fromkeys(found):
            counted[named] = counted.get(named, 0) + 1
        steps.append(reader)
    if not counted:
        counted = {named: total for named in _by_lengths(steps)}
    found = [(named, count) for named, count in _agreed(counted) if count >= min(2, total)]
    return [_counted(named, count, total) for named, count in found]


def _by_lengths(pairs: list[_Pair]) -> list[Named]:
    """Name what the lengths of updates show; where two readings fit, the one that the recorded learning rates allow."""
    pairs = [pair for pair in pairs if not pair.is_rounded]
    rates, small = list(_longer_steps(pairs)), list(_shorter_for_small_gradients(pairs))
    if not (rates and small):
        return rates + small
    a, b = pairs[0].recorded(LR)
    return rates if a != b else small


def _longer_steps(pairs: list[_Pair]) -> Iterator[Named]:
    """Name another learning rate where the gradients differ: Adam's steps are as long, whatever the gradient is."""
    chosen = [pair for pair in pairs if pair.rule_a.is_adaptive and pair.rule_b.is_adaptive and pair.a.size >= _LARGE]
    ratios = np.array([pair.b.update.norm / (pair.a.update.norm or math.nan) for pair in chosen])
    if len(ratios) < _FEW or not np.isfinite(ratios).all():
        return
    typical = float(np.median(ratios))
    if not typical:  # B does not move: which is said, and no multiple
        return
    if abs(typical - 1) > 2 * _SPREAD and np.mean(np.abs(ratios / typical - 1) < _SPREAD) >= _MOST_ALIKE:
        yield chosen[0].rate(typical, chosen[0].recorded(LR)[0])


@functools.cache
def _shares() -> np.ndarray:
    """Return how long Adam's first update is where eps is so many times a typical element of a normal gradient."""
    normal = np.abs(np.random.default_rng(0).standard_normal(4096))
    return np.array([math.sqrt(float(np.mean((normal / (normal + x)) ** 2))) for x in _TO_TYPICAL])


def _shorter_for_small_gradients(pairs: list[_Pair]) -> Iterator[Named]:
    """Name another eps, from the lengths of Adam's first updates: the smaller a gradient, the more eps takes away of it."""
    for which in "BA":
        found = []
        for pair in pairs:
            short, full, rule = (pair.b, pair.a, pair.rule_b) if which == "B" else (pair.a, pair.b, pair.rule_a)
            length = full.update.norm
            if not (rule.is_adaptive and rule.is_fresh and short.gradient and length and short.size >= _LARGE):
                continue
            share, typical = short.update.norm / length, short.gradient.rms
            shares = _shares()
            if shares[-1] < share < 1 - _SPREAD:
                found.append(typical * float(np.interp(-share, -shares, _TO_TYPICAL)))
        if len(found) >= max(_FEW, len(pairs) // 4) and np.quantile(found, 0.8) < 5 * np.quantile(found, 0.2):
            yield Named(EPS, note("eps-is-larger", side=which, eps=_number(float(np.median(found)), 1)))
            return


def _agreed(counted: dict[Named, int]) -> list[tuple[Named, int]]:
    """Return what more than single parameters say, the most common first; what is nearly the same counts as one."""
    ordered = sorted(counted.items(), key=lambda item: -item[1])
    found: dict[Named, int] = {}
    for named, count in ordered:
        like = (each for each in found if each.setting == named.setting and _alike(each.value, named.value, _NEAR))
        first = next(like, named)
        found[first] = found.get(first, 0) + count
    largest = max(found.values(), default=0)
    return [(named, count) for named, count in found.items() if count > 0.1 * largest][:_MOST_NAMED]


def _counted(named: Named, count: int, total: int) -> Note:
    return named.said if count == total else note("of-some-parameters", said=named.said, count=count, total=total)


_MAXIMIZE = Named("maximize", note("maximize-on-one-side"))


class _Pair:
    """Both sides of the update of one parameter."""

    def __init__(self, a: Trace, b: Trace) -> None:
        self.a, self.b = a, b
        self.rule_a, self.rule_b = rule_of(a), rule_of(b)

    @property
    def is_rounded(self) -> bool:
        """Whether the rounding of the weight takes part in the length of an update."""
        after = self.a.after
        return after is not None and after.u * after.norm > _SPREAD * self.a.update.norm

    def differences(self) -> Iterator[Named]:
        """Yield what sketches and statistics tell."""
        a, b = self.rule_a, self.rule_b
        if self.a.gradient_sketch is None or self.b.gradient_sketch is None:
            return
        if a.is_adaptive != b.is_adaptive:
            if any("exp_avg_sq" not in trace.states for trace in (self.a, self.b)):  # else rounding hides what one does
                yield Named("class", note("second-moment-on-one-side", **sides(a.is_adaptive)))
            return
        if None not in (a.is_fresh, b.is_fresh) and a.is_fresh != b.is_fresh:
            yield Named("state", note("empty-state-on-one-side", **sides(bool(a.is_fresh))))
            return
        extra = {name for name in {*a.states} ^ {*b.states} if name.startswith("max_")}
        if extra and self.a.side.reader.info.framework == self.b.side.reader.info.framework:
            yield Named("amsgrad", note("amsgrad-on-one-side", side="A" if extra & {*a.states} else "B"))
            return
        if a.gain is not None and b.gain is not None and a.gain * b.gain < 0:
            yield _MAXIMIZE
            return
        of_state = [*self._coupled(), *self._moments()]
        yield from of_state
        if not a.is_adaptive:
            yield from self._linear()
        elif not of_state or a.is_fresh:
            yield from self._multiple()

    def forms(self) -> Iterator[Named]:
        """Yield what values tell of an update that is no multiple of the other side's."""
        if not (self.rule_a.is_adaptive and self.rule_b.is_adaptive):
            return
        a, b = form_of(self.a, self.rule_a), form_of(self.b, self.rule_b)
        if a is not None and b is not None:
            yield from self._formed(a, b)

    def _formed(self, a: Form, b: Form) -> Iterator[Named]:
        if a.is_corrected != b.is_corrected:
            yield _uncorrected(b.is_corrected)
        if a.is_inside != b.is_inside:
            eps = a.eps if a.is_inside else b.eps
            said = note("eps-inside-root-on-one-side", eps=_number(eps, 2), **sides(a.is_inside))
            yield Named("eps inside", said, eps)
        else:
            yield from self._eps(a.eps, b.eps)
        if not _alike(a.rate, b.rate):
            yield self._against(LR, a.rate, b.rate)
        decays = a.decay / a.rate, b.decay / b.rate
        if not _alike(*decays, 0.02) and max(map(abs, decays)) > _NONE[DECAY]:
            yield self._against(DECAY, *decays)

    def _eps(self, a: float, b: float) -> Iterator[Named]:
        """Compare eps; one that does not show is what was recorded, or one that is far below the gradient."""
        shown = [each for each in (a, b) if not math.isnan(each)]
        if not shown:
            return
        typical = min(trace.gradient.rms for trace in (self.a, self.b) if trace.gradient is not None)
        both = [
            recorded if math.isnan(each) and recorded is not None else each
            for each, recorded in zip((a, b), self.recorded(EPS), strict=True)
        ]
        if any(map(math.isnan, both)):
            if shown[0] >= _TO_SHOW * typical:
                said = note("eps-shows-on-one-side", eps=_number(shown[0], 2), **sides(not math.isnan(both[0])))
                yield Named(EPS, said, shown[0])
        elif not _alike(*both, 0.1):
            yield self._against(EPS, *both)

    # State

    def _coupled(self) -> Iterator[Named]:
        a, b = self.rule_a.coupled, self.rule_b.coupled
        if a is None or b is None or _alike(a, b, 0.02):
            return
        if a and b:
            yield self._against(DECAY, a, b)
            return
        beside = self.rule_a.is_adaptive and self.recorded(DECAY)[bool(a)] not in (None, 0.0)
        said = note("decay-in-gradient-on-one-side", times=_number(a or b), is_beside=beside, **sides(bool(a)))
        yield Named(DECAY, said)

    def _moments(self) -> Iterator[Named]:
        a, b = self.rule_a, self.rule_b
        if a.is_average and b.is_average:
            betas = [rule.first_decay if rule.first_decay is not None else _rest(rule.gain) for rule in (a, b)]
            yield from self._kept(BETA1, *betas)
        elif not a.is_adaptive:
            yield from self._kept(MOMENTUM, a.first_decay, b.first_decay)
            both = [_rest(rule.gain) for rule in (a, b)]
            if None not in both and not math.isclose(*map(float, both), abs_tol=_SAME):  # type: ignore[arg-type]
                yield self._against(DAMPENING, *both)  # type: ignore[arg-type]
        yield from self._kept(BETA2, a.second_decay, b.second_decay)

    def _kept(self, name: str, a: float | None, b: float | None) -> Iterator[Named]:
        """Compare what of an old average is kept: by what is not kept."""
        if a is not None and b is not None and not math.isclose(1 - a, 1 - b, rel_tol=0.01, abs_tol=1e-6):
            yield self._against(name, a, b)

    # Updates

    def _linear(self) -> Iterator[Named]:
        a, b = self.rule_a, self.rule_b
        if a.rate is None or b.rate is None:
            return
        if None not in (a.is_nesterov, b.is_nesterov) and a.is_nesterov != b.is_nesterov:
            yield _nesterov(bool(a.is_nesterov))
            return
        rest = a.rest + b.rest
        if not _alike(a.rate, b.rate, max(_SAME, rest)):
            yield self.rate(b.rate / a.rate, a.rate)
        if rest > _FIT:
            return
        beside = [rule.decay - (rule.rate * (rule.coupled or 0.0) if rule.is_nesterov else 0.0) for rule in (a, b)]
        rates = a.rate, b.rate
        decays = [decay / rate for decay, rate in zip(beside, rates, strict=True)]
        if not _alike(*decays, 0.02) and max(map(abs, decays)) > 1e-6:
            yield self._against(DECAY, *decays)

    def _multiple(self) -> Iterator[Named]:
        """Look whether B's update is a multiple of A's, and of the parameter."""
        mine, theirs, parameter = self.a.update.sketch, self.b.update.sketch, self.a.parameter
        after = self.b.after
        if mine is None or theirs is None or after is None:
            return
        rounding = after.u * after.norm
        found = None if parameter is None else solved(theirs, [mine, parameter], rounding)
        plain = solved(theirs, [mine], rounding)
        if found is None or plain is None:
            return
        if parameter is None or found.residual >= min(_FIT, 0.1 * _distance(mine, theirs)):
            return
        share = found.coefficients[1] * float(np.linalg.norm(parameter)) / float(np.linalg.norm(theirs))
        decays = found.is_there(1, 0.0) and abs(share) > _SAME and found.residual < 0.3 * plain.residual
        factor = found.coefficients[0] if decays else plain.coefficients[0]
        rates = 1.0
        if not math.isclose(factor, 1, abs_tol=max(_SAME, found.residual, 4 * found.errors[0])):
            named = self.rate(factor, self.recorded(LR)[0])
            yield named
            rates = factor if named.setting == LR else 1.0
        if decays:
            yield from self._beside(found.coefficients[1], factor, rates)

    def _beside(self, along: float, factor: float, rates: float) -> Iterator[Named]:
        """Name another decay: what B's update has of the parameter, beyond a multiple of A's.

        ``rates`` is what B's learning rate is times A's.
        """
        rate, decay = self.recorded(LR)[0], self.recorded(DECAY)[0]
        if rate and decay is not None:
            other = (factor * decay - along / rate) / rates
            if not _alike(decay, other, 0.02):
                yield self._against(DECAY, decay, other)
        elif math.isclose(factor, 1, abs_tol=_SAME):
            yield Named(DECAY, note("more-of-weight-taken", times=_number(abs(along)), is_more=along < 0), along)

    def rate(self, factor: float, rate: float | None) -> Named:
        """Name what makes B's update a multiple of A's."""
        if math.isclose(factor, -1, rel_tol=_SAME):
            return _MAXIMIZE
        special = self._special(factor, rate)
        if special is not None:
            return special
        if rate:
            return self._against(LR, rate, factor * rate)
        return Named(LR, note("lr-is-a-multiple", factor=_number(factor)), factor)

    def _special(self, factor: float, rate: float | None) -> Named | None:
        """Return what is known to make just this multiple."""
        recorded = self.recorded(LR)
        if None not in recorded and math.isclose(factor, recorded[1] / recorded[0], rel_tol=_SAME):  # type: ignore[operator]
            return None
        rule, momentum = self.rule_b, self.recorded(MOMENTUM)[1]
        known: list[tuple[Callable[[bool], Named], float, float]] = []
        if rule.is_fresh and rule.is_adaptive and rule.second_decay is not None and rule.gain is not None:
            known.append((_uncorrected, rule.gain / math.sqrt(1 - rule.second_decay), 5e-3))
        if rule.is_fresh and momentum:
            known.append((_nesterov, 1 + momentum, _SAME))
        for named, of_b, within in known:
            for is_a, expected in ((False, of_b), (True, 1 / of_b)):
                if math.isclose(factor, expected, rel_tol=within):
                    return named(is_a)
        if rate and math.isclose(factor, rate, rel_tol=5 * _SAME):
            return Named(LR, note("lr-applied-twice", rate=_number(rate)))
        return None

    def _against(self, name: str, a: float, b: float) -> Named:
        recorded = self.recorded(name)
        least = max(_NONE[name], _SAME * max(abs(a), abs(b))) if name in _NONE else 0.0
        digits, (a, b) = _DIGITS.get(name, 3), (0.0 if abs(value) < least else value for value in (a, b))
        as_recorded = None
        if None not in recorded and math.isclose(*recorded, rel_tol=1e-6, abs_tol=1e-15):  # type: ignore[arg-type]
            as_recorded = _number(recorded[0])  # type: ignore[arg-type]
        said = note("setting-by-numbers", name=name, a=_number(a, digits), b=_number(b, digits), recorded=as_recorded)
        return Named(name, said, b)

    def recorded(self, name: str) -> tuple[float | None, float | None]:
        return _setting(self.a.settings, name), _setting(self.b.settings, name)


def _setting(settings: dict[str, object], name: str) -> float | None:
    """Return what was recorded of a setting."""
    value = settings.get(name)
    if name in (BETA1, BETA2):
        betas = settings.get("betas")
        value = betas[0 if name == BETA1 else 1] if isinstance(betas, (list, tuple)) and len(betas) > 1 else None
    return float(value) if isinstance(value, (int, float)) else None


def _uncorrected(is_a: bool) -> Named:
    return Named("bias_correction", note("bias-not-corrected", **sides(is_a)))


def _nesterov(is_a: bool) -> Named:
    return Named("nesterov", note("nesterov-on-one-side", **sides(is_a)))


def _rest(gain: float | None) -> float | None:
    return None if gain is None else 1 - gain


def _alike(a: float, b: float, within: float = _SAME) -> bool:
    return math.isclose(a, b, rel_tol=within, abs_tol=1e-12)


def _distance(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def _number(value: float, digits: int = 3) -> float:
    """Return a number as one would have written it: 0.1 for 0.0999998."""
    return float(f"{value:.{digits}g}")


# Parameters of one kind, over many modules: what is wrong with them is the optimizer's, not one module's

_LEAST = 3
"""parameters from which on they are a kind"""


def with_kind(step: Step, finding: Finding, said: Divergence) -> Divergence:
    """Return a finding of many parameters with the kind that they are: biases, a group's, those of one dimension."""
    at = next((at for at, fact in enumerate(said.facts) if fact.code == "parameters-differ-in"), None)
    if finding.phase is not Phase.UPDATE or finding.event is None or at is None:
        return said
    wrong, role = set(finding.facts[3]), finding.event.role
    judged = {each.place: each for each in step.parameters.events(Phase.UPDATE, role) if each.place is not None}
    if len(wrong) < _LEAST or len(wrong) > MOST * len(judged):
        return said
    for kind, members in _kinds(step, judged):
        if members.issuperset(wrong) and len(wrong) > MOST * len(members):
            names = tuple(f"{step.path(place[0])}.{place[1]}".lstrip(".") for place in judged if place in wrong)
            what = {"what": said.facts[at].facts["what"], "kind": kind, "names": names}
            told = note("kind-of-parameters-differs-in", **what, count=len(wrong), of=len(members))
            return replace(said, facts=(*said.facts[:at], told, *said.facts[at + 1 :]))
    return said


def _kinds(step: Step, judged: dict[Place, Event]) -> Iterator[tuple[Note, set[Place]]]:
    """Yield kinds, the narrowest first, and which of the parameters are of them."""
    yield note("biases"), {place for place in judged if place[1] == "bias"}
    for group in step.a.groups if len(step.a.groups) > 1 else ():
        of_group = {step.a.places[i] for i in group.parameters} & judged.keys()
        yield note("parameters-of-group", side="A", group=group.group), of_group
    vectors = {place for place, each in judged.items() if each.a is not None and len(each.a.shape) == 1}
    yield note("parameters-of-one-dimension"), vectors
