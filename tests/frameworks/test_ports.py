"""Ports between frameworks: clean ones are aligned, and every planted fault is named. `python -m benchmarks.frameworks`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.frameworks.__main__ import results
from benchmarks.frameworks.truth import FAULTS, MODELS, OPTIMIZERS, TARGETS


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_every_row_is_right(task: str, tmp_path: Path) -> None:
    rows = results(tmp_path, TARGETS, task)
    assert len(rows) == len(TARGETS) * (len(MODELS) * len(OPTIMIZERS) + len(FAULTS))
    assert [row for row in rows if row[-1] != "right"] == []
