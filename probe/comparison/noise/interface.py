"""How much of an error is noise: one place that decides it, with the rungs of the ladder behind one interface.

A rung is a `Noise`; of each step it makes a `StepNoise`, which the walk asks what is to be held against what. The lowest rung
is the built-in model (`probe.comparison.noise.tolerance`). Those above it are measured (`probe.comparison.noise.measured`) from other
runs, or fixed (`probe.comparison.noise.fixed`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from probe.commands.defaults import ALLCLOSE
from probe.comparison.noise import tolerance
from probe.comparison.noise.tolerance import Level, Rule
from probe.comparison.notes import Note, note
from probe.comparison.result import SlotResult
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.step_half import Event
from probe.records import JudgementName

BUILT_IN = "built-in model"
SCALE_MEASURE = "of the norm"
TIMES = "times the tolerance"
FIXED_NAMES = {
    "max_abs": "max |Δ|", "mean_abs": "mean |Δ|", "max_rel": "max relative |Δ|", "rel_l2": "", "cosine": "1 − cosine",
    ALLCLOSE: TIMES,
}  # fmt: skip
"""by the metric of a tolerance, the measure that a report names"""
FIXED_MEASURES = frozenset(filter(None, FIXED_NAMES.values()))
"""of what a limit is that people chose, where it is not the relative error"""
TOLERANCE = "tolerance"
"""how what a finding says of such a limit begins"""


class Check(NamedTuple):
    """What of an event is held against what."""

    error: float
    limit: float
    """the largest error that would have been noise"""
    measure: str = ""
    """what the error is, where it is not that of the two tensors"""
    facts: tuple[Note, ...] = ()
    """what a finding says about it"""
    inherits: bool | None = None
    """whether what it was computed from is wrong already; None where the built-in model is to tell"""
    verdict: JudgementName = ""
    """``not judged`` where nothing can be held against anything, ``inherited`` where it is wrong because of something else"""

    is_fixed: bool = False
    """the limit is what people want, whatever rounding does"""
    is_open: bool = False
    """without values it is not known whether it is within that limit"""
    exemption: str = ""
    """why it is not judged, a code of `probe.comparison.exemptions.table`"""

    def raise_limit(self, limit: float) -> Check:
        """Return the same with a limit that is at least another one, unless it is fixed."""
        return Check(self.error, limit, *self[2:]) if limit > self.limit and not self.is_fixed else self

    def exempt(self, code: str) -> Check:
        """Return the same, not judged for a reason of `probe.comparison.exemptions.table`."""
        return self._replace(verdict="not judged", exemption=code)

    def explained(self) -> Check:
        """Return the same, that of a norm, with what a finding says about it."""
        return self._replace(facts=(note("norm-is-off", error=self.error, limit=self.limit),))

    @property
    def is_wrong(self) -> bool:
        """Tell whether it is more than noise."""
        return self.error > self.limit and not self.verdict

    @property
    def share(self) -> float:
        """The error as a multiple of the limit."""
        return self.error / self.limit if self.limit else math.inf if self.error else 0.0


class StepNoise:
    """The built-in model, for one step."""

    routes_differ = False
    """rounding was seen to send tokens another way: what is behind it errs in a few places, as a few numbers do"""

    def check(self, event: Event, error: float, rule: Rule, u: float, sources: Level) -> Check:
        """Return what is held against what.

        Parameters
        ----------
        event
            the two tensors
        error
            their relative error; of a parameter's gradient, relative to the gradients that it was computed from
        rule
            the built-in thresholds for what they are
        u
            unit roundoff of the least precise dtype on the way
        sources
            the errors of what they were computed from
        """
        check = Check(error, rule.limit(u, sources.error))
        if rule.scale is None or event.metrics is None:
            return check
        scale = Check(abs(event.metrics.norm_ratio - 1), tolerance.scale_limit(rule.scale, u, sources), SCALE_MEASURE)
        return scale.explained() if scale.is_wrong and not check.is_wrong else check

    def introduced(self, error: float) -> None:
        """Take in that an error is a finding: what is behind it inherits it. The built-in model knows it of the sources."""

    def exact(self, event: Event, limit: float) -> Check:
        """Return what is held against what for integers: the share of them that differs. Nothing measures these."""
        assert event.metrics is not None
        return Check(event.metrics.rel_l2, limit)

    def excess(self, event: Event, error: float) -> float:
        """Return how much of an event's error what is computed from it may inherit, beyond what is measured there."""
        return error

    def explains_update(self, event: Event) -> bool:
        """Tell whether an update that the built-in model finds wrong is as far off in legitimate runs."""
        return False

    def start(self, event: Event, limit: float) -> Check:
        """Return what is held against what for weights and inputs that the step begins with: nothing measures these."""
        assert event.metrics is not None
        return Check(event.metrics.rel_l2, limit)

    def loss(self, a: float, b: float, limit: float) -> Check:
        """Return what is held against what for the numbers that ``probe.step`` was given as loss."""
        larger = max(abs(a), abs(b))
        error = abs(a - b) / larger if larger and math.isfinite(a) and math.isfinite(b) else 0.0
        is_opposite = math.isinf(a) and a == -b
        return Check(math.inf if is_opposite or math.isfinite(a) != math.isfinite(b) else error, limit)


class Noise:
    """The built-in model; the other rungs are made from it."""

    name = BUILT_IN
    is_built_in = True
    """nothing else judges"""
    uses_built_in = True
    """some tensors are judged by the built-in model"""

    def at(self, pairs: StepPairs) -> StepNoise:
        """Return what decides in one step."""
        return StepNoise()

    def notes(self) -> Iterable[Note]:
        """Yield what is to be said of the rung itself, when all steps have been judged."""
        return ()

    def reasons(self, slots: Iterable[SlotResult]) -> Iterable[Note]:
        """Yield why, by this rung, nothing may be called aligned."""
        return ()
