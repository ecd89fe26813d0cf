"""The pairs as they are found."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field

from probe.matching.automatic import values
from probe.matching.automatic.likeness import kind_of, ranks_of
from probe.matching.automatic.outline import Outline, is_matrix
from probe.matching.result import Bundle, Place, Reason, View, WeightBundle


@dataclass
class Found:
    """Pairs of modules of A and B, and what is known that leads to more of them."""

    a: Outline
    b: Outline
    of_a: dict[int, int] = field(default_factory=dict)
    of_b: dict[int, int] = field(default_factory=dict)
    given: frozenset[int] = frozenset()
    """modules of A whose pairs were there before"""
    why: dict[int, tuple[Reason, float]] = field(default_factory=dict)
    """reason and confidence of what was found, by the module of A"""
    bundles: list[Bundle] = field(default_factory=list)
    weight_bundles: list[WeightBundle] = field(default_factory=list)
    views_a: dict[Place, View] = field(default_factory=dict)
    views_b: dict[Place, View] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)
    """parts of bundles in A, and the module of B that they are part of"""
    parts_b: dict[int, int] = field(default_factory=dict)
    ignored_a: frozenset[int] = frozenset()
    ignored_b: frozenset[int] = frozenset()

    def __post_init__(self) -> None:
        self.lacks_sizes = self.a.lacks_sizes or self.b.lacks_sizes
        if self.lacks_sizes:
            self.a.count_lists()
            self.b.count_lists()
        by_calls = bool(self.a.first_call) and bool(self.b.first_call)
        self.order_a, self.order_b = self.a.order(by_calls), self.b.order(by_calls)
        self.by_calls = by_calls
        if not by_calls:
            _sort_siblings(self.a, self.order_a)
            _sort_siblings(self.b, self.order_b)
        pins = values.anchors(self.a, self.b)
        self.same_weights = values.are_same_weights(self.a, self.b, pins)
        self.pins = {
            i: j for i, j in pins.items()
            if i not in self.of_a and j not in self.of_b and i not in self.ignored_a and j not in self.ignored_b
        }  # fmt: skip
        self.known = {**self.of_a, **self.pins}
        self._places = sorted(self.a.begin[i] for i in self.known)

    def pair(self, i: int, j: int, reason: Reason, confidence: float) -> bool:
        """Keep a pair unless either has a partner, or is left out."""
        if self.has_a(i) or self.has_b(j) or i in self.ignored_a or j in self.ignored_b:
            return False
        self.of_a[i], self.of_b[j] = j, i
        self.why[i] = reason, round(confidence, 3)
        return True

    def has_a(self, i: int) -> bool:
        """Tell whether a module of A has a partner, or is part of one."""
        return i in self.of_a or i in self.parts

    def has_b(self, j: int) -> bool:
        """Tell whether a module of B has a partner, or is part of one."""
        return j in self.of_b or j in self.parts_b

    def confidence(self, i: int) -> float:
        """Return how sure the pair of a module of A is."""
        return self.why[i][1] if i in self.why else 1.0

    def known_below(self, i: int, most: int) -> list[int]:
        """Return some of the modules of B that are known to belong to what is below a module of A."""
        low = bisect_left(self._places, self.a.begin[i])
        high = bisect_right(self._places, self.a.end[i])
        step = max(1, (high - low) // most)
        return [self.known[self.a.preorder[place]] for place in self._places[low:high:step]]

    def weights_differ(self, i: int, j: int) -> bool:
        """Tell whether the weights say that two modules are not the same one."""
        return self.same_weights and values.agree(self.a, i, self.b, j) is False


def _sort_siblings(side: Outline, order: list[float]) -> None:
    """Where nothing was seen to run, put the matrices, and the norms, below one module in the order in which they would."""
    for index in range(len(side)):
        leaves = [k for k in side.children(index) if not side.tree.children[k]]
        norms = [k for k in leaves if kind_of(side.tree.class_name(k)) == "norm"]
        for siblings in ([k for k in leaves if is_matrix(side, k)], norms):
            names, classes = ([of(k) for k in siblings] for of in (side.tree.name, side.tree.class_name))
            ranks = dict(zip(siblings, ranks_of(names, classes), strict=True))
            if len(set(ranks.values())) > 1:
                places = sorted(order[k] for k in siblings)
                for place, k in zip(places, sorted(siblings, key=lambda k: (ranks[k], order[k])), strict=True):
                    order[k] = place
