"""The test for continuous integration that docs/guide/comparing.md shows: it passes, and fails with the report."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "comparing.md"
MODELS = """
import torch
from torch import nn

def make_baseline(eps=1e-5):
    torch.manual_seed(0)
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.up, self.norm = nn.Linear(16, 32), nn.LayerNorm(32, eps)
        def forward(self, x):
            return self.norm(self.up(x))
    return Net()

def make_port():
    return make_baseline({eps})
"""


def test_the_recipe(tmp_path: Path) -> None:
    (recipe,) = (
        block
        for block in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.M | re.S)
        if "def test_" in block
    )
    assert "from models import" in recipe
    for name, eps in (("right", "1e-5"), ("wrong", "1e-2")):
        (tmp_path / f"test_{name}.py").write_text(recipe.replace("from models", f"from {name}"), encoding="utf-8")
        (tmp_path / f"{name}.py").write_text(MODELS.replace("{eps}", eps), encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
    assert re.findall(r"^FAILED (\w+)\.py", done.stdout, re.M) == ["test_wrong"]
    assert "DIVERGED" in done.stdout and "B norm" in done.stdout and "assert_aligned()" in done.stdout
