"""The contract, for the numpy framework; and that the framework itself computes what it says."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import probe
from probe.records import Phase
from probe.store.reading.reader import Reader
from probe.testing import AdapterContract, sample
from tests.toy import nn
from tests.toy.adapter import NumpyAdapter
from tests.toy.tensor import Tensor, backward_hooks, cross_entropy, no_grad


class TestNumpyAdapter(AdapterContract):
    adapter = NumpyAdapter()

    @pytest.fixture(autouse=True)
    def _one_seed(self) -> None:
        nn.manual_seed(0)

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
        self,
        forward: Callable[..., Any],
        name: str = "Block",
        buffers: dict[str, Any] | None = None,
        **members: Any,
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
        count += len(nn.call_pre_hooks)
        for item in objects:
            if isinstance(item, Tensor):
                count += len(item.node.hooks)
            elif isinstance(item, nn.Module):
                count += sum(len(m.pre_hooks) + len(m.post_hooks) for _, m in item.modules())
                count += sum(len(p.node.hooks) for p in item.parameters())
            else:
                count += len(item.pre_hooks) + len(item.post_hooks)
        return count


# The framework


def model(dtype: Any) -> nn.Module:
    """Every module there is."""
    layers = [
        nn.Embedding(7, 8, dtype), nn.RMSNorm(8, dtype=dtype), nn.Attention(8, 2, dtype), nn.Dropout(0.5),
        nn.LayerNorm(8, dtype=dtype), nn.Linear(8, 8, dtype=dtype), nn.GELU(), nn.ReLU(inplace=True),
        nn.LinearInOut(8, 8, dtype=dtype), nn.SiLU(), nn.Linear(8, 7, False, dtype),
    ]  # fmt: skip
    return nn.Sequential(*layers).train(False)


IDS = Tensor(np.arange(12).reshape(2, 6) % 7)
LABELS = Tensor((np.arange(12).reshape(2, 6) + 1) % 7)


def test_gradients_are_the_slopes() -> None:
    nn.manual_seed(1)
    net = model(np.float64)
    cross_entropy(net(IDS), LABELS).backward()
    for name, parameter, _ in net.named_tensors(nn.Parameter):
        place = tuple(np.random.default_rng(0).integers(parameter.shape))
        before, losses = parameter.data[place], []
        for shift in (1e-6, -1e-6):
            parameter.data[place] = before + shift
            losses.append(cross_entropy(net(IDS), LABELS).item())
        parameter.data[place] = before
        slope = (losses[0] - losses[1]) / 2e-6
        assert parameter.grad.data[place] == pytest.approx(slope, rel=1e-5, abs=1e-8), name


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
def test_training_repeats_itself_bit_by_bit_and_keeps_its_dtype(dtype: Any) -> None:
    losses = []
    for _ in range(2):
        nn.manual_seed(0)
        net = model(dtype).train()
        optimizer = nn.AdamW([{"params": net.parameters()[:3], "lr": 1e-2}, {"params": net.parameters()[3:]}], lr=2e-2)
        for _ in range(15):
            optimizer.zero_grad()
            loss = cross_entropy(net(IDS), LABELS)
            loss.backward()
            optimizer.step()
        losses.append(loss.data)
        assert {p.dtype for p in net.parameters()} == {p.grad.dtype for p in net.parameters()} == {np.dtype(dtype)}
    assert losses[0] == losses[1] < np.log(7) * 0.9


def test_dropout_is_off_in_evaluation() -> None:
    layer, x = nn.Dropout(0.5), Tensor(np.ones(1000, np.float32))
    assert set(np.unique(layer(x).data)) == {0.0, 2.0} and layer.train(False)(x) is x


def test_the_first_steps_of_the_optimizers_are_those_of_their_papers() -> None:
    start, gradient = np.array([1.0, -2.0]), np.array([0.5, 4.0])
    for optimizer_class, options, expected in (
        (nn.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.5}, start - 0.1 * (gradient + 0.5 * start)),
        (nn.AdamW, {"lr": 0.1, "weight_decay": 0.5}, start - 0.1 * (np.sign(gradient) + 0.5 * start)),
    ):
        parameter = nn.Parameter(start.copy())
        parameter.grad = Tensor(gradient)
        optimizer_class([parameter], **options).step()
        assert np.allclose(parameter.data, expected, rtol=1e-6)


def test_a_leaf_cannot_be_written_in_place() -> None:
    with pytest.raises(RuntimeError, match="leaf"):
        nn.relu(nn.Parameter(np.ones(2)), inplace=True)


def test_a_weight_in_another_layout_has_the_sketch_of_the_canonical_one(tmp_path: Path) -> None:
    recordings = []
    for layer in (nn.Linear(4, 4), nn.LinearInOut(4, 4)):
        layer.weight.data[...] = sample((4, 4)) if type(layer) is nn.Linear else sample((4, 4)).T
        path = tmp_path / f"{type(layer).__name__}.h5"
        with probe.capture(layer, path):
            layer(Tensor(sample((2, 4)))).sum().backward()
        with Reader(path) as reader:
            kept = [(reader.slots[row["slot"]], row["phase"]) for row in reader.records]
            sketches = zip(kept, reader.sketches, strict=True)
            recordings.append({slot: s for (slot, phase), s in sketches if phase == Phase.GRADIENT})
            axes = () if type(layer) is nn.Linear else (1, 0)
            assert {(p.axes, p.canonical) for p in reader.parameters if p.slot == "weight"} == {(axes, "weight")}
    assert np.allclose(recordings[0]["weight"], recordings[1]["weight"], rtol=1e-12)
