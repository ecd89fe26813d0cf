"""The pairs as they are found."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from probe.matching.automatic import values
from probe.matching.automatic.likeness import ranks_of
from probe.matching.automatic.outline import Outline
from probe.matching.lists import increasing
from probe.matching.result import Bundle, Place, Reason, View, WeightBundle


@dataclass
class Half:
    """One side of the pairs."""

    outline: Outline
    partner: dict[int, int] = field(default_factory=dict)
    parts: dict[int, int] = field(default_factory=dict)
    """modules that together with others are one of the other side, and that one"""
    ignored: frozenset[int] = frozenset()
    views: dict[Place, View] = field(default_factory=dict)
    order: list[float] = field(default_factory=list)
    """numbers by which modules sort as they run"""

    def counterpart(self, index: int) -> int | None:
        """Return the partner of a module, or what it is a part of."""
        return self.partner.get(index, self.parts.get(index))

    def has(self, index: int) -> bool:
        """Return True if a module has a partner, or is part of one."""
        return index in self.partner or index in self.parts


@dataclass
class Found:
    """Pairs of modules of A and B, and what is known that leads to more of them."""

    sides: dict[str, Half]
    """``A`` and ``B``"""
    why: dict[int, tuple[Reason, float]] = field(default_factory=dict)
    """reason and confidence of what was found, by the module of A"""
    bundles: list[Bundle] = field(default_factory=list)
    weight_bundles: list[WeightBundle] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.a, self.b = (half.outline for half in self.sides.values())
        self.of_a, self.of_b = (half.partner for half in self.sides.values())
        self.lacks_sizes = self.a.lacks_sizes or self.b.lacks_sizes
        self.by_calls = bool(self.a.first_call) and bool(self.b.first_call)
        for half in self.sides.values():
            if self.lacks_sizes:
                half.outline.count_lists()
            half.order = half.outline.order(self.by_calls)
            if not self.by_calls:
                _sort_siblings(half.outline, half.order)
        pins = values.anchors(self.a, self.b)
        self.same_weights = values.are_same_weights(self.a, self.b, pins)
        self.pins = {
            i: j for i, j in pins.items() if i not in self.of_a and j not in self.of_b and not self._is_ignored(i, j)
        }
        self.known = {**self.of_a, **self.pins}
        self._places = sorted(self.a.begin[i] for i in self.known)

    def _is_ignored(self, i: int, j: int) -> bool:
        return i in self.sides["A"].ignored or j in self.sides["B"].ignored

    def ends(self, side: str) -> tuple[Half, Half]:
        """Return a side, A or B, and the other one."""
        a, b = self.sides.values()
        return (a, b) if side == "A" else (b, a)

    def pair(self, i: int, j: int, reason: Reason, confidence: float) -> None:
        """Keep a pair unless either has a partner, or is left out."""
        if not (self.sides["A"].has(i) or self.sides["B"].has(j) or self._is_ignored(i, j)):
            self.of_a[i], self.of_b[j] = j, i
            self.why[i] = reason, round(confidence, 3)

    def forget(self, i: int) -> None:
        """Take back the pair of a module of A."""
        del self.of_b[self.of_a.pop(i)], self.why[i]

    def gaps(
        self, mine: Sequence[int], theirs: Sequence[int], met: Mapping[int, int] = MappingProxyType({})
    ) -> Iterator[tuple[list[int], list[int]]]:
        """Yield what lies between two neighbours that are known, as far as both sides have them in one order.

        The modules are given in order; some of them, ``met``, belong together and are no pairs.
        """
        a, b = self.sides.values()
        places, met_b = {j: place for place, j in enumerate(theirs)}, set(met.values())
        partners = ((place, met.get(i, a.counterpart(i))) for place, i in enumerate(mine))
        known = [(place, places[j]) for place, j in partners if j in places]
        anchors = [(-1, -1), *increasing(known), (len(mine), len(theirs))]
        for (left_a, left_b), (right_a, right_b) in zip(anchors, anchors[1:], strict=False):
            left = [i for i in mine[left_a + 1 : right_a] if not a.has(i) and i not in met]
            right = [j for j in theirs[left_b + 1 : right_b] if not b.has(j) and j not in met_b]
            if left and right:
                yield left, right

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
        """Return True if the weights say that two modules are not the same one."""
        return self.same_weights and values.agree(self.a, i, self.b, j) is False


def _sort_siblings(side: Outline, order: list[float]) -> None:
    """Where nothing was seen to run, put the matrices, and the norms, below one module in the order in which they would."""
    for index in range(len(side)):
        leaves = [k for k in side.children(index) if not side.tree.children[k]]
        norms = [k for k in leaves if side.kind(k) == "norm"]
        for siblings in ([k for k in leaves if side.is_matrix(k)], norms):
            names, classes = ([of(k) for k in siblings] for of in (side.tree.name, side.tree.class_name))
            ranks = dict(zip(siblings, ranks_of(names, classes), strict=True))
            if len(set(ranks.values())) > 1:
                places = sorted(order[k] for k in siblings)
                for place, k in zip(places, sorted(siblings, key=lambda k: (ranks[k], order[k])), strict=True):
                    order[k] = place
