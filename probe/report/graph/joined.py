"""Both sides' data flow as one tree of nodes, and the rows in which it is seen: some calls open, long runs of others folded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from probe.report.graph.both import ABSENT
from probe.report.graph.flow import Edge, Flow, Kind, Node

_MOST = 16
"""of the nodes in one call, that are all seen"""
_AROUND = 2
"""before and behind what is looked at, where there are more"""
_FEW = 3
"""calls in one, up to which the largest of them is opened too"""
_USES = 2
"""of what learns nothing, such as a mask, up to which they are drawn"""


@dataclass(frozen=True, slots=True)
class Row:
    """A node that is seen, or several that follow each other and are folded into one."""

    nodes: tuple[int, ...]
    depth: int
    """how many open calls are around it"""
    is_open: bool = False
    """what happens in it stands in the rows behind it, one deeper"""


@dataclass(slots=True)
class Ways:
    """What goes from one row to another one on a side."""

    edges: list[Edge] = field(default_factory=list)

    @property
    def is_known(self) -> bool:
        """One of them at least is no guess."""
        return any(edge.is_known for edge in self.edges)

    @property
    def learns(self) -> bool:
        """One of them at least requires gradients."""
        return any(edge.learns for edge in self.edges)


class Joined:
    """The nodes of A with those of B that they are, and those that B alone has, in the order in which they began.

    Parameters
    ----------
    a, b
        the flows; of one recording alone, only the first
    twins
        for each node of B the node of A that it is, −1 where it is none
    """

    def __init__(self, a: Flow, b: Flow | None = None, twins: Sequence[int] = ()) -> None:
        self.flows = (a,) if b is None else (a, b)
        self.places = [(at, ABSENT) for at in range(len(a.nodes))]
        """by node, where it stands among the nodes of A and of B"""
        self.of = [list(range(len(a.nodes))), list(twins)]
        """by side, and by where a node stands there, which node it is"""
        order, last = [float(at) for at in range(len(a.nodes))], -1.0
        for theirs, mine in enumerate(twins):
            if mine >= 0:
                self.places[mine], last = (mine, theirs), max(last, mine)
            else:
                self.of[1][theirs] = len(self.places)
                self.places.append((ABSENT, theirs))
                order.append(last + 0.5)
        self.parents = self._adopted()
        self.inner: dict[int, list[int]] = defaultdict(list)
        for node in sorted(self.parents, key=lambda node: (order[node], node)):
            self.inner[self.parents[node]].append(node)

    def _outer(self, node: int, side: int) -> int:
        at = self.places[node][side]
        parent = ABSENT if at < 0 else self.flows[side].nodes[at].parent
        return ABSENT if parent < 0 else self.of[side][parent]

    def _adopted(self) -> dict[int, int]:
        """Return the call around each node. One of one side alone, around pairs, is none: what it holds stands around it."""
        sides = range(len(self.flows))
        gone: set[int] = set()
        for node, place in enumerate(self.places):
            for side in sides if ABSENT not in place else ():
                around = self._outer(node, side)
                while around >= 0 and around not in gone:
                    if ABSENT in self.places[around]:
                        gone.add(around)
                    around = self._outer(around, side)
        found = {}
        for node in range(len(self.places)):
            if node not in gone:
                side = self.side(node)
                around = self._outer(node, side)
                while around in gone:
                    around = self._outer(around, side)
                found[node] = around
        return found

    def side(self, node: int) -> int:
        """Return the first side that has a node: 0 for A, 1 for B."""
        return 0 if self.places[node][0] >= 0 else 1

    def node(self, node: int) -> Node:
        """Return a node as the first side that has it tells it."""
        side = self.side(node)
        return self.flows[side].nodes[self.places[node][side]]

    def is_call(self, node: int) -> bool:
        """Return True if a node is a call of a module."""
        return self.node(node).kind is Kind.CALL

    def around(self, node: int) -> list[int]:
        """Return the calls around a node, the innermost one first."""
        found = []
        while (node := self.parents.get(node, ABSENT)) >= 0:
            found.append(node)
        return found

    def opened(self, node: int) -> set[int]:
        """Return the calls that are open where a node is looked at; of the model itself, those down to where several follow each other."""
        found = set(self.around(node)) if node >= 0 else set()
        if found:
            return found
        calls = [each for each in self.inner[ABSENT] if self.is_call(each)]
        while calls:
            largest = max(calls, key=lambda each: len(self.inner[each]))
            found.add(largest)
            calls = [each for each in self.inner[largest] if self.is_call(each)]
            calls = [each for each in calls if self.inner[each]] if len(calls) <= _FEW else []
        return found

    def rows(self, looked_at: int) -> list[Row]:
        """Return the rows that are seen where a node is looked at, −1 for the model itself."""
        opened = self.opened(looked_at)
        near = {looked_at, *opened}
        found: list[Row] = []
        left = [(nodes, 0) for nodes in reversed(list(_folded(self.inner[ABSENT], near)))]
        while left:
            nodes, depth = left.pop()
            inner = self.inner[nodes[0]] if len(nodes) == 1 and nodes[0] in opened else []
            found.append(Row(nodes, depth, bool(inner)))
            left.extend((each, depth + 1) for each in reversed(list(_folded(inner, near))))
        return found

    def ways(self, rows: Sequence[Row], side: int) -> dict[tuple[int, int], Ways]:
        """Return what goes from row to row on a side, by their places; not masks and the like, which many are given."""
        stands: dict[int, int] = {}
        for at, row in enumerate(rows):
            left = [] if row.is_open else list(row.nodes)
            while left:
                node = left.pop()
                stands[node] = at
                left.extend(self.inner.get(node, ()))
        found: dict[tuple[int, int], Ways] = defaultdict(Ways)
        for edge in self.flows[side].edges:
            source, target = (self.of[side][at] for at in (edge.source, edge.target))
            ends = stands.get(source, ABSENT), stands.get(target, ABSENT)
            is_seen = ABSENT not in ends and ends[0] != ends[1]
            if is_seen and not (edge.is_around and target not in rows[ends[1]].nodes):
                found[ends].edges.append(edge)
        uses: dict[int, int] = defaultdict(int)
        for (source, _), way in found.items():
            uses[source] += not way.learns
        return {ends: way for ends, way in found.items() if way.learns or uses[ends[0]] <= _USES}


def _folded(nodes: Sequence[int], near: Collection[int]) -> Iterator[tuple[int, ...]]:
    """Yield nodes that follow each other: all where they are few, else those around what is looked at, and between them runs."""
    last = len(nodes) - 1
    alone = set(range(last + 1)) if last < _MOST else {0, last}
    for at, node in enumerate(nodes):
        if node in near:
            alone.update(range(max(0, at - _AROUND), min(last, at + _AROUND) + 1))
    for is_alone, places in groupby(range(last + 1), alone.__contains__):
        run = tuple(nodes[at] for at in places)
        yield from ((node,) for node in run) if is_alone else (run,)
