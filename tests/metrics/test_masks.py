"""How far masks are apart: those that are added to scores, and truth values."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from probe.comparison.distance.masks import without_effect
from probe.comparison.distance.metrics import Side, Status
from probe.records import Phase, Role
from probe.store.reading.reader import Reader
from tests.files import Tensor, write_tensors
from tests.metrics.comparing import Measure

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


# Masks without effect

CAUSAL = np.tril(np.ones((2, 1, 8, 8), bool))
AHEAD = "it masks what lies ahead alone, as causal attention does without it: see that the other side's is"
OTHER = CAUSAL.copy()
OTHER[0, 0, 0, :2] = False, True  # as many are masked


@pytest.mark.parametrize(
    ("mask", "said"),
    [
        (CAUSAL, AHEAD),
        (~CAUSAL, AHEAD),
        (np.where(CAUSAL, 0.0, -math.inf), AHEAD),
        (np.where(CAUSAL, 0.0, LOWEST["float32"]).astype("float32"), AHEAD),
        (np.where(CAUSAL, -math.inf, 0.0), ""),
        (CAUSAL[..., :6], ""),
        (np.ones((2, 8), bool), "it masks nothing"),
        (np.zeros((2, 8), bool), "it masks nothing"),
        (np.ones((2, 8), "int64"), "it masks nothing"),
        (np.zeros((2, 1, 8, 8), "float32"), "it masks nothing"),
        (np.ones((2, 1, 8, 8), "float32"), ""),
        (np.tril(np.ones((8, 8))), ""),  # numbers that are no mask
        (np.arange(16).reshape(2, 8), ""),
        (np.ones(8, bool), ""),
    ],
    ids=str,
)
def test_masks_without_effect(tmp_path: Path, values: bool, mask: np.ndarray, said: str) -> None:
    assert _effect(tmp_path, mask, values) == said


def test_values_tell_a_causal_mask_from_one_of_as_many(tmp_path: Path, values: bool) -> None:
    assert _effect(tmp_path, OTHER, values) == ("" if values else AHEAD)


def _effect(folder: Path, mask: np.ndarray, values: bool) -> str:
    with Reader(write_tensors(folder / "mask.h5", [_given(mask)], values=values)) as reader:
        return str(without_effect(Side(reader, 0), 0) or "")
