"""Who decides how much of an error is noise: the built-in model, and the rungs above it, behind one interface.

`probe.verdict.judge` asks the built-in model first, which knows the sources of an event; a rung takes its answer or
gives another.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from probe.answer.result import SlotResult
from probe.notes import Note
from probe.verdict.distance.error import Error
from probe.verdict.noise.model import WORST, Row
from probe.verdict.steps.events import Event
from probe.verdict.steps.step import Step

BUILT_IN = "built-in model"


@dataclass(frozen=True, slots=True)
class Check:
    """What of an event is held against what."""

    error: float
    limit: float
    """the largest error that would have been noise"""
    is_wrong: bool
    has_direction: bool = False
    """the norm or the mean shows it, whatever the size of the error"""
    measure: str = ""
    """what the error is, where it is not that of the two tensors"""
    facts: tuple[Note, ...] = ()
    """what a finding says about it"""
    is_fixed: bool = False
    """the limit is what people want, whatever rounding does"""
    is_consequence: bool = False
    """it is wrong because of something else"""
    code: str = ""
    """why it is not judged"""
    passed: float = 0.0
    """by how much the norms of the sources differ"""

    @property
    def share(self) -> float:
        """The error as a multiple of the limit."""
        return self.error / self.limit if self.limit else math.inf if self.error else 0.0

    @property
    def is_far(self) -> bool:
        """Whether it is wrong by itself, though what it is made of is wrong too."""
        return self.share > WORST and not (self.is_fixed or self.measure) and math.isfinite(self.error)


class StepNoise:
    """The built-in model for one step."""

    def check(self, event: Event, error: Error, built_in: Check, row: Row, u: float, excess: float) -> Check:
        """Return what is held against what.

        The error of ``built_in``, what the built-in model says, may be on another scale. ``row`` is the noise of the
        phase, ``u`` the roundoff on the way, ``excess`` the largest error of its sources beyond measured noise.
        """
        return built_in

    def loss(self, a: float, b: float, built_in: Check) -> Check:
        """Return what is held against what for the numbers that the program logged as its loss."""
        return built_in

    def excess(self, event: Event, error: Error) -> float | None:
        """Return how much of an event's error counts for what is made of it; None: what the built-in model counts."""
        return None

    def explains(self, event: Event, error: Error) -> bool:
        """Return True if an update that the built-in model finds wrong is noise."""
        return False


class Noise:
    """The built-in model; the other rungs are made from it."""

    name = BUILT_IN
    uses_built_in = True
    """some tensors are judged by the built-in model"""

    def at(self, step: Step) -> StepNoise:
        """Return what decides in one step."""
        return StepNoise()

    def notes(self) -> Iterable[Note]:
        """Yield what is to be said of the rung itself, when all steps have been judged."""
        return ()

    def reasons(self, rows: Sequence[SlotResult]) -> Iterable[Note]:
        """Yield why, by this rung, nothing may be called aligned."""
        return ()
