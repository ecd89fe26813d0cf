"""The table of coverage: what the headline names as not compared (`ALIGNED but for …`), in this order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from probe.comparison.coverage import left_out
from probe.comparison.coverage.left_out import LeftOut
from probe.comparison.coverage.tally import Tally
from probe.comparison.result import Coverage
from probe.comparison.steps.common_steps import Shift
from probe.store.reading.reader import Reader


@dataclass(frozen=True)
class Covered:
    """What a comparison looked at, of all its steps."""

    readers: Sequence[Reader]
    """of A and of B"""
    steps: Sequence[tuple[int, int]]
    shift: Shift
    tally: Tally
    coverage: Coverage
    modes: Mapping[int, tuple[bool, bool]]
    """by pair of modules that ran in another mode: whether in training mode, in A and in B"""
    buffers: Mapping[str, Sequence[str]]
    """by side, those that have no counterpart"""
    min_coverage: float


@dataclass(frozen=True)
class Row:
    """A row of the table: one sort of thing that the verdict says nothing of."""

    code: str
    text: str
    find: Callable[[Covered], Iterable[LeftOut]]


ROWS = (
    Row("phases", "Phases that a side was not to record.", lambda c: left_out.unrecorded_phases(c.readers, c.tally.phases)),
    Row("modules", "Modules that the filters of a recording left out.", lambda c: left_out.unrecorded_modules(c.readers)),
    Row("steps", "Steps that were made and not recorded on both sides.", lambda c: left_out.uncompared_steps(c.readers, c.shift)),
    Row("loss", "The loss, where it was not given on both sides and no model returned one.",
        lambda c: left_out.uncompared_loss(c.readers, c.steps, c.tally.phases, c.tally.slots)),
    Row("calls and weights", "Weights and calls that have no counterpart, or that a mapping ignores.",
        lambda c: left_out.uncompared_calls(c.coverage, c.tally.weights_left, c.tally.weights_ignored, c.min_coverage)),
    Row("modes", "Modules that ran in training mode on one side only.", lambda c: left_out.other_modes(c.modes.values())),
    Row("gradients", "Steps that both sides skipped, since their gradients were not finite.",
        lambda c: left_out.overflowed(c.tally.overflowed)),
    Row("buffers and tensors", "Buffers without a counterpart, and what differs without being judged (the exemptions).",
        lambda c: left_out.unjudged(c.tally.slots, c.buffers)),
)  # fmt: skip


def find_left_out(covered: Covered) -> Iterator[LeftOut]:
    """Yield what the verdict says nothing of, in the order of the table."""
    for row in ROWS:
        yield from row.find(covered)
