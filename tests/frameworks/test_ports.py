"""Ports between frameworks: clean ones are aligned, and every planted fault is named."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.programs import benchmark


@pytest.mark.parametrize(("target", "task"), [("paddle", "statistics"), ("mindspore", "tensor")])
def test_every_row_is_right(target: str, task: str) -> None:
    if find_spec(target) is None:  # importing both here, PaddlePaddle first, would break MindSpore
        pytest.skip(f"needs {target}")
    benchmark("frameworks", "--target", target, "--task", task)


def test_some_ports_of_the_localisation_benchmark() -> None:
    """Ports to PaddlePaddle and MindSpore of one model: `python -m benchmarks.localisation --part ports` has all."""
    benchmark(
        "localisation", "--part", "ports", "--mode", "tensor", "--jobs", "1", "--only", "port-bert/*/fp32/gelu*/*"
    )
