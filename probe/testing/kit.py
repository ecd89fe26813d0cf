"""The verbs by which the contract builds and trains models of any framework."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from probe.adapters.base import Adapter
from probe.testing.arrays import DTYPES


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
        self,
        forward: Callable[..., Any],
        name: str = "Block",
        buffers: dict[str, Any] | None = None,
        **members: Any,
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
