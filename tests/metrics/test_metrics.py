"""Metrics of two tensors, and what masks hide."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from probe.answer.metrics import Status, kind_of
from probe.numbers.sketch import CHUNK
from probe.records import HashKind, Phase, Role
from tests.metrics.comparing import Measure, noise, relative
from tests.store.files import Tensor, arrays

# ---- How far two tensors are apart: from values, and from sketches where there are no values.

FLOATS = ["float64", "float32", "float16", "bfloat16"]
FP8 = ["float8_e4m3fn", "float8_e5m2"]


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


@pytest.mark.thorough
@pytest.mark.parametrize("size", [1e-6, 1e-3, 0.1])
def test_norms_tell_the_scale_though_sketches_are_short(measured: Measure, size: float) -> None:
    for seed in range(20):
        a = noise((64, 96), seed)
        b = a * (1 + size) + 0.2 * size * noise((64, 96), 100 + seed)
        exact, found = (measured(arrays(a, b, dtype="float64"), values=values) for values in (True, False))
        assert found.coherence == pytest.approx(exact.coherence, abs=0.02)
        assert found.rel_l2 == pytest.approx(exact.rel_l2, rel=0.02)


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


# ---- How far masks are apart: those that are added to scores, and truth values.

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


# Truth values

KEPT = np.tril(np.ones((3, 12, 12), bool))
KEPT[0, :, 9:] = False
INVERTED = "two masks, True in one where the other is False: compared by where they mask"


def _given(array: np.ndarray, role: Role = Role.INPUT) -> Tensor:
    return Tensor(array, role, Phase.FORWARD)


@pytest.mark.parametrize("dtype", ["bool", "int64"])
@pytest.mark.parametrize("other", [~KEPT, ~KEPT[:, None]], ids=["same shape", "with heads"])
def test_what_one_mask_keeps_the_other_masks(measured: Measure, values: bool, dtype: str, other: np.ndarray) -> None:
    found = measured([_given(KEPT.astype(dtype)), _given(other)], values=values)
    assert (found.status, found.rel_l2, found.reason) == (Status.COMPARED, 0.0, INVERTED)
    assert found.norm_ratio == 1.0


def test_an_inverted_mask_that_masks_more_differs_by_so_much(measured: Measure, values: bool) -> None:
    other = ~KEPT
    other[1, 8:, 2:6] = True
    found = measured([_given(KEPT), _given(other)], values=values)
    share = np.mean(other == KEPT)
    assert found.rel_l2 == pytest.approx(share, rel=1e-9 if values else 1.0)
    assert found.rel_l2 >= share * (1 - 1e-9)
    assert found.reason == INVERTED


def test_an_inverted_mask_is_not_taken_for_a_transposed_one(measured: Measure, values: bool) -> None:
    """A causal mask, transposed, is its own opposite but for the diagonal."""
    square = np.tril(np.ones((12, 12), bool))
    found = measured([_given(square[:, None]), _given(~square[:, :, None])], values=values)
    assert (found.rel_l2, found.reason) == (0.0, INVERTED)


def test_masks_of_two_batches_are_not_taken_for_inverted_ones(measured: Measure, values: bool) -> None:
    kept = np.ones((8, 32), bool)
    padded = kept.copy()
    padded[3, 20:] = False
    found = measured([_given(kept), _given(padded)], values=values)
    assert found.reason == "" and found.rel_l2 == pytest.approx(12 / 256, rel=1e-9 if values else 1.0)


@pytest.mark.parametrize("role", [Role.OUTPUT, Role.VALUE])
def test_truth_values_that_a_module_returns_are_no_masks(measured: Measure, values: bool, role: Role) -> None:
    """Of two experts, tokens may all go to the other one."""
    routed = np.zeros((32, 2), bool)
    routed[:20, 0] = routed[20:, 1] = True
    found = measured([_given(routed, role), _given(~routed, role)], values=values)
    assert found.reason == "" and found.rel_l2 > 0.9


def test_token_types_are_no_masks(measured: Measure, values: bool) -> None:
    types = (np.arange(24).reshape(2, 12) > 7).astype("int64")
    found = measured([_given(types), _given(1 - types)], values=values)
    assert found.reason == "" and found.rel_l2 > 0.9


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("lowest", [-math.inf, -1e4, LOWEST["float32"]])
def test_a_mask_that_is_added_against_truth_values(
    measured: Measure, values: bool, turned: bool, lowest: float
) -> None:  # fmt: skip
    added = np.where(KEPT, 0.0, lowest).astype("float32")
    truths = ~KEPT if turned else KEPT
    found = measured([_given(added), _given(truths)], values=values)
    assert (found.status, found.rel_l2) == (Status.COMPARED, 0.0)
    assert found.reason == "two masks, float32 in A and bool in B: compared by where they mask"
    assert found.norm_ratio == 1.0
    found = measured([_given(truths), _given(added)], values=values)
    assert (found.rel_l2, found.norm_ratio) == (0.0, 1.0)


@pytest.mark.parametrize("turned", [False, True])
def test_a_mask_that_is_added_and_masks_less(measured: Measure, values: bool, turned: bool) -> None:
    """Without values, the numbers of elements that are masked tell: no fewer than they differ by."""
    added = np.where(KEPT, 0.0, -math.inf).astype("float32")
    kept = KEPT.copy()
    kept[0] = np.tril(np.ones((12, 12), bool))
    found = measured([_given(added), _given(~kept if turned else kept)], values=values)
    assert found.rel_l2 == pytest.approx(np.mean(kept != KEPT), rel=1e-9)


def test_numbers_are_not_held_against_truth_values(measured: Measure, values: bool) -> None:
    found = measured([_given(np.ones((3, 4), "float32")), _given(np.ones((3, 4), bool))], values=values)
    assert (found.status, found.reason) == (Status.NOT_COMPARABLE, "float32 against bool")
