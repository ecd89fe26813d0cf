"""Blocks are used again when nobody sees them any more, and never before."""

from __future__ import annotations

import os
from collections.abc import Iterator

import numpy as np
import pytest

from probe.numbers import buffers

LARGE = (1 << 18,)


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    buffers.release()
    yield
    buffers.release()


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_a_block_is_used_again() -> None:
    array = buffers.empty(LARGE, np.dtype("f4"))
    first = address(array)
    del array
    assert address(buffers.empty((1 << 17,), np.dtype("f8"))) == first


def test_a_block_that_a_view_still_shows_is_not_used_again() -> None:
    array = buffers.empty((2, *LARGE), np.dtype("f4"))
    array[:] = 1
    row = memoryview(array[1].view(np.uint8))
    first = address(array)
    del array
    other = buffers.empty((2, *LARGE), np.dtype("f4"))
    other[:] = 2
    assert address(other) != first and np.array_equal(np.frombuffer(row, "f4"), np.ones(LARGE))


def test_unused_blocks_are_bounded_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "_LIMIT", 3 << 20)
    arrays = [buffers.empty(LARGE, np.dtype("f4")) for _ in range(5)]
    arrays.clear()
    assert sum(map(len, buffers._unused.values())) == 3
    buffers.release()
    assert not buffers._unused


@pytest.mark.parametrize("shape", [(), (0, 5), (3, 4)])
def test_small_arrays_are_plain_ones(shape: tuple[int, ...]) -> None:
    assert buffers.empty(shape, np.dtype("i2")).base is None


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_does_not_write_into_what_its_parent_copied() -> None:
    """Anonymous maps are shared with children unless one asks otherwise."""
    array = buffers.empty(LARGE, np.dtype("f4"))
    array[:] = 1
    child = os.fork()
    if not child:
        array[:] = 2
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert (array == 1).all()
