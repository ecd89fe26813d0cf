"""The contract, for PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from probe.adapters.torch.adapter import TorchAdapter
from probe.numbers.statistics import measure
from probe.testing import DTYPES, AdapterContract, assert_stats_agree

UNSIGNED = ("uint16", "uint32", "uint64", "float8_e4m3fnuz", "float8_e5m2fnuz")


class TestTorchAdapter(AdapterContract):
    adapter = TorchAdapter()
    dtypes = DTYPES + UNSIGNED

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
        self,
        forward: Callable[..., Any],
        name: str = "Block",
        buffers: dict[str, Any] | None = None,
        **members: Any,
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
        count += len(nn.modules.module._global_forward_pre_hooks)
        for item in objects:
            if isinstance(item, nn.Module):
                count += sum(len(m._forward_pre_hooks) + len(m._forward_hooks) for m in item.modules())
                count += self.hooks(*item.parameters()) - self.hooks()
            elif isinstance(item, Tensor):
                count += len(item._backward_hooks or ()) + len(item._post_accumulate_grad_hooks or ())
            else:
                count += len(item._optimizer_step_pre_hooks) + len(item._optimizer_step_post_hooks)
        return count


ADAPTER = TorchAdapter()


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(3.0).expand(4, 3),
        torch.ones(()).expand(5, 2, 3),
        torch.arange(24.0).view(4, 6)[::2, 1::3],
        torch.view_as_complex(torch.arange(12.0).view(3, 2, 2)).conj(),
        torch.view_as_complex(torch.arange(12.0).view(3, 2, 2)).conj().imag,
        torch.ones(3, 4, dtype=torch.bfloat16).T[1:],
    ],
    ids=["expanded", "expanded scalar", "strided", "conjugate bit", "negative bit", "bfloat16 view"],
)
def test_views_are_measured_and_copied_by_their_values(tensor: Tensor) -> None:
    plain = tensor.resolve_conj().resolve_neg().clone(memory_format=torch.contiguous_format)
    wanted = plain.float().numpy() if plain.dtype is torch.bfloat16 else plain.numpy()
    values = ADAPTER.values(tensor)
    assert np.array_equal(values.astype(wanted.dtype), wanted)
    assert_stats_agree(ADAPTER.measure(tensor, ()), measure(values))


def test_other_tensors_are_left_alone() -> None:
    assert not ADAPTER.is_tensor(torch.ones(2).to_sparse()) and not ADAPTER.is_tensor(torch.ones(2, device="meta"))
    seen: list[bool] = []
    torch.vmap(lambda x: seen.append(ADAPTER.is_tensor(x)) or x)(torch.ones(2, 3))
    assert seen == [False]


def test_tensors_of_inference_mode_have_no_version() -> None:
    with torch.inference_mode():
        tensor = torch.ones(3)
    assert ADAPTER.version_of(tensor) is None and ADAPTER.version_of(torch.ones(3)) == 0


def test_the_models_configuration_is_found_in_it_or_below() -> None:
    class Config:
        def __init__(self) -> None:
            self.heads, self.eps, self.dtype, self._private = 4, 1e-6, torch.float32, 1

    wrapped = nn.Sequential(nn.Linear(1, 1), nn.Identity())
    wrapped[1].config = Config()
    assert ADAPTER.model_config(wrapped) == {"heads": 4, "eps": 1e-6, "dtype": "torch.float32"}
    assert ADAPTER.model_config(nn.Linear(1, 1)) == {}
