"""A model with every phase and role, and its training while it is recorded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.testing.arrays import sample
from probe.testing.kit import AdapterKit
from probe.testing.recording import Recording


class TrainingKit(AdapterKit):
    """What the contract's tests of recordings share."""

    @pytest.fixture(autouse=True)
    def _ended(self) -> Iterator[None]:
        yield
        probe.stop()

    def net(self) -> Any:
        """Return a model in which every phase and role occurs: embed → block(up → act, gate) → head."""

        def block(module: Any, x: Any, *, scale: Any) -> Any:
            return module.act(module.up(x)) * scale + module.gate(x)

        def forward(module: Any, x: Any) -> Any:
            hidden = module.block(module.embed(x), scale=module.scale)
            probe.log("hidden", hidden)
            return module.head(hidden)

        inner = self.module(block, "Block", up=self.linear(4, 4), act=self.relu(), gate=self.linear(4, 4))
        scale = self.tensor(np.full(4, 1.5, np.float32))
        return self.module(
            forward, "Net", {"scale": scale}, embed=self.linear(4, 4), block=inner, head=self.linear(4, 3)
        )

    @property
    def of_input(self) -> str:
        """The role of the gradients of a leaf module's inputs."""
        return "grad_total" if "own contributions" in self.lacks else "grad_input"

    def missed(self, run: Recording) -> list[str]:
        """Return what a recording says that it misses, but for what the framework never tells."""
        return [text for _, _, text in run.notes if text not in self.adapter.limits]

    def parameters(self, model: Any) -> list[Any]:
        """Return the parameters that are trained."""
        named = [item for item in self.adapter.parameters(model) if not item.is_buffer]
        return [item.tensor for item in named if self.adapter.facts(item.tensor).requires_grad]

    def squares(self, model: Any, *inputs: Any) -> Callable[[], Any]:
        """Return a loss: the sum of squares of the output."""

        def loss() -> Any:
            output = model(*inputs)
            return (output * output).sum()

        return loss

    def run(self, folder: Path, model: Any, count: int = 1, micros: int = 1, **options: Any) -> Recording:
        """Train a model on 5 × 4 random numbers while it is recorded, with values unless told otherwise."""
        path = folder / "run.h5"
        optimizer = self.optimizer(self.parameters(model), 0.05)
        probe.start(model, path, **{"task": "tensor", **options})
        self.fit(model, optimizer, count, micros)
        probe.stop()
        return Recording(path)

    def fit(self, model: Any, optimizer: Any, steps: int, micros: int = 1) -> None:
        """Train, and call `probe.step` after each step."""
        for step in range(steps):
            for micro in range(micros):
                x = self.tensor(sample((5, 4), 10 * step + micro))
                loss = self.differentiate(self.squares(model, x), model)
            self.update(optimizer)
            self.zero_grad(optimizer)
            probe.step(loss=loss)
