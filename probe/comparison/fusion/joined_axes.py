"""Along which axis tensors of several calls are parts of one: by the sizes that add up."""

from __future__ import annotations

from collections.abc import Sequence

Shape = tuple[int, ...]


def batch_axis(parts: Sequence[Shape], whole: Shape, sizes: Sequence[int] = ()) -> int | None:
    """Return along which axis parts follow one another in a whole; None where none fits, or several do.

    Parameters
    ----------
    whole
        may have further axes of size 1 before those of the parts: [1, s, h] of [t, h]
    sizes
        numbers of samples of the parts, which tell between axes that all fit; empty where they are not known
    """
    whole = like(whole, parts[0]) if parts else whole
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


def like(whole: Shape, part: Shape) -> Shape:
    """Return a shape without the axes of size 1 before those that a part has."""
    more = max(0, len(whole) - len(part))
    return whole[more:] if all(size == 1 for size in whole[:more]) else whole
