"""The contract, for MindSpore."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import ml_dtypes
import numpy as np
import pytest

mindspore = pytest.importorskip("mindspore")

from mindspore import Parameter, Tensor, nn, ops  # noqa: E402

from probe.adapters.mindspore import calls  # noqa: E402
from probe.adapters.mindspore.adapter import MindSporeAdapter  # noqa: E402
from probe.adapters.mindspore.optimizers import CLASSES  # noqa: E402
from probe.numbers.statistics import dtype_of, measure  # noqa: E402
from probe.testing import DTYPES, AdapterContract, assert_stats_agree  # noqa: E402

UNSIGNED = ("uint16", "uint32", "uint64")


class ReLUInPlace(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return x.copy_(ops.relu(x))


class TestMindSporeAdapter(AdapterContract):
    """MindSpore keeps no gradients: `differentiate` adds up what ``value_and_grad`` returns, as its users do."""

    adapter = MindSporeAdapter()
    dtypes = DTYPES + UNSIGNED

    @pytest.fixture(autouse=True)
    def _nothing_made(self) -> None:
        mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        self.made: list[Parameter] = []
        self.gradients: dict[int, Tensor] = {}
        self.numbers = itertools.count()

    def tensor(self, array: np.ndarray, requires_grad: bool = False) -> Tensor:
        copy = np.array(array, order="C")
        if array.dtype.name.startswith("float8"):
            kind = getattr(mindspore, array.dtype.name)
            return Tensor(Tensor.convert_bytes_to_tensor(copy.tobytes(), array.shape, kind))
        tensor = Tensor.from_numpy(copy)
        if requires_grad:
            tensor.requires_grad_()
        return tensor

    def layouts(self, array: np.ndarray) -> Iterator[Tensor]:
        tensor = self.tensor(array)
        axes = tuple(reversed(range(tensor.ndim)))
        yield tensor.permute(axes).contiguous().permute(axes)
        yield self.tensor(np.stack([array, array], -1))[..., 0]
        yield self.tensor(np.stack([array, array], 1))[:, 1]

    def numpy(self, tensor: Tensor) -> np.ndarray:
        return tensor.asnumpy()

    def scale_in_place(self, tensor: Tensor, factor: float) -> None:
        tensor.copy_(tensor * factor)

    def parameter(self, array: np.ndarray) -> Parameter:
        self.made.append(Parameter(Tensor(array), name=f"made_{next(self.numbers)}"))
        return self.made[-1]

    def assign(self, parameter: Parameter, array: np.ndarray) -> None:
        parameter.set_data(Tensor(array))

    def linear(self, n_in: int, n_out: int) -> nn.Cell:
        layer = nn.Dense(n_in, n_out)
        self.made += layer.trainable_params()
        return layer

    def relu(self, inplace: bool = False) -> nn.Cell:
        return ReLUInPlace() if inplace else nn.ReLU()

    def module(
        self,
        forward: Callable[..., Any],
        name: str = "Block",
        buffers: dict[str, Any] | None = None,
        **members: Any,
    ) -> nn.Cell:
        cell = type(name, (nn.Cell,), {"construct": forward})()
        for key, value in (buffers or {}).items():
            cell.register_buffer(key, value)
        for key, value in members.items():
            setattr(cell, key, value)
        return cell

    def differentiate(self, loss: Callable[[], Tensor], model: nn.Cell) -> Tensor:
        weights = [p for p in self.made if p.requires_grad]
        value, gradients = mindspore.value_and_grad(loss, None, weights)()
        for weight, gradient in zip(weights, gradients, strict=True):
            before = self.gradients.get(id(weight))
            self.gradients[id(weight)] = gradient if before is None else before + gradient
        return value

    def no_grad(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    def train(self, model: nn.Cell, mode: bool) -> None:
        model.set_train(mode)

    def freeze(self, parameter: Parameter) -> None:
        parameter.requires_grad = False

    def scale_gradients(self, model: nn.Cell, factor: float) -> None:
        for parameter in model.trainable_params():
            self.gradients[id(parameter)] = self.gradients[id(parameter)] * factor

    def optimizer(self, parameters: Sequence[Parameter], lr: float) -> nn.Optimizer:
        return nn.Momentum(parameters, lr, 0.9)

    def update(self, optimizer: nn.Optimizer) -> None:
        optimizer(tuple(self.gradients[id(parameter)] for parameter in optimizer.parameters))

    def zero_grad(self, optimizer: nn.Optimizer) -> None:
        for parameter in optimizer.parameters:
            self.gradients.pop(id(parameter), None)

    def hooks(self, *objects: Any) -> int:
        count = sum("__call__" in vars(kind) for kind in CLASSES) + calls.is_replaced()
        count += "grad" in vars(nn.cell._pynative_executor)
        for item in objects:
            if isinstance(item, nn.Cell):
                cells = [cell for _, cell in item.cells_and_names()]
                count += sum(len(cell._forward_pre_hook) + len(cell._forward_hook) for cell in cells)
                count += sum(len(calls.watched.get(id(cell), ())) for cell in cells)
                count += sum(len(parameter.hooks()) for parameter in item.get_parameters())
            else:
                count += len(item.hooks())
        return count


ADAPTER = MindSporeAdapter()


def test_bfloat16_is_read_bit_for_bit() -> None:
    array = np.array([[1.0, -2.5, np.inf], [np.nan, 0.0, 3e-39]], ml_dtypes.bfloat16)
    tensor = Tensor.from_numpy(array.copy())
    assert ADAPTER.values(tensor).tobytes() == array.tobytes()
    assert_stats_agree(ADAPTER.measure(tensor, ()), measure(array))


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_values_can_be_put_into_parameters_and_buffers(name: str) -> None:
    values = np.random.default_rng(0).standard_normal((3, 4))
    for kind in (Parameter, Tensor):
        tensor = kind(Tensor(np.zeros((3, 4), np.float32)).astype(getattr(mindspore, name)))
        ADAPTER.assign(tensor, values)
        assert np.array_equal(ADAPTER.values(tensor), values.astype(dtype_of(name)))
        assert ADAPTER.facts(tensor).dtype == name
    dense = nn.Dense(4, 3)
    ADAPTER.assign(dense.weight, values)
    expected = np.ones((1, 4), np.float32) @ values.astype(np.float32).T + dense.bias.asnumpy()
    assert np.allclose(dense(Tensor(np.ones((1, 4), np.float32))).asnumpy(), expected, atol=1e-6)
