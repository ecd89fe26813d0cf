"""One tensor of one side, as it is compared: parts of a weight, a batch or a sum are one `Tensor`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.answer.metrics import kind_of
from probe.numbers.fused import Fusion, fuse
from probe.numbers.sketch import WIDTH, along, axes_of, outer
from probe.numbers.statistics import as_real, unit_roundoff
from probe.store.reading.reader import Reader

Hash = tuple[int, int, int]
"""low and high 64 bits, and the kind"""
Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class Tensor:
    """Statistics always, a sketch and values where they were recorded."""

    shape: Shape
    dtype: str
    norm: float
    mean: float
    low: float
    high: float
    bad: tuple[int, int, int]
    """number of elements that are NaN, +inf, -inf"""
    zeros: int
    hash: Hash | None = None
    sketch: np.ndarray | None = None
    learns: bool = False
    """it requires a gradient"""
    axes: tuple[int, ...] = ()
    """canonical order of the axes, where it is not that of the shape"""
    reader: Reader | None = None
    stored: int = -1
    """number of its values in the recording, −1 without"""
    row: int = -1
    """among the records of the step"""
    is_summary: bool = False
    """another tool's summary: NaN, infinities and zeros were not counted, sums have the precision of the tensor"""
    parts: tuple[tuple[Tensor, ...], ...] = ()
    """what it is made of, in rows as for `probe.numbers.fused.fuse`; terms of a sum without a fusion"""
    fusion: Fusion | None = None
    factor: float = 1.0
    """what stored values are multiplied by"""
    sums: Callable[[], tuple[np.ndarray, ...]] | None = None
    """asks for the sums along the axes of a weight"""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def laid(self) -> Shape:
        """The shape in canonical order."""
        return tuple(self.shape[axis] for axis in self.axes) if len(self.axes) == len(self.shape) else self.shape

    @property
    def form(self) -> Shape:
        """The shape in canonical order, without axes of size 1."""
        return tuple(size for size in self.laid if size != 1)

    @property
    def kind(self) -> str:
        """``float``, ``complex`` or ``integer``."""
        return kind_of(self.dtype)

    @property
    def u(self) -> float:
        """Unit roundoff of its dtype."""
        return unit_roundoff(self.dtype)

    @property
    def largest(self) -> float:
        """Largest absolute value."""
        return max(abs(self.low), abs(self.high))

    @property
    def rms(self) -> float:
        """Root of the mean square."""
        return self.norm / math.sqrt(max(self.size, 1))

    @property
    def has_values(self) -> bool:
        """Whether the values were recorded."""
        return all(part.has_values for row in self.parts for part in row) if self.parts else self.stored >= 0

    @property
    def is_known(self) -> bool:
        """Whether more than norms was recorded: a hash stands with all statistics, and a summary for them."""
        if self.parts:
            return all(part.is_known for row in self.parts for part in row)
        return self.reader is None or self.hash is not None or self.factor != 1 or self.is_summary

    def times(self, factor: float) -> Tensor:
        """Return a multiple."""
        low, high = sorted((self.low * factor, self.high * factor))
        sketch = None if self.sketch is None else self.sketch * factor
        made = replace(self, norm=self.norm * abs(factor), mean=self.mean * factor, low=low, high=high, hash=None)
        return replace(made, sketch=sketch, factor=self.factor * factor)

    @property
    def is_stored(self) -> bool:
        """Whether its values, which are no integers, lie in the recording as they are laid."""
        is_whole = self.has_values and not self.parts and self.factor == 1
        return is_whole and list(self.axes) == sorted(self.axes) and self.kind != "integer"

    def place(self, at: int) -> tuple[int, ...] | None:
        """Return the index of an element, given flat in canonical order; None for scalars."""
        at = at // 2 if self.kind == "complex" else at
        if not 0 <= at < self.size or not self.shape:
            return None
        place = np.unravel_index(at, self.laid)
        axes = self.axes if len(self.axes) == len(self.shape) else range(len(self.shape))
        return tuple(int(index) for _, index in sorted(zip(axes, place, strict=True)))

    def stream(self, chunk: int, into: np.ndarray) -> Iterator[np.ndarray]:
        """Yield stored values, flat and some at a time; ``into`` is a buffer that the next ones overwrite."""
        assert self.reader is not None
        return map(as_real, self.reader.parts(self.stored, chunk, into))

    def part(self, box: Sequence[slice]) -> np.ndarray:
        """Return the values in a box of its form: of a tensor that lies as it is laid, no others are read."""
        if not self.is_stored:
            return self.values()[tuple(box)]
        assert self.reader is not None
        return as_real(self.reader.block(self.stored, box))

    @property
    def rows(self) -> np.ndarray | None:
        """The sums of a weight's rows, which are as far apart as weights are; None if they are not known."""
        if not self.parts:
            sums = self.sums() if self.sums is not None else ()
            return sums[0].astype(np.float64) if sums else None
        fusion, known = self.fusion or Fusion(), [part.rows for part in self.parts[0]]
        if len(self.parts) > 1 or fusion.axis or fusion.stacked or fusion.shape:
            return None
        return None if any(each is None for each in known) else fuse([known], fusion)

    def values(self) -> np.ndarray:
        """Return the values in canonical order without axes of size 1: float64, integers, complex as pairs."""
        if self.parts:
            if self.fusion is None:  # terms of a sum, which may lie with other axes of size 1
                found = sum((part.values() for part in self.parts[0]), np.zeros(self.form))
            else:
                parts = [[part.values().reshape(part.laid) for part in row] for row in self.parts]
                found = fuse(parts, self.fusion).reshape(self.form)
            return found if self.factor == 1 else found * self.factor
        assert self.reader is not None
        found = self.reader.values(self.stored)
        if len(self.axes) == len(self.shape):
            found = found.transpose(self.axes)
        found = as_real(found).reshape(self.form + ((2,) if self.kind == "complex" else ()))
        if self.kind == "integer":
            return found
        with np.errstate(invalid="ignore"):
            return found.astype(np.float64) * self.factor


