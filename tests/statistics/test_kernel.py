"""The compiled loop gives the sums of the reference, with every instruction set, dtype and shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from probe.numbers import kernel
from probe.numbers.packed import unpack
from probe.numbers.statistics import dtype_of, hash_bits, measure, measure_update
from probe.records import HashKind
from probe.testing import assert_stats_agree

pytestmark = pytest.mark.skipif(not kernel.AVAILABLE, reason="probe was installed without a C compiler")

FLOATS = ["float32", "float64", "float16", "bfloat16"]
SHAPES = [
    (), (1,), (0,), (0, 5), (5, 0, 3), (1, 1), (7,), (61,), (62,), (488,), (489,), (5000,), (70_000,), (3, 4), (4, 7),
    (17, 16), (16, 17, 18), (2, 3, 4, 5), (8, 8, 3, 3), (100, 9, 9), (3, 1, 5, 2), (2, 14, 33, 65), (1, 1, 1, 70),
    (2, 2, 2, 2, 2, 2, 2, 2), (40_000, 2), (61, 61), (15, 61, 61), (488, 3), (1000, 16), (262_145,), (90_000, 3),
]  # fmt: skip


@pytest.fixture(params=["avx512", "avx2", "plain"], autouse=True)
def instructions(request: pytest.FixtureRequest) -> Iterator[None]:
    if not kernel.use(request.param):
        pytest.skip(f"this machine has no {request.param}")
    yield
    kernel.use(kernel.INSTRUCTIONS)


def check(array: np.ndarray, order: tuple[int, ...] = (), subtracted: np.ndarray | None = None) -> None:
    """Compare with the reference; ``array`` is in C order."""
    place = array.nbytes, kernel.KINDS[array.dtype.name], array.shape, order
    if subtracted is None:
        stats = kernel.measure(array.ctypes.data, *place)
        expected = measure(array, order)
    else:
        stats, of_array = kernel.measure_update(array.ctypes.data, subtracted.ctypes.data, *place)
        expected = measure_update(array, subtracted, order)
        assert of_array == kernel.measure(array.ctypes.data, *place)
    assert_stats_agree(stats, expected)


def sample(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    values = np.random.default_rng(0).standard_normal(shape) * 30
    return np.asarray(np.abs(values) if dtype.startswith("u") else values).astype(dtype_of(dtype))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_floats(shape: tuple[int, ...], dtype: str) -> None:
    array = sample(shape, dtype)
    check(array)
    check(array, tuple(reversed(range(array.ndim))))
    if array.size > 12:
        array.reshape(-1)[[3, 5, -1, 7, 8]] = np.nan, np.inf, -np.inf, 0.0, -0.0
        check(array)


@pytest.mark.parametrize("shape", [(), (7,), (5000,), (3, 0), (20, 61, 3), (262_200,)], ids=str)
@pytest.mark.parametrize("dtype", [name for name in kernel.KINDS if name not in FLOATS])
def test_integers(shape: tuple[int, ...], dtype: str) -> None:
    check(sample(shape, dtype))


def test_hashes_of_every_length() -> None:
    """Each of the ways in which XXH3 reads: up to 3, 8, 16, 128, 240 bytes, blocks of 1024 and stripes of 64 behind them."""
    data = np.random.default_rng(0).integers(0, 256, 1 << 18, dtype=np.uint8)
    for size in (*range(2200), *range(16_383, 16_387), 65_536, (1 << 18) - 1, 1 << 18):
        for start in (0, 1) if size < data.size else (0,):
            part = data[start : start + size]
            assert kernel.digest(part.ctypes.data, size) == hash_bits(part), size
        assert unpack(kernel.measure(data.ctypes.data, size, 5, (size,), ()))[9:11] == hash_bits(data[:size]), size


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("shape", [(3,), (61, 70), (300, 488), (3, 1, 40_000)], ids=str)
def test_what_is_known_is_returned_where_the_bytes_are_the_same(shape: tuple[int, ...], dtype: str) -> None:
    array = sample(shape, dtype)
    place = array.ctypes.data, array.nbytes, kernel.KINDS[dtype], shape, ()
    known = kernel.measure(*place)
    assert kernel.measure(*place, known=known) is known
    assert kernel.measure(*place, known=kernel.measure(*place, HashKind.NONE)) == known
    array.reshape(-1)[-1] += 1
    assert kernel.measure(*place, known=known) == kernel.measure(*place) != known


def test_bytes_that_are_not_of_a_shape_are_refused() -> None:
    array = np.zeros(8, np.float32)
    with pytest.raises(ValueError, match="32 bytes of kind 0 are not of this shape"):
        kernel.measure(array.ctypes.data, 32, 0, (9,), ())


# ---- tensors that lie in another order -----------------------------------------------------------------


def strides_of(array: np.ndarray) -> tuple[int, ...]:
    return tuple(stride // array.itemsize for stride in array.strides)


def check_order(view: np.ndarray, order: tuple[int, ...] = ()) -> None:
    """What is found of a view is, bit for bit, what is found of its copy in C order."""
    copy = np.array(view, order="C")
    place = view.nbytes, kernel.KINDS[view.dtype.name], view.shape, order
    strides = strides_of(view)
    expected = kernel.measure(copy.ctypes.data, *place)
    assert kernel.measure(view.ctypes.data, *place, strides=strides) == expected
    assert kernel.measure(view.ctypes.data, *place, strides=strides, known=expected) is expected
    if view.dtype.name in FLOATS:
        other = np.array(copy * view.dtype.type(0.75), order="F")
        other_copy = np.array(other, order="C")
        updates = kernel.measure_update(copy.ctypes.data, other_copy.ctypes.data, *place)
        assert kernel.measure_update(view.ctypes.data, other.ctypes.data, *place, strides, strides_of(other)) == updates
        assert kernel.measure_update(view.ctypes.data, copy.ctypes.data, *place, strides)[1] == expected


@st.composite
def views(draw: st.DrawFn) -> np.ndarray:
    """A view of an array: permuted, sliced, with steps, some axes repeated."""
    shape = draw(st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, 16, 17, 33, 64, 70]), min_size=1, max_size=4))
    array = sample(tuple(shape) if np.prod(shape) < 300_000 else (300, 301), draw(st.sampled_from(list(DTYPES))))
    if array.dtype.name in FLOATS and array.size > 2 and draw(st.integers(0, 5)) == 0:
        array.reshape(-1)[[0, -1]] = np.nan, np.inf
    array = array[tuple(slice(draw(st.integers(0, 2)), None, draw(st.integers(1, 3))) for _ in array.shape)]
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    axis = draw(st.integers(0, array.ndim - 1))
    if draw(st.integers(0, 4)) == 0 and array.shape[axis]:
        one = array[(slice(None),) * axis + (slice(1),)]
        array = np.broadcast_to(one, (*array.shape[:axis], 9, *array.shape[axis + 1 :]))
    return array


DTYPES = [name for name in kernel.KINDS if name != "bool"]


@hypothesis.settings(
    max_examples=80, deadline=None, suppress_health_check=[hypothesis.HealthCheck.function_scoped_fixture]
)
@hypothesis.given(view=views(), is_reversed=st.booleans())
def test_views(view: np.ndarray, is_reversed: bool) -> None:
    check_order(view, tuple(reversed(range(view.ndim))) if is_reversed else ())


LARGE: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "transposed": lambda a: a.T,
    "three axes": lambda a: a.reshape(30, 40, -1).transpose(2, 0, 1),
    "channels last": lambda a: a.reshape(4, -1, 30).transpose(0, 2, 1),
    "heads": lambda a: a.reshape(20, 30, 4, -1).transpose(2, 0, 3, 1),
    "columns": lambda a: a[:, 5:1100],
    "every third": lambda a: a.reshape(-1)[1::3],
    "pairs": lambda a: a.reshape(1200, -1, 2).transpose(1, 0, 2),
    "as one row": lambda a: a.T.reshape(1, *a.T.shape)[:, 7:],
}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", "uint8"])
@pytest.mark.parametrize("view", LARGE)
def test_views_of_many_blocks(view: str, dtype: str) -> None:
    array = sample((1200, 1300), dtype)
    check_order(LARGE[view](array))
    if dtype != "uint8":
        array[700, 800], array[3, 5] = np.nan, -np.inf
        check_order(LARGE[view](array))


def test_rows_that_are_far_apart() -> None:
    """Each in pages of its own: blocks of several lines."""
    check_order(sample((1030, 4100), "float32").T)


def test_a_layout_of_another_shape_is_refused() -> None:
    array = np.zeros((2, 4), np.float32)
    with pytest.raises(ValueError, match="a layout of another shape than the plan's"):
        kernel._kernel.measure(array.ctypes.data, 32, 0, kernel._plan((2, 4), ()), 0, 1, None, (2, 3, 1, 2))


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_every_number_of_16_bits(dtype: type) -> None:
    numbers = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    check(numbers)
    check(numbers[np.isfinite(numbers.astype(np.float32))])


@pytest.mark.filterwarnings("ignore:overflow encountered")
def test_extreme_numbers() -> None:
    check(np.array([1e200, 2e200]))  # the squares overflow, the numbers do not
    check(np.array([1e-310, 2e-320, 0.0]))
    check(np.array([np.nan] * 70))
    check(np.array([2**63 - 1, -(2**63), 2**53 + 1]))


@pytest.mark.parametrize("shape", [(), (0, 3), (7,), (33, 70), (40, 3, 3)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS)
def test_differences(shape: tuple[int, ...], dtype: str) -> None:
    a, b = sample(shape, dtype), np.array(sample((*shape, 2), dtype)[..., 1], order="C")
    check(a, subtracted=b)
    if a.size > 3:  # Inf − Inf is NaN
        a.reshape(-1)[[1, 2]], b.reshape(-1)[[1, 3]] = np.inf, np.inf
        with np.errstate(invalid="ignore"):
            check(a, subtracted=b)
