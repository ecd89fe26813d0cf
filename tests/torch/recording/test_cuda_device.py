"""Recording on a GPU: nothing waits inside a step, what is recorded is what was there, and without triton all is the same, slower."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import probe
from probe.adapters.torch.adapter import TorchAdapter
from probe.adapters.torch.cuda import measuring as cuda_measuring
from probe.adapters.torch.cuda.measuring import LAUNCHER, Launcher
from probe.adapters.torch.cuda.values import begin_values
from probe.config import TaskName
from probe.errors import ProbeWarning, RecordingError
from probe.numbers.statistics import measure
from probe.records import HashKind
from probe.store.reading.reader import Reader
from probe.testing import assert_stats_agree

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
COLUMNS = (
    "phase",
    "module",
    "role",
    "slot",
    "dtype",
    "shape",
    "hash_lo",
    "hash_hi",
    "hash_kind",
    "min",
    "max",
    "zeros",
)


def net(device: str = "cuda") -> Any:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(60, 70), torch.nn.BatchNorm1d(70), torch.nn.ReLU(inplace=True), torch.nn.Linear(70, 60)]
    return torch.nn.Sequential(*layers).to(device)


def train(model: Any, around: Callable[[], Any] | None = None, is_recorded: bool = True) -> list[Any]:
    """Train for two steps; return what the training made."""
    device = next(model.parameters()).device
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    made = []
    for step in range(2):
        batch = torch.randn(50, 60, generator=torch.Generator().manual_seed(step)).to(device)
        if around is not None:
            around()
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if around is not None:
            torch.cuda.set_sync_debug_mode("default")
        if is_recorded:
            probe.step(loss=loss)
        made.append(loss.detach().clone())
    return [*made, *(parameter.detach().clone() for parameter in model.parameters())]


def record(path: Path, task: TaskName, around: Callable[[], Any] | None = None) -> list[Any]:
    model = net()
    with probe.capture(model, path, task=task):
        return train(model, around)


def rows_of(path: Path) -> list[tuple[Any, ...]]:
    with Reader(path) as reader:
        return [tuple(row[name] for name in COLUMNS) for row in reader.records]


def test_without_triton_it_is_said_once_and_operations_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> None:
        raise ImportError("No module named 'triton'")

    monkeypatch.setattr(Launcher, "takes", lambda self, tensor: True)
    monkeypatch.setattr("probe.adapters.torch.cuda.launching.importlib.import_module", fails)
    launcher = Launcher()
    assert launcher.measure(torch.ones(3), (), HashKind.WSUM64) is None
    assert launcher.unusable == "ImportError: No module named 'triton'"
    monkeypatch.setattr(LAUNCHER, "unusable", launcher.unusable)
    (remark,) = TorchAdapter().remarks()
    assert remark.endswith("(gcc, clang): ImportError: No module named 'triton'")


def test_a_kernel_that_computes_something_else_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = measure(np.ones((3, 130), np.float32), (), HashKind.WSUM64)
    monkeypatch.setattr(Launcher, "takes", lambda self, tensor: True)
    monkeypatch.setattr(Launcher, "_begin", lambda self, *rest: rest)
    monkeypatch.setattr(Launcher, "settle", lambda self, pending: [wrong])
    launcher = Launcher()
    assert launcher.measure(torch.ones(3), (), HashKind.WSUM64) is None
    assert "does not compute what the CPU does" in launcher.unusable


def test_nothing_is_asked_of_a_device_that_captures_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launcher, "takes", lambda self, tensor: True)
    monkeypatch.setattr(cuda_measuring, "is_capturing", lambda: True)
    launcher = Launcher()
    with pytest.raises(RecordingError, match="while a CUDA graph is captured"):
        launcher.measure(torch.ones(3), (), HashKind.WSUM64)
    assert not launcher.unusable


@on_gpu
@pytest.mark.parametrize("task", ["statistics", "norms"])
def test_nothing_is_waited_for_inside_a_step(task: TaskName, tmp_path: Path) -> None:
    record(tmp_path / "first.h5", task)  # compiles, makes plans; what a step begins with is copied then
    steps = iter(["default", "error"])
    record(tmp_path / "a.h5", task, lambda: torch.cuda.set_sync_debug_mode(next(steps)))
    assert not LAUNCHER.unusable
    with Reader(tmp_path / "a.h5") as reader:
        assert len(reader.steps) == 2 and not reader.notes


@on_gpu
@pytest.mark.parametrize("task", ["statistics", "norms", "tensor"])
def test_the_training_is_bitwise_the_same(task: TaskName, tmp_path: Path) -> None:
    plain = train(net(), is_recorded=False)
    assert all(map(torch.equal, plain, record(tmp_path / "a.h5", task)))


@on_gpu
def test_rows_are_those_that_operations_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path / "kernel.h5", "statistics")
    record(tmp_path / "tensor.h5", "tensor")
    assert not LAUNCHER.unusable
    monkeypatch.setattr(LAUNCHER, "unusable", "switched off")
    with pytest.warns(ProbeWarning, match="switched off"):
        record(tmp_path / "operations.h5", "statistics")
    assert rows_of(tmp_path / "kernel.h5") == rows_of(tmp_path / "operations.h5") == rows_of(tmp_path / "tensor.h5")


@on_gpu
def test_values_are_those_that_were_measured(tmp_path: Path) -> None:
    record(tmp_path / "a.h5", "tensor")
    with Reader(tmp_path / "a.h5") as reader:
        stored = [row for row in reader.records if row["tensor"] >= 0]
        assert len(stored) > 50
        for row in stored:
            found = measure(
                reader.values(row["tensor"]), (), HashKind(row["hash_kind"])
            )  # a count of steps is on the CPU
            assert (found.hash_lo, found.hash_hi) == (row["hash_lo"], row["hash_hi"])


@on_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_written_behind_a_hook_is_not_seen(dtype: torch.dtype) -> None:
    tensor = torch.randn(3000, 5000, device="cuda").to(dtype)
    before = tensor.clone()
    torch.cuda._sleep(20_000_000)
    row, wait = LAUNCHER.measure(tensor, (), HashKind.WSUM64), begin_values(tensor)
    tensor.zero_()
    assert row is not None and wait is not None
    values = TorchAdapter().values(before)
    assert wait().tobytes() == values.tobytes()
    assert_stats_agree(LAUNCHER.settle([row])[0], measure(values, (), HashKind.WSUM64))


@on_gpu
def test_tensors_of_several_streams_are_settled_together() -> None:
    sides = [torch.cuda.Stream() for _ in range(3)]
    rows, expected = [], []
    for turn in range(30):
        with torch.cuda.stream(sides[turn % 3]):
            torch.cuda._sleep(1_000_000)
            tensor = torch.full((100, turn + 1), float(turn), device="cuda")
            rows.append(LAUNCHER.measure(tensor, (), HashKind.WSUM64))
            expected.append(measure(np.full((100, turn + 1), turn, np.float32), (), HashKind.WSUM64))
            del tensor
    for stats, wanted in zip(LAUNCHER.settle([row for row in rows if row]), expected, strict=True):
        assert_stats_agree(stats, wanted)


@on_gpu
def test_a_captured_graph_is_left_alone(tmp_path: Path) -> None:
    model = net().eval()
    batch = torch.randn(50, 60, device="cuda")
    expected = model(batch).clone()
    graph = torch.cuda.CUDAGraph()
    with pytest.warns(ProbeWarning, match="while a CUDA graph is captured"), probe.capture(model, tmp_path / "a.h5"):
        with torch.cuda.graph(graph), torch.no_grad():
            output = model(batch)
        graph.replay()
        probe.step(loss=0.0)
    assert torch.equal(output, expected)


@on_gpu
def test_a_graph_of_a_whole_step_trains_as_without_probe(tmp_path: Path) -> None:
    def run(recording: Callable[[Any], Any]) -> list[Any]:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        batch = torch.ones(50, 60, device="cuda")
        with recording(model):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                model(batch).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                model(batch).square().mean().backward()
                optimizer.step()
            for _ in range(3):
                graph.replay()
        return [parameter.detach().clone() for parameter in model.parameters()]

    plain = run(lambda model: contextlib.nullcontext())
    with pytest.warns(ProbeWarning, match="while a CUDA graph is captured"):
        recorded = run(lambda model: probe.capture(model, tmp_path / "a.h5"))
    assert all(map(torch.equal, plain, recorded))


@on_gpu
def test_memory_is_given_back(tmp_path: Path) -> None:
    record(tmp_path / "first.h5", "tensor")
    gc.collect()
    before = torch.cuda.memory_allocated()
    record(tmp_path / "a.h5", "tensor")
    gc.collect()
    assert torch.cuda.memory_allocated() <= before
