"""What the phases share: the step, its graph, and what was found so far."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from probe.numbers.statistics import unit_roundoff
from probe.records import Phase
from probe.verdict.distance.error import Error, View
from probe.verdict.judge.verdicts import Finding, State, Verdict, Verdicts
from probe.verdict.noise.model import ALONG, FEW, MANY, NORMS, WEIGHTS, Row
from probe.verdict.noise.rung import Check, StepNoise
from probe.verdict.noise.terms import peaks_of
from probe.verdict.side import Place
from probe.verdict.steps.events import Event
from probe.verdict.steps.graph import Graph
from probe.verdict.steps.step import Step

Weights = Sequence[tuple[Event, Error, float | None]]
"""weights with their errors, and what measured noise does not explain of them"""
MOST = 0.6
"""share of the parameters from which on a finding is about all of them"""
SEVERAL = 32
"""elements of a gradient from which on the direction of its error is no chance"""


@dataclass(frozen=True)
class Judging:
    """One step under judgement.

    Attributes
    ----------
    is_first
        the step begins with the weights that were compared
    before
        the weights that it begins with, with their errors
    noise
        the rung that judges
    kept
        error and excess of what the optimizer keeps, and of buffers, as the step begins
    """

    step: Step
    graph: Graph
    verdicts: Verdicts
    is_first: bool
    noise: StepNoise
    before: Weights = ()
    kept: Mapping[Place | None, tuple[float, float]] = field(default_factory=dict)

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
    ) -> Check:
        """Return what is held against what, by the rung that judges.

        Parameters
        ----------
        limit, has_direction, is_judged
            what the built-in model says: what is larger or has a direction is wrong, if it can be judged
        relative
            the error on the scale of the limit, where that is not the one of the tensors
        """
        size = error.size if relative is None else relative
        is_wrong = is_judged and (size > limit or has_direction)
        return self.noise.check(event, error, Check(size, limit, is_wrong, has_direction), row, u, excess)

    def may_find(self, event: Event) -> bool:
        """Return True if two tensors that cannot be compared are a finding: no rule of the rung leaves them out."""
        check = self.check(event, Error(math.inf), 0.0, WEIGHTS, event.u, 0.0)
        return check.is_wrong and not check.is_consequence

    def finds(
        self,
        phase: Phase,
        paths: tuple[str, ...],
        event: Event | None,
        limit: float,
        code: str,
        *,
        error: Error | None = None,
        facts: tuple[Any, ...] = (),
        is_shown: bool = True,
        check: Check | None = None,
    ) -> None:
        """Add a finding."""
        micro = event.node.a.micro if event is not None and event.node is not None else 0
        self.verdicts.findings.append(
            Finding(self.step.a.step, micro, phase, paths, event, error, limit, code, facts, is_shown, check)
        )

    def explained(
        self, event: Event, error: Error, floor: float, u: float, check: Check, sources: float, behind: bool
    ) -> None:
        """Note an event whose error rounding or its sources explain."""
        is_equal = error.size == 0 and (error.view is View.MASK or not error.is_bound)
        state = State.EQUAL if is_equal else State.AGREES
        state = State.INHERITS if (error.size > floor or behind) and not check.is_fixed else state
        carried = max(error.size, sources, u) if error.is_bound else error.size
        off, excess = norm_error(event, error), self.noise.excess(event, error)
        verdict = Verdict(event, state, bounded(carried), u, check.limit, off, behind, "", sources, check, excess)
        self.verdicts.add(verdict)

    def lowest_precision(self) -> float:
        """Return the largest roundoff of the forward pass."""
        casts = [unit_roundoff(call.autocast) for call in self.step.a.calls if call.autocast]
        seen = [each.u for event, each in self.verdicts.by_event.items() if event.phase is Phase.FORWARD]
        return max([2**-24, *casts, *seen])


def bounded(error: float) -> float:
    """Return an error as far as it counts: at most 1."""
    return min(error, 1.0) if math.isfinite(error) else 1.0


def norm_error(event: Event, error: Error) -> float:
    """Return by how much norms of many elements differ, 0 where that tells nothing."""
    assert event.a is not None
    tells = not error.is_bound and math.isfinite(error.size) and event.a.kind == "float"
    return error.off if tells and peaks_of(event.a) >= FEW else 0.0


def has_direction(event: Event, error: Error, u: float, sources: float, sources_off: float | None) -> bool:
    """Return True if an error is one of the norm or of the mean, by more than rounding leaves there.

    Parameters
    ----------
    sources_off
        difference of the norms of the sources; None if the weights may differ, so that it explains nothing
    """
    off, limit = norm_error(event, error), max(NORMS.floor(u), NORMS.gain * sources)
    if (abs(error.along) > ALONG and off > limit) or _mean_error(event, error) > max(limit, ALONG * error.size):
        return True
    return sources_off is not None and is_off(event, error, u, sources_off)


def is_off(event: Event, error: Error, u: float, sources_off: float) -> bool:
    """Return True if a norm of many elements is off by more than rounding, chance and the sources explain."""
    assert event.a is not None
    by_chance = 2 * error.size / math.sqrt(max(peaks_of(event.a), 1))
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
