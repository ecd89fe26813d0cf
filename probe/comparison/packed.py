"""Whether parts lie in a packed weight where they should, where values are not stored: from the sums along its axes.

A weight's sums along the axis on which its parts follow one another are those of the parts, one behind the other as the parts are.
Where matrices are stacked, they are the parts' added up with signs; and the stack itself has one sum for each matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from probe import fused
from probe.axis_sums import axes_with_sums, signs_of, squeezed
from probe.comparison.combined import LACKING, Fused, Piece
from probe.comparison.side import Side
from probe.fused import Fusion

ROUNDING = 4e-7
"""what those of equal weights may differ by, of the weight's norm: they are kept in float32"""


@dataclass(frozen=True, slots=True)
class Along:
    """What parts and their whole have along the axis on which the parts follow one another."""

    whole: np.ndarray
    parts: list[np.ndarray]
    fusion: Fusion
    """of these, which have one axis"""


def vectors(a: Side, i: int, b: Side, j: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return numbers of record i of A and of record j of B that are as far apart as the weights, about; None where sums are lacking."""
    for side, row, other, other_row in ((a, i, b, j), (b, j, a, i)):
        if isinstance(side.combined.get(row), Fused):
            found = _of_fused(side, row, other, other_row)
            return found if found is None or side is a else found[::-1]
    mine, theirs = a.axis_sums(i), b.axis_sums(j)
    is_alike = mine and [each.shape for each in mine] == [each.shape for each in theirs]
    return (_joined(mine), _joined(theirs)) if is_alike else None


def along(parts: Side, row: int, whole: Side, whole_row: int) -> Along | None:
    """Return the sums of parts, and of the whole that they should make, along the axis on which they follow one another."""
    combined = parts.combined.get(row)
    if not isinstance(combined, Fused) or isinstance(whole.combined.get(whole_row), Fused):
        return None
    fusion, pieces = combined.fusion, combined.pieces
    place = _place(pieces[0][0], fusion)
    sums = [[_sums_of(parts, piece, place) for piece in each] for each in pieces]
    theirs = whole.axis_sums(whole_row)
    at = place + 1 if fusion.stacked and len(pieces) > 1 else place
    known = [[each for each in row if each is not None] for row in sums]
    if place < 0 or len(theirs) <= at or any(len(row) < len(pieces[0]) for row in known):
        return None
    if fusion.stacked and len(pieces) > 1:
        beside = [size for other, size in enumerate(squeezed(combined_shape(combined))) if other not in (0, at)]
        signs = signs_of(len(pieces), int(beside == [len(pieces)]))
        mine = [sum(sign * row[k] for sign, row in zip(signs, known, strict=True)) for k in range(len(known[0]))]
    else:
        mine = known[0]
    flat = Fusion(0, fusion.groups, rotary=fusion.rotary)
    return Along(theirs[at], mine, flat) if sum(map(len, mine)) == len(theirs[at]) else None


def combined_shape(combined: Fused) -> tuple[int, ...]:
    """Return the shape of the whole."""
    return fused.whole_shape([[piece.shape for piece in row] for row in combined.pieces], combined.fusion)


def _of_fused(side: Side, row: int, other: Side, other_row: int) -> tuple[np.ndarray, np.ndarray] | None:
    found = along(side, row, other, other_row)
    if found is None:
        return None
    mine, theirs = [fused.fuse([found.parts], found.fusion)], [found.whole]
    of_stack = _of_stack(side, row, other, other_row)
    if of_stack is not None:
        mine.append(of_stack[0])
        theirs.append(of_stack[1])
    return _joined(mine), _joined(theirs)


def _of_stack(side: Side, row: int, other: Side, other_row: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Return one sum for each of the matrices, or vectors, that are stacked, of the parts and of the whole."""
    combined, theirs = side.combined[row], other.axis_sums(other_row)
    assert isinstance(combined, Fused)
    fusion, pieces = combined.fusion, combined.pieces
    shape = squeezed(combined_shape(combined))
    if not fusion.stacked or len(pieces) < 2 or len(theirs) != len(shape):
        return None
    place = _place(pieces[0][0], fusion)
    rest = shape[1:]
    if place == 1 and rest[0] == rest[1]:  # the sums of a part are made with other signs
        return None
    signs = signs_of(rest[place], int(len(rest) > 1 and place == 0 and rest[0] == rest[1]))
    flat = Fusion(0, fusion.groups)
    rows = [[_sums_of(side, piece, place) for piece in each] for each in pieces]
    mine = [float(signs @ fused.fuse([[each for each in row if each is not None]], flat)) for row in rows]
    return np.array(mine), theirs[0]


def _place(piece: Piece, fusion: Fusion) -> int:
    """Return which axis of a part, those of size 1 left out, is the one on which parts follow one another; −1 where it is none."""
    ndim, shape = len(piece.shape), piece.shape
    if fusion.shape:
        keeps_rows = fusion.axis % max(ndim, 1) == 0 and fusion.shape[:1] == shape[:1] and shape[:1] != (1,)
        return 0 if keeps_rows and 3 not in (len(squeezed(shape)), len(squeezed(fusion.shape))) else -1
    if not ndim or shape[fusion.axis % ndim] == 1:
        return -1
    place = len(squeezed(shape[: fusion.axis % ndim]))
    if fusion.stacked and len(squeezed(shape)) > 2:  # the stack is no stack of matrices
        return -1
    return place if place in axes_with_sums(squeezed(shape)) else -1


def _sums_of(side: Side, piece: Piece, place: int) -> np.ndarray | None:
    if piece.row == LACKING:
        return np.zeros(squeezed(piece.shape)[place], np.float32) if place >= 0 else None
    sums = side.axis_sums(piece.row)
    return sums[place] if 0 <= place < len(sums) else None


def _joined(sums: list[np.ndarray] | tuple[np.ndarray, ...]) -> np.ndarray:
    """Return several sums as one array of the weight's length: each of them has it, about."""
    return np.concatenate([each.astype(np.float64) for each in sums]) / math.sqrt(len(sums))
