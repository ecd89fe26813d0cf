"""What holding a comparison against an acceptance table gives: frozen, typed, printable."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field

from probe.answer.metrics import UNKNOWN, Measure, bound_of
from probe.answer.presets import Item, Preset
from probe.notes import Fields, Note, named, plain
from probe.records import Phase, Role


class Decision(enum.StrEnum):
    """The answer of a table."""

    ACCEPTED = "accepted"
    NOT_ACCEPTED = "not accepted"
    UNDECIDED = "undecided"
    """nothing is beyond its bound, and a row could not be judged, or the comparison itself is undecided"""


class Outcome(enum.StrEnum):
    """The answer of a row of a table."""

    PASS = "pass"
    FAIL = "fail"
    NEEDS_VALUES = "needs values"
    """statistics do not tell whether some tensors are within the bound"""
    NOT_RECORDED = "not recorded"
    """on one side or both"""
    NOT_COMPARED = "not compared"
    """both sides have such tensors, and none is a pair that can be compared"""


@dataclass(frozen=True, slots=True)
class Where(Fields):
    """A pair of tensors, by A's step."""

    step: int
    micro: int
    phase: Phase
    role: Role
    path_a: str
    slot_a: str
    path_b: str
    slot_b: str
    call: int = 0
    index: tuple[int, ...] | None = None
    """of the element in A, where values were compared by their largest difference"""
    rel_l2: float = math.nan
    """the relative error of the two tensors"""
    limit: float = math.nan
    """up to which relative error the built-in model calls that noise; NaN where it does not say"""
    largest: float = math.nan
    """largest magnitude in A"""


@dataclass(frozen=True, slots=True)
class ItemResult:
    """A row of the table with what was measured."""

    item: Item
    outcome: Outcome
    measure: Measure = UNKNOWN
    """the largest error among the tensors of the row, by the metric of its tolerance"""
    where: Where | None = None
    """the tensor that has it, or the first that needs values; None for the loss that was given as a number, and where there is none"""
    judged: int = 0
    """pairs of tensors that were held against the bound"""
    open: int = 0
    """pairs of which statistics do not tell"""
    uncompared: int = 0
    """pairs that could not be compared"""
    excused: int = 0
    """pairs that differ and are right, by an exemption of the verdict"""
    wide: int = 0
    """pairs in which zeros would pass in the place of B"""

    @property
    def bound(self) -> float:
        """What the figure is held against; 1 where both an absolute and a relative tolerance count."""
        return bound_of(self.item.tolerance)

    def as_json(self) -> dict[str, object]:
        """Return the fields by their names in JSON."""
        return {
            **self.item.as_json(),
            **named(self, "outcome", "bound"),
            "figure": plain(self.measure.figure),
            "relation": self.measure.relation.name.lower(),
            **named(self, "where", "judged", "open", "uncompared", "excused", "wide"),
        }


@dataclass(frozen=True)
class Acceptance:
    """Whether two runs meet an acceptance table: beside the verdict, which may disagree."""

    preset: Preset
    decision: Decision
    items: tuple[ItemResult, ...]
    steps: tuple[int, ...]
    """those of A that were looked at"""
    notes: tuple[Note, ...] = field(default=())
    """where it disagrees with the verdict and why, and what its figures do not tell"""

    def __repr__(self) -> str:
        rows = ", ".join(f"{each.item.scope.value} {each.outcome.value}" for each in self.items)
        return f"<Acceptance by {self.preset.name}: {self.decision.value} ({rows})>"

    def __str__(self) -> str:
        """Return the table as plain text."""
        from probe.report.acceptance import render

        return render(self).plain

    def as_json(self) -> dict[str, object]:
        """Return the answer by the names that ``--format json`` uses."""
        preset = {"preset": self.preset.name, **named(self.preset, "source", "text")}
        return preset | named(self, "decision", "items", "steps", "notes")
