"""Where else a weight stands: the same numbers in another module of the other model, as they are or in several tensors."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from probe.comparison.distance.combined import LACKING, Fused
from probe.comparison.notes import Note, note
from probe.comparison.steps.events import StepPairs
from probe.comparison.steps.side import Side, squeezed
from probe.comparison.steps.step_half import Event
from probe.records import Phase, Role

_EXACT = 1e-6
"""relative error of sums of the same numbers, which are taken in another order"""
_ROUNDED = 4e-3
"""relative error of a number that was rounded to 8 bits"""
_SUMS = 1e-4
"""relative error of a norm, and of a mean, of numbers that were rounded"""
_SKETCHES = 0.05
"""relative distance of the sketches of two tensors that may be one but for rounding"""

Rows = tuple[int, ...]
"""of the tensors that are one weight together: mostly one"""


class Elsewhere:
    """The weights that a step began with, by what is in them.

    Parameters
    ----------
    pairs
        the step
    """

    def __init__(self, pairs: StepPairs) -> None:
        self._weights = _Weights(pairs.a), _Weights(pairs.b)

    def said(self, event: Event) -> Note | None:
        """Say so when what a weight holds stands at another place in the other model: layers swapped, or one left out."""
        a, b = self._weights
        mine, theirs = a.members(event.row_a), b.members(event.row_b)
        if a.together(mine) is None or a.holding(mine, a, event.row_a):
            return None  # a constant, or a copy of another weight: it tells no place
        found = b.holding(mine, a, event.row_b)
        if found:
            return note("weights-of-another-layer", a=a.named(mine), b=b.named(found))
        found = a.holding(theirs, b, event.row_a)
        if not found:
            return None
        return note("weights-of-a-layer-left-out", a=a.named(found), b=b.named(theirs), nowhere=a.named(mine))

    def may_be(self, event: Event) -> bool:
        """Tell whether the values of either weight may stand anywhere in the other model, rounded or in another order."""
        a, b = self._weights
        mine, theirs = a.members(event.row_a), b.members(event.row_b)
        if _are_near(a, mine, b, theirs):
            return True
        return any(_may_be_one(a, mine, b, rows) for rows in b.others(event.row_b)) or any(
            _may_be_one(a, rows, b, theirs) for rows in a.others(event.row_a)
        )


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Statistics of a weight."""

    size: int
    low: float
    high: float
    zeros: int
    norm: float
    mean: float

    @property
    def key(self) -> tuple[float, ...]:
        """What is the same, to the bit, of the same numbers."""
        return self.size, self.low, self.high, self.zeros

    def is_near(self, other: _Numbers, ends: float, sums: float) -> bool:
        """Tell whether the numbers may be the same, up to relative errors of the extremes, and of norm and mean."""
        spread = self.norm / math.sqrt(self.size)
        return (
            self.size == other.size
            and math.isclose(self.low, other.low, rel_tol=ends)
            and math.isclose(self.high, other.high, rel_tol=ends)
            and math.isclose(self.norm, other.norm, rel_tol=sums)
            and math.isclose(self.mean, other.mean, rel_tol=sums, abs_tol=sums * spread)
        )


