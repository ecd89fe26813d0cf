"""What the values of two tensors show."""

from __future__ import annotations

import json

import numpy as np
import pytest

from probe.report.html.numbers import number
from probe.report.html.tensors import BINS, LONGEST_PROFILE, WORST, drawn


@pytest.fixture
def pair() -> tuple[np.ndarray, np.ndarray]:
    a = np.random.default_rng(0).standard_normal((2, 300, 70))
    b = a.copy()
    b[1, 7, 3] += 0.5
    b[0, 299, :] += 1e-4
    return a, b


def test_the_worst_elements_come_first(pair: tuple[np.ndarray, np.ndarray]) -> None:
    a, b = pair
    worst = drawn(a, b)["worst"]
    assert len(worst) == WORST and worst[0]["at"] == [1, 7, 3]
    assert worst[0]["b"] - worst[0]["a"] == pytest.approx(0.5, abs=1e-5)
    assert {tuple(each["at"][:2]) for each in worst[1:]} == {(0, 299)}


def test_profiles_show_the_index(pair: tuple[np.ndarray, np.ndarray]) -> None:
    profiles = {each["axis"]: each for each in drawn(*pair)["profiles"]}
    assert [len(profiles[axis]["rms"]) for axis in range(3)] == [2, LONGEST_PROFILE, 70]
    assert int(np.argmax(profiles[2]["rms"])) == 3
    assert profiles[0]["rms"][1] == pytest.approx(0.5 / np.sqrt(300 * 70), rel=1e-4)
    quiet = np.array(profiles[1]["rms"]) == 0
    assert quiet.sum() == LONGEST_PROFILE - 2  # index 7 and index 299


def test_maps_are_bounded_and_show_the_place(pair: tuple[np.ndarray, np.ndarray]) -> None:
    maps = drawn(*pair)["maps"]
    assert [each["axes"] for each in maps] == [[0, 1], [0, 2], [1, 2]]
    last = maps[-1]
    assert (last["rows"], last["columns"], len(last["shades"])) == (BINS, BINS, BINS * BINS)
    shades = np.reshape(last["shades"], (BINS, BINS))
    assert np.unravel_index(shades.argmax(), shades.shape) == (7 * BINS // 300, 3 * BINS // 70)
    assert (shades[-1] > 0).all() and not shades[-2].any()


def test_histograms_count_every_element(pair: tuple[np.ndarray, np.ndarray]) -> None:
    found = drawn(*pair)
    assert sum(found["values"]["a"]) == sum(found["values"]["b"]) == pair[0].size
    assert sum(found["errors"]["counts"]) == 71 and found["errors"]["zeros"] == pair[0].size - 71


def test_nan_on_one_side_is_the_worst() -> None:
    a = np.ones((4, 4))
    b = a.copy()
    a[0, 0] = b[0, 0] = np.nan
    b[2, 1] = np.inf
    b[3, 3] = 2
    found = drawn(a, b)
    assert [each["at"] for each in found["worst"]] == [[2, 1], [3, 3]]
    assert found["worst"][0]["b"] == "inf" and found["nonfinite"] == 1
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    "array",
    [np.zeros(()), np.zeros((3,)), np.zeros((1, 1)), np.full((2, 2), np.nan), np.full((2, 2), 1e308)],
)
def test_nothing_to_see(array: np.ndarray) -> None:
    found = drawn(array, array.copy())
    assert found["worst"] == [] and found["nonfinite"] == 0
    json.dumps(found, allow_nan=False)


def test_overflowing_differences() -> None:
    a = np.array([1e308, 1.0])
    found = drawn(a, -a)
    assert found["worst"][0]["at"] == [0] and found["values"] is None


def test_numbers_in_json() -> None:
    assert [number(x) for x in (float("nan"), float("inf"), -float("inf"), 1.23456789, 12)] == [
        None,
        "inf",
        "-inf",
        1.23457,
        12,
    ]
