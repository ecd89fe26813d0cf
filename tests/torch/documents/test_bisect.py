"""`probe bisect`: from two commands to the operation and its line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from probe.commands.bisect_command import recording
from probe.errors import RecordingError

PROGRAM = """
import torch
import torch.nn.functional as F

class Mixed(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = torch.nn.Linear(8, 16), torch.nn.Linear(16, 8)

    def forward(self, x):
        h = self.up(x) * 0.5
        h = F.gelu(h{how})
        return x + self.down(h)

torch.manual_seed(0)
model = torch.nn.Sequential(Mixed(), Mixed())
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range({steps}):
    loss = model(torch.randn(4, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.parametrize(("command", "expected"), [
    ("python train.py --lr 1", "python -m probe.run -o x train.py --lr 1"),
    ("python -u -W ignore -m pkg.train a.py", "python -u -W ignore -m probe.run -o x -m pkg.train a.py"),
    ("torchrun --nproc-per-node 2 'my train.py'", "torchrun --nproc-per-node 2 -m probe.run -o x|my train.py"),
])  # fmt: skip
def test_a_command_is_run_under_probe(command, expected) -> None:
    before, _, last = expected.partition("|")
    assert recording(command, ["-o", "x"]) == [*before.split(), *([last] if last else [])]


def test_a_command_without_a_script_is_refused() -> None:
    with pytest.raises(RecordingError, match="'make train': expected a program such as"):
        recording("make train", [])


def bisect(folder: Path, **commands: str) -> subprocess.CompletedProcess[str]:
    words = [word for side, command in commands.items() for word in (f"--{side}", command)]
    return subprocess.run(
        [sys.executable, "-m", "probe", "bisect", *words], cwd=folder, capture_output=True, text=True, check=False
    )


def test_two_commands_lead_to_the_line_of_code_and_are_not_run_again(tmp_path) -> None:
    for side, how in (("a", ""), ("b", ", approximate='tanh'")):
        (tmp_path / f"{side}.py").write_text(PROGRAM.format(how=how, steps=3))
    commands = {side: f"{sys.executable} {side}.py" for side in "ab"}
    done = bisect(tmp_path, **commands)
    assert done.returncode == 1, done.stderr
    assert "0/gelu.0  torch.nn.functional.gelu" in done.stdout and "b.py:12" in done.stdout
    assert "gelu by erf, B gelu by tanh" in " ".join(done.stdout.split()), done.stdout
    assert len(done.stdout.splitlines()) <= 25 and done.stderr.count("$ ") == 4
    again = bisect(tmp_path, **commands)
    assert again.stdout == done.stdout and "$ " not in again.stderr


def test_programs_that_agree_are_run_once_and_what_fails_is_told(tmp_path) -> None:
    (tmp_path / "a.py").write_text(PROGRAM.format(how="", steps=2))
    (tmp_path / "b.py").write_text("raise SystemExit(5)")
    agree = bisect(tmp_path, a=f"{sys.executable} a.py", b=f"{sys.executable} -u a.py")
    assert agree.returncode == 0 and agree.stderr.count("$ ") == 2, agree.stderr
    (tmp_path / "bisect" / "b.h5").unlink()
    failed = bisect(tmp_path, a=f"{sys.executable} a.py", b=f"{sys.executable} b.py")
    assert failed.returncode == 3 and "ended with status 5" in failed.stderr
