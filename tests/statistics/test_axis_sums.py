"""Sums along the axes of a weight: what they are, and what they tell."""

from __future__ import annotations

import itertools
import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from probe.numbers import axis_sums as module
from probe.numbers.axis_sums import axis_sums, reordered, signs_of
from probe.testing.arrays import sample


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
    values = sample(shape)
    actual, expected = axis_sums(values), brute_force(values)
    assert [sums.dtype for sums in actual] == [np.float32] * len(expected)
    for mine, theirs in zip(actual, expected, strict=True):
        assert np.allclose(mine, theirs, rtol=0, atol=1e-5 * np.linalg.norm(values))


def test_of_another_layout_they_are_those_of_the_canonical_one() -> None:
    values = sample((6, 4))
    for mine, theirs in zip(axis_sums(np.ascontiguousarray(values.T), (1, 0)), axis_sums(values), strict=True):
        assert np.allclose(mine, theirs, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "float8_e4m3fn"])
def test_they_are_taken_in_float64(dtype: str) -> None:
    values = (sample((40, 3000)) * 3).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))
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
    q, k = sample((6, 8)), sample((4, 8)) * 2
    assert np.array_equal(axis_sums(np.concatenate([q, k]))[0], np.concatenate([axis_sums(q)[0], axis_sums(k)[0]]))


@pytest.mark.parametrize(("shape", "is_told"), [((6, 7), True), ((5, 5), True), ((3, 4, 5), True), ((3, 4, 4), False)])
def test_of_axes_in_another_order(shape: tuple[int, ...], is_told: bool) -> None:
    values, order = sample(shape), [*range(len(shape))][::-1]
    actual = reordered(axis_sums(values), order)
    assert bool(actual) is is_told
    for mine, theirs in zip(actual, axis_sums(values.transpose(order)) if is_told else (), strict=True):
        assert np.allclose(mine, theirs, rtol=0, atol=1e-5 * np.linalg.norm(values))
    assert reordered(axis_sums(sample((4, 3, 2, 2))), (0, 2, 3, 1)) == ()
