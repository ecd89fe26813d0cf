"""Who answers for a wrong input where layers stand, or run, in another order."""

from __future__ import annotations

import functools
import math

from probe.comparison import tolerance
from probe.comparison.changes import OF_ORDER, change_at, exchanged, is_exchanged
from probe.comparison.ledger import Ledger
from probe.comparison.metrics import measure_pair
from probe.comparison.result import Divergence, Kind, NodeRef
from probe.comparison.side import Side
from probe.comparison.step_half import Event, Node
from probe.matching import Reason
from probe.matching.changes import Change
from probe.records import Phase, Role

_AS_GIVEN = 1e-2
"""relative error up to which two calls were given the same"""


class OrderCharger(Ledger):
    """Charges a wrong input to layers that are swapped, where the first of them begins."""

    def _charge_order(self, node: Node, event: Event) -> bool:
        """Charge a wrong input to the order of layers: they stand, or run, at other places in B."""
        paths = [self.pairs.a.reader.modules[self._module_a(each)].path for each in (node, *node.ancestors())]
        found = (change_at(self.pairs.changes, OF_ORDER, "A", [path]) for path in paths)
        change = next((each for each in found if each is not None), None)
        if change is not None:
            if change not in self._charged:
                self._charged.add(change)
                self._add_change(node, event, change)
            return True
        return self._charge_order_of_calls(node, event)

    def _add_change(self, node: Node, event: Event, change: Change) -> None:
        sides = zip((self.pairs.a, self.pairs.b), self._index, (change.a, change.b), strict=True)
        refs = [tuple(self._ref(side, node.micro, index[path]) for path in paths) for side, index, paths in sides]
        first = self.pairs.matching.pairs[self.pairs.pair_of_a[self._index[0][change.a[0]]]]
        by_weights = first.reason is Reason.SAME_VALUES
        phase, role, kind = (
            (Phase.INIT, Role.PARAM, Kind.INIT) if by_weights else (Phase.FORWARD, event.role, Kind.INTRODUCED)
        )
        assert event.metrics is not None
        facts = (
            change.text,
            f"the input {event.slot_a} of A's {self._path_a(node.pair)}, the first of them to run, differs (rel "
            f"{event.metrics.rel_l2:.1e}); what was there before it agrees",
        )
        hint = "look at the order in which the layers are built" + (", or their weights loaded" if by_weights else "")
        self._append(Divergence(
            phase, role, kind, self._confidence(event, None), refs[0], refs[1], None, math.nan, facts, hint,
        ))  # fmt: skip

    def _charge_order_of_calls(self, node: Node, event: Event) -> bool:
        siblings = [each for each in self.pairs.nodes.values() if each.parent is node.parent]
        pair = exchanged(node, siblings)
        if pair is None:
            return False
        mine, theirs = pair
        if not self._may_stand_for(mine, theirs) or self._is_harmless(node, mine, theirs):
            return False
        if (mine, theirs) in self._charged:
            return True
        self._charged.add((mine, theirs))
        if theirs.begin_b < mine.begin_b < theirs.end_b:
            self._add_held(mine, theirs, event)
            return True
        back = is_exchanged(mine, theirs, siblings)
        nodes = [mine, theirs] if back else [mine]
        partners = [theirs, mine] if back else [theirs]
        text = (
            f"{self._path_a(mine.pair)} and {self._path_a(theirs.pair)} are swapped: in B each runs where the other runs in A"
            if back
            else f"B calls {self._path_b(theirs.pair)} where A calls {self._path_a(mine.pair)}: the order differs"
        )
        modules = self.pairs.matching.pairs
        refs_a = tuple(self._ref(self.pairs.a, each.micro, modules[each.pair].a, each.call) for each in nodes)
        refs_b = tuple(self._ref(self.pairs.b, each.micro, modules[each.pair].b, each.call_b) for each in partners)
        assert event.metrics is not None
        self._append(Divergence(
            Phase.FORWARD, event.role, Kind.INTRODUCED, self._confidence(event, None), refs_a, refs_b, event.metrics,
            tolerance.FORWARD.limit(self.u(event), 0.0),
            (text, f"the input {event.slot_a} of {self._path_a(node.pair)} differs, what was there before it agrees"),
            "look at the order in which the code calls them",
        ), event)  # fmt: skip
        return True

    def _may_stand_for(self, mine: Node, theirs: Node) -> bool:
        """Tell whether B gives the call that it makes first what A gives the one that it makes first: else their order does not matter."""
        a, b = self.pairs.halves
        given = [
            [found[0] for found in half.rows.get(half.key(node), Role.INPUT).values()]
            for half, node in ((a, mine), (b, theirs))
        ]
        found = [measure_pair(a.side, i, b.side, j) for i in given[0] for j in given[1]]
        return not all(given) or any(each.is_known and each.rel_l2 <= _AS_GIVEN for each in found)

    def _add_held(self, inner: Node, outer: Node, event: Event) -> None:
        """Say that a call is inside another one in B, which in A it comes before: what the other one is given is something else."""
        name, holder = self._path_b(inner.pair), self._path_b(outer.pair)
        assert event.metrics is not None
        self._append(Divergence(
            Phase.FORWARD, event.role, Kind.INTRODUCED, self._confidence(event, None), *self.refs(outer.pair, outer, "", ""),
            event.metrics, tolerance.FORWARD.limit(self.u(event), 0.0),
            (f"B calls {name} inside {holder}, A before {self._path_a(outer.pair)}: the two are not given the same",),
            f"if B is meant so, {holder} is no counterpart of {self._path_a(outer.pair)}: leave it out of the mapping, and name what is in it",
        ), event)  # fmt: skip

    def _is_harmless(self, node: Node, mine: Node, theirs: Node) -> bool:
        """Tell whether two calls that come before a wrong one are given and return the same on both sides: so their order does not matter."""
        keys = {(each.pair, each.micro, each.call) for each in (mine, theirs)}
        found = [
            judged for judged in self.events
            if judged.event.phase is Phase.FORWARD and (judged.event.pair, judged.event.micro, judged.event.call) in keys
        ]  # fmt: skip
        roles = {(each.event.pair, each.event.role) for each in found}
        return (
            node is not mine and node is not theirs
            and all((each.pair, role) in roles for each in (mine, theirs) for role in (Role.INPUT, Role.OUTPUT))
            and all(each.verdict in ("equal", "noise") for each in found)
        )  # fmt: skip

    @staticmethod
    def _ref(side: Side, micro: int, module: int, call: int = 0) -> NodeRef:
        info = side.reader.modules[module]
        return NodeRef(side.step, micro, info.path, info.class_name, call, "")

    def _module_a(self, node: Node) -> int:
        return self.pairs.matching.pairs[node.pair].a

    @functools.cached_property
    def _index(self) -> tuple[dict[str, int], dict[str, int]]:
        """The modules of both sides by path."""
        a, b = ({m.path: i for i, m in enumerate(side.reader.modules)} for side in (self.pairs.a, self.pairs.b))
        return a, b
