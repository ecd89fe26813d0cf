"""Tensors as a recording holds them, made of arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import ml_dtypes
import numpy as np

from probe.numbers.statistics import measure
from probe.store.reading.reader import Reader
from probe.store.reading.streams import split
from probe.verdict.tensors import Tensor


class Values:
    """The values of one recording, as a reader gives them."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def values(self, number: int) -> np.ndarray:
        return self.array

    def parts(self, number: int, chunk: int, into: np.ndarray) -> Iterator[np.ndarray]:
        return split(self.array, chunk)


def tensor_of(values: Any, dtype: str = "float32", *, stored: bool = True, axes: tuple[int, ...] = ()) -> Tensor:
    """Return an array as it is recorded: with its values, or with statistics and sketch alone."""
    array = np.asarray(values).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    found = measure(array, axes)
    return Tensor(
        array.shape,
        dtype,
        found.norm,
        found.mean,
        found.min,
        found.max,
        (found.nan, found.posinf, found.neginf),
        found.zeros,
        (found.hash_lo, found.hash_hi, int(found.hash_kind)),
        found.sketch,
        axes=axes,
        reader=cast(Reader, Values(array)),
        stored=0 if stored else -1,
    )


def drawn(*shape: int, seed: int = 0) -> np.ndarray:
    """Return normal numbers."""
    return np.random.default_rng(seed).standard_normal(shape)
