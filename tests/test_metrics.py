"""How far two tensors are apart: from values, and from sketches where there are no values."""

from __future__ import annotations

import contextlib
import math
import subprocess
import sys
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import ml_dtypes  # noqa: F401  numpy knows its dtypes by name once it is imported
import numpy as np
import pytest

from probe.comparison.metrics import Metrics, Side, Status, kind_of, measure_pair, squeezed
from probe.records import HashKind, Phase, Role, TensorStats
from probe.sketch import CHUNK, WIDTH
from probe.store.reader import Reader
from tests.files import Tensor, arrays, write_tensors

Measure = Callable[..., Metrics]
FLOATS = ["float64", "float32", "float16", "bfloat16"]
FP8 = ["float8_e4m3fn", "float8_e5m2"]


@pytest.fixture(params=[True, False], ids=["values", "sketches"])
def values(request: pytest.FixtureRequest) -> bool:
    return request.param


@pytest.fixture
def measured(tmp_path: Path) -> Measure:
    """Write two tensors to a file and compare them."""
    count = iter(range(1000))

    def measure(tensors: Sequence[Tensor], *, values: bool, free_axes: bool = True) -> Metrics:
        path = write_tensors(tmp_path / f"{next(count)}.h5", tensors, values=values)
        with Reader(path) as reader:
            side = Side(reader, 0)
            return measure_pair(side, 0, side, 1, free_axes=free_axes)

    return measure


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def relative(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / max(np.linalg.norm(a), np.linalg.norm(b)))


# Numbers


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("size", [1e-3, 0.3])
def test_every_metric_from_values_is_what_its_formula_says(measured: Measure, dtype: str, size: float) -> None:
    a = noise((6, 50)).astype(dtype).astype(np.float64)
    b = (a + size * noise((6, 50), 1)).astype(dtype).astype(np.float64)
    found = measured(arrays(a, b, dtype=dtype), values=True)
    error = b - a
    assert found.status is Status.COMPARED
    assert not found.estimated
    assert found.rel_l2 == pytest.approx(relative(a, b), rel=1e-12)
    assert found.cosine == pytest.approx((a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-12)
    assert found.coherence == pytest.approx((a * error).sum() / np.linalg.norm(a) / np.linalg.norm(error), abs=1e-12)
    assert (found.norm_a, found.norm_b) == pytest.approx((np.linalg.norm(a), np.linalg.norm(b)), rel=1e-12)
    assert found.norm_ratio == pytest.approx(np.linalg.norm(b) / np.linalg.norm(a), rel=1e-12)
    assert found.max_abs == pytest.approx(np.abs(error).max(), rel=1e-12)
    assert found.max_abs_at == np.unravel_index(np.abs(error).argmax(), error.shape)
    largest = np.maximum(np.abs(a), np.abs(b))
    assert found.max_rel == pytest.approx((np.abs(error) / np.where(largest > 0, largest, 1)).max(), rel=1e-12)
    assert found.mean_abs == pytest.approx(np.abs(error).mean(), rel=1e-12)


KINDS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "noise": lambda a: a + 1e-6 * noise(a.shape, 7),
    "scale": lambda a: a * (1 + 4.5e-6),
    "one row": lambda a: a + 0.1 * (np.arange(a.shape[0]) == 1)[:, None],
    "one column": lambda a: a * np.where(np.arange(a.shape[-1]) == 2, 1.3, 1.0),
    "one element": lambda a: a + np.eye(1, a.size, 5).reshape(a.shape),
    "rolled": lambda a: np.roll(a, 1, -1),
    "sign": lambda a: -a,
    "other numbers": lambda a: noise(a.shape, 3),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(4, 7), (64, 96), (1, 32, 500)], ids=str)
