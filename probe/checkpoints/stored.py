"""What a file of weights says of each tensor, and the kinds of numbers that it knows by name."""

from __future__ import annotations

import abc
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_PAGE = 4096


@dataclass(frozen=True, slots=True)
class Stored:
    """One tensor of a file, without its values."""

    name: str
    dtype: np.dtype
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its values."""
        return math.prod(self.shape) * self.dtype.itemsize


class WeightFile(abc.ABC):
    """A file of weights that can be read tensor by tensor."""

    tensors: dict[str, Stored]
    framework: str
    """whose weights they are; ``""`` where nothing tells"""

    @abc.abstractmethod
    def read(self, name: str) -> np.ndarray:
        """Return the values of a tensor."""

    def forget(self) -> None:  # noqa: B027  most read one tensor at a time
        """Give back the memory of what was read."""


def as_announced(tensors: Sequence[Stored], arrays: Iterable[np.ndarray]) -> Iterator[tuple[Stored, np.ndarray]]:
    """Yield each tensor with its array, which must be what was announced."""
    for stored, array in zip(tensors, arrays, strict=True):
        assert (array.dtype, array.shape) == (stored.dtype, stored.shape), stored.name
        yield stored, array


def blocks(array: np.ndarray, most: int = 32 << 20) -> Iterator[memoryview]:
    """Yield the bytes of an array in C order, by blocks; what lies otherwise is copied block by block only."""
    if array.flags.c_contiguous:
        data = memoryview(array.reshape(-1).view(np.uint8))
        yield from (data[start : start + most] for start in range(0, len(data), most))
    else:
        rows = max(1, most * len(array) // array.nbytes)
        for start in range(0, len(array), rows):
            yield memoryview(np.ascontiguousarray(array[start : start + rows]).reshape(-1).view(np.uint8))


def read_range(path: Path, start: int, nbytes: int) -> np.ndarray:
    """Return bytes of a file."""
    with path.open("rb") as file:
        file.seek(start)
        return read_aligned(file, nbytes)


def read_aligned(file: IO[bytes], nbytes: int) -> np.ndarray:
    """Return the next bytes of a file, fewer at its end, where a page begins: from there they can be written past the system's cache."""
    room = np.empty(nbytes + _PAGE, np.uint8)
    data = room[-room.ctypes.data % _PAGE :][:nbytes]
    return data[: file.readinto(memoryview(data))]  # type: ignore[attr-defined]
