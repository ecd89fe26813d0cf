"""What ranks have gathered of all shares of the batch, as the tokens from which experts choose: one share lies behind the other."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from probe.comparison.distance.combined import Piece, add_fused
from probe.comparison.steps.side import Side
from probe.numbers.fused import Fusion, reordered
from probe.numbers.statistics import as_real

_LARGEST = 1 << 22
"""elements up to which values are read to see in which order they lie"""
_ALIKE = 0.5
"""cosine of sketches from which on tensors are the same, maybe with a factor, and none of them lies in another order"""


def join_gathered(
    many: Side,
    own: Mapping[int, int],
    few: Side,
    whole: Sequence[int],
    length: int,
    place: tuple[int, str],
    target: int,
) -> bool:
    """Let tokens that ranks have gathered be one tensor, in the order of the other side's batch of [length, samples]; tell whether they can be.

    Parameters
    ----------
    own
        by row, its number of samples; ranks that gathered together hold the same
    whole
        rows of the other side in their place
    target
        the micro-batch of the other side
    """
    together: dict[object, list[int]] = {}
    for row in own:
        together.setdefault(many.digest(row), []).append(row)
    sizes = {rows[0]: [own[row] for row in rows] for rows in together.values()}
    shapes = {row: many.shapes[row] for row in sizes}
    are_gathered = length > 1 and None not in together and all(
        len(set(each)) == 1 < len(each) and shapes[row][:1] == (length * sum(each),) for row, each in sizes.items()
    )  # fmt: skip
    if not are_gathered or len({shape[1:] for shape in shapes.values()}) > 1:
        return False
    made_shape = (sum(shape[0] for shape in shapes.values()), *next(iter(shapes.values()))[1:])
    other = next((row for row in whole if few.shapes[row] == made_shape), None)
    if other is None or (len(sizes) == 1 and _lies_alike(many, next(iter(sizes)), few, other, len(own), length)):
        return False
    parts = []
    for row, each in sizes.items():
        order = _order(len(each), length)
        parts.append(add_fused(many, ((Piece(row, shapes[row]),),), Fusion(order=order), place, micro=target))
    if len(parts) > 1:
        many.hidden.update(parts)
        pieces = tuple(Piece(row, many.shapes[row]) for row in parts)
        parts = [add_fused(many, (pieces,), Fusion(groups=length), place, micro=target)]
    many.hidden.update(own)
    many.gathered.update(parts)
    return True


def _order(shares: int, length: int) -> tuple[int, ...]:
    """Return which block of [shares, length, samples] each one of [length, shares, samples] is."""
    return tuple(np.arange(shares * length).reshape(shares, length).T.ravel().tolist())


def _lies_alike(many: Side, row: int, few: Side, other: int, shares: int, length: int) -> bool:
    """Tell whether a tensor that all ranks hold is one that lies on the other side as it does here: a table, a mask."""
    if many.digest(row) == few.digest(other):
        return True
    if many.has_values(row) and few.has_values(other) and math.prod(many.shapes[row]) <= _LARGEST:
        own, theirs = (as_real(side.values(each)) for side, each in ((many, row), (few, other)))
        turned = reordered(own, _order(shares, length))
        return _cosine(own, theirs) >= _cosine(turned, theirs)
    sketches = many.sketch(row), few.sketch(other)
    return any(each is None for each in sketches) or _cosine(*sketches) > _ALIKE


def _cosine(x: np.ndarray, y: np.ndarray) -> float:
    x, y = (np.asarray(each, np.float64).ravel() for each in (x, y))
    return float(x @ y / max(np.linalg.norm(x) * np.linalg.norm(y), 1e-300))
