"""`compare_schedules`: what differs, what only rounds, and how rates are related."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import probe
from probe.errors import ConfigError

BASE = 3e-5


@pytest.fixture(autouse=True)
def _no_framework(monkeypatch: pytest.MonkeyPatch) -> None:
    for framework in ("torch", "paddle", "mindspore"):
        monkeypatch.delitem(sys.modules, framework, raising=False)


def linear(base: float = BASE, warm_up: int = 100, total: int = 1000, ahead: int = 0) -> Callable[[int], float]:
    def rate(step: int) -> float:
        step += ahead
        return base * (step / warm_up if step < warm_up else max(0.0, (total - step) / (total - warm_up)))

    return rate


def cosine(total: int, dtype: Any) -> np.ndarray:
    steps = np.arange(total, dtype=dtype)
    return (dtype(BASE / 2) * (1 + np.cos(dtype(math.pi) * steps / dtype(total)))).astype(np.float64)


def test_rates_that_are_the_same() -> None:
    for other in (
        linear(),
        [linear()(step) for step in range(1000)],
        np.array([linear()(step) for step in range(1000)]),
    ):
        found = probe.compare_schedules(linear(), other)
        assert found.equal and found.steps == 1000 and found.first is None
        assert str(found) == "the learning rates agree in 1,000 steps (rel at most 0.0e+00)"


def test_float32_is_rounding_also_where_a_rate_falls_to_nothing() -> None:
    found = probe.compare_schedules(cosine(1000, np.float64), cosine(1000, np.float32))
    assert found.equal and found.relative.max() > 1e-6


@pytest.mark.parametrize(
    "other, first, hint",
    [
        (linear(BASE * 1.03), 1, "B's rate is 1.03 times A's in every step: the base rate, or its scaling"),
        (linear(warm_up=90), 1, "the largest rate is that of step 100 in A, of step 90 in B: the warm-up"),
        (linear(ahead=1), 0, "B is one step ahead: it counts steps from another number"),
        (linear(ahead=-1), 0, "A is one step ahead"),
        (linear(total=900), 101, "the rate changes until step 999 in A, until step 900 in B: the number of steps"),
        (lambda step: max(linear()(step), 1e-6), 0, "the last rate is 3.33333e-08 in A, 1e-06 in B: the lowest rate"),
        (linear(total=1200), 101, "the last rate is 3.33333e-08 in A, 5.48182e-06 in B: the number of steps, the lowest rate, or"),
        (lambda step: linear()(step) * (1.03 if step == 500 else 1), 500, ""),
        (lambda step: math.nan if step == 7 else linear()(step), 7, ""),
    ],
)  # fmt: skip
def test_where_they_part_and_how_they_are_related(other: Callable[[int], float], first: int, hint: str) -> None:
    found = probe.compare_schedules(linear(), other)
    assert (found.first, found.group, found.equal) == (first, 0, False)
    assert bool(found.hints) == bool(hint) and " ".join(str(found).split()).count(hint)
    assert str(found).startswith(f"the learning rates part at step {first}:\n")
    assert max(map(len, str(found).splitlines())) <= 80


def test_a_difference_that_an_absolute_tolerance_hides() -> None:
    found = probe.compare_schedules(lambda step: 3e-5, lambda step: 2.91e-5, steps=10)
    assert str(found) == (
        "the learning rates part at step 0:\n  3e-05 in A, 2.91e-05 in B (3 %)\n  most at step 0: 3 %, of 10 steps\n"
        "  → B's rate is 0.97 times A's in every step: the base rate, or its scaling"
    )
    assert probe.compare_schedules(lambda step: 3e-5, lambda step: 2.91e-5, steps=10, relative=0.05).equal


def test_how_many_steps() -> None:
    assert probe.compare_schedules([1.0] * 7, [1.0] * 5).steps == 5
    assert probe.compare_schedules([1.0] * 7, [1.0] * 5, steps=3).steps == 3
    assert probe.compare_schedules(linear(), linear(total=500), steps=100).equal  # one warm-up


@pytest.mark.parametrize(
    "a, b, steps, text",
    [
        ([1.0] * 3, [1.0] * 2, 3, "compare_schedules: B has the shape (2,); expected 3 numbers, one for each step"),
        ([1.0], ["x"], 1, "compare_schedules: B holds what is no rate"),
        (3e-5, linear(), 5, "compare_schedules: A is a builtins.float; expected a learning-rate schedule of PyTorch"),
        (linear(), lambda: 1.0, 5, "compare_schedules: B gives no rate (TypeError: "),
        (linear(), linear(), 0, "compare_schedules: steps=0; expected a number from 1 to 10,000,000"),
        (linear(), linear(), True, "compare_schedules: steps=True"),
    ],
)
def test_errors(a: Any, b: Any, steps: Any, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        probe.compare_schedules(a, b, steps)
    assert str(caught.value).startswith(text)
