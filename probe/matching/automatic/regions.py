"""From two modules that are a pair to the large blocks inside them that are pairs, and so on down.

What lies in a block does not change when its layers are fused, nested otherwise or renamed: the number of elements
of its weights. Blocks of the same number meet; what none of the other side meets is opened.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Set

from probe.matching.automatic.line import Line
from probe.matching.automatic.outline import Outline
from probe.matching.automatic.state import Found, Half
from probe.matching.automatic.weights.fused import stacked
from probe.matching.lists import grouped

_VOTERS = 24
_SURE, _IN_ORDER, _DOUBTFUL, _BY_PLACE = 0.95, 0.9, 0.6, 0.45

Chain = list[int]
"""a block, the block that holds all of its matrices, and so on inwards"""


class _Opened:
    """What stands inside a module of one side: blocks, by size, and single modules."""

    def __init__(self, half: Half, top: int) -> None:
        self.side, self._half = half.outline, half
        self._heap: list[tuple[int, float, int]] = []
        self.singles: list[int] = []
        self.add(self.side.children(top))
        if self.side.weights[top] and not half.has(top):  # weights of its own, beside those inside
            self.singles.append(top)

    def add(self, modules: Iterable[int]) -> None:
        """Put modules among the blocks or the singles; what is neither is opened."""
        stack = list(modules)
        while stack:
            index = stack.pop()
            if index in self._half.ignored:
                continue
            if index in self._half.partner:
                self.singles.append(index)
            elif self.side.is_block(index):
                heapq.heappush(self._heap, (-self.side.core[index], self._half.order[index], index))
            elif self.side.tree.children[index]:
                if self.side.weights[index]:
                    self.singles.append(index)
                stack.extend(self.side.children(index))
            elif "Identity" not in self.side.tree.class_name(index) and not self.side.is_list(index):
                self.singles.append(index)

    @property
    def largest(self) -> int:
        """Size of the largest blocks that are left."""
        return -self._heap[0][0] if self._heap else 0

    def take(self, size: int) -> list[Chain]:
        """Remove all blocks of a size, in order."""
        found = []
        while self._heap and -self._heap[0][0] == size:
            found.append(self._chain(heapq.heappop(self._heap)[2]))
        return found

    def _chain(self, index: int) -> Chain:
        chain = [index]
        while True:
            inner = [
                child for child in self.side.children(chain[-1])
                if self.side.core[child] == self.side.core[index] and self.side.is_block(child)
                and child not in self._half.partner
            ]  # fmt: skip
            if len(inner) != 1:
                return chain
            chain.append(inner[0])

    def open(self, chain: Chain, *, with_last: bool) -> None:
        """Add what a block holds; of one that met another all but what its last member holds."""
        for place, index in enumerate(chain):
            is_last = place == len(chain) - 1
            if is_last and not with_last:
                continue
            if self.side.weights[index]:
                self.singles.append(index)
            following = None if is_last else chain[place + 1]
            self.add([child for child in self.side.children(index) if child != following])


def match_inside(found: Found, top_a: int, top_b: int, confidence: float) -> list[tuple[int, int, float]]:
    """Pair what stands inside two modules; return the blocks that are to be looked into next."""
    a, b = (_Opened(half, top) for half, top in zip(found.sides.values(), (top_a, top_b), strict=True))
    inner: list[tuple[int, int, float]] = []
    met: dict[int, int] = {}
    while size := max(a.largest, b.largest):
        mine, theirs = a.take(size), b.take(size)
        pairs = list(_met(found, mine, theirs)) if mine and theirs else []
        for i, j, sure in pairs:
            met[mine[i][0]] = theirs[j][0]
            last_a, last_b = mine[i][-1], theirs[j][-1]
            sure = min(confidence, sure)
            if found.lacks_sizes:
                inner.append((last_a, last_b, sure))
            elif found.a.stack(last_a) != found.b.stack(last_b):
                stacked(found, mine[i], theirs[j], sure)
            elif found.a.stack(last_a):
                del met[mine[i][0]]  # one module on both sides
                a.singles.append(last_a)
                b.singles.append(last_b)
            else:
                inner.append((last_a, last_b, sure))
        taken = {i for i, _, _ in pairs}, {j for _, j, _ in pairs}
        for opened, chains, done in ((a, mine, taken[0]), (b, theirs, taken[1])):
            for place, chain in enumerate(chains):
                if place not in done and opened.side.stack(chain[-1]) and not found.lacks_sizes:
                    opened.singles.append(chain[-1])
                    opened.open(chain, with_last=False)
                else:
                    opened.open(chain, with_last=place not in done)
    Line(found, a.singles, b.singles, met, confidence).match()
    return inner


def _met(found: Found, mine: list[Chain], theirs: list[Chain]) -> Iterator[tuple[int, int, float]]:
    """Yield which blocks of one size are which, by place, and how sure it is."""
    by_values = _elected(found, mine, theirs)
    for i, j in by_values.items():
        yield i, j, _SURE
    done_a, done_b = set(by_values), set(by_values.values())
    for by_class in (True, False):
        groups, others = _by_rows(found.a, mine, done_a, by_class), _by_rows(found.b, theirs, done_b, by_class)
        for key, group in groups.items():
            alike = others.get(key, [])
            is_even = len(group) == len(alike)
            if is_even or not (by_class or found.same_weights):
                for i, j in zip(group, alike, strict=False):
                    yield i, j, _sure(found, mine[i][0], len(group)) if is_even else _BY_PLACE
                    done_a.add(i)
                    done_b.add(j)


def _sure(found: Found, index: int, group: int) -> float:
    matrices = (weight for k in found.a.inside(index) for weight in found.a.matrices(k))
    if found.same_weights and any(w.numbers is not None and w.numbers.is_telling for w in matrices):
        return _DOUBTFUL  # the others have the same weights, this one has not
    return _IN_ORDER if group > 1 else _SURE


def _by_rows(side: Outline, chains: list[Chain], done: Set[int], by_class: bool) -> dict[Hashable, list[int]]:
    """Return the places of blocks that are left, by how many rows of which length are in them, and their classes."""

    def key(place: int) -> Hashable:
        last = chains[place][-1]
        return side.tree.class_name(last) if by_class else "", frozenset(side.rows[last].items())

    return grouped((place for place in range(len(chains)) if place not in done), key)


def _elected(found: Found, mine: list[Chain], theirs: list[Chain]) -> dict[int, int]:
    """Let what is known below each block of A say which block of B it is; most must agree."""
    begins = sorted((found.b.begin[chain[0]], place) for place, chain in enumerate(theirs))
    starts = [begin for begin, _ in begins]
    chosen: dict[int, tuple[int, int]] = {}
    for place, chain in enumerate(mine):
        votes: dict[int, int] = defaultdict(int)
        known = found.known_below(chain[0], _VOTERS)
        for module in known:
            at = bisect_right(starts, found.b.begin[module]) - 1
            if at >= 0 and found.b.is_below(module, theirs[begins[at][1]][0]):
                votes[begins[at][1]] += 1
        if votes:
            best = max(votes, key=lambda each: votes[each])
            if 2 * votes[best] > len(known):
                chosen[place] = best, votes[best]
    result: dict[int, int] = {}
    for place, (other, _) in sorted(chosen.items(), key=lambda item: -item[1][1]):
        if other not in result.values():
            result[place] = other
    return result
