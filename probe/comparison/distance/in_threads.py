"""Sums over the elements of many pairs of stored tensors, by threads, before they are asked for.

Threads read the bytes themselves, beside HDF5, which lets in one at a time. Each pair is summed up by one thread, in the order in which
`probe.comparison.distance.values` would have done it, so that the answer does not depend on how many there are.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Self

import numpy as np

from probe.comparison.distance.sums import READ, WIDEST, Sums
from probe.comparison.distance.values import key_of_sums
from probe.comparison.steps.side import Side, SumsKey
from probe.errors import ProbeError
from probe.numbers.statistics import as_real
from probe.store.reading.streams import Piece

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

_GROUP = 16 << 20
"""bytes that a thread takes on at a time"""


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Threads:
    """A pool of threads that sum up. Each holds a part of both tensors of one pair, 2 MiB at most, and nothing else."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._pool: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self._end()

    def _end(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def begin(self, a: Side, b: Side, rows: Iterable[tuple[int, int]]) -> dict[SumsKey, Callable[[], Sums | None]]:
        """Begin to sum up records of A and of B in this order; return what waits for the sums of each. What was begun before ends.

        It returns None where something could not be read: who asks reads it once more, and says why.
        """
        from concurrent.futures import ThreadPoolExecutor  # where nothing is read, nothing pays for it

        self._end()
        self._pool = ThreadPoolExecutor(self._count, "probe-sums")
        found: dict[SumsKey, Callable[[], Sums | None]] = {}
        for group in _groups(a, b, rows):
            try:
                future = self._pool.submit(_summed, list(group.values()))
            except RuntimeError:  # no more threads may be started: what is left is read when it is asked for
                break
            found.update((key, functools.partial(_one, future, at)) for at, key in enumerate(group))
        return found


def _groups(a: Side, b: Side, rows: Iterable[tuple[int, int]]) -> Iterator[dict[SumsKey, tuple[Piece, Piece]]]:
    """Yield pairs of tensors that lie in one piece, so many at a time as a thread takes on."""
    group: dict[SumsKey, tuple[Piece, Piece]] = {}
    seen: set[SumsKey] = set()
    size = 0
    for i, j in rows:
        key = key_of_sums(a, i, b, j)
        try:
            pieces = a.piece(i), b.piece(j)
        except ProbeError:
            continue
        if key in seen or pieces[0] is None or pieces[1] is None:
            continue
        seen.add(key)
        group[key] = pieces[0], pieces[1]
        size += sum(each.count * each.dtype.itemsize for each in group[key])
        if size >= _GROUP:
            yield group
            group, size = {}, 0
    if group:
        yield group


def _summed(pairs: Sequence[tuple[Piece, Piece]]) -> list[Sums | None]:
    here, there = np.empty((2, READ * WIDEST), np.uint8)
    found: list[Sums | None] = []
    for a, b in pairs:
        sums = Sums()
        try:
            for x, y in zip(a.parts(READ, here), b.parts(READ, there), strict=True):
                sums.add(as_real(x), as_real(y))
        except (OSError, ValueError):
            found.append(None)
        else:
            found.append(sums)
    return found


def _one(future: Future[list[Sums | None]], at: int) -> Sums | None:
    return future.result()[at]