def test_the_estimate_from_sketches_is_near_the_truth(measured: Measure, kind: str, shape: tuple[int, ...]) -> None:
    a = noise(shape)
    b = KINDS[kind](a.reshape(-1, shape[-1])).reshape(shape)
    exact = measured(arrays(a, b, dtype="float64"), values=True)
    found = measured(arrays(a, b, dtype="float64"), values=False)
    assert found.status is exact.status is Status.COMPARED
    assert found.estimated and not exact.estimated
    assert 0.6 < found.rel_l2 / exact.rel_l2 < 1.5
    assert found.cosine == pytest.approx(exact.cosine, abs=0.6 * exact.rel_l2**2)
    assert (found.norm_a, found.norm_b) == pytest.approx((exact.norm_a, exact.norm_b), rel=1e-12)
    assert math.isnan(found.max_abs) and found.max_abs_at is None and math.isnan(found.mean_abs)


@pytest.mark.parametrize(("factor", "coherence"), [(1.001, 1.0), (1.5, 1.0), (0.5, -1.0), (-1.0, -1.0)])
def test_an_error_that_is_a_scale_of_the_value_is_coherent(
    measured: Measure, values: bool, factor: float, coherence: float
) -> None:
    a = noise((40, 64))
    found = measured(arrays(a, a * factor, dtype="float64"), values=values)
    assert found.coherence == pytest.approx(coherence, abs=1e-6 if values else 0.3)
    assert found.norm_ratio == pytest.approx(abs(factor), rel=1e-12)


