"""Sketches, sums along axes, and sums of pairs."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import hypothesis.extra.numpy as npst
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from probe.numbers import axis_sums as module
from probe.numbers import kernel
from probe.numbers import pair_sums as sums
from probe.numbers.axis_sums import axis_sums, reordered, signs_of
from probe.numbers.pair_sums import Sums
from probe.numbers.sketch import CHUNK, WIDTH, axes_of, combined, integer_signs, sketch
from probe.numbers.statistics import dtype_of
from probe.testing import sample
from probe.testing.arrays import sample as sample_axes

# ---- The sketch: what it does not depend on, what it tells apart, how well it estimates.

SETTINGS = hypothesis.settings(max_examples=50, deadline=None)
SHAPES = npst.array_shapes(min_dims=0, max_dims=4, min_side=1, max_side=9)


def whole(shape: tuple[int, ...], seed: int) -> np.ndarray:
    """Return small whole numbers as floats: their sketches are exact, in whatever order they are summed."""
    return np.random.default_rng(seed).integers(-50, 50, shape).astype(np.float64)


def naive(values: np.ndarray) -> np.ndarray:
    """The formulas of docs/reference/file-format.md, one element at a time, in Python's integers."""

    def mix(x: int) -> int:
        z = (x + 0x9E3779B97F4A7C15) % 2**64
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
        return z ^ z >> 31

    result = np.zeros(WIDTH)
    for index in np.ndindex(values.shape):
        value = values[index]
        term = float(value) if np.isfinite(value) else 0.0
        if values.dtype.kind in "biu":
            term = 1.0 - 2.0 * (mix(int(value) % 2**64 ^ 0x70726F62652021) & 1)
        bucket = 0
        for axis, i in enumerate(index):
            size, rank = values.shape[axis], values.shape[:axis].count(values.shape[axis])
            if size > 1:
                seed = mix(size << 8 | rank)
                term *= 1.0 - 2.0 * (mix(i ^ seed) & 1)
                bucket += (1 + mix(seed) % 60) * i
        result[bucket % 61] += term
    return result


@SETTINGS
@hypothesis.given(shape=SHAPES, seed=st.integers(0, 2**32))
def test_it_is_what_the_formulas_say(shape: tuple[int, ...], seed: int) -> None:
    values = whole(shape, seed)
    np.testing.assert_array_equal(sketch(values), naive(values))


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int32", "int64", "uint64"])
def test_integers_are_signs_of_their_values(dtype: str) -> None:
    values = np.random.default_rng(0).integers(0, 256, (5, 4, 16), np.uint8).view(dtype)
    np.testing.assert_array_equal(sketch(values), naive(values))
    wide = values.astype(np.int64)
    np.testing.assert_array_equal(sketch(values), sketch(wide))


def test_values_that_are_not_finite_count_as_zero() -> None:
    values = sample((6, 7))
    spoilt, zeroed = values.copy(), values.copy()
    spoilt[0, 1], spoilt[2, 3], spoilt[5, 6] = np.nan, np.inf, -np.inf
    zeroed[0, 1] = zeroed[2, 3] = zeroed[5, 6] = 0
    np.testing.assert_array_equal(sketch(spoilt), sketch(zeroed))


