"""Schedules of PaddlePaddle: simulated from where they stand, on copies, and the same as PyTorch's formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

paddle = pytest.importorskip("paddle")

from paddle.optimizer import lr  # noqa: E402

import probe  # noqa: E402
from probe.errors import ConfigError  # noqa: E402

SCHEDULES: dict[str, Callable[[], Any]] = {
    "step": lambda: lr.StepDecay(0.1, 3, 0.5),
    "cosine": lambda: lr.CosineAnnealingDecay(0.1, 20),
    "warm-up": lambda: lr.LinearWarmup(lr.PolynomialDecay(0.1, 30, end_lr=0.0), 5, 0.0, 0.1),
    "lambda": lambda: lr.LambdaDecay(0.1, lambda step: 1 / (1 + step)),
}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("already", [0, 7])
def test_what_is_simulated_is_what_a_training_has(name: str, already: int) -> None:
    schedule = SCHEDULES[name]()
    for _ in range(already):
        schedule.step()
    last = schedule.last_epoch, schedule()
    found = probe.compare_schedules(schedule, schedule, 20)
    assert found.equal and (schedule.last_epoch, schedule()) == last
    expected = []
    for _ in range(20):
        expected.append(schedule())
        schedule.step()
    assert found.a[0].tolist() == expected


def test_a_warm_up_that_starts_elsewhere_is_found() -> None:
    def reference(step: int) -> float:
        return 0.1 * min(1.0, (step + 1) / 10)

    schedule = lr.LinearWarmup(0.1, 10, 0.0, 0.1)
    found = probe.compare_schedules(reference, schedule, 30)
    assert (found.first, found.hints[0].partition(":")[0]) == (0, "A is one step ahead")


def test_what_depends_on_a_metric_is_refused() -> None:
    with pytest.raises(ConfigError, match="ReduceOnPlateau depends on a metric"):
        probe.compare_schedules(lr.ReduceOnPlateau(0.1), [0.1])
