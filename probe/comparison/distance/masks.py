"""Masks in different notations: the number that is added to a score, or truth values, of which True may mean either."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from probe.comparison.distance.estimates import compare_sketches
from probe.comparison.distance.values import compare_values
from probe.comparison.notes import Note, note
from probe.comparison.steps.side import Metrics, Side, Status, Taken, kind_of, squeezed
from probe.records import Role

MASKING = -1e3
"""what an additive mask puts on a score is at most this"""
INVERTED = note("masks-are-inverses")


def compare_masks(
    a: Side, i: int, b: Side, j: int, *, free_axes: bool, turned: tuple[int, ...] | None, can_be_read: bool
) -> Metrics | None:
    """Compare two masks of different notations by where they mask; None where these are no such two.

    The parameters are those of `probe.comparison.distance.values.compare_values`, and whether that can compare the two. The error is the share of elements that are masked
    on one side alone; of masks that are added to scores, the relative error, where nothing but sketches is known.
    """
    pair = _Pair(a, i, b, j, free_axes, turned, can_be_read)
    lowest = _mask_value(a, i), _mask_value(b, j)
    if lowest[0] and lowest[1]:
        return None if lowest[0] == lowest[1] else pair.added((lowest[0], lowest[1]))
    if "bool" not in (a.dtypes[i], b.dtypes[j]):
        return None
    truths = _is_truth(a, i), _is_truth(b, j)
    if all(truths):
        return pair.inverted()
    if (lowest[0] and truths[1]) or (truths[0] and lowest[1]):
        return pair.added_and_truths()
    return None


def without_effect(side: Side, row: int) -> Note | None:
    """Say why attention does without a mask what it does with this one; None if a tensor is no such mask, or does more.

    Without values the number of elements that are masked tells whether they may be those that lie ahead.
    """
    size, zeros = math.prod(side.shapes[row]), side.columns["zeros"][row]
    is_added = kind_of(side.dtypes[row]) == "float"
    if len(side.shapes[row]) < 2 or not (is_added or _is_truth(side, row)):
        return None
    if zeros == size or (zeros == 0 and not is_added):
        return note("mask-masks-nothing")
    length, width = side.shapes[row][-2:]
    ahead = size // length * (length - 1) // 2
    counts = {size - ahead} if is_added else {size - ahead, ahead}
    if length != width or zeros not in counts or (is_added and _mask_value(side, row) is None):
        return None
    if side.has_values(row):
        masks = np.asarray(side.values(row)).reshape(-1, length, width) != 0
        above = np.triu(np.ones((length, width), bool), 1)
        if not (np.all(masks == above) or (not is_added and np.all(masks != above))):
            return None
    return note("mask-is-causal")


def hidden_counts(side: Side, row: int) -> frozenset[float]:
    """Return how many elements a mask that a module was given may hide; none where a tensor is no mask, or hides nothing or all.

    Of truth values either may stand for what is hidden.
    """
    size, zeros = math.prod(side.shapes[row]), side.columns["zeros"][row]
    if side.columns["role"][row] != Role.INPUT or len(side.shapes[row]) < 2 or not 0 < zeros < size:
        return frozenset()
    if _mask_value(side, row) is not None:
        return frozenset((size - zeros,))
    return frozenset((zeros, size - zeros)) if side.dtypes[row] == "bool" else frozenset()


def _mask_value(side: Side, row: int) -> float | None:
    """Return what a mask puts where nothing may be looked at; None when a tensor is no mask that is added to scores.

    Every element is 0 or that number, which is the lowest of a dtype or −inf; −inf is counted apart. The squares of float64's
    lowest number overflow.
    """
    columns = side.columns
    infinite, lowest, highest = (columns["neginf"][row], columns["min"][row], columns["max"][row])
    if kind_of(side.dtypes[row]) != "float" or columns["nan"][row] or columns["posinf"][row]:
        return None
    if infinite and (math.isnan(highest) or lowest == highest == 0):
        return -math.inf
    finite = math.prod(side.shapes[row]) - columns["zeros"][row] - infinite
    if infinite or not finite or not lowest <= MASKING or highest not in (0.0, lowest):
        return None
    norm = columns["norm"][row]
    return lowest if math.isinf(norm) or math.isclose(norm, -lowest * math.sqrt(finite), rel_tol=1e-6) else None


def _is_truth(side: Side, row: int) -> bool:
    """Tell whether a tensor may be a mask of truth values, or of 0 and 1, that a module was given."""
    columns = side.columns
    is_input = columns["role"][row] == Role.INPUT and len(side.shapes[row]) > 1
    is_binary = columns["min"][row] >= 0 and columns["max"][row] <= 1
    return is_input and is_binary and kind_of(side.dtypes[row]) == "integer"


@dataclass(frozen=True, slots=True)
class _Pair:
    """Record i of A and record j of B, both masks."""

    a: Side
    i: int
    b: Side
    j: int
    free_axes: bool
    turned: tuple[int, ...] | None
    can_be_read: bool

    @property
    def sides(self) -> tuple[tuple[Side, int], tuple[Side, int]]:
        return (self.a, self.i), (self.b, self.j)

    def read(self, *, inverted: bool = False) -> Metrics:
        """Compare the values."""
        taken = Taken(as_masks=True, inverted=inverted)
        return compare_values(self.a, self.i, self.b, self.j, free_axes=self.free_axes, turned=self.turned, taken=taken)

    def added(self, lowest: tuple[float, float]) -> Metrics:
        """Compare two that are added to scores, by where they are not 0."""
        why = note("masks-of-other-numbers", a=lowest[0], b=lowest[1])
        if self.can_be_read:
            return self._found(self.read(), why)
        if all(math.isfinite(side.columns["norm"][row]) and value > -math.inf
               for (side, row), value in zip(self.sides, lowest, strict=True)):  # fmt: skip
            taken = Taken(lowest[1] / lowest[0])
            found = compare_sketches(self.a, self.i, self.b, self.j, free_axes=False, turned=self.turned, taken=taken)
            return self._found(found, why)
        return self._found(_estimated(self._counted()[0]), why)  # a sketch leaves out what is not finite

    def inverted(self) -> Metrics | None:
        """Compare two of truth values if rather what one masks is what the other lets through."""
        plain, inverted = self._sketched()
        if plain <= inverted:
            return None
        found = self.read(inverted=True) if self.can_be_read else _estimated(inverted)
        return self._found(found, INVERTED, inverted=True)

    def added_and_truths(self) -> Metrics:
        """Compare one that is added to scores with truth values, of which either may stand for what is masked."""
        if self.can_be_read:
            both = [self.read(), self.read(inverted=True)]
        else:
            both = [_estimated(share) for share in self._counted()]
        inverted = both[1].is_known and not (both[0].is_known and both[0].rel_l2 <= both[1].rel_l2)
        why = note("masks-of-other-kinds", a=self.a.dtypes[self.i], b=self.b.dtypes[self.j])
        return self._found(both[inverted], why, inverted=inverted)

    def _counted(self) -> tuple[float, float]:
        """Return which share differs at least, as the numbers of zeros tell: as it is, and with one side inverted."""
        zeros = [side.columns["zeros"][row] for side, row in self.sides]
        size = max(1, math.prod(self.a.shapes[self.i]))
        return abs(zeros[0] - zeros[1]) / size, abs(zeros[0] + zeros[1] - size) / size

    def _sketched(self) -> tuple[float, float]:
        """Estimate the same of truth values from sketches, in which True is −False: what differs adds 4 to the square."""
        counted, sketches = self._counted(), [side.sketch(row) for side, row in self.sides]
        shapes = [sorted(squeezed(side.shapes[row])) for side, row in self.sides]
        if sketches[0] is None or sketches[1] is None or shapes[0] != shapes[1]:
            return counted
        size = max(1, math.prod(self.a.shapes[self.i]))
        apart = [float(np.sum(each**2)) / (4 * size) for each in (sketches[0] - sketches[1], sketches[0] + sketches[1])]
        return min(1.0, max(apart[0], counted[0])), min(1.0, max(apart[1], counted[1]))

    def _found(self, found: Metrics, why: Note, *, inverted: bool = False) -> Metrics:
        """Return what was found of the masks, with how many elements they mask as the squares of their norms."""
        zeros = [side.columns["zeros"][row] for side, row in self.sides]
        size = math.prod(self.a.shapes[self.i])
        counts = size - zeros[0], zeros[1] if inverted else size - zeros[1]
        status = Status.COMPARED if found.status is Status.EQUAL else found.status
        return replace(found, status=status, norm_a=math.sqrt(counts[0]), norm_b=math.sqrt(counts[1]), why=why)


def _estimated(share: float) -> Metrics:
    return Metrics(Status.COMPARED, share, estimated=True, of_integers=True)
