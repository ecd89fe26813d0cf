"""Ports between frameworks: clean ones are aligned, and every planted fault is named. `python -m benchmarks.frameworks`."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.frameworks.__main__ import results
from benchmarks.frameworks.truth import FAULTS, MODELS, OPTIMIZERS, TARGETS


@pytest.mark.parametrize(("target", "task"), [*zip(TARGETS, ["statistics", "tensor"], strict=True)])
def test_every_row_is_right(target: str, task: str, tmp_path: Path) -> None:
    rows = results(tmp_path, (target,), task)
    assert len(rows) == (len(MODELS) * len(OPTIMIZERS) + len(FAULTS))
    assert [row for row in rows if row[-1] != "right"] == []