@pytest.mark.parametrize("shape", [(CHUNK + 1,), (3, 100_003), (61, 1, 5, 1000)])
def test_chunks_do_not_matter(shape: tuple[int, ...]) -> None:
    values = whole(shape, 1)
    parts = [np.where(np.arange(values.size).reshape(shape) % 3 == k, values, 0) for k in range(3)]
    np.testing.assert_array_equal(combined([sketch(part) for part in parts]), sketch(values))
    half = values.copy()
    half[shape[0] // 2 :] = 0
    moved = np.roll(half, 1, axis=-1)
    assert not np.array_equal(sketch(half), sketch(moved))


@SETTINGS
@hypothesis.given(data=st.data(), seed=st.integers(0, 2**32))
def test_the_order_of_axes_of_different_sizes_does_not_matter(data: st.DataObject, seed: int) -> None:
    shape = data.draw(st.lists(st.sampled_from([2, 3, 5, 7, 8]), max_size=4, unique=True).map(tuple))
    axes = data.draw(st.permutations(range(len(shape))))
    values = whole(shape, seed)
    np.testing.assert_array_equal(sketch(values.transpose(axes)), sketch(values))
    np.testing.assert_array_equal(sketch(np.asfortranarray(values)), sketch(values))


@SETTINGS
@hypothesis.given(data=st.data(), seed=st.integers(0, 2**32))
def test_axes_of_size_one_do_not_matter(data: st.DataObject, seed: int) -> None:
    shape = data.draw(SHAPES)
    places = data.draw(st.lists(st.integers(0, len(shape)), max_size=8))
    values = whole(shape, seed)
    longer = values
    for place in places:
        longer = np.expand_dims(longer, place)
    np.testing.assert_array_equal(sketch(longer), sketch(values))


def test_many_axes_of_size_one() -> None:
    """The fifth of them would turn all signs around."""
    values = whole((2, 3), 0)
    np.testing.assert_array_equal(sketch(values.reshape(1, 1, 2, 1, 1, 3, 1)), sketch(values))


@pytest.mark.parametrize("shape", [(12, 12), (5, 9, 9), (4, 7, 4, 7), (8, 8, 8)])
def test_equal_axes_are_told_apart_by_their_order(shape: tuple[int, ...]) -> None:
    values = whole(shape, 2)
    axes = tuple(reversed(range(len(shape))))
    swapped = values.transpose(axes)
    assert not np.array_equal(sketch(swapped), sketch(values))
    np.testing.assert_array_equal(sketch(swapped, axes), sketch(values))


@SETTINGS
@hypothesis.given(data=st.data(), seed=st.integers(0, 2**32))
def test_order_undoes_any_permutation(data: st.DataObject, seed: int) -> None:
    shape = data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple))
    axes = data.draw(st.permutations(range(len(shape))))
    values = whole(shape, seed)
    stored = values.transpose(axes)
    canonical = tuple(int(axis) for axis in np.argsort(axes))
    np.testing.assert_array_equal(sketch(stored, canonical), sketch(values))


def test_axes_that_the_order_does_not_name_follow() -> None:
    assert axes_of((4, 4, 4), (1, 0)) == axes_of((4, 4, 4), (1, 0, 2))
    assert [axis.rank for axis in axes_of((4, 4, 4), (1, 0))] == [1, 0, 2]


@SETTINGS
@hypothesis.given(shape=SHAPES, seed=st.integers(0, 2**32))
def test_it_is_linear(shape: tuple[int, ...], seed: int) -> None:
    a, b = whole(shape, seed), whole(shape, seed + 1)
    np.testing.assert_array_equal(sketch(3 * a - b), 3 * sketch(a) - sketch(b))
    np.testing.assert_array_equal(combined([sketch(a), sketch(b), sketch(b)]), sketch(a + 2 * b))


# ---- estimates -----------------------------------------------------------------------------------------


