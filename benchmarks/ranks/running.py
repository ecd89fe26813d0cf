"""Starting the trainings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.ranks.spec import Spec

ROOT = Path(__file__).parents[2]


def train(folder: Path, specs: Sequence[Spec], timeout: float = 600) -> str:
    """Train and record, each in processes of its own; return what was said."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.ranks.worker", str(folder)], input=json.dumps([spec.as_json() for spec in specs]),
        cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    if done.returncode or "failed" in done.stdout:
        raise RuntimeError(f"{done.stdout}\n{done.stderr}")
    return done.stdout
