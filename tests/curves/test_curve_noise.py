"""Curves that differ by noise are never called wrong, and what is no noise is found in it (benchmarks/curve_power.py)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.curve_power import FAULTS, falling, noise, noisy_pair, verdict
from probe.comparison.steps.common_steps import Shift
from probe.curve_comparison import curves
from probe.curve_comparison.norms import judge_norms
from probe.curve_comparison.pairing import pair
from probe.curve_comparison.reading.series import Series
from tests.curve_runs import write_csv


@pytest.mark.thorough
def test_of_200_pairs_of_noisy_runs_none_is_diverged(tmp_path: Path) -> None:
    for index in range(1000, 1200):
        a, b, what = noisy_pair(np.random.default_rng(index), index)
        found = verdict(tmp_path, a, b)
        assert found.verdict != "diverged", (what, found.findings[0].text)


@pytest.mark.parametrize("seed", range(20))
def test_white_noise_beyond_the_limits_is_undecided_without_a_cause(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a = falling(300, 2.0)
    found = verdict(tmp_path, a + 0.05 * rng.standard_normal(300), a + 0.05 * rng.standard_normal(300))
    assert (found.verdict, found.findings) == ("undecided", ())
    assert found.doubts[0].startswith("loss: differences fluctuate about 0") and "--noise" in found.doubts[0]
    assert "drift" not in str(found)


def test_a_further_run_of_a_decides_it(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    a = falling(300, 2.0)
    files = [write_csv(tmp_path / f"{name}.csv", loss=a + 0.05 * rng.standard_normal(300)) for name in "abc"]
    assert curves(files[0], files[1], noise=files[2]).verdict == "aligned"


@pytest.mark.parametrize("fault", [name for name in FAULTS if name != "transient"])
@pytest.mark.parametrize("seed", range(4))
def test_faults_of_16_standard_deviations_are_found_in_noise_beyond_the_limits(
    tmp_path: Path, fault: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    a = falling(400, 2.0) + 0.05 * rng.standard_normal(400)
    found = verdict(tmp_path, a, a + 0.05 * noise(rng, 400, 0.0) + FAULTS[fault](400, 0.8))
    assert found.verdict == "diverged"
    assert ("drift" in found.findings[0].text) <= ("drift" in fault)
    if fault in ("step change", "spike"):
        assert found.first_step == {"step change": 160, "spike": 200}[fault]


@pytest.mark.parametrize("before", [2, 3, 8])
def test_what_agrees_before_is_no_noise(tmp_path: Path, before: int) -> None:
    """A fault in one of the first steps, where the runs are equal so far."""
    a, steps = falling(40, 2.0), np.arange(40)
    found = verdict(tmp_path, a, a + np.where(steps >= before, 0.2 * (-1.0) ** steps, 1e-7))
    assert (found.verdict, found.first_step) == ("diverged", before)


def test_few_steps_apart_by_the_same_are_diverged_and_others_undecided(tmp_path: Path) -> None:
    a = falling(5, 2.0)
    assert verdict(tmp_path, a, a + 0.5 + 0.01 * np.arange(5)).verdict == "diverged"
    found = verdict(tmp_path, a, a + np.array([0.5, 0.1, 0.3, 0.2, 0.6]))
    assert found.verdict == "undecided"
    assert found.doubts[0].startswith("loss: 5 steps are too few to tell an offset of +0.34 from noise")
    found = verdict(tmp_path, a, a + np.array([0.5, -0.5, 0.3, 0.2, -0.5]))
    assert found.doubts[0].startswith("loss: 5 steps are too few to tell a difference (at step 0 by +0.5) from noise")


@pytest.mark.parametrize("seed", range(6))
def test_gradient_norms_that_fluctuate_from_the_first_step_on_are_unsure(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = []
    for index in range(12):
        a = np.exp(rng.normal(size=60))
        b = a * np.exp(0.3 * rng.standard_normal(60))
        sides = [Series(f"{index}.weight", np.arange(60), values) for values in (a, b)]
        rows.append((f"{index}.weight", f"{index}.weight", pair(*sides, [], Shift())))
    found = judge_norms(rows, (), ())
    assert found.first == () and any(each.is_unsure for each in found.results)
