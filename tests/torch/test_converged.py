"""Models that have learnt: little of what they return is left in the loss, and rounding is a large part of that."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402

STEPS = 1500


class Split(torch.nn.Linear):
    """A linear layer that may add up in two halves."""

    halves = False

    def forward(self, x: Any) -> Any:
        if not self.halves:
            return super().forward(x)
        at = x.shape[-1] // 2
        y = x[..., :at] @ self.weight[:, :at].T + x[..., at:] @ self.weight[:, at:].T
        return y + self.bias.to(y.dtype)


def squared(z: Any, target: Any) -> Any:
    return ((z.float() - target) ** 2).mean()


def classes(z: Any, target: Any) -> Any:
    return torch.nn.functional.cross_entropy(z.float(), target.argmax(-1))


@pytest.fixture(scope="module", params=[squared, classes])
def learnt(request: pytest.FixtureRequest) -> tuple[Any, Any, Any, Callable[..., Any]]:
    torch.manual_seed(0)
    model = torch.nn.Sequential(Split(32, 96), torch.nn.Tanh(), Split(96, 96), torch.nn.Tanh(), Split(96, 16))
    teacher = torch.nn.Sequential(torch.nn.Linear(32, 96), torch.nn.Tanh(), torch.nn.Linear(96, 16))
    x = torch.randn(256, 32)
    target = 3 * teacher(x).detach()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    for _ in range(STEPS):
        optimizer.zero_grad()
        request.param(model(x), target).backward()
        optimizer.step()
        schedule.step()
    return model, x, target, request.param


def record(
    path: Path, learnt: tuple[Any, Any, Any, Callable[..., Any]], dtype: str, halves: bool, factor: float
) -> Path:
    model, x, target, loss_of = learnt
    model = copy.deepcopy(model)
    for module in model:
        module.halves = halves
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    with probe.capture(model, path):
        for _ in range(3):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "autocast"):
                z = model(x)
            loss = loss_of(z, target) * factor
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            probe.step(loss=loss.item())
    return path


@pytest.mark.parametrize("dtype", ["fp32", "autocast"])
def test_rounding_is_a_large_part_of_what_is_left(tmp_path: Path, learnt: Any, dtype: str) -> None:
    a = record(tmp_path / "a.h5", learnt, dtype, halves=False, factor=1.0)
    b = record(tmp_path / "b.h5", learnt, dtype, halves=True, factor=1.0)
    found = probe.compare(a, b)
    assert found.verdict is Verdict.ALIGNED, found.first_divergence


def test_a_loss_that_is_scaled_is_named_all_the_same(tmp_path: Path, learnt: Any) -> None:
    a = record(tmp_path / "a.h5", learnt, "fp32", halves=False, factor=1.0)
    b = record(tmp_path / "b.h5", learnt, "fp32", halves=True, factor=1.1)
    first = probe.compare(a, b).first_divergence
    assert first is not None and (first.step, first.phase) == (0, Phase.LOSS)
