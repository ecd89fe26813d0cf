"""Several tensors in one: q, k and v as one projection, gate and up as one, experts stacked along a first axis.

Or one whose rows lie in another order: of what rotary embeddings turn, neighbours in the part, halves of a head in the whole; or q, k
and v head by head in the one, one after the other in the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fusion:
    """How the parts lie in the whole."""

    axis: int = 0
    """of a part: along it the parts follow one another; −1 is the last one"""
    groups: int = 1
    """they lie in so many equal groups, each of which holds an equal share of every part"""
    stacked: bool = False
    """the whole has a first axis that parts do not have"""
    rotary: int = 0
    """of one part alone, along the axis: so many heads, in which what is turned together are neighbours (0 1, 2 3 …) in the
    part, the two halves in the whole; 0 where both lie alike"""
    shape: Shape = ()
    """of the whole, which is one part with its elements in their order in another shape; empty where shapes are alike"""
    order: tuple[int, ...] = ()
    """of one part alone, along the axis: of as many equal blocks, the one of the part that each of the whole is; empty where both
    lie alike"""

    @property
    def reorders(self) -> bool:
        """Whether it is one part whose rows lie in another order in the whole."""
        return bool(self.rotary or self.order)


def problem_of(shapes: Sequence[Sequence[Shape]], fusion: Fusion) -> str:
    """Return why parts of these shapes cannot lie in one tensor; ``""`` when they can.

    Parameters
    ----------
    shapes
        a row of parts for each index of the whole's first axis, a single row where it is not `Fusion.stacked`
    """
    if not shapes or not shapes[0] or (len(shapes) > 1 and not fusion.stacked):
        return "there are no parts" if not shapes or not shapes[0] else "several rows of parts are not stacked"
    if any(tuple(row) != tuple(shapes[0]) for row in shapes):
        odd = next(row for row in shapes if tuple(row) != tuple(shapes[0]))
        return f"{_listed(odd)} and {_listed(shapes[0])} cannot be stacked"
    first = shapes[0]
    if fusion.shape:
        is_alike = math.prod(first[0]) == math.prod(fusion.shape)
        return "" if is_alike else f"{_listed(first)} has not as many elements as {_listed([fusion.shape])}"
    if len(first) == 1 and fusion.groups == 1 and not fusion.reorders:
        return ""
    if not all(-len(shape) <= fusion.axis < len(shape) for shape in first):
        return f"{_listed(first)} do not all have an axis {fusion.axis}"
    if len({_without(shape, fusion.axis) for shape in first}) > 1:
        return f"{_listed(first)} are of different sizes beside axis {fusion.axis}"
    if fusion.rotary and first[0][fusion.axis] % (2 * fusion.rotary):
        return f"{_listed(first)} cannot be divided into {fusion.rotary} heads of two halves"
    if fusion.order and first[0][fusion.axis] % len(fusion.order):
        return f"{_listed(first)} cannot be divided into {len(fusion.order)} blocks"
    uneven = [shape for shape in first if shape[fusion.axis] % fusion.groups]
    return f"{_listed(uneven)} cannot be divided into {fusion.groups} groups" if uneven else ""


def whole_shape(shapes: Sequence[Sequence[Shape]], fusion: Fusion) -> Shape:
    """Return the shape of what the parts make; they must fit, see `problem_of`."""
    row = shapes[0]
    made = fusion.shape or row[0]
    if len(row) > 1:
        axis = fusion.axis % len(made)
        made = (*made[:axis], sum(shape[axis] for shape in row), *made[axis + 1 :])
    return (len(shapes), *made) if fusion.stacked else made


def fuse(parts: Sequence[Sequence[np.ndarray]], fusion: Fusion) -> np.ndarray:
    """Return the whole that parts make, rows of them as for `problem_of`."""
    if fusion.order:
        return reordered(parts[0][0], fusion.order, fusion.axis)
    shapes = [[part.shape for part in row] for row in parts]
    whole = np.empty(whole_shape(shapes, fusion), parts[0][0].dtype)
    for rooms, row in zip(places(whole, shapes, fusion), parts, strict=True):
        for room, part in zip(rooms, row, strict=True):
            room[...] = part.reshape(room.shape)
    return whole


def split(whole: np.ndarray, shapes: Sequence[Sequence[Shape]], fusion: Fusion) -> list[list[np.ndarray]]:
    """Return the parts that a whole is made of: the inverse of `fuse`."""
    if fusion.order:
        back = tuple(np.argsort(fusion.order).tolist())
        return [[reordered(whole, back, fusion.axis).reshape(shapes[0][0])]]
    return [
        [room.reshape(shape) for room, shape in zip(rooms, row, strict=True)]
        for rooms, row in zip(places(np.ascontiguousarray(whole), shapes, fusion), shapes, strict=True)
    ]


def reordered(array: np.ndarray, order: Sequence[int], axis: int = 0) -> np.ndarray:
    """Return an array whose blocks along an axis stand in another order."""
    axis %= array.ndim
    before, after = array.shape[:axis], array.shape[axis + 1 :]
    blocks = array.reshape(*before, len(order), array.shape[axis] // len(order), *after)
    return np.take(blocks, order, axis=axis).reshape(array.shape)


def order_of(
    shares: Sequence[int], groups_here: int, groups_there: int, order_here: Sequence[int] = ()
) -> tuple[int, ...]:
    """Return which block here each block there is, where parts lie in groups on both sides; empty where both lie alike.

    Parameters
    ----------
    shares
        how large the parts are beside each other, in the order in which they lie in each group there
    groups_here, groups_there
        they lie in so many equal groups, each of which holds an equal share of every part
    order_here
        of the parts there, as they follow one another here; empty where the order is the same
    """
    common = math.lcm(groups_here, groups_there)
    here = _in_groups(shares, common, groups_here, order_here or range(len(shares)))
    there = _in_groups(shares, common, groups_there, range(len(shares)))
    place = np.argsort(here)
    return in_blocks(place[there])


def in_blocks(order: np.ndarray) -> tuple[int, ...]:
    """Return an order of rows as that of the fewest equal blocks; empty where nothing changes its place."""
    count = len(order)
    for blocks in (number for number in range(1, count + 1) if count % number == 0):
        size = count // blocks
        starts = order[::size]
        if not (starts % size).any() and np.array_equal((starts[:, None] + np.arange(size)).reshape(-1), order):
            return () if blocks == 1 else tuple((starts // size).tolist())
    return ()


def _in_groups(shares: Sequence[int], common: int, groups: int, order: Sequence[int]) -> np.ndarray:
    """Return the numbers of blocks, counted part by part, in the order in which they lie in groups."""
    starts = np.cumsum([0, *shares[:-1]]) * common
    parts = [(starts[number] + np.arange(shares[number] * common)).reshape(groups, -1) for number in order]
    return np.concatenate(parts, axis=1).reshape(-1)


def places(whole: np.ndarray, shapes: Sequence[Sequence[Shape]], fusion: Fusion) -> list[list[np.ndarray]]:
    """Return where in the whole each part lies: views with the groups as an axis of their own."""
    members = [whole[i : i + 1].reshape(whole.shape[1:]) for i in range(len(whole))] if fusion.stacked else [whole]
    return [_in_member(member, row, fusion) for member, row in zip(members, shapes, strict=True)]


def _in_member(member: np.ndarray, row: Sequence[Shape], fusion: Fusion) -> list[np.ndarray]:
    if len(row) == 1 and fusion.groups == 1 and not fusion.rotary:
        return [member[...]]
    axis = fusion.axis % member.ndim
    before, after = member.shape[:axis], member.shape[axis + 1 :]
    if fusion.rotary:
        return [member.reshape(*before, fusion.rotary, 2, -1, *after).swapaxes(axis + 1, axis + 2)]
    grouped = member.reshape(*before, fusion.groups, member.shape[axis] // fusion.groups, *after)
    found, start = [], 0
    for shape in row:
        stop = start + shape[axis] // fusion.groups
        found.append(grouped[(*(slice(None),) * (axis + 1), slice(start, stop))])
        start = stop
    return found


def _without(shape: Shape, axis: int) -> Shape:
    axis %= len(shape)
    return shape[:axis] + shape[axis + 1 :]


def _listed(shapes: Sequence[Shape]) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)
