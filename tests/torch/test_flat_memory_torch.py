"""Starting and stopping again and again, and recording for long, leave nothing behind. `-s` prints the figures."""

from __future__ import annotations

import gc
import os
import threading
import tracemalloc
import weakref
from collections.abc import Iterator
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from test_neutral import hooks  # noqa: E402
from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.testing import sample  # noqa: E402
from tests.resources import handles, resident, settled  # noqa: E402

CYCLES = 24
STEPS = int(os.environ.get("PROBE_LONG", "1000"))


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    gc.collect()
    gc.freeze()  # or every collection looks at all of PyTorch
    yield
    gc.unfreeze()
    torch.set_num_threads(threads)
    probe.stop()


def network(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(inplace=True), nn.Linear(width, 2))


def train(model: nn.Module, optimizer: torch.optim.Optimizer, step: int) -> torch.Tensor:
    optimizer.zero_grad()
    loss = model(torch.from_numpy(sample((16, 4), step))).square().sum()
    loss.backward()
    optimizer.step()
    return loss.detach()


@pytest.mark.parametrize(
    ("task", "watched"), [("statistics", False), ("statistics", True), ("tensor", False), ("norms", False)]
)
def test_cycles_leave_nothing_behind(task: str, watched: bool, tmp_path: Path) -> None:
    """Neither where one model is recorded again and again nor where every recording has its own."""
    lasting = network(256)
    sgd = torch.optim.SGD(lasting.parameters(), 0.001)
    seen, alive = [], []
    for cycle in range(CYCLES):
        model = lasting if cycle % 2 else network(256)
        optimizer = sgd if cycle % 2 else torch.optim.AdamW(model.parameters())
        path = tmp_path / f"{cycle}.h5"
        probe.start(model, path, task=task, optimizer=optimizer if watched else None)
        recorder = probe.session._current
        for step in range(3):
            probe.step(loss=train(model, optimizer, step))
        probe.stop()
        path.unlink()
        assert not hooks(model, optimizer), "hooks are left"
        alive += [weakref.ref(each) for each in (recorder, recorder.run.writer, recorder.run.adapter)]
        if not cycle % 2:
            alive += [weakref.ref(each) for each in (model, optimizer, *model.modules(), *model.parameters())]
        del model, optimizer, recorder
        gc.collect()
        tensors = sum(type(each) is torch.Tensor for each in gc.get_objects())
        seen.append((resident(), handles(), threading.active_count(), tensors))
    assert not [type(reference()) for reference in alive if reference() is not None]
    assert len({each[1:] for each in seen[4::2]}) == 1, "files, threads or tensors are left"
    print(f"{task}: {seen[5][0]:.0f} MiB resident after 6 cycles, {seen[-1][0]:.0f} MiB after {CYCLES}")
    assert seen[-1][0] - seen[5][0] < 12, [each[0] for each in seen]


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_memory_is_flat(task: str, tmp_path: Path) -> None:
    model = network(16)
    optimizer = torch.optim.AdamW(model.parameters(), 0.001)
    marks = {STEPS // 10, STEPS // 2, STEPS - 1}
    seen = []
    tracemalloc.start()
    try:
        probe.start(model, tmp_path / "a.h5", task=task, steps="every 10" if task == "tensor" else None)
        for step in range(STEPS):
            probe.step(loss=train(model, optimizer, step))
            if step in marks:
                seen.append((settled(), resident(), handles(), threading.active_count(), len(hooks(model, optimizer))))
                print(f"{task} {step}: {seen[-1][0] / 2**20:.2f} MiB traced, {seen[-1][1]:.0f} MiB resident")
    finally:
        tracemalloc.stop()
        probe.stop()
    (first, *traced), (before, *later) = ([each[part] for each in seen] for part in range(2))
    limit = 4 << 20 if task == "tensor" else 1 << 18  # rows of 20,000 tensors are kept for the readable tree
    assert max(traced) - first < limit and max(later) - before < 24
    assert len({each[2:] for each in seen}) == 1
