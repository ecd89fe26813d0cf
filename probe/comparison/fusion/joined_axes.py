"""Along which axis tensors of several calls are parts of one: by the sizes that add up."""

from __future__ import annotations

from collections.abc import Sequence

Shape = tuple[int, ...]


def batch_axis(parts: Sequence[Shape], whole: Shape, sizes: Sequence[int] = ()) -> int | None:
    """Return along which axis parts follow one another in a whole; None where none fits, or several do.

    Parameters
    ----------
    whole
        it, or the parts, may have further axes of size 1 in front: [1, s, h] of [t, h], [s, h] of [1, t, h]
    sizes
        numbers of samples of the parts, which tell between axes that all fit; empty where they are not known
    """
    parts, whole = alike(parts, whole)
    if len(parts) < 2 or any(len(shape) != len(whole) for shape in parts):
        return None
    fitting = [
        axis for axis, size in enumerate(whole)
        if sum(shape[axis] for shape in parts) == size
        and all(shape[:axis] == whole[:axis] and shape[axis + 1 :] == whole[axis + 1 :] for shape in parts)
    ]  # fmt: skip
    if len(fitting) > 1 and sizes:
        fitting = [axis for axis in fitting if [shape[axis] for shape in parts] == list(sizes)]
    return fitting[0] if len(fitting) == 1 else None


def turned(whole: Shape) -> Shape:
    """Return the shape of [samples, positions, …] as that of [positions, samples, …], and the other way round; of fewer axes itself."""
    return (whole[1], whole[0], *whole[2:]) if len(whole) > 2 else whole


def alike(parts: Sequence[Shape], whole: Shape) -> tuple[list[Shape], Shape]:
    """Return the shapes of parts, and of a whole, without axes of size 1 in front that the other has not."""
    rank = min((len(shape) for shape in (*parts, whole)), default=0)
    shapes = [_without_ones(shape, len(shape) - rank) for shape in (*parts, whole)]
    return shapes[:-1], shapes[-1]


def _without_ones(shape: Shape, more: int) -> Shape:
    return shape[more:] if all(size == 1 for size in shape[:more]) else shape
