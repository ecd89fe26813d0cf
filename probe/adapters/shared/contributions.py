"""What one call of a module alone contributes to the gradients of its inputs: what crosses from its graph to theirs."""

from __future__ import annotations

import abc
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from typing import Any

from probe.adapters.base import Removal, Tensor

NODES_LIMIT = 256

Node = Any
Edge = tuple[Hashable, int]
"""(a node's key, the number of its output)"""
Place = tuple[Node, int]
"""(a node of the call, the number of its input)"""


class Graph(abc.ABC):
    """The graph that backward walks, as a framework shows it: hooks can be registered on its nodes."""

    @abc.abstractmethod
    def crossings(self, roots: list[Node], wanted: Collection[Edge], start: int) -> dict[Edge, list[Place]]:
        """Find, for each wanted edge, the places in the graph of a call that lead to it.

        Only nodes that were made since ``start`` are walked: the call made them. Where more than NODES_LIMIT are met,
        nothing is returned. Each framework walks by itself: it tells nodes in its own way, and this is done at every
        call.
        """

    def kept(self, gradient: Tensor) -> Tensor:
        """Return what is kept of a gradient until the others are there."""
        return gradient

    @abc.abstractmethod
    def added(self, parts: Sequence[Tensor]) -> Tensor:
        """Return the sum of gradients, as a new tensor."""

    def runs(self) -> bool:
        """Return True if the backward pass computes anything; it may be traced only, and what hooks do with it."""
        return True

    def watch(
        self,
        edges: Sequence[tuple[Edge, int] | None],
        outputs: Iterable[Node | None],
        found: Callable[[int, Tensor], None],
    ) -> dict[int, Removal | None]:
        """Do what `probe.adapters.base.Adapter.on_call_gradient` says, given the nodes of a call's outputs.

        ``edges`` has by input where it stands in the graph, and the number that nodes had come to before the call.
        """
        wanted: dict[Edge, list[int]] = {}
        start = 0
        for index, given in enumerate(edges):
            if given is not None:
                edge, start = given
                wanted.setdefault(edge, []).append(index)
        if not wanted:
            return {}
        roots = [node for node in outputs if node is not None]
        return {
            wanted[edge][0]: self._collect(places, wanted[edge][0], found)
            for edge, places in self.crossings(roots, wanted, start).items()
            if len(wanted[edge]) == 1
        }

    def _collect(self, places: list[Place], index: int, found: Callable[[int, Any], None]) -> Removal | None:
        """Watch the gradients that cross the given places; if they are several, return what reports their sum."""
        if len(places) == 1:
            ((node, place),) = places
            node.register_hook(_Crossing(place, index, found, self))
            return None
        parts = _Parts(self, len(places), index, found)
        for which, (node, place) in enumerate(places):
            node.register_hook(_Crossing(place, which, parts.keep, self))
        return parts.report


class _Parts:
    """What crosses in several places, until all of it is there."""

    __slots__ = ("_count", "_found", "_graph", "_index", "_parts")

    def __init__(self, graph: Graph, count: int, index: int, found: Callable[[int, Any], None]) -> None:
        self._graph, self._count, self._index, self._found = graph, count, index, found
        self._parts: dict[int, Tensor] = {}

    def keep(self, which: int, gradient: Tensor) -> None:
        """Keep a part; report the sum with the last."""
        self._parts[which] = self._graph.kept(gradient)
        if len(self._parts) == self._count:
            self.report()

    def report(self) -> None:
        """Report the sum of what has come."""
        arrived = [self._parts[key] for key in sorted(self._parts)]
        self._parts.clear()
        if arrived:
            try:
                total: object = self._graph.added(arrived)
            except Exception as error:  # noqa: BLE001  out of memory, mostly; the recorder says what is missing
                total = error
            self._found(self._index, total)


class _Crossing:
    """A hook for a node, which must not hold a node: the two would never be freed. One object: a closure would be five."""

    __slots__ = ("_found", "_graph", "_place", "_which")

    def __init__(self, place: int, which: int, found: Callable[[int, Tensor], None], graph: Graph) -> None:
        self._place, self._which, self._found, self._graph = place, which, found, graph

    def __call__(self, grad_inputs: tuple[Any, ...], grad_outputs: tuple[Any, ...]) -> None:
        if self._graph.runs() and grad_inputs[self._place] is not None:
            self._found(self._which, grad_inputs[self._place])
