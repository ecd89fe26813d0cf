"""One tensor of one side, as it is compared: parts of a weight, a batch or a sum are one `Tensor`."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.numbers.fused import Fusion, fuse
from probe.numbers.sketch import WIDTH
from probe.numbers.statistics import as_real, dtype_of, is_float, unit_roundoff
from probe.store.reading.reader import Reader

Hash = tuple[int, int, int]
"""low and high 64 bits, and the kind"""
Shape = tuple[int, ...]


@functools.cache
def kind_of(dtype: str) -> str:
    """Return ``float``, ``complex`` or ``integer``."""
    found = dtype_of(dtype)
    return "complex" if found.kind == "c" else "float" if is_float(found) else "integer"


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
    parts: tuple[tuple[Tensor, ...], ...] = ()
    """what it is made of, in rows as for `probe.numbers.fused.fuse`"""
    fusion: Fusion | None = None
    factor: float = 1.0
    """what stored values are multiplied by"""

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
        """Whether more than norms was recorded: a hash stands with all statistics."""
        if self.parts:
            return all(part.is_known for row in self.parts for part in row)
        return self.reader is None or self.hash is not None or self.factor != 1

    def times(self, factor: float) -> Tensor:
        """Return a multiple."""
        low, high = sorted((self.low * factor, self.high * factor))
        return replace(
            self,
            norm=self.norm * abs(factor),
            mean=self.mean * factor,
            low=low,
            high=high,
            hash=None,
            sketch=None if self.sketch is None else self.sketch * factor,
            factor=self.factor * factor,
        )

    def values(self) -> np.ndarray:
        """Return the values in canonical order without axes of size 1: float64, integers, complex as pairs."""
        if self.parts:
            found = fuse(
                [[part.values().reshape(part.laid) for part in row] for row in self.parts], self.fusion or Fusion()
            )
            found = found.reshape(self.form)
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
    total = max(sum(part.size for part in parts), 1)
    return Tensor(
        shape,
        parts[0].dtype,
        math.sqrt(sum(part.norm**2 for part in parts)),
        sum(part.mean * part.size for part in parts) / total,
        min(part.low for part in parts),
        max(part.high for part in parts),
        tuple(sum(part.bad[i] for part in parts) for i in range(3)),
        sum(part.zeros for part in parts),
        learns=any(part.learns for part in parts),
        parts=tuple(map(tuple, rows)),
        fusion=fusion,
    )


def zeros(shape: Shape, dtype: str, axes: tuple[int, ...]) -> Tensor:
    """Return a tensor of zeros."""
    size = math.prod(shape)
    return Tensor(shape, dtype, 0.0, 0.0, 0.0, 0.0, (0, 0, 0), size, sketch=np.zeros(WIDTH), axes=axes)


def added(terms: Sequence[Tensor]) -> Tensor:
    """Return the sum of tensors, of which only the sketch is known: sketches are linear."""
    first = terms[0]
    is_known = all(term.sketch is not None for term in terms)
    sketch = np.sum([term.sketch for term in terms], axis=0) if is_known else None
    unknown = math.nan
    return Tensor(
        first.shape, first.dtype, unknown, unknown, unknown, unknown, (0, 0, 0), 0, sketch=sketch, axes=first.axes
    )
