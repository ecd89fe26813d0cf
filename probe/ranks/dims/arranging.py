"""Where what each rank holds lies in the whole, and the whole itself: values, statistics, sketches."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probe.numbers.sketch import WIDTH, axes_of
from probe.ranks.dims.language import Dims, Shape, Split, Where, where

Places = Mapping[str, int]
"""by group, a rank's place in it"""


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank holds."""

    holder: int
    at: tuple[Where, ...]
    """by axis, the indices that it has in the whole"""


@dataclass(frozen=True, slots=True)
class Arrangement:
    """A tensor of which several ranks hold parts."""

    shape: Shape
    parts: tuple[Part, ...]
    is_sum: bool
    """parts are added up"""
    factor: float = 1.0
    """what the whole is multiplied by"""

    def values(self, read: Callable[[int], np.ndarray]) -> np.ndarray:
        """Return the whole of what ``read`` returns of each holder; one part is in memory beside the whole."""
        whole: np.ndarray | None = None
        for part in self.parts:
            values = read(part.holder)
            if whole is None:
                dtype = np.dtype(np.float64) if self.is_sum and values.dtype.kind not in "ciub" else values.dtype
                whole = np.zeros(self.shape, dtype)
            at = _index(part.at)
            if self.is_sum:
                whole[at] += values.astype(whole.dtype)
            else:
                whole[at] = values
        assert whole is not None
        return whole if self.factor == 1 else whole * whole.dtype.type(self.factor)

    def labels(self) -> np.ndarray:
        """Return for each element of the whole the number of the part that it is in."""
        found = np.zeros(self.shape, np.int64)
        for number, part in enumerate(self.parts):
            found[_index(part.at)] = number
        return found


def arranged(
    dims: Dims, holders: Sequence[tuple[Places, Shape]], sizes: Mapping[str, int], known: Mapping[str, int]
) -> Arrangement | str:
    """Return where the parts of a tensor lie; a text where they cannot make one.

    ``holders`` are place and shape of each rank that holds another part of it; ``sizes`` are those of the groups,
    ``known`` those of factors of axes, by name.
    """
    rank = len(holders[0][1])
    if not dims.fits(rank) or any(len(shape) != rank for _, shape in holders):
        return f"a tensor of {rank} axes cannot be divided so"
    wanted = math.prod(sizes.get(group, 1) for group in set(dims.groups))
    if len(holders) != wanted:
        return f"{len(holders)} of {wanted} parts are there"
    at: list[list[Where]] = [[slice(0, size) for size in shape] for _, shape in holders]
    current = [list(shape) for _, shape in holders]
    for level in range(len(dims.splits) - 1, -1, -1):
        problem = _join(dims.splits, level, [places for places, _ in holders], at, current, known)
        if problem:
            return problem
    shapes = {tuple(each) for each in current}
    if len(shapes) > 1:
        return f"parts of {' and '.join(str(list(shape)) for shape in sorted({shape for _, shape in holders}))} do not make one"
    parts = tuple(Part(number, tuple(each)) for number, each in enumerate(at))
    return Arrangement(shapes.pop(), parts, any(sizes.get(group, 1) > 1 for group in dims.partial))


def _join(
    splits: Sequence[Split], level: int, places: Sequence[Places], at: list[list[Where]], current: list[list[int]],
    known: Mapping[str, int],
) -> str:  # fmt: skip
    """Put together what the ranks of one group hold; return what is wrong with it."""
    split = splits[level]
    axis = split.axis % len(current[0])
    outer = [each.group for each in splits[:level]]
    sets: dict[tuple[int, ...], dict[int, int]] = {}
    for holder, place in enumerate(places):
        own = sets.setdefault(tuple(place.get(group, 0) for group in outer), {})
        size = own.setdefault(place.get(split.group, 0), current[holder][axis])
        if size != current[holder][axis]:
            return f"ranks of the same place hold {size} and {current[holder][axis]}"
    for holder, place in enumerate(places):
        own = sets[tuple(place.get(group, 0) for group in outer)]
        sizes = [own[each] for each in sorted(own)]
        found = where(split, sizes, sorted(own).index(place.get(split.group, 0)), known)
        if isinstance(found, str):
            return found
        current[holder][axis], at[holder][axis] = found[0], _within(found[1], at[holder][axis])
    return ""


def _within(outer: Where, inner: Where) -> Where:
    """Return the indices in the whole of indices in a part."""
    if isinstance(outer, slice):
        if isinstance(inner, slice):
            return slice(outer.start + inner.start, outer.start + inner.stop)
        return outer.start + inner
    return outer[inner]


def _index(at: Sequence[Where]) -> tuple[Where, ...]:
    if all(isinstance(each, slice) for each in at):
        return tuple(at)
    return np.ix_(*(np.arange(each.start, each.stop) if isinstance(each, slice) else each for each in at))


# ---- statistics and sketches


def statistics(rows: np.ndarray, counts: np.ndarray) -> dict[str, np.ndarray]:
    """Return the statistics of tensors that lie side by side, of many at once.

    ``rows`` are records, shape (tensors, parts); ``counts`` are the elements of each.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        sums = {name: rows[name].sum(axis=1) for name in ("nan", "posinf", "neginf", "zeros")}
        finite = counts - rows["nan"] - rows["posinf"] - rows["neginf"]
        total = finite.sum(axis=1)
        norm = np.sqrt(np.square(rows["norm"]).sum(axis=1))
        mean = np.where(finite > 0, rows["mean"] * finite, 0.0).sum(axis=1)
        low = np.where(finite > 0, rows["min"], np.inf).min(axis=1)
        high = np.where(finite > 0, rows["max"], -np.inf).max(axis=1)
        some = total > 0
        safe = np.maximum(total, 1)
        return {
            **sums, "norm": norm, "min": np.where(some, low, np.nan), "max": np.where(some, high, np.nan),
            "mean": np.where(some, mean / safe, np.nan), "rms": np.where(some, norm / np.sqrt(safe), np.nan),
        }  # fmt: skip


