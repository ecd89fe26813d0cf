"""The sketch: what it does not depend on, what it tells apart, how well it estimates."""

from __future__ import annotations

from collections.abc import Callable

import hypothesis
import hypothesis.extra.numpy as npst
import numpy as np
import pytest
from hypothesis import strategies as st

from probe.numbers.sketch import CHUNK, WIDTH, axes_of, combined, integer_signs, sketch
from probe.testing import sample

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
