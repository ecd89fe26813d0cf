"""A difference that every use takes back is one of representation.

All that a call does leaves it through what it returns, and its buffers. So a tensor that differs, while all that is
made of it agrees, was only written otherwise: a moved factor, a fused activation, a residual inside the norm.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from probe.ranks.opening import is_of_ranks
from probe.records import Phase, Role
from probe.verdict.noise.model import FORWARD, JUDGES_NOTHING
from probe.verdict.steps.events import Event
from probe.verdict.steps.graph import Graph
from probe.verdict.steps.step import Step

FADES = 0.1
"""what is left of a healed error is at most this share of it"""
CARRIED = 0.5
"""another representation keeps this share of its error from call to call: what fades bit by bit is real"""
BEFORE_LOSS = 0.05
"""a loss is a mean, in which smaller errors may hide"""
_DEEP = 60


def may_be_written_otherwise(step: Step, event: Event) -> bool:
    """Return True between different code: other classes or frameworks around the tensor, ranks, or the two programs."""
    node = event.node
    assert node is not None
    if node.parent is None or step.is_across_frameworks or any(is_of_ranks(side.reader) for side in (step.a, step.b)):
        return True
    return any(step.is_other_code(each.a.module) for each in (node, node.parent))


@dataclass
class Healing:
    """Asks whether a difference is taken back.

    What is behind the tensor may have as much error and roundoff as what it was made of: ``sources``, ``u``.
    """

    step: Step
    graph: Graph
    sources: float
    u: float
    loss_agrees: Callable[[], bool]
    seen: set[Event] = field(default_factory=set)

    def heals(self, event: Event) -> bool:
        """Return True if all that is made of a tensor agrees, call by call towards the loss."""
        if event in self.seen or len(self.seen) > _DEEP:
            return event in self.seen
        self.seen.add(event)
        error = self._error(event)
        uses = self.graph.uses(event)
        if not uses:
            assert event.node is not None
            is_end = event.role is Role.OUTPUT and event.node.parent is None
            return is_end and error > BEFORE_LOSS and self.loss_agrees()
        known = [use for use in uses if self.step.error(use) is not None]
        if not known or (error < BEFORE_LOSS and all((its := self.step.error(use)) and its.is_bound for use in known)):
            return False
        first, *rest = sorted(known, key=lambda use: use.at)  # what is behind the first may have a fault of its own
        gone = (self._error(use) <= FADES * error or self._is_taken_back(event, error, use) for use in rest)
        nodes = {use.node.a.module for use in known if use.node is not None}
        buffers = self.step.parameters.events(Phase.UPDATE, Role.BUFFER)  # running statistics may keep it
        is_kept = any(self._error(each) > CARRIED * error for each in buffers if each.place and each.place[0] in nodes)
        return not is_kept and self._is_taken_back(event, error, first) and all(gone)

    def _is_taken_back(self, event: Event, error: float, use: Event) -> bool:
        limit, left = FORWARD.limit(max(self.u, use.u), self.sources), self._error(use)
        if left <= limit or limit > JUDGES_NOTHING:
            return limit <= JUDGES_NOTHING and self._is_gone(event, error, use, left)
        return left >= CARRIED * error and self.heals(use)

    def _is_gone(self, event: Event, error: float, use: Event, left: float) -> bool:
        """Return True if nothing is left of an error: neither as a share nor, at the same size, in numbers."""
        mine, its = self.step.error(event), self.step.error(use)
        if mine is None or its is None or left == 0:
            return True
        same_size = event.a is not None and use.a is not None and event.a.size == use.a.size
        return left <= FADES * error and not (same_size and its.apart > 0.5 * mine.apart)

    def _error(self, event: Event) -> float:
        found = self.step.error(event)
        return 0.0 if found is None else min(found.size, 1e3)
