"""Operations of PyTorch against PaddlePaddle's: right code is aligned, a fault is named at its line, and Paddle does not notice."""

from __future__ import annotations

import linecache
import subprocess
import sys
from pathlib import Path

import pytest

import probe

PROGRAM = Path(__file__).with_name("operations_program.py")
FAULTS = {
    "eps": ("b1.n1/add", "1e-3"),
    "sign": ("b1.a/neg", '"sign"'),
    "scale": ("b1.a/mul", '"scale"'),
    "axis": ("b1.a/softmax", "F.softmax(x, axis)"),
    "gelu": ("b1.m/silu", "F.gelu"),
    "residual": ("b1/add", '"residual"'),
}
"""by the fault in Paddle's side: the operation of PyTorch's that is named, and what stands in Paddle's line"""


def run(*words: str) -> str:
    command = [sys.executable, "-W", "ignore", str(PROGRAM), *words]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("across") / "torch.h5"
    run("torch", str(path))
    return path


def test_right_code_is_aligned_and_paddle_trains_as_without_probe(right: Path, tmp_path: Path) -> None:
    assert run("paddle", str(tmp_path / "b.h5")) == run("paddle", "-")
    answer = probe.compare(right, tmp_path / "b.h5")
    assert answer.verdict == "aligned", answer
    assert [slot.verdict for slot in answer["b2.a/softmax.0"]][0] in ("equal", "noise")


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_named_at_its_line(fault: str, right: Path, tmp_path: Path) -> None:
    run("paddle", str(tmp_path / "b.h5"), fault)
    first = probe.compare(right, tmp_path / "b.h5").first_divergence
    assert first is not None
    path, line = FAULTS[fault]
    assert first.a[0].path.startswith(path)
    assert line in linecache.getline(first.b[0].file, first.b[0].line)
