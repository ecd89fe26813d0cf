"""Loss scales where the batch is split otherwise: gradients of parameters are all that can be compared, and 16 bits make them coarse."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
from facts import one_thread_one_seed  # noqa: F401, E402
from torch import nn  # noqa: E402

import probe  # noqa: E402
from probe.comparison.result import Verdict  # noqa: E402
from probe.records import Phase  # noqa: E402

TASKS = ("statistics", "tensor")


class Net(nn.Module):
    """Attention, whose keys' bias gets a gradient that is nothing but rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 8)
        self.queries, self.keys = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.down(torch.tanh(self.up(x)))
        scores = self.queries(y) @ self.keys(y).transpose(-1, -2)
        return scores.softmax(-1) @ y


def train(path: Path, task: str, micros: int, scale: float = 0.0, *, clips_late: bool = True) -> Path:
    """Record two steps, with a loss scale in float16, else in float32."""
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=bool(scale))
    with probe.capture(model, path, task=task):
        for step in range(2):
            given = probe.make_inputs({"x": "float32[8,4,16]", "y": "float32[8,4,8]"}, seed=step, to="torch")
            total = 0.0
            for x, y in zip(given["x"].chunk(micros), given["y"].chunk(micros), strict=True):
                with torch.autocast("cpu", dtype=torch.float16, enabled=bool(scale)):
                    loss = (model(x).float() - y).square().mean() / micros
                scaler.scale(loss).backward()
                total += loss.item()
            if clips_late:
                scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            probe.step(loss=total)
    return path


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(
    ("a", "b", "factor"),
    [((1, 0.0), (2, 1024.0), 1024), ((4, 1024.0), (2, 4096.0), 4), ((4, 4096.0), (2, 256.0), 1 / 16)],
)
def test_a_loss_scale_that_is_undone_is_no_fault(
    tmp_path: Path, task: str, a: tuple[int, float], b: tuple[int, float], factor: float
) -> None:
    found = probe.compare(train(tmp_path / "a.h5", task, *a), train(tmp_path / "b.h5", task, *b))
    assert found.verdict is Verdict.ALIGNED, found
    text = f"B's gradients are {factor:g} times A's, the optimizer used them without that factor: "
    assert any(warning.startswith(text) for warning in found.warnings), found.warnings


def test_a_scale_that_is_taken_out_behind_clipping_is_one(tmp_path: Path) -> None:
    a = train(tmp_path / "a.h5", "tensor", 1)
    found = probe.compare(a, train(tmp_path / "b.h5", "tensor", 2, 1024.0, clips_late=False))
    first = found.first_divergence
    assert first is not None and first.phase is Phase.UPDATE
    assert (
        first.hint == "B clips gradients that are still 1024 times as large: divide them by the loss scale, then clip"
    )