def test_the_place_of_the_largest_error_behind_the_first_chunk(measured: Measure) -> None:
    a = noise((3, 2, CHUNK // 4))
    b = a.copy()
    b[2, 1, CHUNK // 4 - 3] += 10
    b[0, 0, 0] += 9
    found = measured(arrays(a, b), values=True)
    assert found.max_abs_at == (2, 1, CHUNK // 4 - 3)
    assert found.max_abs == pytest.approx(10, rel=1e-6)


def test_tensors_that_are_zero(measured: Measure, values: bool) -> None:
    zero, one = np.zeros((5, 3)), np.ones((5, 3))
    both = measured(arrays(zero, -zero), values=values)
    assert (both.status, both.rel_l2) == (Status.EQUAL, 0.0)
    for pair in ((zero, one), (one, zero)):
        found = measured(arrays(*pair), values=values)
        assert found.status is Status.COMPARED
        assert found.rel_l2 == pytest.approx(1.0)
        assert found.cosine == 0.0


def test_the_same_bits_are_equal_without_a_look_at_values(measured: Measure, values: bool) -> None:
    a = noise((4, 5))
    found = measured(arrays(a, a), values=values)
    assert (found.status, found.rel_l2, found.cosine, found.max_abs) == (Status.EQUAL, 0.0, 1.0, 0.0)
    assert not found.estimated


def test_hashes_of_different_kinds_are_not_compared(measured: Measure, values: bool) -> None:
    a = noise((4, 5))
    found = measured([Tensor(a), Tensor(a, hash_kind=HashKind.WSUM64)], values=values)
    assert found.rel_l2 == 0.0
    assert found.estimated is not values


def test_numbers_whose_squares_overflow_do_not_pass(measured: Measure, values: bool) -> None:
    a = np.full((3, 4), 1e200)
    found = measured(arrays(a, 2 * a, dtype="float64"), values=values)
    assert not found.rel_l2 < 0.1 and not (found.is_known and math.isnan(found.rel_l2))


# Dtypes


@pytest.mark.parametrize("dtype", [*FLOATS, *FP8])
def test_floats_of_any_width(measured: Measure, values: bool, dtype: str) -> None:
    a = (np.arange(1, 25).reshape(4, 6) / 8).astype(dtype)
    b = a.astype(np.float64)
    b[2, 3] *= 1.5
    b = b.astype(dtype)
    found = measured(arrays(a, b, dtype=dtype), values=values)
    assert found.status is Status.COMPARED
    exact = relative(a.astype(np.float64), b.astype(np.float64))
    assert found.rel_l2 == pytest.approx(exact, rel=1e-12 if values else 1e-6), "one element: the sketch is exact"
    if values:
        assert found.max_abs_at == (2, 3)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e5m2"])
def test_another_width_with_the_same_numbers_is_no_error(measured: Measure, values: bool, dtype: str) -> None:
    a = noise((4, 6)).astype(dtype)
    found = measured([Tensor(a), Tensor(a.astype(np.float32))], values=values)
    assert found.is_known and found.rel_l2 == 0.0


@pytest.mark.parametrize(
    ("a", "b", "reason"),
    [
        ("float32", "int64", "float32 against int64"),
        ("bool", "float32", "bool against float32"),
        ("complex64", "float32", "complex64 against float32"),
        ("int8", "complex128", "int8 against complex128"),
        ("bfloat16", "uint16", "bfloat16 against uint16"),
    ],
)
def test_kinds_that_differ_are_not_comparable(measured: Measure, values: bool, a: str, b: str, reason: str) -> None:
    ones = np.ones((2, 3))
    found = measured([Tensor(ones.astype(a)), Tensor(ones.astype(b))], values=values)
    assert (found.status, found.reason, found.is_known) == (Status.NOT_COMPARABLE, reason, False)


@pytest.mark.parametrize(
    ("dtype", "kind"),
    [("float32", "float"), ("bfloat16", "float"), ("float8_e4m3fn", "float"), ("float8_e5m2", "float"),
     ("bool", "integer"), ("int64", "integer"), ("uint8", "integer"), ("complex64", "complex")],
)  # fmt: skip
def test_kinds(dtype: str, kind: str) -> None:
    assert kind_of(dtype) == kind


@pytest.mark.parametrize("dtype", ["int64", "int32", "uint8", "bool"])
def test_one_integer_that_differs(measured: Measure, values: bool, dtype: str) -> None:
    a = np.random.default_rng(0).integers(0, 2, (20, 5)).astype(dtype)
    b = a.copy()
    b[7, 2] = not b[7, 2]
    found = measured([Tensor(a), Tensor(b)], values=values)
    assert found.status is Status.COMPARED
    if values:
        assert found.rel_l2 == 0.01
    else:
        assert 0 < found.rel_l2 <= 0.02 and found.estimated


@pytest.mark.parametrize("seed", range(12))
def test_two_integers_that_changed_places_are_never_equal(measured: Measure, values: bool, seed: int) -> None:
    a = np.random.default_rng(seed).permutation(30)
    b = a.copy()
    b[[3, 4]] = b[[4, 3]]
    found = measured([Tensor(a), Tensor(b)], values=values)
    assert found.status is Status.COMPARED and found.rel_l2 >= 1 / 30


@pytest.mark.parametrize("step", range(8))
def test_large_integers_are_not_rounded_to_floats(measured: Measure, values: bool, step: int) -> None:
    a = np.full(10, 2**60 + step)
    b = a.copy()
    b[4] += 1
    found = measured([Tensor(a), Tensor(b)], values=values)
    assert found.status is Status.COMPARED and found.rel_l2 >= 0.1


@pytest.mark.parametrize(("a", "b"), [("int32", "int64"), ("uint8", "int64"), ("bool", "int8")])
def test_integers_of_another_width(measured: Measure, values: bool, a: str, b: str) -> None:
    ids = np.random.default_rng(0).integers(0, 2 if a == "bool" else 120, (3, 40))
    other = ids.copy()
    other[1, 3:9] = 1 - ids[1, 3:9].clip(0, 1)
    same = measured([Tensor(ids.astype(a)), Tensor(ids.astype(b))], values=values)
    assert (same.status, same.rel_l2) == (Status.EQUAL if values else Status.COMPARED, 0.0)
    found = measured([Tensor(ids.astype(a)), Tensor(other.astype(b))], values=values)
    assert found.status is Status.COMPARED
    assert found.rel_l2 == pytest.approx(6 / 120, rel=1e-9 if values else 1.0)


def test_the_estimated_share_of_integers(measured: Measure) -> None:
    ids = np.random.default_rng(0).integers(0, 50_000, (8, 512))
    other = np.where(np.random.default_rng(1).random(ids.shape) < 0.3, ids + 1, ids)
    found = measured([Tensor(ids), Tensor(other)], values=False)
    assert found.rel_l2 == pytest.approx((ids != other).mean(), rel=0.5)


def test_complex_numbers(measured: Measure, values: bool) -> None:
    a = (noise((8, 6)) + 1j * noise((8, 6), 1)).astype(np.complex64)
    b = a.copy()
    b[5, 1] += 4j
    found = measured([Tensor(a), Tensor(b)], values=values)
    assert found.status is Status.COMPARED
    assert found.rel_l2 == pytest.approx(relative(a, b), rel=1e-6), "one element: the sketch is exact"
    if values:
        assert (found.max_abs, found.max_abs_at) == (pytest.approx(4), (5, 1))


# Empty, scalar


@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool", "complex64"])
def test_empty_tensors_are_equal(measured: Measure, values: bool, shape: tuple[int, ...], dtype: str) -> None:
    empty = np.zeros(shape, dtype)
    assert measured([Tensor(empty), Tensor(empty.copy())], values=values).status is Status.EQUAL
    other = np.zeros(shape[::-1], dtype)
    assert measured([Tensor(empty), Tensor(other)], values=values).rel_l2 == 0.0


def test_empty_against_something(measured: Measure, values: bool) -> None:
    found = measured(arrays(np.zeros((0, 3)), np.zeros((2, 3))), values=values)
    assert (found.status, found.reason) == (Status.NOT_COMPARABLE, "shape [0, 3] against [2, 3]")


def test_scalars(measured: Measure, values: bool) -> None:
    found = measured(arrays(2.0, 3.0), values=values)
    assert found.rel_l2 == pytest.approx(1 / 3, rel=1e-6)
    assert found.coherence == pytest.approx(1, abs=1e-6)
    assert found.max_abs_at is None
    assert measured(arrays(2.0, [2.0]), values=values).status is Status.EQUAL, "an axis of size 1 is no axis"


# NaN and Inf

BAD = {"NaN": math.nan, "+Inf": math.inf, "-Inf": -math.inf}


def with_bad(places: Sequence[int], bad: float, dtype: str = "float32") -> np.ndarray:
    a = noise((6, 8))
    a.reshape(-1)[list(places)] = bad
    return a.astype(dtype)


@pytest.mark.parametrize("name", BAD)
def test_not_finite_on_one_side(measured: Measure, values: bool, name: str) -> None:
    good, bad = with_bad([], 0.0), with_bad([5], BAD[name])
    found = measured([Tensor(good), Tensor(bad)], values=values)
    assert (found.status, found.rel_l2, found.is_known) == (Status.NONFINITE, math.inf, True)
    if values:
        assert found.reason == "1 element is NaN or Inf on one side only"
    else:
        assert found.reason == f"A has only finite values, B has 1 {name}"
    turned = measured([Tensor(bad), Tensor(good)], values=values)
    assert (turned.status, turned.rel_l2) == (Status.NONFINITE, math.inf)


@pytest.mark.parametrize("name", BAD)
def test_not_finite_in_the_same_places(measured: Measure, values: bool, name: str) -> None:
    a = with_bad([5, 9], BAD[name])
    b = a * np.float32(1 + 1e-3)
    found = measured([Tensor(a), Tensor(b)], values=values)
    assert found.status is Status.COMPARED, "the finite elements are compared"
    assert found.rel_l2 == pytest.approx(1e-3, rel=1e-3 if values else 0.5)
    if values:
        assert found.max_abs == pytest.approx(1e-3 * np.abs(a[np.isfinite(a)]).max(), rel=1e-3)


@pytest.mark.parametrize("name", BAD)
def test_not_finite_in_other_places(measured: Measure, values: bool, name: str) -> None:
    found = measured([Tensor(with_bad([5, 9], BAD[name])), Tensor(with_bad([5, 10], BAD[name]))], values=values)
    assert found.is_known and found.rel_l2 > 0.1
    if values:
        assert (found.status, found.rel_l2) == (Status.NONFINITE, math.inf)
        assert found.reason == "2 elements are NaN or Inf on one side only"


def test_one_infinity_against_the_other(measured: Measure, values: bool) -> None:
    found = measured([Tensor(with_bad([5], math.inf)), Tensor(with_bad([5], -math.inf))], values=values)
    assert (found.status, found.rel_l2) == (Status.NONFINITE, math.inf)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16", *FP8])
def test_all_nan_on_both_sides(measured: Measure, values: bool, dtype: str) -> None:
    found = measured(arrays(np.full((2, 3), math.nan), np.full((6,), math.nan), dtype=dtype), values=values)
    assert not math.isnan(found.rel_l2), "NaN compares as false with every limit"


def test_nan_against_zero_from_sketches_is_not_forgiven(measured: Measure) -> None:
    a = np.zeros((3, 3), np.float32)
    b = a.copy()
    b[1, 1] = math.nan
    assert measured([Tensor(a), Tensor(b)], values=False).status is Status.NONFINITE


# Shapes


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((4,), (4, 4)),
        ((4, 4), (4,)),
        ((1,), (7,)),
        ((), (3,)),
        ((3, 1), (3, 3)),
        ((2, 3), (2, 4)),
        ((2, 1, 3), (2, 5, 3)),
    ],
    ids=str,
)
def test_shapes_that_would_broadcast_are_not_comparable(
    measured: Measure, values: bool, a: tuple[int, ...], b: tuple[int, ...]
) -> None:
    found = measured(arrays(np.ones(a), np.ones(b)), values=values)
    assert found.status is Status.NOT_COMPARABLE
    assert found.reason == f"shape {list(a)} against {list(b)}"


def test_a_column_against_a_row_is_compared_element_by_element_and_never_stretched(
    measured: Measure, values: bool
) -> None:
    column, row = np.array([[1.0], [2.0], [3.0]]), np.array([[1.0, 2.0, 3.0]])
    assert measured(arrays(column, row), values=values).rel_l2 == 0.0
    assert measured(arrays(column, row + [[0, 0, 1]]), values=values).rel_l2 == pytest.approx(
        1 / math.sqrt(21), rel=1e-6
    )


@pytest.mark.parametrize("order", [(1, 0, 2), (2, 0, 1), (2, 1, 0), (0, 2, 1)], ids=str)
def test_layouts_with_other_orders_of_axes(measured: Measure, values: bool, order: tuple[int, ...]) -> None:
    a = noise((5, 3, 4))
    b = a + 1e-3 * noise((5, 3, 4), 1)
    same = measured(arrays(a, a.transpose(order)), values=values)
    assert same.is_known and same.rel_l2 < 1e-12
    found = measured(arrays(a, b.transpose(order), dtype="float64"), values=values)
    assert found.rel_l2 == pytest.approx(relative(a, b), rel=1e-9 if values else 0.5)
    if values:
        assert found.max_abs_at == np.unravel_index(np.abs(a - b).argmax(), a.shape), "an index in A"


def test_a_large_layout_is_compared_in_parts(measured: Measure) -> None:
    a = noise((2, 300, 700))
    b = a.copy()
    b[1, 299, 3] += 20
    b[0, 17, 5] -= 19
    found = measured(arrays(a, b.transpose(1, 0, 2), dtype="float64"), values=True)
    assert found.rel_l2 == pytest.approx(relative(a, b), rel=1e-12)
    assert found.max_abs_at == (1, 299, 3)


def test_activations_whose_axes_of_one_size_are_swapped_are_decided_from_values(measured: Measure) -> None:
    a = noise((6, 6, 5))
    found = measured(arrays(a, a.transpose(1, 0, 2)), values=True)
    assert found.is_known and found.rel_l2 == 0.0
    wrong = a.transpose(1, 0, 2).copy()
    wrong[2, 3] *= 1.5
    found = measured(arrays(a, wrong, dtype="float64"), values=True)
    assert found.status is Status.COMPARED
    assert found.rel_l2 == pytest.approx(relative(a, wrong.transpose(1, 0, 2)), rel=1e-9)
    assert measured(arrays(a, noise((6, 6, 5), 9)), values=True).rel_l2 > 0.5


def test_activations_whose_axes_of_one_size_are_swapped_are_not_decided_from_sketches(measured: Measure) -> None:
    a = noise((6, 6, 5))
    found = measured(arrays(a, a.transpose(1, 0, 2)), values=False)
    assert (found.status, found.is_known) == (Status.PERMUTED, False)
    assert found.reason == "axes of the same size may be swapped; record with task='tensor' to decide"
    other = measured(arrays(a, noise((6, 6, 5), 9)), values=False)
    assert other.status is Status.COMPARED and other.rel_l2 > 0.5, "other numbers are no other order"


def test_integers_whose_axes_are_swapped(measured: Measure, values: bool) -> None:
    ids = np.random.default_rng(0).integers(0, 1000, (7, 7))
    found = measured([Tensor(ids), Tensor(ids.T)], values=values)
    assert found.rel_l2 == 0.0 if values else not found.is_known


def test_a_square_weight_that_is_not_transposed_is_a_fault(measured: Measure, values: bool) -> None:
    w = noise((16, 16))
    found = measured(arrays(w, w.T), values=values, free_axes=False)
    assert found.status is Status.COMPARED and found.rel_l2 > 1
    oblong = noise((16, 9))
    found = measured(arrays(oblong, oblong.T), values=values, free_axes=False)
    assert found.rel_l2 < 1e-12, "here the sizes say which axis is which"


@pytest.mark.parametrize("role", [Role.PARAM, Role.PARAM_GRAD, Role.STATE, Role.DELTA], ids=str)
def test_a_square_weight_that_is_stored_the_other_way_round(measured: Measure, values: bool, role: Role) -> None:
    w = noise((16, 16))
    slot = "weight.exp_avg" if role is Role.STATE else "weight"
    phase = Phase.INIT if role is Role.PARAM else Phase.UPDATE
    stored = Tensor(w, role, phase, slot)
    turned = Tensor(np.ascontiguousarray(w.T), role, phase, slot.replace("weight", "kernel"), axes=(1, 0))
    forgotten = Tensor(w, role, phase, slot.replace("weight", "kernel"), axes=(1, 0))
    assert measured([stored, turned], values=values, free_axes=False).rel_l2 < 1e-12
    for pair in ([stored, forgotten], [forgotten, stored]):
        found = measured(pair, values=values, free_axes=False)
        assert found.status is Status.COMPARED and found.rel_l2 > 1, "the same bytes, but they mean Wᵀ"


MERGED = [((2, 3, 5), (6, 5)), ((6, 5), (2, 3, 5)), ((2, 3, 5), (30,)), ((2, 3, 4, 5), (2, 3, 20)), ((4, 1, 6), (24,))]


@pytest.mark.parametrize(("a", "b"), MERGED, ids=str)
def test_merged_axes(measured: Measure, values: bool, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    x = noise(a)
    found = measured(arrays(x, x.reshape(b)), values=values)
    assert found.is_known and found.rel_l2 == 0.0
    wrong = x.copy()
    wrong.reshape(-1)[3] += 10
    found = measured(arrays(x, wrong.reshape(b), dtype="float64"), values=values)
    assert found.is_known and found.rel_l2 > 0.1
    if values:
        assert found.rel_l2 == pytest.approx(relative(x, wrong), rel=1e-9)


def test_merged_axes_whose_order_is_another_are_not_called_wrong(measured: Measure, values: bool) -> None:
    x = noise((4, 3, 5))
    found = measured(arrays(x, x.transpose(1, 0, 2).reshape(12, 5)), values=values)
    assert found.status is Status.PERMUTED if values else found.rel_l2 < 1e-6
    wrong = measured(arrays(x, 1.1 * x.transpose(1, 0, 2).reshape(12, 5)), values=values)
    assert wrong.is_known and wrong.rel_l2 > 0.05


def test_split_heads_are_not_compared_as_if_they_were_merged(measured: Measure, values: bool) -> None:
    heads = noise((2, 4, 6, 5))  # batch, heads, sequence, width
    flat = heads.transpose(0, 2, 1, 3).reshape(2, 6, 20)
    found = measured(arrays(heads.reshape(8, 6, 5), flat), values=values)
    assert not (found.is_known and found.rel_l2 > 1e-6)


def test_squeezed() -> None:
    assert squeezed((1, 4, 1, 3)) == (4, 3)
    assert squeezed((1, 1)) == ()


# What was not measured


def test_what_was_not_measured_is_not_comparable(measured: Measure) -> None:
    unmeasured = TensorStats(*[math.nan] * 5, 0, 0, 0, 0, 0, 0, HashKind.NONE, np.zeros(WIDTH))
    a = np.ones((2, 3))
    for pair in ([Tensor(a, stats=unmeasured), Tensor(a)], [Tensor(a), Tensor(a, stats=unmeasured)]):
        found = measured(pair, values=False)
        assert (found.status, found.reason) == (Status.NOT_COMPARABLE, "no statistics were recorded")


def test_values_on_one_side_only_are_of_no_use(tmp_path: Path) -> None:
    a, b = noise((20, 30)), 1.01 * noise((20, 30))
    full = write_tensors(tmp_path / "a.h5", arrays(a), values=True)
    thin = write_tensors(tmp_path / "b.h5", arrays(b), values=False)
    with Reader(full) as first, Reader(thin) as second:
        found = measure_pair(Side(first, 0), 0, Side(second, 0), 0)
    assert found.estimated
    assert found.rel_l2 == pytest.approx(relative(a, b), rel=0.5)


# Multiples


@pytest.mark.parametrize("factor", [-1.0, -3.0, 1e-4, 0.5, 1.0001, 2.0, 65536.0])
def test_an_exact_multiple_is_not_estimated_but_known(measured: Measure, values: bool, factor: float) -> None:
    a = noise((40, 64))
    found = measured(arrays(a, a * factor, dtype="float64"), values=values)
    assert found.cosine == pytest.approx(math.copysign(1, factor), abs=1e-9)
    assert found.rel_l2 == pytest.approx(abs(factor - 1) / max(1, abs(factor)), rel=1e-6)
    assert found.coherence == pytest.approx(math.copysign(1, factor - 1), abs=1e-6)


@pytest.mark.parametrize("factor", [65536.0, -3.0, 1.5])
def test_a_factor_is_taken_out_before_tensors_are_compared(tmp_path: Path, values: bool, factor: float) -> None:
    a = noise((40, 64))
    b = a * factor + 1e-3 * abs(factor) * noise((40, 64), 1)
    path = write_tensors(tmp_path / "a.h5", arrays(a, b, dtype="float64"), values=values)
    with Reader(path) as reader:
        side = Side(reader, 0)
        found = measure_pair(side, 0, side, 1, factor=factor)
    assert found.rel_l2 == pytest.approx(relative(factor * a, b), rel=1e-9 if values else 0.4)
    assert found.norm_ratio == pytest.approx(1, abs=1e-2)


# Masks that are added to scores


def _mask(dtype: str, lowest: float, shift: int = 0) -> Tensor:
    masked = np.triu(np.ones((12, 12)), 1 + shift)
    return Tensor(np.where(masked > 0, lowest, 0.0).astype(dtype))


LOWEST = {"float32": float(np.finfo(np.float32).min), "float16": -65504.0, "bfloat16": -3.3895313892515355e38,
          "float64": float(np.finfo(np.float64).min)}  # fmt: skip
MASKS = [*LOWEST.items(), ("float32", -math.inf), ("float32", -1e4)]


@pytest.mark.parametrize("a", MASKS, ids=str)
@pytest.mark.parametrize("b", MASKS, ids=str)
def test_masks_are_compared_by_where_they_mask(
    measured: Measure, values: bool, a: tuple[str, float], b: tuple[str, float]
) -> None:
    found = measured([_mask(*a), _mask(*b)], values=values)
    assert found.status in (Status.EQUAL, Status.COMPARED) and found.rel_l2 < 1e-6
    if a[1] != b[1]:
        assert found.status is Status.COMPARED and found.reason.startswith("two masks, ")
        other = measured([_mask(*a), _mask(*b, shift=1)], values=values)
        assert other.status is Status.COMPARED and other.rel_l2 > 0.05


def test_what_is_no_mask_is_not_compared_as_one(measured: Measure, values: bool) -> None:
    bias = _mask("float32", -2000.0).array + np.float32(0.5)
    low = _mask("float32", -2000.0).array * np.linspace(1, 2, 12, dtype=np.float32)
    for a, b in ((bias, bias * 2), (low, low * 2)):
        assert measured([Tensor(a), Tensor(b)], values=values).rel_l2 == pytest.approx(0.5, abs=1e-3)


# Cost


class Counting(Reader):
    """Counts the bytes of values that are read."""

    read = 0

    def parts(self, tensor: int, chunk: int, into: np.ndarray | None = None) -> Iterator[np.ndarray]:
        for part in super().parts(tensor, chunk, into):
            self.read += part.nbytes
            yield part


def test_stored_values_are_read_once_and_equal_ones_not_at_all(tmp_path: Path) -> None:
    x, z = noise((1024, 1024), 0), noise((300, 1000), 1)
    y = x * (1 + 1e-7)
    paths = [
        write_tensors(tmp_path / f"{name}.h5", arrays(*tensors), values=True)
        for name, tensors in (("a", (x, z, x, x[:512])), ("b", (y, z, y, y[:512])))
    ]
    with Counting(paths[0]) as a, Counting(paths[1]) as b:
        here, there = Side(a, 0), Side(b, 0)
        tracemalloc.start()
        found = [measure_pair(here, row, there, row) for row in range(4)]
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert [metrics.status for metrics in found] == [Status.COMPARED, Status.EQUAL, Status.COMPARED, Status.COMPARED]
    assert found[0] == found[2]
    assert a.read == b.read == (1024 + 512) * 1024 * 4, "two of the four pairs need no reading"
    assert peak < 3 << 20, "less than a tensor of 4 MiB"


def test_a_part_that_is_read_into_a_buffer_is_what_stands_in_the_file(tmp_path: Path) -> None:
    path = write_tensors(tmp_path / "a.h5", arrays(noise((3, 5000))), values=True)
    buffer = np.empty(8 * 4096, np.uint8)
    with Reader(path) as reader:
        tensor = int(reader.records["tensor"][0])
        parts = [part.copy() for part in reader.parts(tensor, 4096, buffer)]
        assert [part.size for part in parts] == [4096, 4096, 4096, 15000 - 3 * 4096]
        assert np.array_equal(np.concatenate(parts), reader.values(tensor).reshape(-1))
        assert all(np.shares_memory(part, buffer) for part in reader.parts(tensor, 4096, buffer))


# Memory

_COMPARE = """
import pathlib, re, sys
from probe.comparison.metrics import Side, measure_pair
from probe.store.reader import Reader

with Reader(sys.argv[1]) as a, Reader(sys.argv[2]) as b:
    found = measure_pair(Side(a, 0), 0, Side(b, 0), 0)
peak = re.search(r"VmHWM:\\s+(\\d+) kB", pathlib.Path("/proc/self/status").read_text())
print(found.rel_l2, found.max_abs, found.max_abs_at, peak[1], sep=";")
"""
"""ru_maxrss would not do: a child begins with its parent's"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    "shapes",
    [((2, 300, 131_072), (2, 300, 131_072)), ((2, 120, 131_072), (120, 2, 131_072))],
    ids=["same layout", "other layout"],
)
def test_large_tensors_are_streamed(tmp_path: Path, shapes: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    paths = []
    for shape, place in zip(shapes, ((0, 0, 0), (1, 1, 3)), strict=True):
        empty = tmp_path / "zeros.bin"
        array = np.memmap(empty, np.float32, "w+", shape=shape)
        array[place] = 3.0
        at = f"{len(paths)}.h5"
        hashed = TensorStats(0, 3, 0, 0, 3, 0, 0, 0, 0, len(paths), 0, HashKind.WSUM64, np.zeros(WIDTH))
        paths.append(write_tensors(tmp_path / at, [Tensor(array, stats=hashed)], values=True))
        del array
        empty.unlink()
    done = subprocess.run(
        [sys.executable, "-c", _COMPARE, *map(str, paths)], capture_output=True, text=True, check=True
    )
    error, largest, at, peak = done.stdout.strip().split(";")
    assert (float(error), float(largest), at) == (pytest.approx(math.sqrt(2)), 3.0, "(0, 0, 0)")
    assert int(peak) / 1024 <= 300, "MiB"
    for path in paths:
        with contextlib.suppress(OSError):
            path.unlink()
