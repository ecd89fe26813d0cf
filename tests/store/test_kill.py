"""Trainings killed at random moments. `PROBE_KILLS=500` is what `python -m benchmarks.kill --runs 500` does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import kill


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_what_a_killed_training_leaves_is_exact(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs = int(os.environ.get("PROBE_KILLS", "6"))
    monkeypatch.setattr(kill, "STEPS", 20)
    found = kill.kill(kill.train_numpy, runs, tmp_path)
    print(found)
    assert found.exact == runs
    assert found.steps > 2 * runs
