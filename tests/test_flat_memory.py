"""Long runs need no more memory, handles or threads than short ones. `PROBE_LONG=20000` prints and checks that many."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
from pathlib import Path

import pytest

import probe
from probe.adapters import numpy_nn as nn
from probe.adapters.numpy_tensor import Tensor
from probe.testing import sample

STEPS = int(os.environ.get("PROBE_LONG", "200"))


def handles() -> int:
    """Return how many files this process has open."""
    return len(os.listdir("/proc/self/fd")) if Path("/proc/self/fd").is_dir() else 0


def resident() -> float:
    """Return the memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1]) if Path("/proc/self/statm").exists() else 0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def settled() -> int:
    """Return the bytes that Python holds when the writer has nothing left to do."""
    writer = probe.session._current.run.writer
    written = threading.Event()
    writer._queue.put(written.set)
    assert written.wait(60)
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_memory_is_flat(task: str, tmp_path: Path) -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = nn.AdamW(net.parameters(), 0.001)
    marks = {STEPS // 10, STEPS // 2, STEPS - 1}
    seen = []
    tracemalloc.start()
    try:
        probe.start(net, tmp_path / "a.h5", task=task)
        for step in range(STEPS):
            output = net(Tensor(sample((3, 4), step)))
            loss = (output * output).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            probe.step(loss=loss)
            if step in marks:
                seen.append((settled(), handles(), threading.active_count()))
                print(f"{task} {step}: {seen[-1][0] / 2**20:.2f} MiB traced, {resident():.0f} MiB resident")
    finally:
        tracemalloc.stop()
        probe.stop()
    (first, *others), (_, *files), (_, *threads) = ([each[part] for each in seen] for part in range(3))
    limit = 4 << 20 if task == "tensor" else 1 << 18  # rows of 20,000 tensors are kept for the readable tree
    assert max(others) - first < limit
    assert set(files) == {seen[0][1]} and set(threads) == {seen[0][2]}
