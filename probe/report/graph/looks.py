"""What a comparison says of the nodes and the edges of the graph in one phase."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from probe.answer.comparison import Comparison
from probe.answer.result import SlotResult
from probe.records import Phase, Role
from probe.report.graph.both import ABSENT, BothFlows, pairs_of
from probe.report.graph.flow import Edge, Kind
from probe.report.graph.joined import Joined
from probe.report.measured import judged
from probe.verdict.steps.step import Step

_RANKS = {"introduced": 5, "inherited": 4, "unmatched": 3, "not judged": 2.5, "noise": 2, "equal": 1}
_BACK = {Role.INPUT: (Role.GRAD_INPUT, Role.GRAD_TOTAL), Role.OUTPUT: (Role.GRAD_OUTPUT,)}
"""where the gradient stands of what a call was given, and of what it returned"""
_GIVEN = Role.INPUT, Role.GRAD_OUTPUT
"""what a call is given in forward and in backward: wrong by itself, it is the code's around the call"""
_PASSES = Phase.FORWARD, Phase.BACKWARD
"""phases in which something goes along the edges"""
UNMATCHED, UNKNOWN = "unmatched", "not compared"


@dataclass(frozen=True, slots=True)
class Look:
    """How a node or an edge looks."""

    verdict: str = UNKNOWN
    """that of a pair of tensors, or that there is none"""
    error: float = math.nan
    """relative"""

    @property
    def rank(self) -> tuple[float, float]:
        """Sorts the worst last."""
        return _RANKS.get(self.verdict, 0), -1.0 if math.isnan(self.error) else self.error


class Looks:
    """Nodes and edges of one micro-batch in one phase."""

    def __init__(
        self, comparison: Comparison, step: Step, micro: int, flows: BothFlows, joined: Joined, phase: Phase
    ) -> None:
        self.slots, self.joined, self.phase = comparison.slots, joined, phase
        self._paths = tuple([module.path for module in side.reader.modules] for side in (step.a, step.b))
        self._alone = set(comparison.only_a), set(comparison.only_b)
        self._of = tuple(pairs_of(flow, tensors) for flow, tensors in flows.sides)
        self._edges = tuple({id(edge): at for at, edge in enumerate(flow.edges)} for flow, _ in flows.sides)
        self._by_call: dict[tuple[str, int], Look] = {}
        self._by_place: dict[tuple[str, int, Role, str], SlotResult] = {}
        for slot in comparison.slots:
            if (slot.step, slot.micro) == (step.a.step, micro) or (slot.step == step.a.step and phase not in _PASSES):
                self._add(slot)
        found = [each for each in comparison.divergences if each.phase is phase]
        self._found = (
            {ref.path for each in found for ref in each.a},
            {ref.path for each in found for ref in each.b if not each.a},
        )
        """by side, the paths of modules that are blamed; of B, where A has none"""

    def _add(self, slot: SlotResult) -> None:
        if slot.phase in _PASSES:
            self._by_place[slot.path_a, slot.call, slot.role, slot.slot_a] = slot
        if slot.phase is self.phase and slot.role not in _GIVEN:
            key = slot.path_a, slot.call
            self._by_call[key] = _worst([self._by_call.get(key, Look()), _look(slot)])

    def path(self, node: int, side: int) -> str | None:
        """Return the path of the module of a node on a side; None where it has none."""
        at = self.joined.places[node][side]
        module = ABSENT if at < 0 else self.joined.flows[side].nodes[at].module
        return None if module < 0 else self._paths[side][module]

    def node(self, node: int) -> Look:
        """Return how a node looks: as the worst of what its call returned, or as what code made."""
        mine, side = self.joined.node(node), self.joined.side(node)
        if mine.kind is not Kind.CALL:
            return self._tensor(self._of[side][1][self.joined.places[node][side]])
        path = self.path(node, side)
        look = Look() if side or path is None else self._by_call.get((path, mine.call), Look())
        if path in self._found[side] and look.verdict != "introduced":
            return Look("introduced", look.error)
        if look.verdict == UNKNOWN and path in self._alone[side]:
            return Look(UNMATCHED)
        return look

    def row(self, nodes: Iterable[int]) -> Look:
        """Return how nodes that are folded into one look: as the worst of them."""
        return _worst([self.node(node) for node in nodes])

    def way(self, edges: Sequence[Edge], side: int) -> Look:
        """Return how what goes from one node to another one looks: as the worst of it; what is wrong is inherited on its way."""
        worst = _worst([self._tensor(self._carried(edge, side)) for edge in edges])
        return Look("inherited", worst.error) if worst.verdict == "introduced" else worst

    def _carried(self, edge: Edge, side: int) -> int:
        target = self.joined.flows[side].nodes[edge.target]
        if self.phase is Phase.BACKWARD and not edge.is_around and target.kind is Kind.CODE:
            return self._of[side][1][edge.target]  # the gradient of a sum is that of each of its parts
        return self._of[side][0][self._edges[side][id(edge)]]

    def _tensor(self, at: int) -> Look:
        """Return how a pair of tensors looks in this phase: in backward, its gradient."""
        if at < 0 or self.phase not in _PASSES:
            return Look()
        slot = self.slots[at]
        if self.phase is Phase.FORWARD:
            return _look(slot)
        keys = [(slot.path_a, slot.call, role, slot.slot_a) for role in _BACK.get(slot.role, ())]
        found = [self._by_place[key] for key in keys if key in self._by_place]
        return _look(found[0]) if found else Look()


def _look(slot: SlotResult) -> Look:
    return Look(slot.verdict, judged(slot)) if slot.verdict in _RANKS else Look()


def _worst(looks: Iterable[Look]) -> Look:
    return max(looks, key=lambda look: look.rank, default=Look())
