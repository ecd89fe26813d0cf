"""What several records are together, as one row: statistics exactly, values when they are read."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from probe.comparison.steps.side import Digest, Side
from probe.numbers import fused
from probe.numbers.fused import Fusion, Shape
from probe.numbers.statistics import dtype_of

LACKING = -1
"""row of a part that was not recorded because there is none: zeros"""
_KIND = -1
"""kind of the hashes of several tensors: it is none of a single one"""
_FIRST = 1 << 48
"""numbers of tensors from here on are of values that several hold together"""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of a combined tensor."""

    row: int
    """of its record, or `LACKING`"""
    shape: Shape
    """in the canonical layout"""


Pieces = tuple[tuple[Piece, ...], ...]
"""a row for each index of the whole's first axis, a single one where the parts are not stacked"""


@dataclass(frozen=True, slots=True)
class Fused:
    """Tensors that lie in one; see `probe.comparison.steps.side.Combined`."""

    pieces: Pieces
    fusion: Fusion
    digest: Digest | None
    sketch: np.ndarray | None

    @property
    def parts(self) -> tuple[int, ...]:
        """The rows of the tensors."""
        return tuple(piece.row for row in self.pieces for piece in row if piece.row != LACKING)

    def values(self, side: Side) -> np.ndarray:
        """Return the values, in the canonical layout."""
        dtypes = {side.dtypes[piece.row] for row in self.pieces for piece in row if piece.row != LACKING}
        dtype = dtype_of(next(iter(dtypes))) if len(dtypes) == 1 else np.dtype(np.float64)
        shapes = [[piece.shape for piece in row] for row in self.pieces]
        if self.fusion.order:
            return fused.fuse([[read(side, self.pieces[0][0])]], self.fusion)
        whole = np.empty(fused.whole_shape(shapes, self.fusion), dtype)
        for row, places in zip(self.pieces, fused.places(whole, shapes, self.fusion), strict=True):
            for piece, place in zip(row, places, strict=True):  # one is in memory beside the whole
                place[...] = read(side, piece).reshape(place.shape) if piece.row != LACKING else 0
        return whole


@dataclass(frozen=True, slots=True)
class Added:
    """Tensors that add up, vectors among them along the last axis; see `probe.comparison.steps.side.Combined`."""

    rows: tuple[int, ...]
    digest: Digest | None
    sketch: np.ndarray | None

    @property
    def parts(self) -> tuple[int, ...]:
        """The rows of the tensors."""
        return self.rows

    def values(self, side: Side) -> np.ndarray:
        """Return the values, in float64."""
        return functools.reduce(np.add, (side.values(row).astype(np.float64) for row in self.rows))


@dataclass(frozen=True, slots=True)
class Picked:
    """Some places of a tensor along an axis; see `probe.comparison.steps.side.Combined`."""

    row: int
    axis: int
    places: tuple[int, ...]
    digest: Digest | None
    sketch: None = None

    @property
    def parts(self) -> tuple[int, ...]:
        """The row of the tensor."""
        return (self.row,)

    def values(self, side: Side) -> np.ndarray:
        """Return the values."""
        return side.values(self.row).take(self.places, self.axis)


def read(side: Side, piece: Piece) -> np.ndarray:
    """Return the values of a part in the canonical layout."""
    if piece.row == LACKING:
        return np.zeros(piece.shape)
    axes, values = side.axes(piece.row), side.values(piece.row)
    return (values.transpose(axes) if len(axes) == values.ndim else values).reshape(piece.shape)


def canonical_shape(side: Side, row: int) -> Shape:
    """Return the shape of a record in the canonical layout."""
    return tuple(side.shapes[row][axis] for axis in side.axes(row))


def add_fused(side: Side, pieces: Pieces, fusion: Fusion, place: tuple[int, str], **changed: object) -> int:
    """Append the row of what parts are together, at a module and slot; return its number."""
    flat = [piece for row in pieces for piece in row]
    rows = [piece.row for piece in flat if piece.row != LACKING]
    alone = len(flat) == 1 and not fusion.stacked and not fusion.reorders and not fusion.shape
    shape = fused.whole_shape([[piece.shape for piece in row] for row in pieces], fusion)
    counts = (fusion.axis, fusion.groups, int(fusion.stacked), fusion.rotary, *fusion.shape, *fusion.order)
    digests = [side.digest(piece.row) if piece.row != LACKING else (0, *piece.shape) for piece in flat]
    combined = Fused(pieces, fusion, joint_digest(digests, counts), side.sketch(rows[0]) if alone else None)
    columns = {
        **_statistics(side, flat), "module": place[0], "tensor": _tensor(side, rows, counts), "requires_grad": min(
            side.columns["requires_grad"][row] for row in rows
        ), **changed,
    }  # fmt: skip
    return side.add(rows[0], place[1], shape, columns, combined)


