"""Sums over pairs of elements: the compiled loop, with every instruction set, and numpy give what the formulas say."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator

import numpy as np
import pytest

from probe.comparison.distance import sums
from probe.comparison.distance.sums import Sums
from probe.numbers import kernel
from probe.numbers.statistics import dtype_of

FLOATS = ["float32", "float64", "float16", "bfloat16"]
SIZES = [0, 1, 3, 7, 8, 9, 1023, 1024, 1025, 8191, 8193, 20_011]


@pytest.fixture(params=["avx512", "avx2", "plain", "numpy"])
def by(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """What adds up: the loop for an instruction set, or numpy."""
    if request.param == "numpy":
        monkeypatch.setattr(kernel, "AVAILABLE", False)
        yield "numpy"
        return
    if not (kernel.AVAILABLE and kernel.use(request.param)):
        pytest.skip(f"no compiled loop, or none for {request.param}")
    yield request.param
    kernel.use(kernel.INSTRUCTIONS)


def expected(a: np.ndarray, b: np.ndarray) -> Sums:
    """Return what the definition says, at once for all elements."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    finite = np.isfinite(x) & np.isfinite(y)
    mismatched = int((~finite & ~((x == y) | (np.isnan(x) & np.isnan(y)))).sum())
    x[~finite] = y[~finite] = 0
    with np.errstate(over="ignore"):
        error = y - x
        size = np.abs(error)
        larger = np.maximum(np.maximum(np.abs(x), np.abs(y)), np.finfo(np.float64).tiny)
        return Sums(
            math.fsum(error**2) if np.isfinite(error @ error) else math.inf, float(x @ x), float(y @ y), float(x @ error),
            float(size.sum()), x.size, 0, mismatched, float(size.max(initial=0)), int(size.argmax()) if size.any() else 0,
            float((size / larger).max(initial=0)),
        )  # fmt: skip


def check(a: np.ndarray, b: np.ndarray, chunk: int = 5000) -> None:
    """Take in two arrays by chunks, and hold what comes out against the definition."""
    found, wanted = Sums(), expected(a.reshape(-1), b.reshape(-1))
    for start in range(0, max(a.size, 1), chunk):
        found.add(a.reshape(-1)[start : start + chunk], b.reshape(-1)[start : start + chunk])
    for field in dataclasses.fields(Sums):
        value, other = getattr(found, field.name), getattr(wanted, field.name)
        if isinstance(other, int):
            assert value == other, field.name
        else:
            # what is added up may cancel out: no more than that of its sizes is known
            scale = math.sqrt(wanted.squares_a * wanted.squared) if field.name == "inner" else 0
            least = 1e-12 * scale if math.isfinite(scale) else 0
            assert value == pytest.approx(other, rel=1e-12, abs=least), field.name
            assert type(value) is float


