"""Sums over the pairs of elements of two tensors, in float64: by the compiled loop where it is there, else by numpy."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import numpy as np

from probe.numbers import kernel
from probe.numbers.statistics import dtype_of

READ = 1 << 16
"""elements that are read at a time where they stand in the same order: what is read stays in the cache"""
WIDEST = 16
"""bytes of the widest dtype, complex128"""
_PART = 1 << 13
"""elements that numpy takes in at a time: they stay in the cache, and BLAS starts no threads for so few"""
_TINY = np.full(_PART, np.finfo(np.float64).tiny)
"""as many as are taken in at a time: numpy takes twice as long for a single number"""
_NEARLY = 1 - 1e-12
"""what a quotient may be off by, in this direction"""
_KINDS = {dtype_of(name): kernel.KINDS[name] for name in ("float32", "float64", "bfloat16", "float16")}
"""dtypes that the compiled loop reads here"""


@dataclass
class Sums:
    """Sums over pairs of elements, taken in by chunks."""

    squared: float = 0.0
    squares_a: float = 0.0
    squares_b: float = 0.0
    inner: float = 0.0
    absolute: float = 0.0
    count: int = 0
    differing: int = 0
    mismatched: int = 0
    """elements that are not finite in the same way"""
    max_abs: float = 0.0
    max_at: int = 0
    max_rel: float = 0.0

    def add(self, a: np.ndarray, b: np.ndarray) -> None:
        """Add a chunk of A (flat, in A's order) and what stands there in B."""
        first, second = a.reshape(-1), b.reshape(-1)
        if kernel.AVAILABLE and first.dtype in _KINDS and second.dtype in _KINDS:
            self._add_compiled(first, second)
            return
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            for start in range(0, first.size, _PART):
                self._add(first[start : start + _PART], second[start : start + _PART])

    def _add_compiled(self, a: np.ndarray, b: np.ndarray) -> None:
        a, b = (np.require(each, requirements=("C", "A")) for each in (a, b))
        if a.size != b.size:
            raise ValueError(f"{a.size} elements are compared with {b.size}")
        places = a.ctypes.data, _KINDS[a.dtype], b.ctypes.data, _KINDS[b.dtype]
        squared, squares_a, squares_b, inner, absolute, largest, self.max_rel, at, mismatched = kernel.sum_pairs(
            *places, a.size, self.max_rel
        )
        self.squared += squared
        self.squares_a += squares_a
        self.squares_b += squares_b
        self.inner += inner
        self.absolute += absolute
        self.mismatched += mismatched
        if largest > self.max_abs:
            self.max_abs, self.max_at = largest, self.count + at
        self.count += a.size

    @functools.cached_property
    def _buffers(self) -> np.ndarray:
        return np.empty((3, _PART))

    def _add(self, a: np.ndarray, b: np.ndarray) -> None:
        x, y, error = self._buffers[:, : a.size]
        x[...], y[...] = a, b
        np.subtract(y, x, out=error)
        squared = float(error @ error)
        if not math.isfinite(squared):
            self._leave_out_nonfinite(x, y)
            np.subtract(y, x, out=error)
            squared = float(error @ error)
        self.squared += squared
        self.squares_a += float(x @ x)
        self.squares_b += float(y @ y)
        self.inner += float(x @ error)
        size = np.abs(error, out=error)
        at = int(size.argmax())
        largest = float(size[at])
        if largest > self.max_abs:
            self.max_abs, self.max_at = largest, self.count + at
        self.count += a.size
        if largest:
            self.absolute += float(np.add.reduce(size))
            self._take_largest_share(x, y, size, is_narrow=max(a.itemsize, b.itemsize) < size.itemsize)

    def _take_largest_share(self, x: np.ndarray, y: np.ndarray, size: np.ndarray, *, is_narrow: bool) -> None:
        """Keep the largest of |x − y| / max(|x|, |y|), where ``size`` is |x − y|; what is given is overwritten.

        Behind the first part few elements can have a larger one, and |x| alone tells which. Of float64 the product may underflow.
        """
        np.abs(x, out=x)
        if self.max_rel and is_narrow:
            may_be_larger = np.flatnonzero(size > x * (self.max_rel * _NEARLY))
            if not may_be_larger.size:
                return
            if may_be_larger.size < size.size // 8:
                x, y, size = x[may_be_larger], y[may_be_larger], size[may_be_larger]
        larger = np.maximum(x, np.abs(y, out=y), out=x)
        np.maximum(larger, _TINY[: larger.size], out=larger)
        self.max_rel = max(self.max_rel, float(np.maximum.reduce(np.divide(size, larger, out=size))))

    def _leave_out_nonfinite(self, x: np.ndarray, y: np.ndarray) -> None:
        """Count the elements that are not finite in the same way, and put zeros where one of a pair is not finite."""
        finite = np.isfinite(x) & np.isfinite(y)
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        self.mismatched += int((~finite & ~same).sum())
        x[~finite] = y[~finite] = 0.0
