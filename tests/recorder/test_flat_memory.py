"""Long runs need no more memory, handles or threads than short ones. `PROBE_LONG=20000` prints and checks that many."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, backward_hooks
from probe.testing import sample
from tests.resources import handles, resident, settled

STEPS = int(os.environ.get("PROBE_LONG", "200"))
CYCLES = 24


@pytest.mark.thorough
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


@pytest.fixture
def fresh() -> Iterator[None]:
    """What other tests have left is no garbage of this one: looking at it in each cycle would take most of the time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("task", ["statistics", "tensor", "norms"])
def test_cycles_leave_nothing_behind(task: str, tmp_path: Path) -> None:
    """Neither where one model is recorded again and again nor where every recording has its own."""
    lasting = nn.Linear(4, 300)
    seen, alive = [], []
    for cycle in range(CYCLES):
        model = lasting if cycle % 2 else nn.Linear(4, 300)
        optimizer = nn.AdamW(model.parameters(), 0.001)
        path = tmp_path / f"{cycle}.h5"
        probe.start(model, path, task=task)
        recorder = probe.session._current
        for step in range(3):
            model(Tensor(sample((100, 4), step))).sum().backward()
            optimizer.step()
            probe.step(loss=step)
        probe.stop()
        path.unlink()
        assert not (model.pre_hooks or model.post_hooks or nn.step_pre_hooks or nn.step_post_hooks or backward_hooks)
        alive += [weakref.ref(each) for each in (recorder, recorder.run.writer, optimizer)]
        if not cycle % 2:
            alive += [weakref.ref(each) for each in (model, *model.parameters())]
        optimizer.zero_grad()
        del model, optimizer, recorder
        gc.collect()
        seen.append((resident(), handles(), threading.active_count()))
    assert not [type(reference()) for reference in alive if reference() is not None]
    assert len({each[1:] for each in seen[2:]}) == 1, "files or threads are left"
    print(f"{task}: {seen[5][0]:.0f} MiB resident after 6 cycles, {seen[-1][0]:.0f} MiB after {CYCLES}")
    assert seen[-1][0] - seen[5][0] < 8, [each[0] for each in seen]