def sketch_of(arrangement: Arrangement, shapes: Sequence[Shape], sketches: Sequence[np.ndarray]) -> np.ndarray | None:
    """Return the sketches of wholes from those of their parts, where they tell them; None elsewhere.

    They do where parts are added up, and where each part has a single index along every axis that is divided: its
    sign and its bucket are those of that index then. Sketches are by part, of one tensor or of many, shape (…, 61).
    """
    found = np.zeros(np.shape(sketches[0]))
    for part, shape, sketch in zip(arrangement.parts, shapes, sketches, strict=True):
        moved = _moved(arrangement.shape, shape, part.at, sketch)
        if moved is None:
            return None
        found += moved
    found[np.isnan(found[..., 0])] = np.nan
    return found


def _moved(whole: Shape, shape: Shape, at: Sequence[Where], sketch: np.ndarray) -> np.ndarray | None:
    """Return the sketch of a part, as that of what it is in the whole."""
    if shape == whole:
        return sketch
    if any(mine != 1 and mine != all_ for mine, all_ in zip(shape, whole, strict=True)):
        return None
    keys = dict(zip((k for k, size in enumerate(whole) if size != 1), axes_of(whole), strict=True))
    own = dict(zip((k for k, size in enumerate(shape) if size != 1), axes_of(shape), strict=True))
    if any(keys[axis] != key for axis, key in own.items()):
        return None
    for axis in keys.keys() - own.keys():
        key, index = keys[axis], _first(at[axis])
        sketch = np.roll(sketch * key.signs(0, key.size)[index], int(key.stride * index % WIDTH), axis=-1)
    return sketch


def _first(at: Where) -> int:
    return at.start if isinstance(at, slice) else int(at[0])
