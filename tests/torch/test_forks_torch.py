"""Workers of a DataLoader are forked while a training is recorded: its file is as without them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kill import Expected
from probe.store.reading.reader import Reader
from tests.limits import HANGS

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")

ROOT = Path(__file__).parent.parent.parent
SCRIPT = """
import sys
import torch
from torch.utils.data import DataLoader, TensorDataset
import probe

torch.manual_seed(0)
torch.set_num_threads(1)
net = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(net.parameters(), 0.1)
data = TensorDataset(torch.randn(60, 64))
workers = int(sys.argv[2])
options = {"num_workers": workers, "multiprocessing_context": "fork"} if workers else {}
probe.start(net, sys.argv[1], task="tensor")
for epoch in range(3):
    for (x,) in DataLoader(data, batch_size=20, **options):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        optimizer.step()
        probe.step(loss=loss)
probe.stop()
"""


def train(path: Path, workers: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(path), str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANGS, check=False, env=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_workers_of_a_data_loader(tmp_path: Path) -> None:
    train(tmp_path / "alone.h5", 0)
    train(tmp_path / "workers.h5", 2)
    assert Expected(tmp_path / "alone.h5", 0.0).check(tmp_path / "workers.h5") == 9
    with Reader(tmp_path / "workers.h5") as reader:
        assert reader.info.closed and not reader.notes
