"""Members of two lists of layers: which is which, where one list is longer or their order is not the same.

Initial weights tell layers apart; where they do not, classes and shapes do. What neither tells is left to the numbers
in the names, and said.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from itertools import product
from typing import TypeVar

from probe.matching.result import Reason

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

Fingerprint = Callable[[int], frozenset[object]]
"""what identifies the weights of a module and all below it: a set of keys, one for each weight"""

_CELLS = 250_000
"""pairs of members that are held against each other; longer lists are told by weights of which no two are alike"""
_OWN, _SHARED, _SHAPED, _SAME_CLASS, _OPEN = 16, 8, 3, 2, 1
_NUMBER = re.compile(r"\d{1,18}")


@dataclass(frozen=True, slots=True)
class Member:
    """One of a list."""

    number: int
    """that in its name"""
    class_name: str
    weights: frozenset[object] = frozenset()
    """empty where nothing is known of them"""
    shapes: Hashable = ()


@dataclass(frozen=True, slots=True)
class Laid:
    """Two lists, laid side by side."""

    numbers: dict[int, int]
    """of the other side's member, by that of each that has one"""
    reason: Reason
    """why they are pairs where the numbers are not the same"""
    instead: tuple[int, ...] = ()
    """numbers of the members of the longer list of which any may be the one too many: nothing tells which"""
    why: str = ""
    """why nothing tells"""


class _Scores:
    """How much speaks for two members being the same; 0 where something speaks against it."""

    def __init__(self, mine: Sequence[Member], theirs: Sequence[Member]) -> None:
        self.mine, self.theirs = mine, theirs
        self._mine, self._theirs = _distinctive(mine), _distinctive(theirs)
        self._keys_mine = [own or member.weights for own, member in zip(self._mine, mine, strict=True)]
        self._keys_theirs = [own or member.weights for own, member in zip(self._theirs, theirs, strict=True)]
        self._classes = {m.class_name for m in self.mine} & {t.class_name for t in self.theirs}
        self._same_length = len(self.mine) == len(self.theirs)
        self.own = self._told()
        """members that share weights that no other member has, by place"""
        self._claimed = set(self.own.values())
        shared = set().union(*self._keys_mine) & set().union(*self._keys_theirs)
        pairs = product(self._keys_mine, self._keys_theirs)
        self.by_weights = bool(self.own) or (bool(shared) and any(_alike(*keys) for keys in pairs))
        """some weights are on both sides"""

    def _told(self) -> dict[int, int]:
        places: dict[object, int] = {key: j for j, keys in enumerate(self._theirs) for key in keys}
        found = {}
        for i, keys in enumerate(self._mine):
            votes = Counter(places[key] for key in keys if key in places)
            if votes and _alike(keys, self._theirs[(best := votes.most_common(1)[0][0])]):
                found[i] = best
        claims = Counter(found.values())
        return {i: j for i, j in found.items() if claims[j] == 1}

    def __call__(self, i: int, j: int) -> int:
        mine, theirs = self.mine[i], self.theirs[j]
        if i in self.own or j in self._claimed:
            return _OWN if self.own.get(i) == j else 0
        if self.by_weights and mine.weights and theirs.weights:
            if _alike(self._keys_mine[i], self._keys_theirs[j]):
                return _SHARED
            return _OPEN if self._same_length and mine.number == theirs.number else 0
        if mine.class_name != theirs.class_name:
            return 0 if {mine.class_name, theirs.class_name} <= self._classes else _OPEN
        return _SHAPED if mine.shapes == theirs.shapes else _SAME_CLASS


def families(children: dict[str, int]) -> dict[str, list[str]]:
    """Return names that differ in one number only, by what they have in common, in the order of the numbers."""
    numbered = (name for name in children if len(_NUMBER.findall(name)) == 1)
    return {which: sorted(names, key=number) for which, names in grouped(numbered, family).items()}


def family(name: str) -> str:
    """Return a name with ``#`` in the place of its numbers."""
    return _NUMBER.sub("#", name)


def number(name: str) -> int:
    """Return the number in a name."""
    return int(_NUMBER.findall(name)[0])


def laid_side_by_side(mine: Sequence[Member], theirs: Sequence[Member]) -> Laid | None:
    """Pair two lists; None where nothing speaks against equal numbers. Which one is given first makes no difference."""
    if not mine or not theirs:
        return None
    if _rank(mine) > _rank(theirs):
        laid = laid_side_by_side(theirs, mine)
        return None if laid is None else replace(laid, numbers={j: i for i, j in laid.numbers.items()})
    score = _Scores(mine, theirs)
    if (len(mine) == len(theirs) or _leave_out(mine, theirs)) and _fit_by_number(score):
        return None
    if len(mine) * len(theirs) > _CELLS:
        return Laid(_numbered(score.own, score), Reason.SAME_VALUES) if score.own else None
    early, late = _in_order(score, prefers_late=False), _in_order(score, prefers_late=True)
    _exchanged(score, early)
    reason = Reason.SAME_VALUES if score.by_weights else Reason.SAME_STRUCTURE
    if len(mine) == len(theirs):
        return Laid(_numbered(early, score), reason)
    _exchanged(score, late)
    instead, why = _doubt(score, early, late)
    return Laid(_numbered(early, score), reason if score.by_weights or not instead else Reason.SAME_PATH, instead, why)


def _rank(members: Sequence[Member]) -> tuple[int, list[tuple[int, str, list[str]]]]:
    return len(members), [(m.number, m.class_name, sorted(map(repr, m.weights))) for m in members]