def one_row(a: np.ndarray) -> np.ndarray:
    b = a.copy()
    b[len(b) // 2] *= 1.5
    return b


def one_column(a: np.ndarray) -> np.ndarray:
    b = a.copy()
    b[..., -1] += 0.3
    return b


DIFFERENCES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "noise": lambda a: a + 1e-6 * sample(a.shape, 99),
    "relative noise": lambda a: a * (1 + 1e-5 * sample(a.shape, 99)),
    "scale": lambda a: a * (1 + 4.5e-6),
    "eight bits left": lambda a: (a.view(np.uint64) & np.uint64(2**64 - 2**44)).view(np.float64),
    "constant": lambda a: a + 1e-3,
    "rolled": lambda a: np.roll(a, 1, axis=-1),
    "flipped": lambda a: a[..., ::-1],
    "one row": one_row,
    "one column": one_column,
    "other values": lambda a: sample(a.shape, 7).astype(np.float64),
    "negated": lambda a: -a,
    "half zero": lambda a: np.where(np.arange(a.size).reshape(a.shape) % 2 == 0, a, 0),
    "block": lambda a: np.where(np.arange(a.shape[-1]) < a.shape[-1] // 3, a, 1.01 * a),
}


@pytest.mark.parametrize("shape", [(1000,), (40, 70), (64, 64), (2, 33, 96), (4, 8, 16, 16), (3, 200, 256)])
@pytest.mark.parametrize("kind", DIFFERENCES)
def test_the_distance_is_estimated(kind: str, shape: tuple[int, ...]) -> None:
    """±√(2/61) is one deviation: within 0.6 to 1.5 are all of these."""
    for seed in range(3):
        a = sample(shape, seed).astype(np.float64) + 0.2
        b = DIFFERENCES[kind](a)
        estimate = np.linalg.norm(sketch(a) - sketch(b)) / np.linalg.norm(a - b)
        assert 0.6 < estimate < 1.5


def test_estimates_deviate_as_stated() -> None:
    """The squared distance has a relative deviation of √(2/61) = 0.18, and no bias."""
    ratios = []
    for seed in range(300):
        a = sample((30, 41), seed)
        ratios.append(np.sum(sketch(a) ** 2) / np.sum(a.astype(np.float64) ** 2))
    assert abs(np.mean(ratios) - 1) < 0.03
    assert 0.14 < np.std(ratios) < 0.22


@pytest.mark.parametrize("change", ["sign of one", "two swapped"])
@pytest.mark.parametrize("index", [0, 1, 60, 61, 62, 4000, 12_345])
def test_no_element_is_overlooked(change: str, index: int) -> None:
    a = sample((5, 61, 64))
    b = a.copy().reshape(-1)
    b[index] = -b[index] if change == "sign of one" else b[index + 1]
    if change == "two swapped":
        b[index + 1] = a.reshape(-1)[index]
    distance = np.linalg.norm(a.reshape(-1) - b)
    assert np.linalg.norm(sketch(a) - sketch(b.reshape(a.shape))) == pytest.approx(distance, rel=0.5)


def test_the_sketch_of_a_mask_tells_it_from_the_empty_one() -> None:
    assert not np.array_equal(integer_signs(np.array([0])), integer_signs(np.array([1])))


# ---- Sums along the axes of a weight: what they are, and what they tell.


def brute_force(values: np.ndarray) -> list[np.ndarray]:
    """Do what docs/reference/file-format.md says, element by element."""
    x = values.reshape([size for size in values.shape if size != 1])
    if x.ndim < 2:
        return [x] if x.ndim else []
    found = []
    for axis in range(x.ndim if x.ndim < 4 else 1):
        rest = [other for other in range(x.ndim) if other != axis]
        sizes = [x.shape[other] for other in rest]
        sums = np.zeros(x.shape[axis])
        for index in itertools.product(*map(range, x.shape)):
            beside = [index[other] for other in rest]
            if x.ndim == 3:
                sign = signs_of(sizes[0], int(sizes[0] == sizes[1]))[beside[0]] * signs_of(sizes[1])[beside[1]]
            else:
                sign = signs_of(math.prod(sizes))[np.ravel_multi_index(beside, sizes)]
            sums[index[axis]] += sign * x[index]
        found.append(sums)
    return found


@pytest.mark.parametrize("at_once", [1, 7, 1 << 18])
@pytest.mark.parametrize("shape", [(5,), (6, 7), (4, 4, 4), (3, 5, 5), (2, 6, 3), (4, 3, 2, 2), (1, 5, 1, 3), (1,), ()])
def test_they_are_what_the_format_says(shape: tuple[int, ...], at_once: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_AT_ONCE", at_once)
    values = sample_axes(shape)
    actual, expected = axis_sums(values), brute_force(values)
    assert [sums.dtype for sums in actual] == [np.float32] * len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        assert np.allclose(mine, theirs, rtol=0, atol=1e-5 * np.linalg.norm(values))


def test_of_another_layout_they_are_those_of_the_canonical_one() -> None:
    values = sample_axes((6, 4))
    for mine, theirs in zip(axis_sums(np.ascontiguousarray(values.T), (1, 0)), axis_sums(values), strict=True):
        assert np.allclose(mine, theirs, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "float8_e4m3fn"])
def test_they_are_taken_in_float64(dtype: str) -> None:
    values = (sample_axes((40, 3000)) * 3).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
    for mine, theirs in zip(axis_sums(values), axis_sums(values.astype(np.float64)), strict=True):
        assert np.linalg.norm(mine - theirs) <= 1e-7 * np.linalg.norm(values.astype(np.float64))


@pytest.mark.parametrize("values", [
    np.array([[1.0, math.nan], [2.0, 3.0]]), np.array([1.0, math.inf]), np.ones((3, 2), np.int64), np.ones((2, 2), bool),
    np.ones((0, 4)),
])  # fmt: skip
def test_there_are_none_of_what_is_no_finite_float(values: np.ndarray) -> None:
    assert axis_sums(values) == ()


@pytest.mark.parametrize("shape", [(70_000,), (300_000, 8), (3, 100_000)])
def test_there_are_none_where_they_would_be_many(shape: tuple[int, ...]) -> None:
    """A flat parameter, as FSDP has it, would be kept whole."""
    assert axis_sums(np.broadcast_to(np.float32(1), shape)) == ()
    assert [len(each) for each in axis_sums(np.broadcast_to(np.float32(1), (5000, 300)))] == [5000, 300]


def test_no_more_than_a_block_is_widened(monkeypatch: pytest.MonkeyPatch) -> None:
    widened: list[int] = []
    plain = module.sums_of

    def counted(x: Any, *, widen: Any, **others: Any) -> Any:
        return plain(x, widen=lambda block: widened.append(block.size) or widen(block), **others)

    monkeypatch.setattr(module, "sums_of", counted)
    for shape in ((2, 1500, 1000), (1200, 4, 900), (2, 1, 30_000, 200)):
        axis_sums(np.ones(shape, np.float32))
    assert max(widened) <= 1 << 18 and len(widened) > 20


@pytest.mark.parametrize("shape", [(2, 2048, 4096), (4096, 4096)])
def test_their_rounding_does_not_grow_with_the_weight(shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape, np.float32)
    turned = np.ascontiguousarray(values[..., ::-1, :].swapaxes(-1, -2))  # other blocks, another order of sums
    for mine, theirs in zip(
        axis_sums(values[..., ::-1, :]), axis_sums(turned, (*range(len(shape) - 2), -1, -2)), strict=True
    ):
        assert np.linalg.norm(mine - theirs) <= 1e-7 * np.linalg.norm(values)


@pytest.mark.parametrize("shape", [(300, 200), (20, 60, 40)])
def test_they_are_as_far_apart_as_the_weights(shape: tuple[int, ...]) -> None:
    random = np.random.default_rng(0)
    a, error = random.standard_normal(shape), random.standard_normal(shape)
    for share in (1e-3, 0.1):
        for mine, theirs in zip(axis_sums(a), axis_sums(a + share * error), strict=True):
            assert np.linalg.norm(mine - theirs) == pytest.approx(share * np.linalg.norm(error), rel=0.4)


def test_rows_of_parts_that_follow_one_another_do_so_in_the_sums() -> None:
    q, k = sample_axes((6, 8)), sample_axes((4, 8)) * 2
    assert np.array_equal(axis_sums(np.concatenate([q, k]))[0], np.concatenate([axis_sums(q)[0], axis_sums(k)[0]]))


@pytest.mark.parametrize(("shape", "is_told"), [((6, 7), True), ((5, 5), True), ((3, 4, 5), True), ((3, 4, 4), False)])
def test_of_axes_in_another_order(shape: tuple[int, ...], is_told: bool) -> None:
    values, order = sample_axes(shape), [*range(len(shape))][::-1]
    actual = reordered(axis_sums(values), order)
    assert bool(actual) is is_told
    for mine, theirs in zip(actual, axis_sums(values.transpose(order)) if is_told else (), strict=True):
        assert np.allclose(mine, theirs, rtol=0, atol=1e-5 * np.linalg.norm(values))
    assert reordered(axis_sums(sample_axes((4, 3, 2, 2))), (0, 2, 3, 1)) == ()


# ---- Sums over pairs of elements: the compiled loop, with every instruction set, and numpy give what the formulas say.

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
