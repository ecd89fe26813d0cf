"""What the phases share: the step, its graph, and what was found so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role
from probe.verdict.distance.error import Error, View
from probe.verdict.judge.verdicts import Finding, State, Verdict, Verdicts
from probe.verdict.noise.model import ALONG, FEW, MANY, NORMS, SIXTEEN_BITS, STATE, WEIGHTS, WORST, Row
from probe.verdict.noise.rung import Check, StepNoise
from probe.verdict.noise.terms import peaks_of
from probe.verdict.side import Place
from probe.verdict.steps.events import Event
from probe.verdict.steps.graph import Graph
from probe.verdict.steps.step import Step
from probe.verdict.tensors import Hash

Weights = Sequence[tuple[Event, Error, float | None]]
"""weights with their errors, and what measured noise does not explain of them"""
MOST = 0.6
"""share of the parameters from which on a finding is about all of them"""
SEVERAL = 32
"""elements of a gradient from which on the direction of its error is no chance"""


@dataclass(frozen=True)
class Before:
    """What the steps before left.

    Attributes
    ----------
    weights
        those that a step begins with, with their errors
    found
        weights that no update left, as they were known last
    alone
        weights that one side alone has a record of, as that has them
    kept
        error and excess of what the optimizer keeps, and of buffers, and they themselves
    returned
        errors of what models returned, by the hashes of both sides
    """

    weights: Weights = ()
    found: Mapping[Place | None, tuple[Event, Error, float | None]] = field(default_factory=dict)
    alone: Mapping[Place | None, Event] = field(default_factory=dict)
    kept: Mapping[Place | None, tuple[float, float, Event | None]] = field(default_factory=dict)
    returned: Mapping[tuple[Hash | None, Hash | None], float] = field(default_factory=dict)


@dataclass(frozen=True)
class Judging:
    """One step under judgement; ``is_first``: it begins with the weights that were compared."""

    step: Step
    graph: Graph
    verdicts: Verdicts
    is_first: bool
    noise: StepNoise
    before: Before

    def check(
        self,
        event: Event,
        error: Error,
        limit: float,
        row: Row,
        u: float,
        excess: float,
        *,
        has_direction: bool = False,
        is_judged: bool = True,
        relative: float | None = None,
        passed: float = 0.0,
    ) -> Check:
        """Return what is held against what, by the rung that judges.

        For the built-in model what is larger than ``limit`` or has a direction is wrong, if it is judged. ``relative``
        is the error on the scale of the limit, where that is another; ``passed`` the difference of the sources' norms.
        """
        size = error.size if relative is None else relative
        is_wrong = is_judged and (size > limit or has_direction)
        built_in = Check(size, limit, is_wrong, has_direction, passed=passed)
        if is_wrong and size <= limit and error.off > NORMS.floor(u):
            built_in = Check(error.off, NORMS.floor(u), True, True, "of the norm")
        return self.noise.check(event, error, built_in, row, u, excess)

    def may_find(self, event: Event) -> bool:
        """Return True if two tensors that cannot be compared are a finding: no rule of the rung leaves them out."""
        check = self.check(event, Error(math.inf), 0.0, WEIGHTS, event.u, 0.0)
        return check.is_wrong and not check.is_consequence

    def finds(
        self, phase: Phase, paths: tuple[str, ...], event: Event | None, limit: float, code: str, **known: Any
    ) -> None:
        """Add a finding; ``known`` is what else its fields are."""
        micro = event.node.a.micro if event is not None and event.node is not None else 0
        known = {"error": None, "is_behind": False} | known
        known["is_behind"] |= phase > Phase.BACKWARD and bool(self.verdicts.findings)
        place = {"step": self.step.a.step, "micro": micro, "phase": phase, "paths": paths, "event": event}
        self.verdicts.findings.append(Finding(**place, limit=limit, code=code, **known))

    def blames(self, phase: Phase, event: Event, code: str, check: Check | None = None, **known: Any) -> None:
        """Add a finding at the module that a parameter belongs to."""
        assert event.place is not None
        limit = known.pop("limit", check.limit if check is not None else 0.0)
        self.finds(phase, (self.step.path(event.place[0]),), event, limit, code, check=check, **known)

    def finds_worst(self, phase: Phase, wrong: Sequence[Wrong], shown: int, is_all: bool, code: str = "") -> None:
        """Add a finding about the worst of several parameters, or about all of them, by another code."""
        worst = max(wrong, key=lambda each: each.excess)
        assert worst.event.place is not None
        path = "" if is_all else self.step.path(worst.event.place[0])
        factor, places = common_factor([each.error for each in wrong]), tuple(each.event.place for each in wrong)
        known = {"facts": (len(wrong), max(shown, len(wrong)), factor, places), "check": worst.check}
        code = code if is_all and code else worst.code
        self.finds(phase, (path,), worst.event, worst.limit, code, error=worst.error, **known)

    def judged(self, event: Event, error: Error, check: Check, excess: float | None = None) -> bool:
        """Give what belongs to a parameter its verdict; return True if it is wrong by itself."""
        is_wrong = check.is_wrong and not check.is_consequence
        state = explained_state(event, error, bool(self.verdicts.findings))
        if check.is_wrong:
            state = State.INTRODUCED if is_wrong else State.INHERITS
        state = State.OPEN if check.code else state
        size, known = bounded(error.size), {"code": check.code, "check": check, "excess": excess}
        self.verdicts.add(Verdict(event, state, size, event.u, check.limit, **known))
        return is_wrong

    def explained(
        self, event: Event, error: Error, floor: float, u: float, check: Check, sources: float, behind: bool
    ) -> None:
        """Note an event whose error rounding or its sources explain."""
        is_equal = error.size == 0 and (error.view is View.MASK or not error.is_bound)
        state = State.EQUAL if is_equal else State.AGREES
        state = State.INHERITS if (error.size > floor or behind) and not check.is_fixed else state
        carried = max(error.size, sources, u) if error.is_bound else error.size
        off, excess = 0.0 if error.is_bound else error.off, self.noise.excess(event, error)
        verdict = Verdict(event, state, bounded(carried), u, check.limit, off, behind, "", sources, check, excess)
        self.verdicts.add(verdict)

    def lowest_precision(self) -> float:
        """Return the largest roundoff of the forward pass."""
        casts = [unit_roundoff(call.autocast) for call in self.step.a.calls if call.autocast]
        seen = [each.u for event, each in self.verdicts.by_event.items() if event.phase is Phase.FORWARD]
        return max([2**-24, *casts, *seen])


@dataclass(frozen=True)
class Wrong:
    """What may become a finding, beside others."""

    excess: float
    event: Event
    error: Error
    limit: float
    code: str
    check: Check | None = None


def bounded(error: float) -> float:
    """Return an error as far as it counts: at most 1."""
    return min(error, 1.0) if math.isfinite(error) else 1.0


def hides(event: Event) -> float:
    """Return by how much the error of a tensor is larger beside two elements that are most of it: a norm shows that."""
    a = event.a
    assert a is not None
    if a.kind != "float" or a.size < MANY // 4 or peaks_of(a) >= FEW:
        return 1.0
    rest = a.norm**2 - a.low**2 - a.high**2
    return a.norm / math.sqrt(rest) if rest > 1e-9 * a.norm**2 else 1.0


def norm_error(event: Event, error: Error) -> float:
    """Return by how much norms of many elements differ, 0 where that tells nothing."""
    assert event.a is not None
    tells = not error.is_bound and math.isfinite(error.size) and event.a.kind == "float"
    return error.off if tells and peaks_of(event.a) >= FEW else 0.0


def has_direction(event: Event, error: Error, u: float, sources: float, sources_off: float | None) -> bool:
    """Return True if an error is one of the norm or of the mean, by more than rounding leaves there.

    ``sources_off``, of their norms, is None if the weights may differ, so that it explains nothing.
    """
    off, limit = norm_error(event, error), max(NORMS.floor(u), NORMS.gain * sources)
    if (abs(error.along) > ALONG and off > limit) or _mean_error(event, error) > max(limit, ALONG * error.size):
        return True
    return sources_off is not None and is_off(event, error, u, sources_off)


def is_off(event: Event, error: Error, u: float, sources_off: float) -> bool:
    """Return True if a norm of many elements is off by more than rounding, chance and the sources explain."""
    assert event.a is not None
    is_given = event.role is Role.INPUT and bool(event.a.shape)  # made by code of whole rows, such as attention
    count = max(1, min(peaks_of(event.a), event.a.size / max(event.a.shape[-1], 1) if is_given else math.inf))
    by_chance = (WORST if u > SIXTEEN_BITS or is_given else WORST / 2) * error.size / math.sqrt(count)  # rows share it
    return norm_error(event, error) > max(NORMS.floor(u), NORMS.gain * sources_off, by_chance)


def _mean_error(event: Event, error: Error) -> float:
    """Return the part of an error that is a constant added to many elements, 0 where that tells nothing."""
    a, b = event.a, event.b
    assert a is not None and b is not None
    larger = max(error.norm_a, error.norm_b)
    if not larger or error.is_bound or a.kind != "float" or peaks_of(a) < FEW or a.size < MANY:
        return 0.0
    shift = math.sqrt(a.size) * abs(a.mean - b.mean) / larger
    return shift if shift <= 2 * error.size else 0.0  # of masks, by other numbers


def common_factor(errors: Sequence[Error]) -> float:
    """Return what all of several tensors of B are times A's; 0 if they are no multiples, or of other factors."""
    ratios = [each.norm_b / each.norm_a for each in errors if each.norm_a and each.norm_b]
    are_multiples = all(abs(each.along) > 0.999 for each in errors)
    if len(errors) < 2 or len(ratios) < len(errors) or not are_multiples:
        return 0.0
    return ratios[0] if max(ratios) <= 1.001 * min(ratios) else 0.0


def explained_state(event: Event, error: Error, is_behind: bool) -> State:
    """Return the state of what its sources explain, or noise alone where nothing before it is wrong."""
    is_small = not is_behind or event.phase is Phase.INIT or error.size <= STATE.floor(event.u)
    return State.EQUAL if not error.size else State.AGREES if is_small else State.INHERITS
