"""What the rows of the table of blame are asked: one tensor that is wrong by itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from probe.comparison.ledger.known import Walk
from probe.comparison.ledger.places import path_a
from probe.comparison.noise.tolerance import Rule
from probe.comparison.notes import Note, note
from probe.comparison.steps.step_half import Event, Node
from probe.records import Role


@dataclass(frozen=True)
class Case:
    """A tensor whose error is more than what it was computed from explains."""

    walk: Walk
    node: Node
    """the call that was given it, returned it, or has its gradient"""
    event: Event
    rule: Rule
    """by which it was judged"""

    @property
    def is_input(self) -> bool:
        """Whether a call was given it: then its caller's code made it."""
        return self.event.role is Role.INPUT

    @property
    def caller(self) -> Node | None:
        """The call whose code may have made it: that which returned it, or the caller of that which was given it; None of the root's inputs."""
        return self.node.parent if self.is_input else self.node

    @property
    def before(self) -> tuple[int, int]:
        """Moments of A and of B by which it was made."""
        node = self.node
        return (node.begin, node.begin_b) if self.is_input else (node.end, node.end_b)

    @property
    def what(self) -> Note:
        """What differs, as evidence."""
        role = "input" if self.is_input else "output"
        return note("tensor-differs-first", role=role, slot=self.event.slot_a, path=path_a(self.walk, self.node.pair))


@dataclass(frozen=True)
class Row:
    """A row of the table: who answers, if the row fits."""

    code: str
    text: str
    """one sentence: whom it blames, and when"""
    blame: Callable[[Case], bool]
    """adds the finding, or a doubt, and tells whether it did; tells False where the next row is to be asked"""


def answer(rows: Sequence[Row], case: Case) -> bool:
    """Ask the rows in their order; the first that fits answers, and its code stands at the finding and at the tensor. Tell whether one did."""
    walk, known = case.walk, len(case.walk.ledger.findings)
    for row in rows:
        if row.blame(case):
            walk.ledger.findings[known:] = [
                replace(finding, blame=row.code) for finding in walk.ledger.findings[known:]
            ]
            judged = walk.ledger.judged.get(id(case.event))
            if judged is not None:
                judged.blame = row.code
            return True
    return False
