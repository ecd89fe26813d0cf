"""The contract, for PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import ml_dtypes
import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from probe.adapters.torch import TorchAdapter  # noqa: E402
from probe.testing import DTYPES, AdapterContract  # noqa: E402

UNSIGNED = ("uint16", "uint32", "uint64", "float8_e4m3fnuz", "float8_e5m2fnuz")


class TestTorchAdapter(AdapterContract):
    adapter = TorchAdapter()
    dtypes = DTYPES + UNSIGNED

    @pytest.fixture(autouse=True)
    def _one_thread(self) -> Iterator[None]:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        yield
        torch.set_num_threads(threads)

    def tensor(self, array: np.ndarray, requires_grad: bool = False) -> Tensor:
        copy = np.array(array, order="C")
        if array.dtype.type.__module__ == ml_dtypes.__name__ or hasattr(ml_dtypes, array.dtype.name):
            bits = torch.from_numpy(copy.view(f"u{array.dtype.itemsize}"))
            tensor = bits.view(getattr(torch, array.dtype.name))
        else:
            tensor = torch.from_numpy(copy)
        return tensor.requires_grad_() if requires_grad else tensor

    def layouts(self, array: np.ndarray) -> Iterator[Tensor]:
        tensor = self.tensor(array)
        axes = tuple(reversed(range(tensor.ndim)))
        yield tensor.permute(axes).contiguous().permute(axes)
        yield torch.stack([tensor, tensor], -1)[..., 0]
        yield torch.stack([tensor, tensor], 1)[:, 1]
        yield torch.complex(tensor, -tensor).conj().imag
        yield tensor.flip(0).flip(0)

    def numpy(self, tensor: Tensor) -> np.ndarray:
        return tensor.detach().numpy()

    def scale_in_place(self, tensor: Tensor, factor: float) -> None:
        tensor.mul_(factor)

    def parameter(self, array: np.ndarray) -> Tensor:
        return nn.Parameter(torch.from_numpy(array.copy()))

    def assign(self, parameter: Tensor, array: np.ndarray) -> None:
        with torch.no_grad():
            parameter.copy_(torch.from_numpy(array))

    def linear(self, n_in: int, n_out: int) -> nn.Module:
        return nn.Linear(n_in, n_out)

    def relu(self, inplace: bool = False) -> nn.Module:
        return nn.ReLU(inplace)

    def module(
        self, forward: Callable[..., Any], name: str = "Block", buffers: dict[str, Any] | None = None, **members: Any
    ) -> nn.Module:
        module = type(name, (nn.Module,), {"forward": forward})()
        for key, value in (buffers or {}).items():
            module.register_buffer(key, value)
        for key, value in members.items():
            setattr(module, key, value)
        return module

    def differentiate(self, loss: Callable[[], Tensor], model: nn.Module) -> Tensor:
        value = loss()
        value.backward()
        return value

    def no_grad(self) -> AbstractContextManager[None]:
        return torch.no_grad()

    def train(self, model: nn.Module, mode: bool) -> None:
        model.train(mode)

    def freeze(self, parameter: Tensor) -> None:
        parameter.requires_grad_(False)

    def scale_gradients(self, model: nn.Module, factor: float) -> None:
        for parameter in model.parameters():
            parameter.grad.mul_(factor)

    def optimizer(self, parameters: Sequence[Tensor], lr: float) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=lr, momentum=0.9)

    def update(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.step()

    def zero_grad(self, optimizer: torch.optim.Optimizer) -> None:
        optimizer.zero_grad()

    def hooks(self, *objects: Any) -> int:
        from torch.optim import optimizer as of_process

        count = len(of_process._global_optimizer_pre_hooks) + len(of_process._global_optimizer_post_hooks)
        for item in objects:
            if isinstance(item, nn.Module):
                count += sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in item.modules())
                count += self.hooks(*item.parameters()) - self.hooks()
            elif isinstance(item, Tensor):
                count += len(item._backward_hooks or ()) + len(item._post_accumulate_grad_hooks or ())
            else:
                count += len(item._optimizer_step_pre_hooks) + len(item._optimizer_step_post_hooks)
        return count