def joined(rows: Sequence[Sequence[Tensor]], fusion: Fusion, shape: Shape) -> Tensor:
    """Return tensors as the one that they are on the other side: exact statistics, no sketch."""
    parts = [part for row in rows for part in row]
    if len(parts) == 1 and not fusion.reorders:
        return parts[0]
    norm = math.sqrt(sum(part.norm**2 for part in parts))
    mean = sum(part.mean * part.size for part in parts) / max(sum(part.size for part in parts), 1)
    ends = min(part.low for part in parts), max(part.high for part in parts)
    bad = tuple(sum(part.bad[i] for part in parts) for i in range(3))
    count, learns = sum(part.zeros for part in parts), any(part.learns for part in parts)
    made = Tensor(shape, parts[0].dtype, norm, mean, *ends, bad, count, learns=learns)
    return replace(made, parts=tuple(map(tuple, rows)), fusion=fusion)


def zeros(shape: Shape, dtype: str, axes: tuple[int, ...]) -> Tensor:
    """Return a tensor of zeros."""
    size = math.prod(shape)
    return Tensor(shape, dtype, 0.0, 0.0, 0.0, 0.0, (0, 0, 0), size, sketch=np.zeros(WIDTH), axes=axes)


def added(terms: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors, of which only the sketch is known: sketches are linear."""
    is_known = all(term.sketch is not None for term in terms)
    sketch = np.sum([term.sketch for term in terms], axis=0) if is_known else None
    first, unknown = terms[0], [math.nan] * 4
    return Tensor(first.shape, first.dtype, *unknown, (0, 0, 0), 0, sketch=sketch, axes=first.axes)


def with_bias(output: Tensor, bias: Tensor) -> Tensor:
    """Return an output with a vector added to each of its rows, as sketches and values know it."""
    axes, own = axes_of(output.shape), bias.sketch
    if len(axes) > 1 and axes[-1].rank:  # keys that the vector alone does not have: its elements are needed
        elements = bias.values() if bias.has_values else bias.rows
        own = None if elements is None else along(axes[-1], elements)
    rows = outer([own, *(along(axis, np.ones(axis.size)) for axis in axes[:-1])]) if own is not None else None
    return replace(added((output, replace(bias, sketch=rows))), parts=((output, bias),), learns=output.learns)


def less(a: Tensor, b: Tensor) -> Tensor | None:
    """Return the difference of two tensors of one side, as their sketches tell it; None without."""
    found = added((a, b.times(-1)))
    return None if found.sketch is None else replace(found, norm=float(np.linalg.norm(found.sketch)), learns=a.learns)
