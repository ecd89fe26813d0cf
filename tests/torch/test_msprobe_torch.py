"""Scripts written for mindstudio-probe, with one import changed, in processes of their own; and dropout that is off."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from probe.testing import Recording  # noqa: E402

ROOT = Path(__file__).parents[2]
CONFIG = {
    "task": "statistics", "dump_path": "./data_dump", "rank": [], "step": [0, 1], "level": "L1", "async_dump": False, "extra_info": True,
    "statistics": {"scope": [], "list": [], "tensor_list": ["fc"], "data_mode": ["all"], "summary_mode": "statistics"},
}  # fmt: skip
SCRIPT = """
import torch
from torch import nn
from torch.nn import functional as F

from msprobe.pytorch import PrecisionDebugger, seed_all
seed_all(seed=1234, mode=True, rm_dropout=True)
debugger = PrecisionDebugger(config_path="./config.json")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(8, 4)
        self.drop = nn.Dropout(0.5)
        self.out = nn.Linear(4, 4)

    def forward(self, x):
        hidden = F.dropout(F.relu(self.drop(self.fc(x))), 0.3, self.training)
        assert torch.equal(hidden, F.relu(self.fc(x)))  # neither module nor function drops
        return self.out(hidden)


model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for data in torch.randn(3, 10, 8):
    debugger.start(model)
    loss = model(data).sum()
    loss.backward()
    debugger.stop()
    debugger.step()
    optimizer.step()
    optimizer.zero_grad()
"""
CHANGED = SCRIPT.replace("from msprobe.pytorch import", "from probe.compat.msprobe import")


def run(folder: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "train.py").write_text(script)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PROBE_QUIET": ""}
    command = [sys.executable, *(arguments or ["train.py"])]
    return subprocess.run(command, capture_output=True, text=True, cwd=folder, env=environment, check=False)


def test_one_import_is_enough(tmp_path: Path) -> None:
    sides = tmp_path / "bench", tmp_path / "npu"
    for side in sides:
        side.mkdir()
    scripts = CHANGED, CHANGED.replace("self.out(hidden)", "self.out(hidden) * 1.01")
    for side, script in zip(sides, scripts, strict=True):
        done = run(side, script)
        assert done.returncode == 0, done.stderr
        said = re.findall("ProbeWarning: (.*)", done.stderr)
        assert said == [
            "probe: mindstudio-probe: level L1: operations are not recorded, modules are (docs/reference/other-tools.md)"
        ]
        assert "dropout off: p=0 in torch.nn.functional.dropout" in done.stderr
        (path,) = (side / "data_dump").iterdir()
        seen = Recording(path)
        assert [int(step) for step in seen.steps["step"]] == [0, 1]
        assert {s.path for s in seen.seen if s.values is not None} == {"fc"}
        assert {s.step for s in seen.find(phase="update", role="delta")} == {0, 1}
        assert seen.notes == []
    (tmp_path / "compare.json").write_text(
        json.dumps({"npu_path": "./npu/data_dump/step0/rank/dump.json", "bench_path": "./bench/data_dump/step0/rank/dump.json",
                    "stack_path": "./npu/data_dump/step0/rank/stack.json", "is_print_compare_log": True})
    )  # fmt: skip
    done = run(tmp_path, "", "-m", "probe", "compare", "-i", "compare.json", "--format", "json")
    assert done.returncode == 1, done.stderr
    first = json.loads(done.stdout)["divergences"][0]
    assert (first["phase"], first["a"][0]["path"]) == ("forward", "")
