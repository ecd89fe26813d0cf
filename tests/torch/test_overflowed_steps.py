"""Steps that loss scaling skips: float16's gradients are not finite on either side."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.answer import Comparison  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402

TASKS = ("statistics", "tensor")


def train(path: Path, task: str, *, lr: float = 1e-2, scale: float = 2.0**40, backoff: float = 2.0**-30) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 8))
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale, backoff_factor=backoff)
    with probe.capture(model, path, task=task):
        for _ in range(3):
            x = torch.randn(8, 16)
            with torch.autocast("cpu", dtype=torch.float16):
                loss = model(x).float().square().mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            probe.step(loss=loss)
    return path


@pytest.mark.parametrize("task", TASKS)
def test_the_other_steps_are_compared(tmp_path: Path, task: str) -> None:
    found = probe.compare(train(tmp_path / "a.h5", task), train(tmp_path / "b.h5", task, scale=2.0**41))
    assert found.verdict is Verdict.ALIGNED, found
    text = "the gradients of step 0 (not finite on either side, and neither updated a weight: loss scaling)"
    assert found.left_out == (text,)
    assert str(found).startswith("ALIGNED but for what was not compared: the gradients of step 0")


@pytest.mark.parametrize("task", TASKS)
def test_a_fault_behind_it(tmp_path: Path, task: str) -> None:
    found = probe.compare(train(tmp_path / "a.h5", task), train(tmp_path / "b.h5", task, lr=1.1e-2))
    first = found.first_divergence
    assert first is not None and (first.step, first.phase, first.path) == (1, Phase.UPDATE, "")


def test_every_step_is_skipped(tmp_path: Path) -> None:
    files = [train(tmp_path / name, "statistics", backoff=0.5) for name in ("a.h5", "b.h5")]
    found = probe.compare(*files)
    assert found.verdict is Verdict.UNDECIDED
    assert any(text.endswith("NaN on both sides: what is computed from it cannot be judged") for text in found.doubts)


def overflowing(path: Path, *, is_updated: bool = True, loss: float = 1.0, forward: float = 1.0) -> Path:
    """Gradients that are NaN in the first of two steps, which updates nothing; or the loss, or what the model returns, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with probe.capture(model, path):
        for number in range(2):
            model.zero_grad()
            y = model(torch.randn(4, 8) * (1.0 if number else forward))
            y.register_hook(lambda gradient, number=number: gradient * (1.0 if number else float("nan")))
            y.square().mean().backward()
            if number and is_updated:
                optimizer.step()
            probe.step(loss=1.0 if number else loss)
    return path


def test_only_gradients_overflow_by_their_scale(tmp_path: Path) -> None:
    def compared(**options: float) -> Comparison:
        return probe.compare(*(overflowing(tmp_path / f"{name}{options}.h5", **options) for name in "ab"))

    assert compared().verdict is Verdict.ALIGNED
    assert compared(loss=float("nan")).verdict is Verdict.UNDECIDED
    assert compared(forward=float("nan")).verdict is Verdict.UNDECIDED


def test_gradients_that_nothing_was_seen_to_skip(tmp_path: Path) -> None:
    """Without an optimizer no weight is updated in any step: that says nothing of loss scaling."""
    found = probe.compare(*(overflowing(tmp_path / name, is_updated=False) for name in ("a.h5", "b.h5")))
    assert found.verdict is Verdict.UNDECIDED
    assert any(text.endswith("NaN on both sides: what is computed from it cannot be judged") for text in found.doubts)
