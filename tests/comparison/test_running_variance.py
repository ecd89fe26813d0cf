"""Running variances that two frameworks divide by n and by n − 1: no fault, as long as nothing else differs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor
from probe.comparison.result import Verdict
from probe.records import Phase, Role

N = 8
TOLD = (
    "running_var of 1 differs only by what the frameworks divide by (A, torch, divides by n − 1; B, paddle, divides by n; n = {n}): "
    "it cannot be set, and only evaluation sees it"
)


class BatchNorm2d(nn.Module):
    """Keeps running statistics, and does nothing else."""

    def __init__(self, keeps: float, ddof: int, factor: float) -> None:
        super().__init__(running_mean=nn.Buffer(np.zeros(4, np.float32)), running_var=nn.Buffer(np.ones(4, np.float32)))
        self.keeps, self.ddof, self.factor = keeps, ddof, np.float32(factor)
        self.kind = np.float64 if ddof else np.float32

    def forward(self, x: Tensor) -> Tensor:
        self.running_mean.data = (0.1 * x.data.astype(self.kind).mean(0)).astype(np.float32)
        new = x.data.var(0, ddof=self.ddof) * self.factor
        self.running_var.data = (self.keeps * self.running_var.data + (1 - self.keeps) * new).astype(np.float32)
        return x * 1.0


class BatchNorm2D(BatchNorm2d):
    """The same under Paddle's name."""


def record(
    path: Path, framework: str, *, keeps: float = 0.9, factor: float = 1.0, micros: int = 1,
    begins: tuple[float, float] = (0.0, 1.0), **options: Any,
) -> Path:  # fmt: skip
    nn.manual_seed(0)
    kind, ddof = (BatchNorm2d, 1) if framework == "torch" else (BatchNorm2D, 0)
    model = nn.Sequential(nn.Linear(4, 4), kind(keeps, ddof, factor), nn.Linear(4, 2))
    norm: Any = dict(model.children())["1"]
    norm.running_mean.data[...], norm.running_var.data[...] = begins
    optimizer = nn.SGD(model.parameters(), lr=0.01)
    with probe.capture(model, path, **options):
        for step in range(3):
            for micro in range(micros):
                x = np.random.default_rng(10 * step + micro).normal(size=(N, 4)).astype(np.float32)
                (model(Tensor(x)) ** 2.0).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step()
    with h5py.File(path, "r+") as file:
        file.attrs["framework"] = framework
    return path


@pytest.mark.parametrize("options", [{}, {"task": "tensor"}, {"micros": 2}], ids=str)
def test_what_they_divide_by_is_no_fault(options: dict[str, Any], tmp_path: Path) -> None:
    found = probe.compare(record(tmp_path / "a.h5", "torch", **options), record(tmp_path / "b.h5", "paddle", **options))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert found.warnings.count(TOLD.format(n=N)) == 1
    assert found.flip is not None and 0 < found.flip.factor < 1, "what is excused is not what is closest to its limit"


def test_what_steps_that_were_not_recorded_left_is_no_fault_either(tmp_path: Path) -> None:
    options = {"steps": [1, 2]}
    found = probe.compare(record(tmp_path / "a.h5", "torch", **options), record(tmp_path / "b.h5", "paddle", **options))
    assert found.verdict is Verdict.ALIGNED, found.first_divergence
    assert any("the buffer running_var of 1 differs before step 1" in text for text in found.warnings)


@pytest.mark.parametrize("begins", [(1.0, 0.0), (0.0, 1.01)], ids=["swapped", "scaled"])
def test_what_they_begin_with_is_judged_like_a_weight(tmp_path: Path, begins: tuple[float, float]) -> None:
    first = probe.compare(
        record(tmp_path / "a.h5", "torch"), record(tmp_path / "b.h5", "torch", begins=begins)
    ).first_divergence
    assert first is not None and (first.phase, first.path, first.role) == (Phase.INIT, "1", Role.BUFFER)
    assert first.evidence[0] == "the running statistics differ before the first step"


@pytest.mark.parametrize(
    ("framework", "options"),
    [
        ("paddle", {"keeps": 0.8}),
        ("paddle", {"keeps": 0.1}),
        ("paddle", {"factor": 1.01}),
        ("paddle", {"factor": 1 + 1 / N}),
        ("torch", {"factor": 1 - 1 / N}),  # the same framework has no reason to divide otherwise
    ],
    ids=str,
)
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_whatever_else_differs_is_found(framework: str, options: dict[str, Any], task: str, tmp_path: Path) -> None:
    a = record(tmp_path / "a.h5", "torch", task=task)
    b = record(tmp_path / "b.h5", framework, task=task, **options)
    found = probe.compare(a, b)
    first = found.first_divergence
    assert first is not None and (first.step, first.role, first.path) == (0, Role.BUFFER, "1")
    assert not any("divide by" in text for text in found.warnings)


def test_it_is_not_guessed_where_the_inputs_were_not_recorded(tmp_path: Path) -> None:
    options = {"phases": ["init", "update"]}
    found = probe.compare(record(tmp_path / "a.h5", "torch", **options), record(tmp_path / "b.h5", "paddle", **options))
    assert found.first_divergence is not None and found.first_divergence.role is Role.BUFFER


@pytest.mark.parametrize(("shift", "verdict"), [(0.0, Verdict.ALIGNED), (1e-4, Verdict.DIVERGED)])
def test_a_mean_that_vanishes_is_rounding(shift: float, verdict: Verdict, tmp_path: Path) -> None:
    x = np.random.default_rng(3).normal(size=(64, 4)).astype(np.float32)
    x -= x.astype(np.float64).mean(0).astype(np.float32)
    for name, extra in (("a.h5", 0.0), ("b.h5", shift)):
        module = BatchNorm2d(0.9, 1, 1.0)
        module.kind = np.float64 if name == "a.h5" else np.float32
        model = nn.Sequential(module)
        with probe.capture(model, tmp_path / name):
            model(Tensor(x))
            module.running_mean.data = module.running_mean.data + np.float32(extra)
            probe.step()
    found = probe.compare(tmp_path / "a.h5", tmp_path / "b.h5")
    assert found.verdict is verdict, found.first_divergence
