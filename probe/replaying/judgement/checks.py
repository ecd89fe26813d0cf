"""What of a pass through B is held against A's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from probe.comparison.noise.interface import SCALE_MEASURE
from probe.comparison.noise.interface import Check as Held
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.rows import Key
from probe.comparison.steps.step_half import Event, Node
from probe.numbers.statistics import unit_roundoff
from probe.records import Phase, Role
from probe.replaying.judgement.limits import INTEGERS, Limit, limit_of
from probe.structure.tree import Tree

Skipped = frozenset[tuple[int, int, int, Role, str]]
_COUNTER = "num_batches_tracked"
_VARIANCE = "running_var"


@dataclass(frozen=True)
class Passed:
    """What a pass says of itself."""

    unpulled: frozenset[Key] = frozenset()
    """calls of A that nothing was pulled back through"""
    skipped: Skipped = frozenset()
    """what cannot be held against A's, by the call in B, the role and the slot"""
    with_inner: frozenset[tuple[int, int, int, str]] = frozenset()
    """gradients, by the call in B and the slot of what it returned, of which a part came through code inside of calls"""
    is_of_one_framework: bool = True


@dataclass(eq=False)
class Check:
    """A tensor that is held against A's."""

    event: Event
    node: Node | None
    limit: Limit
    u: float
    """unit roundoff of the least precise dtype on the way"""
    moved: float = math.nan

    @property
    def error(self) -> float:
        """The relative error."""
        return math.nan if self.event.metrics is None else self.event.metrics.rel_l2

    @property
    def scale(self) -> float:
        """By how much the norm is off."""
        return math.nan if self.event.metrics is None else abs(self.event.metrics.norm_ratio - 1)

    @property
    def is_suspect(self) -> bool:
        """Whether it is not rounding whatever is computed."""
        return self.error > self.limit.unasked(self.u) or self.scale > self.limit.of_scale(self.u, math.nan)

    @property
    def most(self) -> float:
        """The largest error that is rounding."""
        return self.limit.of(self.u, self.moved)

    @property
    def held(self) -> Held:
        """What is held against what: the error, or where that alone is more than rounding, how far the norm is off."""
        of_norm = Held(self.scale, self.limit.of_scale(self.u, self.moved), SCALE_MEASURE)
        own = Held(self.error, self.most)
        return of_norm.explained() if of_norm.error > of_norm.limit and not own.is_wrong else own


class Calls:
    """The calls of a step that both sides made, and which of them B's gradients were pulled back through.

    Parameters
    ----------
    pairs
        A, and the recording of a pass through B
    passed
        what the pass says of itself
    """

    def __init__(self, pairs: StepPairs, passed: Passed) -> None:
        self.pairs, self.passed = pairs, passed
        self.tree_a = Tree(pairs.a.reader.modules)
        self.nodes = sorted(pairs.nodes.values(), key=lambda node: node.begin)
        self.children: dict[Node | None, list[Node]] = {}
        for node in self.nodes:
            self.children.setdefault(node.parent, []).append(node)

    def is_unpulled(self, node: Node | None) -> bool:
        """Tell whether nothing was pulled back through a call."""
        return node is not None and self.pairs.half("A").key(node) in self.passed.unpulled

    def is_incomplete(self, pair: int) -> bool:
        """Tell whether a part of the gradients of a module's own parameters is missing."""
        owner = self.owner(pair)
        return any(at == owner for _, at, _ in self.passed.unpulled)

    def owner(self, pair: int) -> int:
        """Return the module of A whose calls use a module's own parameters: itself, or the nearest around it that is called."""
        called = {self.pairs.matching.pairs[node.pair].a for node in self.nodes} | {
            key[1] for key in self.passed.unpulled
        }
        module = self.pairs.matching.pairs[pair].a
        while module >= 0 and module not in called:
            module = self.tree_a.modules[module].parent
        return module

    def using(self, pair: int) -> list[Node]:
        """Return the calls that use a module's own parameters."""
        owner = self.owner(pair)
        return [node for node in self.nodes if self.pairs.matching.pairs[node.pair].a == owner]


