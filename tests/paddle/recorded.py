"""Recording a small training, for tests of what is in the file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import paddle
import zoo_paddle as zoo
from paddle import Tensor, nn

import probe
from probe.adapters.paddle.adapter import PaddleAdapter
from probe.testing import Recording

Update = Callable[[paddle.optimizer.Optimizer, Tensor], None]


def recorded(
    path: Path,
    model: nn.Layer,
    optimizer: paddle.optimizer.Optimizer | None = None,
    update: Update = zoo.step_and_clear,
    shape: tuple[int, ...] = (4, 6),
    steps: int = 1,
    **options: Any,
) -> Recording:
    """Train a model on the mean square of its output."""
    with probe.capture(model, path, task="tensor", **options):
        for step in range(steps):
            loss = model(zoo.batch(step, *shape)).square().mean()
            loss.backward()
            if optimizer is not None:
                update(optimizer, loss)
            probe.step(loss=loss)
    return Recording(path)


def missed(run: Recording) -> list[str]:
    """Return what a recording says that it misses, but for what PaddlePaddle never tells."""
    return [text for _, _, text in run.notes if text not in PaddleAdapter.limits]
