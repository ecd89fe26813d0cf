"""Local norms: which parameter stands out among the others, and when."""

from __future__ import annotations

import numpy as np

from probe.comparison.steps.common_steps import Shift
from probe.curve_comparison.norms import LocalNorms, judge_norms
from probe.curve_comparison.pairing import pair
from probe.curve_comparison.reading.series import Series
from tests.curve_runs import wave

STEPS = 60
NAMES = [f"layers.{index}.weight" for index in range(8)]


def judged(
    errors: np.ndarray, sizes: np.ndarray | None = None, names: list[str] = NAMES, further: float = 0.0
) -> LocalNorms:
    """Judge norms that differ by the given relative errors, shape (parameters, steps)."""
    sizes = np.ones(len(names)) if sizes is None else sizes
    steps = np.arange(STEPS)
    pairs = []
    for name, size, error in zip(names, sizes, errors, strict=True):
        a = size * (1 + 0.2 * wave(STEPS, 7.7))
        others = [Series(name, steps, a * (1 + further * wave(STEPS, 3.3)))] if further else []
        pairs.append((name, name, pair(Series(name, steps, a), Series(name, steps, a * (1 + error)), others, Shift())))
    return judge_norms(pairs, (), ())


def noise(size: float = 0.01, count: int = 8) -> np.ndarray:
    return size * np.array([wave(STEPS, 2.3 + 0.1 * row, row) for row in range(count)])


def test_one_among_many_stands_out_from_the_first_step_on() -> None:
    errors = noise(1e-3)
    assert judged(errors).first == ()
    errors[5] += 0.02
    found = judged(errors)
    assert [(each.name_a, each.first_out) for each in found.first] == [
        ("layers.5.weight", 0)
    ] and not found.is_about_all


def test_a_parameter_that_is_three_times_noisier_than_the_others_does_not() -> None:
    errors = noise(0.005)
    errors[5] *= 3
    assert judged(errors).first == ()


def test_what_concerns_all_parameters_is_said_of_all() -> None:
    errors = noise(1e-3)
    errors[:, 30:] -= 0.5
    found = judged(errors)
    assert {each.first_out for each in found.results} == {30} and found.is_about_all


def test_a_gradient_that_is_only_rounding_is_held_against_its_kind() -> None:
    """A key's bias has no gradient but rounding: its norms differ by their own size in right pairs."""
    names = [*NAMES[:4], *(f"layers.{index}.bias" for index in range(4))]
    errors = noise(1e-3)
    errors[7] = 0.9 * wave(STEPS, 2.3)
    sizes = np.ones(8)
    sizes[7] = 1e-5
    assert judged(errors, sizes, names).first == ()
    assert judged(errors, np.ones(8), names).first[0].name_a == "layers.3.bias"


def test_further_runs_of_a_widen_the_band_of_norms() -> None:
    errors = noise(1e-4)
    errors[2, 30:] += 0.02
    assert judged(errors).first[0].first_out == 30
    assert judged(errors, further=0.02).first == ()


def test_a_norm_that_is_not_finite_on_one_side() -> None:
    errors = noise(1e-3)
    errors[3, 40:] = np.nan
    assert [(each.name_a, each.first_out) for each in judged(errors).first] == [("layers.3.weight", 40)]
