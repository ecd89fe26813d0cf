"""The contract, for the numpy framework; and that the framework itself computes what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import probe  # noqa: F401
from probe.adapters import numpy_nn as nn
from probe.adapters.numpy import NumpyAdapter
from probe.adapters.numpy_tensor import Tensor, backward_hooks, cross_entropy, no_grad
from probe.sketch import sketch
from probe.store.reader import Reader
from probe.testing import AdapterContract, Recording, sample


class TestNumpyAdapter(AdapterContract):
    adapter = NumpyAdapter()

    def tensor(self, array: np.ndarray, requires_grad: bool = False) -> Tensor:
        return Tensor(array.copy(), requires_grad)

    def layouts(self, array: np.ndarray) -> Iterator[Tensor]:
        yield Tensor(np.asfortranarray(array))
        yield Tensor(np.repeat(array, 2, axis=0)[::2])

    def numpy(self, tensor: Tensor) -> np.ndarray:
        return tensor.data

    def scale_in_place(self, tensor: Tensor, factor: float) -> None:
        tensor.become(tensor * factor)

    def parameter(self, array: np.ndarray) -> Tensor:
        return nn.Parameter(array)

    def assign(self, parameter: Tensor, array: np.ndarray) -> None:
        parameter.data[...] = array

    def linear(self, n_in: int, n_out: int) -> nn.Module:
        return nn.Linear(n_in, n_out)

    def relu(self, inplace: bool = False) -> nn.Module:
        return nn.ReLU(inplace)

    def module(
        self, forward: Callable[..., Any], name: str = "Block", buffers: dict[str, Any] | None = None, **members: Any
    ) -> nn.Module:
        kept = {key: nn.Buffer(value.data) for key, value in (buffers or {}).items()}
        return type(name, (nn.Module,), {"forward": forward})(**kept, **members)

    def differentiate(self, loss: Callable[[], Tensor], model: nn.Module) -> Tensor:
        value = loss()
        value.backward()
        return value

    def no_grad(self) -> AbstractContextManager[None]:
        return no_grad()

    def train(self, model: nn.Module, mode: bool) -> None:
        model.train(mode)

    def freeze(self, parameter: Tensor) -> None:
        parameter.requires_grad = False

    def scale_gradients(self, model: nn.Module, factor: float) -> None:
        for parameter in model.parameters():
            parameter.grad.data *= np.float32(factor)

    def optimizer(self, parameters: Sequence[Tensor], lr: float) -> nn.Optimizer:
        return nn.SGD(parameters, lr=lr, momentum=0.9)

    def update(self, optimizer: nn.Optimizer) -> None:
        optimizer.step()

    def zero_grad(self, optimizer: nn.Optimizer) -> None:
        optimizer.zero_grad()

    def hooks(self, *objects: Any) -> int:
        count = len(backward_hooks) + len(nn.step_pre_hooks) + len(nn.step_post_hooks)
        for item in objects:
            if isinstance(item, Tensor):
                count += len(item.node.hooks)
            elif isinstance(item, nn.Module):
                count += sum(len(m.pre_hooks) + len(m.post_hooks) for _, m in item.modules())
                count += sum(len(p.node.hooks) for p in item.parameters())
            else:
                count += len(item.pre_hooks) + len(item.post_hooks)
        return count
