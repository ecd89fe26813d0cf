"""Whether parts lie in a packed weight where they should, where values are not stored: from the sums along its axes.

A weight's sums along the axis on which its parts follow one another are those of the parts, one behind the other as the parts are.
Where matrices are stacked, they are the parts' added up with signs; and the stack itself has one sum for each matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from probe.comparison.distance.combined import LACKING, Fused, Piece
from probe.comparison.steps.side import Side
from probe.numbers import fused
from probe.numbers.axis_sums import axes_with_sums, signs_of, squeezed
from probe.numbers.fused import Fusion

ROUNDING = 4e-7
"""what those of equal weights may differ by, of the weight's norm: they are kept in float32"""


@dataclass(frozen=True, slots=True)
class Along:
    """What parts and their whole have along the axis on which the parts follow one another."""

    whole: np.ndarray
    parts: list[np.ndarray]
    fusion: Fusion
    """of these, which have one axis"""
    members: np.ndarray | None = None
    """of parts that are stacked, one for each member of the stack; None for others, and where that is not known"""
    whole_members: np.ndarray | None = None
    """the same of the whole"""


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
    is_stack = fusion.stacked and len(pieces) > 1
    place, theirs = _place(pieces[0][0], fusion), whole.axis_sums(whole_row)
    sums = [[_sums_of(parts, piece, place) for piece in each] for each in pieces]
    known = [[each for each in row if each is not None] for row in sums]
    if place < 0 or len(theirs) <= place + is_stack or any(len(row) < len(pieces[0]) for row in known):
        return None
    flat = Fusion(0, fusion.groups, rotary=fusion.rotary, order=fusion.order)
    if not is_stack:
        found = Along(theirs[place], known[0], flat)
    else:
        size, *rest = squeezed(fused.whole_shape([[piece.shape for piece in row] for row in pieces], fusion))
        beside = [other for at, other in enumerate(rest) if at != place]
        signs = signs_of(size, int(beside == [size]))
        mine = [sum(sign * row[k] for sign, row in zip(signs, known, strict=True)) for k in range(len(known[0]))]
        found = Along(theirs[place + 1], mine, flat, _of_members(known, rest, place, flat), theirs[0])
    return found if sum(map(len, found.parts)) == len(found.whole) else None


def _of_members(known: list[list[np.ndarray]], rest: list[int], place: int, flat: Fusion) -> np.ndarray | None:
    """Return one sum for each of the matrices, or vectors, that parts are stacked from; None where theirs are made with other signs."""
    if place == 1 and rest[0] == rest[1]:
        return None
    signs = signs_of(rest[place], int(len(rest) > 1 and place == 0 and rest[0] == rest[1]))
    return np.array([float(signs @ fused.fuse([row], flat)) for row in known])


def _of_fused(side: Side, row: int, other: Side, other_row: int) -> tuple[np.ndarray, np.ndarray] | None:
    found = along(side, row, other, other_row)
    if found is None:
        return None
    mine, theirs = [fused.fuse([found.parts], found.fusion)], [found.whole]
    if found.members is not None and found.whole_members is not None:
        mine.append(found.members)
        theirs.append(found.whole_members)
    return _joined(mine), _joined(theirs)


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
