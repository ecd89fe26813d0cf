"""What a comparison says: frozen results, as codes and facts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from probe.records import Phase
from probe.verdict.judge.verdicts import Finding, State


class Answer(StrEnum):
    """The verdict on two recordings."""

    ALIGNED = "aligned"
    DIVERGED = "diverged"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Place:
    """A module of A that a finding names."""

    path: str


@dataclass(frozen=True, slots=True)
class Divergence:
    """One place that is wrong by itself."""

    finding: Finding

    @property
    def a(self) -> tuple[Place, ...]:
        """The places in A."""
        return tuple(map(Place, self.finding.paths))

    b = a

    @property
    def step(self) -> int:
        """The step of A."""
        return self.finding.step

    @property
    def phase(self) -> Phase:
        """The phase in which it shows first."""
        return self.finding.phase


@dataclass(frozen=True, slots=True)
class Comparison:
    """The answer."""

    verdict: Answer
    divergences: tuple[Divergence, ...]
    doubts: tuple[str, ...]
    counts: dict[State, int]
    notes: tuple[str, ...]

    @property
    def first_divergence(self) -> Divergence | None:
        """The first place that is wrong."""
        return self.divergences[0] if self.divergences else None

    def __str__(self) -> str:
        lines = [self.verdict.value.upper()]
        for each in self.divergences:
            finding = each.finding
            event, error = finding.event, finding.error
            paths = ", ".join(path or "the whole model" for path in finding.paths)
            size = f", error {error.size:.2g} ({error.view}), limit {finding.limit:.2g}" if error is not None else ""
            slot = f" {event.role.label} {event.slot_a or event.slot_b}" if event is not None else ""
            lines.append(f"  step {finding.step} · {finding.phase.label} · {paths}{slot}: {finding.code}{size}")
            lines += [f"    {fact}" for fact in finding.facts]
        lines += [f"  {doubt}" for doubt in self.doubts]
        return "\n".join([*lines, "  " + ", ".join(f"{count} {state}" for state, count in self.counts.items())])