def pair(size: int, dtype: str, other: str, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    a = generator.standard_normal(size)
    b = a * (1 + 1e-2 * generator.standard_normal(size))
    return a.astype(dtype_of(dtype)), b.astype(dtype_of(other))


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", SIZES)
def test_every_length(size: int, dtype: str) -> None:
    check(*pair(size, dtype, dtype))


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("other", FLOATS)
def test_one_dtype_against_another(dtype: str, other: str) -> None:
    check(*pair(3001, dtype, other))


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_not_finite_counts_where_it_differs_and_nowhere_else(dtype: str) -> None:
    a, b = pair(6003, dtype, dtype)
    for at, (x, y) in enumerate([(np.nan, np.nan), (np.inf, np.inf), (-np.inf, -np.inf)]):
        a[1500 * at], b[1500 * at] = x, y
    check(a, b)
    for at, (x, y) in enumerate([(np.nan, 1), (2, np.inf), (np.inf, -np.inf), (np.nan, np.inf), (-np.inf, 3)]):
        a[6002 - 700 * at], b[6002 - 700 * at] = x, y
    assert expected(a, b).mismatched == 5
    check(a, b)


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("dtype", FLOATS)
def test_zeros_and_subnormal_numbers(dtype: str) -> None:
    a, b = np.zeros((2, 3000), dtype_of(dtype))
    check(a, b)
    b[::7] = -0.0
    check(a, b)
    smallest = {"float32": 1e-45, "float64": 5e-324, "float16": 6e-8, "bfloat16": 1e-40}[dtype]
    a[1100], b[1100], b[2500], a[2999], b[2999] = smallest, 3 * smallest, smallest, 2 * smallest, -smallest
    assert expected(a, b).max_abs > 0
    check(a, b)
    check(b, a)


@pytest.mark.usefixtures("by")
def test_the_largest_share_of_numbers_of_which_products_underflow() -> None:
    """A share is compared with the one before by a product, and that of two small float64 numbers has few digits, or is zero."""
    a, b = np.full((2, 4000), 1e-310)
    b[10], b[2500] = 1.5e-310, 1.6e-310
    a[3000], b[3000] = 5e-324, 0
    check(a, b)
    check(a, b.astype(np.float32))
    a, b = np.ones((2, 10_000))
    b[0] += 6 * np.finfo(np.float64).eps
    a[9000] = 6.6 / (6 * np.finfo(np.float64).eps) * 5e-324
    b[9000] = a[9000] + 7 * 5e-324
    assert expected(a, b).max_rel == expected(a[9000:], b[9000:]).max_rel
    check(a, b)


@pytest.mark.usefixtures("by")
def test_squares_that_overflow() -> None:
    a, b = pair(3000, "float64", "float64")
    a[5], b[1200] = 1e200, -1e300
    check(a, b)
    assert math.isinf(expected(a, b).squared)
    a[7], b[7] = -1.7e308, 1.7e308
    check(a, b)


@pytest.mark.usefixtures("by")
@pytest.mark.parametrize("dtype", FLOATS)
def test_arrays_that_lie_otherwise_in_memory(dtype: str) -> None:
    a, b = (each.reshape(60, 50) for each in pair(3000, dtype, dtype))
    check(a.T, b.T)
    check(a[::2, 3:], b[::2, 3:])
    found, wanted = Sums(), expected(a.reshape(-1)[::3], b.reshape(-1)[::-3])
    found.add(a.reshape(-1)[::3], b.reshape(-1)[::-3])
    assert found.squared == pytest.approx(wanted.squared, rel=1e-12)
    bytes_of = np.zeros(a.nbytes + 1, np.uint8)
    bytes_of[1:] = a.reshape(-1).view(np.uint8)
    check(bytes_of[1:].view(a.dtype), b)
    backwards = np.arange(9, dtype=">f4")
    check(backwards, backwards + np.float32(1))


@pytest.mark.usefixtures("by")
def test_dtypes_that_the_loop_does_not_read() -> None:
    check(*pair(3000, "float8_e5m2", "float8_e5m2"))
    check(*pair(3000, "float8_e5m2", "float32"))


@pytest.mark.usefixtures("by")
def test_the_first_of_the_largest_differences_is_named() -> None:
    a, b = np.zeros((2, 3000), np.float32)
    b[[700, 1025, 2900]] = 2, -2, 2
    check(a, b)
    check(a, b, chunk=701)
    check(a, b, chunk=700)


@pytest.mark.usefixtures("by")
def test_arrays_of_different_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"elements|broadcast"):
        Sums().add(np.zeros(100, np.float32), np.zeros(99, np.float32))


@pytest.mark.skipif(not kernel.AVAILABLE, reason="probe was installed without a C compiler")
def test_the_loop_is_used_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Sums, "_add", None)
    assert set(sums._KINDS) == {dtype_of(name) for name in FLOATS}
    for dtype in FLOATS:
        check(*pair(100, dtype, dtype))
