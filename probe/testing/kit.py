"""The verbs by which the contract builds and trains models of any framework; a model with every phase and role, and its training."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import probe
from probe.adapters.base import Adapter
from probe.testing.arrays import DTYPES, sample
from probe.testing.recording import Recording


class AdapterKit(abc.ABC):
    """The small things that the contract's tests do, as a framework does them."""

    adapter: Adapter
    dtypes: tuple[str, ...] = DTYPES
    lacks: frozenset[str] = frozenset()
    """what the framework does not tell, of: ``own contributions`` (of a call to the gradient of its input; the total is
    wanted instead). Each must be among the adapter's `limits`, in words"""

    @abc.abstractmethod
    def tensor(self, array: np.ndarray, requires_grad: bool = False) -> Any:
        """Return a tensor with the bits of an array."""

    @abc.abstractmethod
    def layouts(self, array: np.ndarray) -> Iterator[Any]:
        """Yield tensors with the bits of an array (of at least two axes) that lie differently in memory."""

    @abc.abstractmethod
    def numpy(self, tensor: Any) -> np.ndarray:
        """Return the values of a tensor of a dtype that numpy has."""

    @abc.abstractmethod
    def scale_in_place(self, tensor: Any, factor: float) -> None:
        """Multiply a tensor in place, in a way that can be differentiated."""

    @abc.abstractmethod
    def parameter(self, array: np.ndarray) -> Any:
        """Return something that is a parameter when it is a module's attribute."""

    @abc.abstractmethod
    def assign(self, parameter: Any, array: np.ndarray) -> None:
        """Give a parameter other values."""

    @abc.abstractmethod
    def linear(self, n_in: int, n_out: int) -> Any:
        """Return a fully connected layer with ``weight`` and ``bias``."""

    @abc.abstractmethod
    def relu(self, inplace: bool = False) -> Any:
        """Return a module without parameters that computes max(x, 0)."""

    @abc.abstractmethod
    def module(
        self, forward: Callable[..., Any], name: str = "Block", buffers: dict[str, Any] | None = None, **members: Any
    ) -> Any:
        """Return a module of a new class, with modules and parameters as attributes.

        ``forward(module, *args, **kwargs)`` is what it computes.
        """

    @abc.abstractmethod
    def differentiate(self, loss: Callable[[], Any], model: Any) -> Any:
        """Compute a loss and add its gradients to the parameters' gradients; return it."""

    @abc.abstractmethod
    def no_grad(self) -> AbstractContextManager[Any]:
        """Return a context in which no gradients are prepared."""

    @abc.abstractmethod
    def train(self, model: Any, mode: bool) -> None:
        """Set a model to training or to evaluation."""

    @abc.abstractmethod
    def freeze(self, parameter: Any) -> None:
        """Let a parameter have no gradient any more."""

    @abc.abstractmethod
    def scale_gradients(self, model: Any, factor: float) -> None:
        """Multiply the gradients of all parameters in place, as clipping does."""

    @abc.abstractmethod
    def optimizer(self, parameters: Sequence[Any], lr: float) -> Any:
        """Return gradient descent with a momentum of 0.9."""

    @abc.abstractmethod
    def update(self, optimizer: Any) -> None:
        """Make a step of an optimizer."""

    @abc.abstractmethod
    def zero_grad(self, optimizer: Any) -> None:
        """Forget the gradients."""

    @abc.abstractmethod
    def hooks(self, *objects: Any) -> int:
        """Count the hooks on models, their parameters, optimizers and tensors, and those of the process."""


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