def add_sum(
    side: Side, rows: Sequence[int], module: int, sketches: Sequence[np.ndarray | None] | None = None, **changed: object
) -> int:
    """Append the row of a sum; return its number.

    Parameters
    ----------
    rows
        of tensors of one shape; vectors behind the first are added along its last axis
    sketches
        of each in the shape of the first, where that is not their own
    """
    sketches = [side.sketch(row) for row in rows] if sketches is None else sketches
    known = [sketch for sketch in sketches if sketch is not None]
    sketch = np.sum(known, axis=0) if len(known) == len(rows) else None
    combined = Added(tuple(rows), joint_digest([side.digest(row) for row in rows], (0,)), sketch)
    unknown = dict.fromkeys(("min", "max", "rms", "norm"), math.nan)
    mean = sum(side.columns["mean"][row] for row in rows)
    columns = {**unknown, "mean": mean, "zeros": 0, "module": module, "tensor": _tensor(side, rows, ()), **changed}
    return side.add(rows[0], side.slots[rows[0]], side.shapes[rows[0]], columns, combined)


def add_picked(side: Side, row: int, axis: int, places: Sequence[int], **changed: object) -> int:
    """Append the row of some places of a tensor along an axis, of which the values alone are known; return its number."""
    shape = tuple(len(places) if at == axis else size for at, size in enumerate(side.shapes[row]))
    picked = Picked(row, axis, tuple(places), joint_digest([side.digest(row)], (axis, *places)))
    unknown = dict.fromkeys(("min", "max", "mean", "rms", "norm"), math.nan)
    columns = {**unknown, "zeros": 0, "tensor": _tensor(side, [row], (axis, *places)), **changed}
    return side.add(row, side.slots[row], shape, columns, picked)


def is_finite(side: Side, row: int) -> bool:
    """Tell whether every element of a record is finite."""
    columns = side.columns
    return not (columns["nan"][row] or columns["posinf"][row] or columns["neginf"][row])


def _tensor(side: Side, rows: Sequence[int], how: tuple[int, ...]) -> int:
    """Return a number that stands for the stored values of rows together, the same for the same; −1 where one lacks them."""
    stored = tuple(side.columns["tensor"][row] for row in rows)
    if min(stored) < 0:
        return -1
    key = stored, tuple(side.shapes[row] for row in rows), how
    return _FIRST + side.numbers.setdefault(key, len(side.numbers))


def joint_digest(digests: Iterable[Digest | None], more: tuple[int, ...]) -> Digest | None:
    """Return what tells several tensors from other ones by their own hashes; None where one has none."""
    found: list[int] = []
    for digest in digests:
        if digest is None:
            return None
        found += digest
    return (*found, *more, _KIND)


def _statistics(side: Side, pieces: Sequence[Piece]) -> dict[str, object]:
    """Return the statistics of all elements of parts together."""
    columns = side.columns
    rows = [piece.row for piece in pieces if piece.row != LACKING]
    lacking = sum(math.prod(piece.shape) for piece in pieces if piece.row == LACKING)
    sums = {name: sum(columns[name][row] for row in rows) for name in ("nan", "posinf", "neginf", "zeros")}
    finite = [
        math.prod(side.shapes[row]) * (2 if side.dtypes[row].startswith("complex") else 1)
        - sum(columns[name][row] for name in ("nan", "posinf", "neginf"))
        for row in rows
    ]
    count = sum(finite) + lacking
    total = sum(columns["mean"][row] * n for row, n in zip(rows, finite, strict=True) if n)
    norm = math.hypot(*(columns["norm"][row] for row in rows))
    ends = [0.0] if lacking else []
    lows = [columns["min"][row] for row, n in zip(rows, finite, strict=True) if n] + ends
    highs = [columns["max"][row] for row, n in zip(rows, finite, strict=True) if n] + ends
    return {
        **sums, "zeros": sums["zeros"] + lacking, "min": min(lows, default=math.nan), "max": max(highs, default=math.nan),
        "mean": total / count if count else math.nan, "rms": norm / math.sqrt(count) if count else math.nan, "norm": norm,
    }  # fmt: skip
