"""probe as it is installed where there is no C compiler: it records and compares, and says once that this is slow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import probe
from probe.answer.result import Verdict

REPO = Path(__file__).parents[2]
PROGRAM = """
import sys
sys.modules["probe.numbers.kernel._kernel"] = None
from probe.numbers import kernel
assert not kernel.AVAILABLE
from tests.cli.running import net, record
for name in ("a.h5", "b.h5"):
    record(name, net(), {options})
"""


def run(folder: Path, options: str = "") -> str:
    """Record twice in one process; return what it said."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(options=options)], cwd=folder, env={"PYTHONPATH": str(REPO), "PATH": ""},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stderr


def test_it_says_so_once_and_records_the_same(tmp_path: Path) -> None:
    said = run(tmp_path)
    assert said.count("no C compiler") == 1 and "Warning" not in said
    assert probe.compare(tmp_path / "a.h5", tmp_path / "b.h5").verdict is Verdict.ALIGNED


@pytest.mark.parametrize("options", ["task='structure'", "quiet=True"])
def test_it_says_nothing_where_nothing_is_measured_or_it_is_quiet(tmp_path: Path, options: str) -> None:
    assert "no C compiler" not in run(tmp_path, options)
