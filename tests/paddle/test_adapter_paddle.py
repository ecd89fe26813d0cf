"""The contract, for PaddlePaddle."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest

paddle = pytest.importorskip("paddle")

from hooks import live_hooks  # noqa: E402
from paddle import Tensor, nn  # noqa: E402

from probe.adapters.paddle.adapter import PaddleAdapter  # noqa: E402
from probe.numbers.statistics import dtype_of  # noqa: E402
from probe.testing import AdapterContract  # noqa: E402


class TestPaddleAdapter(AdapterContract):
    adapter = PaddleAdapter()
    lacks = frozenset({"own contributions"})

    @pytest.fixture(autouse=True)
    def _seed(self) -> None:
        paddle.seed(0)

    def tensor(self, array: np.ndarray, requires_grad: bool = False) -> Tensor:
        copy = np.array(array, order="C")
        if hasattr(paddle, array.dtype.name) and array.dtype.type.__module__ != "numpy":
            words = paddle.to_tensor(copy.view(f"int{8 * array.dtype.itemsize}"))
            tensor = words.view(array.dtype.name) if array.size else paddle.empty(array.shape, array.dtype.name)
        else:
            tensor = paddle.to_tensor(copy)
        tensor.stop_gradient = not requires_grad
        return tensor

    def layouts(self, array: np.ndarray) -> Iterator[Tensor]:
        tensor = self.tensor(array)
        axes = list(reversed(range(tensor.ndim)))
        yield tensor.transpose(axes).contiguous().transpose(axes)
        yield paddle.stack([tensor, tensor], -1)[..., 0]
        yield paddle.stack([tensor, tensor], 1)[:, 1]

    def numpy(self, tensor: Tensor) -> np.ndarray:
        return tensor.numpy()

    def scale_in_place(self, tensor: Tensor, factor: float) -> None:
        tensor.scale_(factor)

    def parameter(self, array: np.ndarray) -> Tensor:
        parameter = paddle.create_parameter(list(array.shape), str(array.dtype))
        parameter.set_value(array)
        return parameter

    def assign(self, parameter: Tensor, array: np.ndarray) -> None:
        parameter.set_value(array)

    def linear(self, n_in: int, n_out: int) -> nn.Layer:
        return nn.Linear(n_in, n_out)

    def relu(self, inplace: bool = False) -> nn.Layer:
        return self.module(lambda module, x: nn.functional.relu_(x), "ReLU") if inplace else nn.ReLU()

    def module(
        self,
        forward: Callable[..., Any],
        name: str = "Block",
        buffers: dict[str, Any] | None = None,
        **members: Any,
    ) -> nn.Layer:
        module = type(name, (nn.Layer,), {"forward": forward})()
        for key, value in (buffers or {}).items():
            module.register_buffer(key, value)
        for key, value in members.items():
            setattr(module, key, value)
        return module

    def differentiate(self, loss: Callable[[], Tensor], model: nn.Layer) -> Tensor:
        value = loss()
        value.backward()
        return value

    def no_grad(self) -> AbstractContextManager[Any]:
        return paddle.no_grad()

    def train(self, model: nn.Layer, mode: bool) -> None:
        model.train() if mode else model.eval()

    def freeze(self, parameter: Tensor) -> None:
        parameter.stop_gradient = True

    def scale_gradients(self, model: nn.Layer, factor: float) -> None:
        with paddle.no_grad():
            for parameter in model.parameters():
                parameter.grad.scale_(factor)

    def optimizer(self, parameters: Sequence[Tensor], lr: float) -> paddle.optimizer.Optimizer:
        return paddle.optimizer.Momentum(learning_rate=lr, momentum=0.9, parameters=list(parameters))

    def update(self, optimizer: paddle.optimizer.Optimizer) -> None:
        optimizer.step()

    def zero_grad(self, optimizer: paddle.optimizer.Optimizer) -> None:
        optimizer.clear_grad(set_to_zero=False)

    def hooks(self, *objects: Any) -> int:
        return live_hooks(*objects)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float64"])
def test_values_can_be_put_into_parameters_and_buffers(name: str) -> None:
    adapter, values = PaddleAdapter(), np.random.default_rng(0).standard_normal((3, 4))
    layer = nn.Linear(3, 4)
    layer.to(dtype=name)
    for tensor in (layer.weight, paddle.zeros([3, 4], name)):
        adapter.assign(tensor, values)
        assert adapter.values(tensor).tobytes() == values.astype(dtype_of(name)).tobytes()
        assert adapter.facts(tensor).dtype == name


def test_the_models_configuration_is_found_in_it_or_below() -> None:
    wrapped = nn.Sequential(nn.Linear(1, 1), nn.Identity())
    wrapped[1].config = {"heads": 4, "eps": 1e-6, "_private": 1, "activation": nn.GELU}
    assert PaddleAdapter().model_config(wrapped) == {"heads": 4, "eps": 1e-6}
    assert PaddleAdapter().model_config(nn.Linear(1, 1)) == {}
