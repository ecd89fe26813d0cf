"""Along which axis tensors of several calls are parts of one: by the sizes that add up, or as the user says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from probe.numbers.axis_sums import squeezed

Shape = tuple[int, ...]
BATCH, SEQUENCE = "b", "s"
"""names of axes in `layout`"""


@dataclass(frozen=True, slots=True)
class Grid:
    """How the parts of a step stand to each other: shares of the batch, each of them in parts of the sequence."""

    batch: int
    sequence: int = 1
    along: str = BATCH
    """the axis of the parts where it is only one: a cache is filled along the sequence"""

    @property
    def count(self) -> int:
        """The number of parts."""
        return self.batch * self.sequence

    def at(self, part: int) -> tuple[int, int]:
        """Return the place of a part."""
        return divmod(part, self.sequence)


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes along which parts follow one another; None where there is only one part along them."""

    batch: int | None
    sequence: int | None = None
    rows: int = 1
    """of the axis of the batch, the indices of another one that come before it: [s·b, h] has s"""

    def shape(self, parts: Sequence[Shape], grid: Grid) -> Shape:
        """Return the shape of the whole."""
        made = list(parts[0])
        for axis, step, count in ((self.batch, grid.sequence, grid.batch), (self.sequence, 1, grid.sequence)):
            if axis is not None:
                made[axis] = sum(parts[k * step][axis] for k in range(count))
        return tuple(made)


def ways(parts: Sequence[Shape], grid: Grid) -> Iterator[Axes]:
    """Yield along which axes parts of these shapes may follow one another."""
    ranks = {len(shape) for shape in parts}
    if len(ranks) != 1:
        return
    varying = [axis for axis in range(ranks.pop()) if len({shape[axis] for shape in parts}) > 1]
    every: Sequence[int | None] = range(len(parts[0]))
    batch_axes = every if grid.batch > 1 else (None,)
    sequence_axes = every if grid.sequence > 1 else (None,)
    for batch, sequence in itertools.product(batch_axes, sequence_axes):
        if (batch is None or batch != sequence) and set(varying) <= {batch, sequence}:
            yield Axes(batch, sequence)


def fitting(
    parts: Sequence[Shape], grid: Grid, wholes: Sequence[Shape], sizes: Sequence[int], total: int
) -> Axes | None | str:
    """Return along which axes parts make one of some shapes; None where they make none, a text where several ways do.

    Parameters
    ----------
    wholes
        shapes that the other side's tensors have
    sizes
        of the batch, by share; empty where they are not known
    total
        of the batch
    """
    found = list(ways(parts, grid))
    exact = [axes for axes in found if axes.shape(parts, grid) in wholes]
    if len(exact) == 1:
        return exact[0]
    sorted_wholes = {tuple(sorted(squeezed(whole))) for whole in wholes}
    turned = exact or [axes for axes in found if tuple(sorted(squeezed(axes.shape(parts, grid)))) in sorted_wholes]
    if len(turned) > 1:
        turned = _of_batch(turned, parts, grid, sizes) or turned
    if len({axes.shape(parts, grid) for axes in turned}) > 1:
        return "several-axes-fit"
    if turned:
        return turned[0]
    merged = [axes for axes in found if _are_merged(axes.shape(parts, grid), wholes)]
    chosen = _of_batch(merged, parts, grid, sizes) or merged
    return chosen[0] if len(chosen) == 1 else None


def guessed(parts: Sequence[Shape], grid: Grid, sizes: Sequence[int]) -> Axes | None:
    """Return along which axes parts follow one another by the sizes of the batch alone: nothing stands in their place on the other side."""
    found = _of_batch(list(ways(parts, grid)), parts, grid, sizes)
    return found[0] if found else None


def _of_batch(found: Sequence[Axes], parts: Sequence[Shape], grid: Grid, sizes: Sequence[int]) -> list[Axes]:
    """Return those whose axis of the batch has the sizes that the batch has."""
    if not sizes:
        return []
    return [
        axes for axes in found
        if axes.batch is not None
        and all(parts[k * grid.sequence][axes.batch] == sizes[k] for k in range(grid.batch))
    ]  # fmt: skip


def _are_merged(shape: Shape, wholes: Sequence[Shape]) -> bool:
    return any(math.prod(shape) == math.prod(whole) and len(shape) != len(whole) for whole in wholes)
