"""Benchmarks, run as the programs that they are: each ends with another status than 0 where something does not hold."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.limits import HANGS

ROOT = Path(__file__).parents[1]


def benchmark(name: str, *words: str) -> str:
    """Run ``python -m benchmarks.NAME WORDS`` to its end; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *words], cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True, text=True, timeout=HANGS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def hooked(folder: Path) -> Path:
    """Return the python of a new environment with the packages of this one, into which the hook for PROBE_RECORD was installed."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    python = folder / "bin" / "python"
    packages = [path for path in sys.path if path.endswith("site-packages")]
    place = subprocess.run(
        [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    (Path(place) / "packages.pth").write_text("\n".join(packages), encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([str(python), "-m", "probe.run", "--install-hook"], env=environment, capture_output=True, check=True)
    return python