def _leave_out(mine: Sequence[Member], theirs: Sequence[Member]) -> bool:
    """Return True if the shorter list has numbers of the longer one and not its first ones.

    A list that was cut counts from the start. Such a name was kept, as that of ``bn2`` where ``bn1`` has gone into a
    module of its own.
    """
    numbers = [member.number for member in theirs]
    kept = [member.number for member in mine]
    return set(kept) < set(numbers) and kept != numbers[: len(kept)]


def _fit_by_number(score: _Scores) -> bool:
    """Return True if no member is one of another number by its weights, or of another class than that of its own."""
    places = {member.number: j for j, member in enumerate(score.theirs)}
    for i, member in enumerate(score.mine):
        j = places.get(member.number)
        if j is None:
            return not score.own
        if score.own.get(i, j) != j or not (score(i, j) or score.by_weights):
            return False
    return True


def _numbered(found: dict[int, int], score: _Scores) -> dict[int, int]:
    return {score.mine[i].number: score.theirs[j].number for i, j in found.items()}


def _in_order(score: _Scores, *, prefers_late: bool) -> dict[int, int]:
    """Pair by place in order, so that as much as possible speaks for it; of what is as good, the first or the last ones."""
    n, m = len(score.mine), len(score.theirs)
    at = (lambda i, j: score(n - 1 - i, m - 1 - j)) if prefers_late else score
    total = [[0] * (m + 1) for _ in range(n + 1)]
    for i in range(n - 1, -1, -1):
        for j in range(m - 1, -1, -1):
            meets = at(i, j)
            total[i][j] = max(total[i + 1][j], total[i][j + 1], meets + total[i + 1][j + 1] if meets else 0)
    found: dict[int, int] = {}
    i = j = 0
    while i < n and j < m:
        meets = at(i, j)
        if meets and meets + total[i + 1][j + 1] == total[i][j]:
            found[i] = j
            i, j = i + 1, j + 1
        elif total[i + 1][j] >= total[i][j + 1]:
            i += 1
        else:
            j += 1
    return {n - 1 - i: m - 1 - j for i, j in found.items()} if prefers_late else found


def _exchanged(score: _Scores, found: dict[int, int]) -> None:
    """Add the pairs that are not in order: told by their weights, or the only ones of their class that are left."""
    taken = set(found.values())
    for i, j in score.own.items():
        if i not in found and j not in taken:
            found[i] = j
            taken.add(j)
    left, right = _left_by_class(score.mine, found.keys()), _left_by_class(score.theirs, taken)
    for i, j, count in evenly(left, right):
        if count == 1 and not (score.by_weights and score.mine[i].weights):
            found[i] = j


def _left_by_class(members: Sequence[Member], done: Set[int]) -> dict[tuple[str, bool], list[int]]:
    """Return the places of members without a partner, by class and whether anything is known of their weights."""
    left = (place for place in range(len(members)) if place not in done)
    return grouped(left, lambda place: (members[place].class_name, bool(members[place].weights)))


def _doubt(score: _Scores, early: dict[int, int], late: dict[int, int]) -> tuple[tuple[int, ...], str]:
    """Return which members of the longer list may be the ones too many, and why nothing tells; empty where it is told."""
    if early == late:
        return (), ""
    is_mine = len(score.mine) > len(score.theirs)
    longer = score.mine if is_mine else score.theirs
    paired = [set(each) if is_mine else set(each.values()) for each in (early, late)]
    left = sorted({place for each in paired for place in range(len(longer)) if place not in each})
    instead = tuple(longer[place].number for place in range(left[0], left[-1] + 1)) if left else ()
    known = any(m.weights for m in score.mine) and any(t.weights for t in score.theirs)
    why = (
        "same-weights" if score.by_weights
        else "no-same-weights" if known
        else "no-weights"
    )  # fmt: skip
    return instead, why


def _distinctive(members: Sequence[Member]) -> list[frozenset[object]]:
    """Leave out what several members share: norms of ones and biases of zeros tell no layer from another."""
    counts = Counter(key for member in members for key in member.weights)
    return [frozenset(key for key in member.weights if counts[key] == 1) for member in members]


def _alike(a: frozenset[object], b: frozenset[object]) -> bool:
    return bool(a) and bool(b) and 2 * len(a & b) > min(len(a), len(b))


def grouped(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return lists of what has the same key, in order."""
    found: dict[K, list[T]] = {}
    for each in items:
        found.setdefault(key(each), []).append(each)
    return found


def evenly(left: Mapping[K, Sequence[T]], right: Mapping[K, Sequence[T]]) -> Iterator[tuple[T, T, int]]:
    """Yield what stands in the same place in two lists of one key and length, and this length."""
    for which, mine in left.items():
        theirs = right.get(which, ())
        if len(mine) == len(theirs):
            yield from ((one, other, len(mine)) for one, other in zip(mine, theirs, strict=True))


def increasing(points: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the longest part of points, sorted by the first, in which the second grows too.

    >>> increasing([(0, 2), (1, 0), (2, 1), (3, 5)])
    [(1, 0), (2, 1), (3, 5)]
    """
    tails: list[int] = []
    at: list[int] = []
    before: list[int] = []
    for place, (_, value) in enumerate(points):
        k = bisect_left(tails, value)
        before.append(at[k - 1] if k else -1)
        if k == len(tails):
            tails.append(value)
            at.append(place)
        else:
            tails[k], at[k] = value, place
    found = []
    place = at[-1] if at else -1
    while place >= 0:
        found.append(points[place])
        place = before[place]
    return found[::-1]
