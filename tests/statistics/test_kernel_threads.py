"""Large tensors are measured in the threads of another pool: the numbers are those of one thread, bit for bit."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Iterator

import ml_dtypes
import numpy as np
import pytest

from probe.numbers import kernel
from probe.numbers.statistics import measure, measure_update
from probe.testing import assert_stats_agree

pytestmark = pytest.mark.skipif(not kernel.AVAILABLE, reason="probe was installed without a C compiler")

_TASK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_RUN = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
_ASK = ctypes.CFUNCTYPE(ctypes.c_int)
ADDED = 3
"""threads of the pool beside the one that calls"""
SHAPES = [
    (512, 256),
    (300, 700),
    (3, 200_003),
    (1, 151_936),
    (131_072,),
    (262_145,),
    (20_000, 3, 3),
    (61, 61, 61),
    (2200, 2100),
]


class Pool:
    """Runs a task in some threads at once, as OpenMP does."""

    def __init__(self) -> None:
        self.runs, self.threads, self.is_inside = 0, ADDED + 1, False
        self._callbacks = _RUN(self._run), _ASK(lambda: self.threads), _ASK(lambda: int(self.is_inside))
        self.addresses = [ctypes.cast(each, ctypes.c_void_p).value for each in self._callbacks]

    def _run(self, task: int, work: int, threads: int, flags: int) -> None:
        self.runs += 1
        everyone = [threading.Thread(target=_TASK(task), args=(work,)) for _ in range(ADDED)]
        for each in everyone:
            each.start()
        _TASK(task)(work)
        for each in everyone:
            each.join()


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool()
    assert kernel._kernel.share(*made.addresses, ADDED + 1)
    yield made
    kernel._kernel.share(0, 0, 0, 0)


def sample(shape: tuple[int, ...], dtype: type) -> np.ndarray:
    return (np.random.default_rng(0).standard_normal(shape) * 30).astype(dtype)


def place_of(array: np.ndarray) -> tuple[int, int, int, tuple[int, ...], tuple[int, ...]]:
    return array.ctypes.data, array.nbytes, kernel.KINDS[array.dtype.name], array.shape, ()


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numbers_are_those_of_one_thread(pool: Pool, shape: tuple[int, ...], dtype: type) -> None:
    array = sample(shape, dtype)
    together = [kernel.measure(*place_of(array)) for _ in range(5)]
    assert pool.runs == 5
    pool.threads = 1
    assert set(together) == {kernel.measure(*place_of(array))}
    assert pool.runs == 5
    assert_stats_agree(together[0], measure(array))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_an_update_and_what_it_leaves_are_those_of_one_thread(pool: Pool, shape: tuple[int, ...]) -> None:
    after, before = sample(shape, np.float32), sample((*shape, 2), np.float32)[..., 1].copy()
    where = after.ctypes.data, before.ctypes.data, *place_of(after)[1:]
    together = kernel.measure_update(*where)
    assert pool.runs == 1
    pool.threads = 1
    assert together == kernel.measure_update(*where)
    assert together[1] == kernel.measure(*place_of(after))
    assert_stats_agree(together[0], measure_update(after, before))


@pytest.mark.parametrize("place", [0, 70_000, -1])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_nan_and_inf_in_any_piece(pool: Pool, value: float, place: int) -> None:
    array = sample((300, 700), np.float32)
    array.reshape(-1)[place] = value
    assert_stats_agree(kernel.measure(*place_of(array)), measure(array))
    assert pool.runs == 1


def test_what_is_known_is_hashed_and_not_measured_again(pool: Pool) -> None:
    array = sample((300, 700), np.float32)
    known = kernel.measure(*place_of(array))
    assert kernel.measure(*place_of(array), known=known) is known
    assert pool.runs == 1
    array[-1, -1] += 1
    assert_stats_agree(kernel.measure(*place_of(array), known=known), measure(array))


def test_what_stays_in_one_thread(pool: Pool) -> None:
    small, transposed, integers = sample((1000, 32), np.float32), sample((700, 300), np.float32).T, np.arange(300_000)
    kernel.measure(*place_of(small))
    strides = tuple(each // 4 for each in transposed.strides)
    place = transposed.ctypes.data, transposed.nbytes, kernel.KINDS["float32"], transposed.shape, ()
    in_order = np.ascontiguousarray(transposed)
    stats = kernel.measure(*place, strides=strides)
    kernel.measure(*place_of(integers))
    pool.is_inside = True  # a parallel region: its threads are taken
    kernel.measure(*place_of(in_order))
    pool.is_inside, pool.threads = False, ADDED + 2  # more than there are cores: they would wait for each other
    kernel.measure(*place_of(in_order))
    assert not pool.runs
    pool.threads = ADDED + 1
    assert kernel.measure(*place_of(in_order)) == stats  # and in whatever order it lies, the numbers are the same
    assert pool.runs == 1


def test_a_library_without_openmp_is_none() -> None:
    assert not kernel.share("no/such/library.so")
    assert not kernel.share(kernel._kernel.__file__)
