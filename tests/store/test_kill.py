"""Trainings killed at random moments. `PROBE_KILLS=500` is what `python -m benchmarks.kill --runs 500` does."""

from __future__ import annotations

import functools
import os
from pathlib import Path

import pytest

from benchmarks import kill
from probe.records import CompressionName
from probe.store import compression
from tests.compressing import COMPRESSIONS

pytestmark = pytest.mark.thorough


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.parametrize("how", [None, *COMPRESSIONS])
def test_what_a_killed_training_leaves_is_exact(
    how: CompressionName | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    runs = int(os.environ.get("PROBE_KILLS", "6" if how is None else "3"))
    monkeypatch.setattr(kill, "STEPS", 20)
    monkeypatch.setattr(compression, "_LEAST", 4096)
    found = kill.kill(functools.partial(kill.train_numpy, compression=how), runs, tmp_path)
    print(found)
    assert found.exact == runs
    assert found.steps > 2 * runs
