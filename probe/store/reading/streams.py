"""Values of a tensor, so many at a time: what is read of a large one needs no more memory than that."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import numpy as np

from probe.store.places import Unshared, opened_raw


def split(array: np.ndarray, chunk: int) -> Iterator[np.ndarray]:
    """Yield an array flat, ``chunk`` elements at a time; as it is if 0."""
    if not chunk:
        yield array
        return
    flat = array.reshape(-1)
    for start in range(0, flat.size, chunk):
        yield flat[start : start + chunk]


def read(
    path: Path, offset: int, count: int, dtype: np.dtype, chunk: int, into: np.ndarray | None
) -> Iterator[np.ndarray]:
    """Read values ``chunk`` at a time, straight from their bytes in the file."""
    with contextlib.closing(opened_raw(path)) as raw:
        raw.seek(offset)
        while count:
            size = min(chunk, count)
            part = np.empty(size, dtype) if into is None else into[: size * dtype.itemsize].view(dtype)
            _fill(raw, memoryview(part.view(np.uint8)))
            count -= size
            yield part


def cut(
    runs: Iterator[np.ndarray], count: int, dtype: np.dtype, chunk: int, into: np.ndarray | None
) -> Iterator[np.ndarray]:
    """Yield values ``chunk`` at a time that come in runs of other lengths."""
    run = np.empty(0, dtype)
    while count:
        size, done = min(chunk, count), 0
        part = np.empty(size, dtype) if into is None else into[: size * dtype.itemsize].view(dtype)
        while done < size:
            run = run if run.size else next(runs)
            taken, run = run[: size - done], run[size - done :]
            part[done : done + taken.size] = taken
            done += taken.size
        count -= size
        yield part


def _fill(raw: Unshared | IO[bytes], wanted: memoryview) -> None:
    """Read as many bytes as there is room for."""
    while wanted:
        got = raw.readinto(wanted)  # type: ignore[union-attr]
        if not got:
            raise OSError("the file ends too early")
        wanted = wanted[got:]
