"""From two modules that are a pair to the large blocks inside them that are pairs, and so on down.

What lies in a block does not change when its layers are fused, nested otherwise or renamed: the number of elements
of its weights. Blocks of the same number meet; what none of the other side meets is opened.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence

from probe.matching.automatic.line import Line
from probe.matching.automatic.outline import Outline
from probe.matching.automatic.state import Found
from probe.matching.automatic.weights.fused import stacked

_VOTERS = 24
_SURE, _IN_ORDER, _DOUBTFUL, _BY_PLACE = 0.95, 0.9, 0.6, 0.45

Chain = list[int]
"""a block, the block that holds all of its matrices, and so on inwards"""


class _Opened:
    """What stands inside a module of one side: blocks, by size, and single modules."""

    def __init__(self, side: Outline, top: int, order: Sequence[float], done: Callable[[int], bool],
                 ignored: frozenset[int]) -> None:  # fmt: skip
        self.side, self._order, self._done, self._ignored = side, order, done, ignored
        self._heap: list[tuple[int, float, int]] = []
        self.singles: list[int] = []
        self.add(side.children(top))

    def add(self, modules: Iterator[int] | Sequence[int] | object) -> None:
        """Put modules among the blocks or the singles; what is neither is opened."""
        stack = list(modules)  # type: ignore[call-overload]
        while stack:
            index = stack.pop()
            if index in self._ignored:
                continue
            if self._done(index):
                self.singles.append(index)
            elif self.side.is_block(index):
                heapq.heappush(self._heap, (-self.side.core[index], self._order[index], index))
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
                and not self._done(child)
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
    a = _Opened(found.a, top_a, found.order_a, found.of_a.__contains__, found.ignored_a)
    b = _Opened(found.b, top_b, found.order_b, found.of_b.__contains__, found.ignored_b)
    for opened, top, is_paired in ((a, top_a, found.has_a(top_a)), (b, top_b, found.has_b(top_b))):
        if opened.side.weights[top] and not is_paired:  # weights of its own, beside those inside
            opened.singles.append(top)
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
    left_a = [i for i in range(len(mine)) if i not in by_values]
    elected = set(by_values.values())
    left_b = [j for j in range(len(theirs)) if j not in elected]
    done_a: set[int] = set()
    done_b: set[int] = set()
    for which in () if found.lacks_sizes else (0, 1, 2):
        for i, j, group in _one_each(
            found, mine, theirs, left_a, left_b, lambda side, k, which=which: side.prints[which][k]
        ):
            yield i, j, _sure(found, mine[i][0], group)
            done_a.add(i)
            done_b.add(j)
        left_a = [i for i in left_a if i not in done_a]
        left_b = [j for j in left_b if j not in done_b]
    rows = [("rows", found.a, mine, left_a), ("rows", found.b, theirs, left_b)]
    keyed = [_groups(side, chains, left, _rows_key) for _, side, chains, left in rows]
    for key, group in keyed[0].items():
        others = keyed[1].get(key, [])
        if not others:
            continue
        if len(group) == len(others):
            for i, j in zip(group, others, strict=True):
                yield i, j, _sure(found, mine[i][0], len(group))
        elif not found.same_weights:
            for i, j in zip(group, others, strict=False):
                yield i, j, _BY_PLACE


def _sure(found: Found, index: int, group: int) -> float:
    if found.same_weights and any(w.numbers is not None and w.numbers.is_telling for w in _matrices(found.a, index)):
        return _DOUBTFUL  # the others have the same weights, this one has not
    return _IN_ORDER if group > 1 else _SURE


def _matrices(side: Outline, top: int) -> Iterator[object]:
    for place in range(side.begin[top], side.end[top] + 1):
        yield from (w for w in side.weights[side.preorder[place]] if len(w.shape) > 1)


def _rows_key(side: Outline, index: int) -> Hashable:
    return frozenset(side.rows[index].items())


def _groups(
    side: Outline, chains: list[Chain], left: list[int], key: Callable[[Outline, int], Hashable]
) -> dict[Hashable, list[int]]:
    found: dict[Hashable, list[int]] = defaultdict(list)
    for place in left:
        found[key(side, chains[place][-1])].append(place)
    return found


def _one_each(
    found: Found, mine: list[Chain], theirs: list[Chain], left_a: list[int], left_b: list[int],
    key: Callable[[Outline, int], Hashable],
) -> list[tuple[int, int, int]]:  # fmt: skip
    """Return pairs where both sides have as many of one fingerprint, and how many these are."""
    groups = _groups(found.a, mine, left_a, key)
    others = _groups(found.b, theirs, left_b, key)
    return [
        (i, j, len(group)) for which, group in groups.items() if len(group) == len(others.get(which, ()))
        for i, j in zip(group, others[which], strict=True)
    ]  # fmt: skip


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
    used: set[int] = set()
    for place, (other, _) in sorted(chosen.items(), key=lambda item: -item[1][1]):
        if other not in used:
            used.add(other)
            result[place] = other
    return result