class Checks:
    """What can be held against A's: weights, what modules return and hand on, and gradients.

    Parameters
    ----------
    calls
        of the step
    """

    def __init__(self, calls: Calls) -> None:
        self.calls, self.pairs, self.passed = calls, calls.pairs, calls.passed
        self._weights = {(each.pair, each.slot_a) for each in self.pairs.initial_weights if not each.is_one_sided}
        """weights that both sides have"""
        self._units = {node: self._unit(node) for node in calls.nodes}

    def all(self) -> Iterator[Check]:
        """Yield what can be held against A's: weights, forward by forward what came out, then backwards, then what is left."""
        for role in (Role.PARAM, Role.BUFFER):
            yield from (
                self._check(each, None)
                for each in self.pairs.parameter_events(Phase.INIT, role)
                if self._counts(each, None)
            )
        micros = sorted({node.micro for node in self.calls.nodes}, key=lambda micro: (micro < 0, abs(micro)))
        for micro in micros:
            for backward in (False, True):
                events = [
                    pair for pair in self.pairs.node_events(micro, backward=backward) if self._counts(pair[1], pair[0])
                ]
                events.sort(key=lambda pair: self._order(pair[1]))
                yield from (self._check(event, node) for node, event in events)
        for phase, role in ((Phase.GRADIENT, Role.PARAM_GRAD), (Phase.UPDATE, Role.BUFFER)):
            yield from (
                self._check(each, None) for each in self.pairs.parameter_events(phase, role) if self._counts(each, None)
            )

    def _order(self, event: Event) -> int:
        side, row = (self.pairs.a, event.row_a) if event.row_a >= 0 else (self.pairs.b, event.row_b)
        return int(side.columns["order"][row])

    def _counts(self, event: Event, node: Node | None) -> bool:
        """Tell whether something is to be held against A's; of what one side alone has, only gradients that are missing are."""
        if node is not None:
            key = self.pairs.half("B").key(node)
            places = {(*key, event.role, event.slot_b), (*key, event.role, ""), (*key, event.role, event.slot_a)}
            if places & self.passed.skipped:
                return False
            is_backward = event.phase is Phase.BACKWARD
            made_by = node.parent if event.role in (Role.GRAD_OUTPUT, Role.GRAD_TOTAL) else node
            if is_backward and (
                (made_by is None and event.row_b < 0) or self.calls.is_unpulled(made_by)
                or (event.role is Role.GRAD_TOTAL and self.calls.is_unpulled(node))
            ):  # fmt: skip
                return False
            return not event.is_one_sided or (is_backward and event.row_a >= 0 and event.role is not Role.GRAD_TOTAL)
        if event.phase is Phase.UPDATE and self._is_counted_otherwise(event):
            return False
        if event.role is Role.PARAM_GRAD:
            is_there = not event.is_one_sided or (event.pair, event.slot_a) in self._weights
            return event.row_a >= 0 and is_there and not self.calls.is_incomplete(event.pair)
        return not event.is_one_sided

    def _is_counted_otherwise(self, event: Event) -> bool:
        """Tell whether frameworks count a buffer in their own ways."""
        name = self.pairs.canonical(event)
        return name == _COUNTER or (name == _VARIANCE and not self.passed.is_of_one_framework)

    def _check(self, event: Event, node: Node | None) -> Check:
        a, b = self.pairs.a.roundoffs[event.row_a], 0.0 if event.row_b < 0 else self.pairs.b.roundoffs[event.row_b]
        u = max(a, b)
        if not u:
            return Check(event, node, INTEGERS, 0.0)
        maker = node
        if node is not None and event.role in (Role.INPUT, Role.GRAD_OUTPUT, Role.GRAD_TOTAL):
            maker = node.parent
        of_calls = [self._units[each] for each in self.calls.nodes if each.pair == event.pair] if node is None else []
        around = self._units.get(maker, 0.0) if maker is not None else max(of_calls, default=0.0)
        limit = limit_of(event.role, math.prod(self.pairs.a.shapes[event.row_a]))
        limit = limit if self.passed.is_of_one_framework else limit.between_frameworks()
        return Check(event, node, limit, u if event.role in (Role.PARAM, Role.BUFFER) else max(u, around))

    def _unit(self, node: Node) -> float:
        """Return the unit roundoff of what a call computes with: what goes in, and what it is cast to."""
        found = [unit_roundoff(node.autocast) if node.autocast else 0.0]
        for half in self.pairs.halves:
            roles = [
                (half.key(node), Role.INPUT),
                *((half.key(each), Role.OUTPUT) for each in self.calls.children.get(node, ())),
            ]
            for key, role in roles:
                found += [half.side.roundoffs[row] for rows in half.rows.get(key, role).values() for row in rows]
        return max(found)

    def key(self, check: Check) -> Key:
        """Return the call in B that an event is of."""
        if check.node is not None:
            return self.pairs.half("B").key(check.node)
        return 0, self.pairs.matching.pairs[check.event.pair].b, 0