class _Weights:
    """The weights of one side."""

    def __init__(self, side: Side) -> None:
        self.side = side
        columns = side.columns
        self._rows = [
            row
            for row, (role, phase) in enumerate(zip(columns["role"], columns["phase"], strict=True))
            if role == Role.PARAM and phase == Phase.INIT
        ]
        self._together: dict[Rows, _Numbers | None] = {}

    @functools.cached_property
    def _by_place(self) -> dict[tuple[str, str], int]:
        return {(self._path(row), self.side.slots[row]): row for row in self._rows if row not in self.side.combined}

    @functools.cached_property
    def _by_size(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for row in self._rows:
            found.setdefault(math.prod(self.side.shapes[row]), []).append(row)
        return found

    @functools.cached_property
    def _by_numbers(self) -> dict[tuple[float, ...], list[Rows]]:
        found: dict[tuple[float, ...], list[Rows]] = {}
        for row in self._rows:
            members = self.members(row)
            numbers = self.together(members)
            if numbers is not None:
                found.setdefault(numbers.key, []).append(members)
        return found

    def _path(self, row: int) -> str:
        return self.side.reader.modules[self.side.columns["module"][row]].path

    def members(self, row: int) -> Rows:
        """Return the records that are one weight together."""
        combined = self.side.combined.get(row)
        if not isinstance(combined, Fused):
            return (row,)
        return tuple(piece.row for pieces in combined.pieces for piece in pieces if piece.row != LACKING)

    def holding(self, rows: Rows, of: _Weights, besides: int) -> Rows:
        """Return the records here, besides one weight, that hold the numbers of a weight of a side; none where none do."""
        numbers = of.together(rows)
        if numbers is None:
            return ()
        own = self.members(besides)
        alone = [members for members in self._by_numbers.get(numbers.key, ()) if members != own]
        candidates = itertools.chain(alone, self._in_other_layers(own) if len(own) > 1 else ())
        return next((members for members in candidates if _are_one(of, rows, self, members)), ())

    def others(self, row: int) -> Iterator[Rows]:
        """Yield the other weights that are as large, also several in the layers beside that are one together."""
        own = self.members(row)
        for other in self._by_size.get(math.prod(self.side.shapes[row]), ()):
            members = self.members(other)
            if members != own:
                yield members
        if len(own) > 1:
            yield from self._in_other_layers(own)

    def together(self, rows: Rows) -> _Numbers | None:
        """Return what is known of the numbers of records taken as one; None where they are a constant, or not known."""
        if rows not in self._together:
            columns, sizes = self.side.columns, [math.prod(self.side.shapes[row]) for row in rows]
            low, high = min(columns["min"][row] for row in rows), max(columns["max"][row] for row in rows)
            size = sum(sizes)
            means = (columns["mean"][row] * each for row, each in zip(rows, sizes, strict=True))
            self._together[rows] = _Numbers(
                size, low, high, sum(columns["zeros"][row] for row in rows),
                math.hypot(*(columns["norm"][row] for row in rows)), sum(means) / max(1, size),
            ) if low < high else None  # fmt: skip
        return self._together[rows]

    def _in_other_layers(self, own: Rows) -> Iterator[Rows]:
        first, _, behind = self._split(self._path(own[0]))
        if not behind:
            return
        prefix = f"{first}."
        numbers = {path[len(prefix) :].partition(".")[0] for path, _ in self._by_place if path.startswith(prefix)}
        for number in sorted(numbers):
            places = [(self._split(self._path(row)), self.side.slots[row]) for row in own]
            rows = [self._by_place.get((f"{above}.{number}.{below}", slot)) for (above, _, below), slot in places]
            found = tuple(row for row in rows if row is not None)
            if len(found) == len(own) and found != own:
                yield found

    def _split(self, path: str) -> tuple[str, str, str]:
        """Return a path above, at and below its first number."""
        parts = path.split(".")
        at = next((i for i, part in enumerate(parts) if part.isdigit()), None)
        return ("", "", "") if at is None else (".".join(parts[:at]), parts[at], ".".join(parts[at + 1 :]))

    def named(self, rows: Rows) -> str:
        """Return the paths of the modules that hold records."""
        paths = list(dict.fromkeys(self._path(row) for row in rows))
        above = paths[0].rpartition(".")[0]
        if len(paths) == 1 or any(path.rpartition(".")[0] != above for path in paths):
            return paths[0]
        last = [path.rpartition(".")[2] for path in paths]
        return f"{above}.{', '.join(last[:-1])} and {last[-1]}"


def _are_one(a: _Weights, mine: Rows, b: _Weights, theirs: Rows) -> bool:
    """Tell whether weights are the same numbers: extremes, zeros, norm and mean, and no sketch that says otherwise."""
    numbers = a.together(mine), b.together(theirs)
    if numbers[0] is None or numbers[1] is None or numbers[0].key != numbers[1].key or _are_apart(a, mine, b, theirs):
        return False
    return numbers[0].is_near(numbers[1], 0.0, _EXACT)


def _may_be_one(a: _Weights, mine: Rows, b: _Weights, theirs: Rows) -> bool:
    """Tell whether weights may be the same numbers, rounded on one side."""
    return _are_near(a, mine, b, theirs) and not _are_apart(a, mine, b, theirs)


def _are_near(a: _Weights, mine: Rows, b: _Weights, theirs: Rows) -> bool:
    numbers = a.together(mine), b.together(theirs)
    return numbers[0] is not None and numbers[1] is not None and numbers[0].is_near(numbers[1], _ROUNDED, _SUMS)


def _are_apart(a: _Weights, mine: Rows, b: _Weights, theirs: Rows) -> bool:
    """Tell whether the sketches of two single tensors of one shape say that they are not the same."""
    if len(mine) > 1 or len(theirs) > 1 or squeezed(a.side.shapes[mine[0]]) != squeezed(b.side.shapes[theirs[0]]):
        return False
    x, y = a.side.sketch(mine[0]), b.side.sketch(theirs[0])
    if x is None or y is None:
        return False
    return bool(np.linalg.norm(x - y) > _SKETCHES * max(float(np.linalg.norm(x)), float(np.linalg.norm(y))))
