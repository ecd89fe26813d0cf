"""The single modules inside two blocks, put in a line by the order in which they run, and the lines laid side by side."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from functools import partial

from probe.matching.automatic import likeness, values
from probe.matching.automatic.outline import Outline, rows_of, shapes_of
from probe.matching.automatic.state import Found
from probe.matching.automatic.weights.fused import FUSED_ROLES, keep_fused, keep_inside
from probe.matching.lists import evenly, grouped
from probe.matching.result import Bundle, Reason

_PROVEN, _LIKE, _LESS, _ACROSS, _NEARBY, _BY_DEFINITION, _CONTRADICTED = 0.98, 0.92, 0.8, 0.7, 0.85, 0.5, 0.4
_LONGEST = 4
"""layers that are one on the other side"""
_CELLS = 40_000
_THRESHOLD = 0.8
_ALONE = "rotary"
"""a kind without weights of which there are few: told without its neighbours"""


class Line:
    """Pairs single modules of A and of B, inside a pair that is ``confidence`` sure.

    ``met`` are blocks of A beside them, and the blocks of B that they belong to: they lead, and are not paired here.
    """

    def __init__(
        self, found: Found, mine: Sequence[int], theirs: Sequence[int], met: Mapping[int, int], confidence: float
    ) -> None:
        self.found, self.a, self.b, self.confidence = found, found.a, found.b, confidence
        self.met = met
        here, there = (half.order for half in found.sides.values())
        self.mine = sorted({*mine, *met}, key=lambda i: here[i])
        self.theirs = sorted({*theirs, *met.values()}, key=lambda j: there[j])

    def match(self) -> None:
        """Pair what belongs together, the surest first."""
        self._take_pins()
        for mine, theirs in list(self.found.gaps(self.mine, self.theirs, self.met)):
            if self.found.lacks_sizes:
                match_unmeasured(self.found, mine, theirs, self.confidence)
            else:
                self._match_matrices(mine, theirs)
        for mine, theirs in list(self.found.gaps(self.mine, self.theirs, self.met)):
            self._match_others(mine, theirs)
        self._match_left()

    # What is known

    def _take_pins(self) -> None:
        theirs = set(self.theirs)
        for i in self.mine:
            j = self.found.pins.get(i)
            if j not in theirs or not self._may(i, j) or not self._is_one(i, j):
                continue
            if (around := self._around(i, j)) is None:
                self.found.pair(i, j, Reason.SAME_VALUES, min(_PROVEN, self.confidence + 0.3))
            else:
                keep_inside(self.found, *around, i, j)

    def _around(self, i: int, j: int) -> tuple[int, int] | None:
        """Return what stands around one of two modules of the same weights and returns what the other returns.

        A loop over cells is what a recurrent layer is, a single cell is not.
        """
        for this, other, k, m in ((self.b, self.a, j, i), (self.a, self.b, i, j)):
            made, above = other.outputs.get(m, ()), this.tree.modules[k].parent
            is_alone = above > 0 and this.core[above] == this.core[k] and not this.tree.children[k]
            own, around = (values.close(made, this.outputs.get(each, ())) for each in (k, above))
            if is_alone and own < 2 <= around:
                return (i, above) if this is self.b else (above, j)
        return None

    def _is_one(self, i: int, j: int) -> bool:
        """Return True if two modules may be a pair as a whole, not only their weights.

        What has no weights inside of a layer (the loop over cells, an activation) is part of how that is computed.
        """
        is_alike = bool(self.a.tree.children[i]) == bool(self.b.tree.children[j])
        return is_alike or (self.a.holds_all(i) and self.b.holds_all(j))

    def _may(self, i: int, j: int) -> bool:
        return likeness.of_classes(self.a.tree.class_name(i), self.b.tree.class_name(j)) >= 0

    # Matrices

    def _match_matrices(self, mine: Sequence[int], theirs: Sequence[int]) -> None:
        by_key_a, by_key_b = _by_width(self.a, mine), _by_width(self.b, theirs)
        for key, left in by_key_a.items():
            right = by_key_b.get(key, [])
            if right and len(left) * len(right) <= _CELLS:
                self._align_matrices(left, right)
            elif right and [n for _, n in left] == [n for _, n in right]:
                for (i, _), (j, _) in zip(left, right, strict=True):
                    self._keep_single(i, j, 1.0, _LESS)

    def _align_matrices(self, left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
        is_even = [n for _, n in left] == [n for _, n in right]
        for i, j, count_a, count_b, score in _best(left, right, self._single_score, self._fused_score):
            if count_a == count_b == 1:
                is_alone = len(left) == len(right) == 1
                self._keep_single(left[i][0], right[j][0], score, _LIKE if is_even else _LESS, is_alone)
            else:
                parts = [m for m, _ in (left[i : i + count_a] if count_a > 1 else right[j : j + count_b])]
                whole = right[j][0] if count_a > 1 else left[i][0]
                keep_fused(self.found, Bundle("A" if count_a > 1 else "B", whole, tuple(parts)), self.confidence)

    def _keep_single(self, i: int, j: int, score: float, sure: float, is_alone: bool = False) -> None:
        """Keep a pair; what is alone of its sizes between two that are known is no other layer if its weights differ, but a finding."""
        if not self._is_one(i, j):
            one = Bundle("A", j, (i,)) if self.b.tree.children[j] else Bundle("B", i, (j,))
            keep_fused(self.found, one, self.confidence)
            return
        if values.agree(self.a, i, self.b, j):
            self.found.pair(i, j, Reason.SAME_VALUES, min(_PROVEN, self.confidence + 0.1))
            return
        doubt = 0.8 if self.found.weights_differ(i, j) and not is_alone else 1.0
        doubt *= 0.8 if score < 2 and not is_alone else 1.0
        self.found.pair(i, j, Reason.SAME_STRUCTURE, min(sure, self.confidence) * doubt)

    def _single_score(self, i: int, j: int) -> float:
        shapes = (sorted(w.shape for w in side.matrices(k)) for side, k in ((self.a, i), (self.b, j)))
        if next(shapes) != next(shapes):
            return -math.inf
        score = 2.0 + self._names(i, j)
        likes = likeness.of_classes(self.a.tree.class_name(i), self.b.tree.class_name(j))
        score += likes if likes >= 0 else 4 * likes
        same = values.agree(self.a, i, self.b, j)
        score += 3.0 if same else -1.5 if same is False and self.found.same_weights else 0.0
        return score + 0.3 * values.close(self.a.outputs.get(i, ()), self.b.outputs.get(j, ()))

    def _names(self, i: int, j: int) -> float:
        a, b = self.a.tree, self.b.tree
        parent_a, parent_b = a.modules[i].parent, b.modules[j].parent
        around = likeness.of_names(a.name(parent_a), b.name(parent_b)) if min(parent_a, parent_b) >= 0 else 0.0
        return likeness.of_names(a.name(i), b.name(j)) + 0.3 * around

    def _fused_score(self, parts: Sequence[int], whole: int, side: str) -> float:
        mine, theirs = (half.outline for half in self.found.ends(side))
        kinds, parents = set(map(mine.kind, parts)), {mine.tree.modules[i].parent for i in parts}
        pieces, totals = [mine.matrices(i) for i in parts], theirs.matrices(whole)
        roles = [likeness.role_of(mine.tree.name(i)) for i in parts]
        if (
            len(parents) > 1
            or any(mine.tree.children[i] for i in parts)
            or len(kinds) > 1
            or kinds & {"embedding", "norm"}
            or any(len(each) != 1 for each in (totals, *pieces))
            or (any(roles) and roles not in FUSED_ROLES)
        ):
            return -math.inf
        proven = values.add_up([piece for (piece,) in pieces], totals[0])
        if proven is False and self.found.same_weights:
            return -math.inf
        return len(parts) + 1.0 + (4.0 if proven else 0.0)

    # Norms, and what has no weights

    def _match_others(self, mine: Sequence[int], theirs: Sequence[int]) -> None:
        left = [(i, 0) for i in mine if not self.a.is_matrix(i)]
        right = [(j, 0) for j in theirs if not self.b.is_matrix(j)]
        if not left or not right or len(left) * len(right) > _CELLS:
            return
        is_even = len(left) == len(right)
        for i, j, _, _, score in _best(left, right, self._other_score, None):
            one, other = left[i][0], right[j][0]
            proven = values.close(self.a.outputs.get(one, ()), self.b.outputs.get(other, ())) >= 2
            sure = _PROVEN if proven else (_NEARBY if is_even or score >= 2 else _ACROSS)
            if not proven and (self._contradict(one, other) or self._is_alone(one, other)):
                sure = _CONTRADICTED
            elif not proven and not self.found.by_calls and self._is_one_of_several(one, other, left, right):
                sure = _BY_DEFINITION
            reason = Reason.SAME_VALUES if proven else Reason.SAME_STRUCTURE
            self.found.pair(one, other, reason, min(sure, self.confidence))

    def _is_one_of_several(self, i: int, j: int, left: list[tuple[int, int]], right: list[tuple[int, int]]) -> bool:
        """Return True if only the order of definition tells two from others of their kind, as the norms of a layer."""
        kind = self.a.kind(i)
        sides = (self.a, left), (self.b, right)
        several = any(sum(side.kind(k) == kind for k, _ in each) > 1 for side, each in sides)
        return several and likeness.of_names(self.a.tree.name(i), self.b.tree.name(j)) < 1

    def _contradict(self, i: int, j: int) -> bool:
        """Return True if two modules return other numbers, and it is not known that they are given the same.

        Of a table, which is given no tensor, the name and the sizes say that it is the same one: other numbers are a finding.
        """
        seen = [side.outputs.get(k, ()) for side, k in ((self.a, i), (self.b, j))]
        if not self.a.inputs.get(i) and not self.b.inputs.get(j) and self.a.tree.name(i) == self.b.tree.name(j):
            return [each.shape for each in seen[0]] != [each.shape for each in seen[1]]
        known = all(each and each[0].numbers is not None and each[0].numbers.is_telling for each in seen)
        given = values.given(self.a.inputs.get(i, ()), self.b.inputs.get(j, ()))
        return self.found.same_weights and known and given < 2 and not self.a.weights[i]

    def _is_alone(self, i: int, j: int) -> bool:
        """Return True if two modules are of a kind that returns one thing here and another there, under other names.

        Cosines and sines of as many angles have one norm, whatever the angles are: these are one thing on both sides.
        """
        is_one = values.have_one_norm(self.a.outputs.get(i, ()), self.b.outputs.get(j, ()))
        return self.a.kind(i) == _ALONE and self.a.tree.name(i) != self.b.tree.name(j) and not is_one

    def _other_score(self, i: int, j: int) -> float:
        a, b = self.a, self.b
        shapes = [sorted(w.shape for w in side.weights[k]) for side, k in ((a, i), (b, j))]
        likes = likeness.of_classes(a.tree.class_name(i), b.tree.class_name(j))
        seen = values.close(a.outputs.get(i, ()), b.outputs.get(j, ()))
        if likes < 0 or (seen < 0 and not shapes[0]) or values.compute_otherwise(a, i, b, j):
            return -math.inf
        if i in a.unmeasured or j in b.unmeasured:
            if a.kind(i) != b.kind(j):
                return -math.inf
        elif bool(shapes[0]) != bool(shapes[1]):
            if a.kind(i) != "norm" or seen < 2:
                return -math.inf
        elif shapes[0] and shapes[0][0] != shapes[1][0]:
            return -math.inf
        given = values.given(a.inputs.get(i, ()), b.inputs.get(j, ()))
        score = 1.2 * likes + 0.5 * self._names(i, j) + 0.7 * seen + 0.3 * max(0.0, given)
        score += 1.0 if shapes[0] else 0.0
        return score if score >= _THRESHOLD else -math.inf

    # What stands in another order

    def _match_left(self) -> None:
        """Pair what is left where both sides have as many of a kind."""
        met = set(self.met), set(self.met.values())
        sides = list(zip(self.found.sides.values(), (self.mine, self.theirs), met, strict=True))
        for kind in (_output, self._shape_key, _sizes):
            groups = [
                grouped((k for k in modules if not half.has(k) and k not in met), partial(kind, half.outline))
                for half, modules, met in sides
            ]
            for i, j, _ in evenly({key: left for key, left in groups[0].items() if key}, groups[1]):
                if self._may(i, j) and self._is_one(i, j):
                    self._keep_left(i, j, kind is _output)

    def _keep_left(self, i: int, j: int, by_values: bool) -> None:
        reason = Reason.SAME_VALUES if by_values or values.agree(self.a, i, self.b, j) else Reason.SAME_STRUCTURE
        doubt = 0.8 if self.found.weights_differ(i, j) else 1.0
        doubt *= 0.5 if self._contradict(i, j) or (not by_values and self._is_alone(i, j)) else 1.0
        self.found.pair(i, j, reason, min(_NEARBY if by_values else _ACROSS, self.confidence) * doubt)

    def _shape_key(self, side: Outline, index: int) -> Hashable:
        kind = side.kind(index)
        shapes = _sizes(side, index) or shapes_of(side, index)
        if self.found.lacks_sizes:
            return kind if shapes or index in side.unmeasured or kind == _ALONE else None
        return (kind, shapes) if shapes or kind == _ALONE else None


def _output(side: Outline, index: int) -> Hashable:
    seen = side.outputs.get(index, ())
    known = seen[0].numbers if seen else None
    return known.digest if known is not None and known.is_telling else None


def _sizes(side: Outline, index: int) -> Hashable:
    return tuple(sorted(tuple(sorted(w.shape)) for w in side.matrices(index)))


def _by_width(side: Outline, modules: Sequence[int]) -> dict[Hashable, list[tuple[int, int]]]:
    """Return modules with their rows, by what follows the rows of their matrix."""
    found: dict[Hashable, list[tuple[int, int]]] = defaultdict(list)
    for index in modules:
        rows = [each for w in side.matrices(index) for each in rows_of(w)]
        if len(rows) == 1:
            found[rows[0][0]].append((index, rows[0][1]))
        elif rows:
            found["several", tuple(sorted(w.shape for w in side.matrices(index)))].append((index, 0))
    return found


def _best(left, right, single, fused):  # type: ignore[no-untyped-def]
    """Lay two lists of (module, rows) side by side; yield (place, place, how many, how many, score) of what meets."""
    n, m = len(left), len(right)
    total = [[0.0] * (m + 1) for _ in range(n + 1)]
    step: list[list[tuple[int, int, float]]] = [[(1, 0, 0.0)] * (m + 1) for _ in range(n + 1)]
    for i in range(n - 1, -1, -1):
        for j in range(m - 1, -1, -1):
            best, how = total[i + 1][j], (1, 0, 0.0)
            if total[i][j + 1] > best:
                best, how = total[i][j + 1], (0, 1, 0.0)
            met = _meeting(left, right, i, j, single, fused)
            if met is not None and met[2] > 0 and met[2] + total[i + met[0]][j + met[1]] >= best:
                best, how = met[2] + total[i + met[0]][j + met[1]], met
            total[i][j], step[i][j] = best, how
    i = j = 0
    while i < n and j < m:
        down, right_by, score = step[i][j]
        if down and right_by:
            yield i, j, down, right_by, score
        i, j = i + down, j + right_by


def _meeting(left, right, i, j, single, fused):  # type: ignore[no-untyped-def]
    """Return how many meet at two places of two lists, and the score; None where none may."""
    if left[i][1] == right[j][1]:
        return 1, 1, single(left[i][0], right[j][0])
    if fused is None:
        return None
    is_a = left[i][1] < right[j][1]
    parts, at, whole = (left, i, right[j]) if is_a else (right, j, left[i])
    count = _count(parts, at, whole[1])
    if not count:
        return None
    score = fused([k for k, _ in parts[at : at + count]], whole[0], "A" if is_a else "B")
    return (count, 1, score) if is_a else (1, count, score)


def _count(parts: Sequence[tuple[int, int]], at: int, rows: int) -> int:
    """Return how many parts from one on have as many rows as the whole; 0 where none do."""
    total = 0
    for count, (_, more) in enumerate(parts[at : at + _LONGEST], 1):
        total += more
        if total >= rows:
            return count if total == rows and count > 1 else 0
    return 0


# Matrices of which one side does not tell the sizes: what classes, neighbours and numbers of siblings say

_FUSED, _SINGLE, _UNSURE = 0.75, 0.8, 0.65

Choice = tuple[float, tuple[int, ...], tuple[int, ...]]
"""score, modules of A, modules of B"""


def match_unmeasured(found: Found, mine: Sequence[int], theirs: Sequence[int], confidence: float) -> None:
    """Pair matrices, the likeliest first, fused ones before single ones."""
    left = [i for i in mine if found.a.is_matrix(i) and not found.a.tree.children[i]]
    right = [j for j in theirs if found.b.is_matrix(j) and not found.b.tree.children[j]]
    choices: list[Choice] = [*_fused(found, left, right, "A"), *_fused(found, right, left, "B")]
    _keep(found, choices, confidence)
    left = [i for i in left if not found.sides["A"].has(i)]
    right = [j for j in right if not found.sides["B"].has(j)]
    singles = []
    for x, i in enumerate(left):
        for y, j in enumerate(right):
            score = _likeness(found, i, j)
            apart = abs((x + 0.5) / len(left) - (y + 0.5) / len(right))
            if score > 0:
                singles.append((score - 0.5 * apart, (i,), (j,)))
    _keep(found, singles, confidence)


def _keep(found: Found, choices: list[Choice], confidence: float) -> None:
    used: set[tuple[str, int]] = set()
    for score, mine, theirs in sorted(choices, key=lambda each: -each[0]):
        places = {*(("A", i) for i in mine), *(("B", j) for j in theirs)}
        if used & places:
            continue
        used |= places
        if len(mine) == len(theirs) == 1:
            sure = _SINGLE if score > 1 else _UNSURE
            found.pair(mine[0], theirs[0], Reason.SAME_STRUCTURE, min(sure, confidence))
        elif len(mine) > 1:
            keep_fused(found, Bundle("A", theirs[0], mine), min(_FUSED, confidence))
        else:
            keep_fused(found, Bundle("B", mine[0], theirs), min(_FUSED, confidence))


def _around(side: Outline, index: int) -> frozenset[str]:
    parent = side.tree.modules[index].parent
    return likeness.words(side.tree.class_name(parent)) | likeness.words(side.tree.name(parent))


def _siblings(side: Outline, index: int) -> list[int]:
    parent = side.tree.modules[index].parent
    return [k for k in side.children(parent) if side.is_matrix(k)]


def _fused(found: Found, parts: Sequence[int], wholes: Sequence[int], side: str) -> Iterator[Choice]:
    """Yield three layers of an attention that may be one, or two of something else, where the other side has fewer."""
    mine, theirs = (half.outline for half in found.ends(side))
    for whole in wholes:
        if "Row" in theirs.tree.class_name(whole) or theirs.kind(whole) != "linear":
            continue
        around = "attention" in _around(theirs, whole)
        count = 3 if around else 2
        fewer = len(_siblings(theirs, whole))
        for at in range(len(parts) - count + 1):
            window = parts[at : at + count]
            siblings = _siblings(mine, window[0])
            are_alike = len({mine.tree.modules[k].parent for k in window}) == 1 and _last_are_alike(mine, window)
            is_there = ("attention" in _around(mine, window[0])) == around
            if len(siblings) < fewer + count - 1 or not are_alike or not is_there:
                continue
            roles = [likeness.role_of(mine.tree.name(k)) for k in window]
            wrong = any(roles) and roles not in (["q", "k", "v"], ["gate", "up"])
            if not wrong and all(mine.kind(k) == "linear" for k in window):
                first = siblings.index(window[0]) == 0
                score = count + any(roles) + 0.5 * first + ("qkv" in likeness.words(theirs.tree.name(whole)))
                yield (score, tuple(window), (whole,)) if side == "A" else (score, (whole,), tuple(window))


def _last_are_alike(side: Outline, window: Sequence[int]) -> bool:
    """Return True if k and v, or gate and up, may be of one shape."""
    shapes = [[w.shape for w in side.matrices(k)] for k in window[-2:]]
    return shapes[0] == shapes[1] or not all(shapes)


def _likeness(found: Found, i: int, j: int) -> float:
    a, b = found.a.tree, found.b.tree
    likes = likeness.of_classes(a.class_name(i), b.class_name(j))
    if likes < 0 or found.a.kind(i) != found.b.kind(j):
        return -1.0
    here, there = _around(found.a, i), _around(found.b, j)
    inside = sum(
        0.5 if (word in here) == (word in there) else -1.0 for word in ("attention", "mlp") if word in here | there
    )
    score = 1.0 + likes + likeness.of_names(a.name(i), b.name(j)) + inside
    for side, k, other, m in ((found.a, i, found.b, j), (found.b, j, found.a, i)):
        wide = other.matrix(m)
        if wide is not None and wide.shape[0] > wide.shape[1]:  # what is split along its rows' width never widens
            name = side.tree.class_name(k)
            score += -2.0 if "Row" in name else 0.5 if "Column" in name else 0.0
    return score
