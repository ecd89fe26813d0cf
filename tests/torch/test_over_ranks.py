"""Trainings of two processes over gloo are bitwise the same, their recordings right; all situations: ``python -m benchmarks.trainings``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.limits import HANGS

torch = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch has no distributed", allow_module_level=True)

ROOT = Path(__file__).parents[2]


def test_a_sharded_training() -> None:
    """It is trained plainly, twice recorded, and with a fault: no collective is probe's, nothing is left, the fault is named."""
    command = [sys.executable, "-m", "benchmarks.trainings", "FSDP1, full, original"]
    found = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=HANGS
    )
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.startswith("holds") and "1 of 1 hold" in found.stdout
