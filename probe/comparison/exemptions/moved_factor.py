"""Outputs of modules that differ from the other side's, where all that is made of them agrees: the border lies elsewhere.

One implementation scales embeddings inside of the module, or activates what a BatchNorm or a Linear returns (``nn.BatchNorm(act="relu")``,
``nn.Dense(activation="relu")``), another one in the code that calls it. Nothing is computed otherwise then. What comes back to a multiple
is the inverse multiple; what comes back to anything else is the gradient of another tensor.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence

from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.rows import Key
from probe.comparison.steps.step_half import Event, Node, StepHalf
from probe.records import Role

_ONE_DIRECTION = 0.999
"""cosines from which on a multiple is looked for; whether it is one is measured"""
_CLEARLY = 0.1
"""share of the multiple's own error that those of its uses may be at most, to agree while it does not"""

_Taken = dict[object, list[tuple[Node, Event]]]


class MovedFactors:
    """What becomes of the tensors of a micro-batch's forward pass.

    Parameters
    ----------
    pairs
        the step's paired calls
    events
        the forward events of the micro-batch
    """

    def __init__(self, pairs: StepPairs, events: Sequence[tuple[Node, Event]]) -> None:
        self._pairs, self._events = pairs, events
        self._given: dict[str, dict[object, list[tuple[int, Key]]]] = {}

    def factor(self, node: Node, event: Event, limit: float) -> float:
        """Return what B's output is times A's where it may be a multiple and is made up for; else 1.0."""
        metrics = event.metrics
        if metrics is None or not 0 < metrics.norm_ratio < math.inf:
            return 1.0
        is_multiple = min(abs(metrics.coherence), metrics.cosine) > _ONE_DIRECTION
        return metrics.norm_ratio if is_multiple and self.error_of_uses(node, event, limit) is not None else 1.0

    def error_of_uses(self, node: Node, event: Event, limit: float) -> float | None:
        """Return the largest error of an output's direct uses where all of them agree, up to a limit; None where one does not.

        A use is a later call that is given the tensor itself on one side (on the other one, what code made of what the module returns
        there), or a caller that returns it. There has to be one. What was there before, and is only passed on, may be used as what it
        was: of that nothing is told.
        """
        metrics = event.metrics
        if event.role is not Role.OUTPUT or node.parent is None or metrics is None or metrics.is_lower_bound:
            return None
        if self._is_passed_on(node, event):
            return None
        limit = min(limit, _CLEARLY * metrics.rel_l2)
        uses = self._uses(node, event)
        if not uses or not all(self._agrees(use, limit) for use in uses):
            return None
        return max(use.metrics.rel_l2 for use in uses if use.metrics is not None)

    def error_of_next(self, node: Node, event: Event, limit: float) -> float | None:
        """Return the error of what the next module of one side makes of an output, against the other side's output; None where none agrees.

        A norm that activates what it returns is the norm and the activation of the other side. The next module has no partner, or one that
        the other side calls inside of this one.
        """
        if event.role is not Role.OUTPUT or event.is_one_sided:
            return None
        rows, whole = (event.row_a, event.row_b), event.metrics
        try:
            for half in self._pairs.halves:
                for made in self._made_next(half, node, half.row(event)):
                    event.row_a, event.row_b = (made, rows[1]) if half.name == "A" else (rows[0], made)
                    found = self._pairs.measured(event, 1.0)
                    if found.is_known and found.rel_l2 <= limit:
                        return found.rel_l2
        finally:
            (event.row_a, event.row_b), event.metrics = rows, whole
        return None

    def _made_next(self, half: StepHalf, node: Node, row: int) -> list[int]:
        """Return the rows of what a side's calls return that are given a tensor next, and that the other side does not call behind it."""
        digest, end = half.side.digest(row), half.span(node)[1]
        other = self._pairs.half(half.other).span(node)
        users = [] if digest is None else self._users(half).get(digest, [])
        keys = [
            key
            for begin, key in users
            if begin >= end and key[0] == node.micro
            and ((user := self._node_at(half, key)) is None or other[0] <= self._pairs.half(half.other).span(user)[0] <= other[1])
        ]  # fmt: skip
        made = [half.rows.get(key, Role.OUTPUT) for key in keys]
        return [rows[0] for slots in made if len(slots) == 1 for rows in slots.values()]

    def _node_at(self, half: StepHalf, key: Key) -> Node | None:
        """Return the paired call that a side's call is; None where it has no partner."""
        return self._nodes[half.name].get(key)

    @functools.cached_property
    def _nodes(self) -> dict[str, dict[Key, Node]]:
        return {half.name: {half.key(node): node for node in self._pairs.nodes.values()} for half in self._pairs.halves}

    def _users(self, half: StepHalf) -> dict[object, list[tuple[int, Key]]]:
        """Return when the calls of a side begin that are given a tensor, and which they are, by its hash."""
        if half.name not in self._given:
            found: dict[object, list[tuple[int, Key]]] = {}
            for call in half.calls:
                for digest in half.hashes(call.key, Role.INPUT):
                    found.setdefault(digest, []).append((call.begin, call.key))
            self._given[half.name] = found
        return self._given[half.name]

    def _is_passed_on(self, node: Node, event: Event) -> bool:
        """Tell whether a side gave the tensor, as it is, to a call before this one ended there: it was there before."""
        a, b = self._taken(event)
        early = [use for user, use in a if user.begin < node.end] + [
            use for user, use in b if user.begin_b < node.end_b
        ]
        return any(use.role is Role.INPUT for use in early)

    def _uses(self, node: Node, event: Event) -> list[Event]:
        """Return the uses of an output, on either side; what its caller returns as it is on both sides is none."""
        around = set(node.ancestors())
        found = {id(use): (user, use) for taken in self._taken(event) for user, use in taken}
        return [
            use
            for user, use in found.values()
            if use.role is Role.INPUT or (user in around and self._digests(use) != self._digests(event))
        ]

    def _taken(self, event: Event) -> Iterator[list[tuple[Node, Event]]]:
        """Yield, for each side, the calls and events that have an event's tensor there."""
        for by_digest, digest in zip(self._by_digest, self._digests(event), strict=True):
            yield by_digest.get(digest, [])

    def _agrees(self, use: Event, limit: float) -> bool:
        return use.metrics is not None and not use.metrics.is_lower_bound and use.metrics.rel_l2 <= limit

    @functools.cached_property
    def _by_digest(self) -> tuple[_Taken, _Taken]:
        """The calls and events in which a side has a tensor, by its hash there."""
        found: tuple[_Taken, _Taken] = ({}, {})
        for node, event in self._events:
            if event.metrics is not None and event.role in (Role.INPUT, Role.OUTPUT):
                for by_digest, digest in zip(found, self._digests(event), strict=True):
                    by_digest.setdefault(digest, []).append((node, event))
        return found

    def _digests(self, event: Event) -> tuple[object, object]:
        return self._pairs.a.digest(event.row_a), self._pairs.b.digest(event.row_b)
