"""Replay in MindSpore; models are left as they were."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
mindspore = pytest.importorskip("mindspore")

from mindspore import Parameter, Tensor, nn, ops  # noqa: E402
from mindspore.common.generator import default_generator  # noqa: E402
from mindspore.common.seed import _KERNEL_SEED  # noqa: E402
from mindspore.nn.cell import _pynative_executor as executor  # noqa: E402

import probe  # noqa: E402
from probe.adapters.mindspore import calls  # noqa: E402
from tests.left_as_it_was import Framework, Itself, check_inject, check_left_inject, check_replay, net_of, unchanged  # noqa: E402
from tests.programs import benchmark  # noqa: E402

# ---- A port to MindSpore replayed with what PyTorch recorded, and MindSpore's optimizers with the gradients of one another.


def test_a_port_is_replayed_with_what_torch_recorded() -> None:
    """Clean, and with three faults, which alone are named."""
    benchmark("replay.ports", "--small", "mindspore")


def net() -> nn.Cell:
    mindspore.set_seed(0)
    np.random.seed(0)
    return nn.SequentialCell(nn.Dense(8, 16), nn.LayerNorm((16,)), nn.Dense(16, 4))


def replayed(tmp_path: Path, kind_a: Any, a: dict[str, Any], kind_b: Any, b: dict[str, Any]) -> str:
    model = net()
    optimizer = kind_a(model.trainable_params(), **a)
    x = Tensor(np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32))
    with probe.capture(model, tmp_path / "a.h5", task="tensor", quiet=True, overwrite=True):
        loss, gradients = mindspore.value_and_grad(lambda: model(x).square().mean(), None, optimizer.parameters)()
        optimizer(gradients)
        probe.step(loss=loss)
    other = net()
    before = {name: each.asnumpy().copy() for name, each in other.parameters_and_names()}
    found = probe.replay_gradients(other, kind_b(other.trainable_params(), **b), tmp_path / "a.h5")
    assert all(np.array_equal(before[name], each.asnumpy()) for name, each in other.parameters_and_names())
    return str(found.verdict)


ADAM: dict[str, Any] = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8, "weight_decay": 0.01}
MOMENTUM: dict[str, Any] = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01}


@pytest.mark.parametrize("options, verdict", [
    ({}, "aligned"), ({"learning_rate": 1.02e-3}, "diverged"), ({"weight_decay": 0.1}, "diverged"), ({"beta1": 0.8}, "diverged"),
    ({"beta2": 0.99}, "diverged"), ({"eps": 1e-5}, "diverged"),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("kind", [nn.Adam, nn.AdamWeightDecay])
def test_adam(tmp_path: Path, kind: Any, options: dict[str, Any], verdict: str) -> None:
    assert replayed(tmp_path, kind, ADAM, kind, {**ADAM, **options}) == verdict


def test_other_forms_of_adam(tmp_path: Path) -> None:
    assert replayed(tmp_path, nn.Adam, ADAM, nn.Adam, {**ADAM, "use_amsgrad": True}) == "diverged"
    assert replayed(tmp_path, nn.Adam, ADAM, nn.AdamWeightDecay, ADAM) == "diverged"  # it corrects no bias


@pytest.mark.parametrize("options, verdict", [
    ({}, "aligned"), ({"learning_rate": 0.102}, "diverged"), ({"momentum": 0.5}, "diverged"), ({"weight_decay": 0.1}, "diverged"),
    ({"use_nesterov": True}, "diverged"),
], ids=str)  # fmt: skip
def test_sgd_with_momentum(tmp_path: Path, options: dict[str, Any], verdict: str) -> None:
    assert replayed(tmp_path, nn.Momentum, MOMENTUM, nn.Momentum, {**MOMENTUM, **options}) == verdict


# ---- Replay and inject leave a model of MindSpore exactly as it was: what is compared stands in ``tests/left_as_it_was.py``.


class Part(nn.Cell):
    """It writes to everything that a cell may write to, and uses random numbers of all three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm = nn.Dense(6, 6), nn.BatchNorm1d(6)
        self.mean = Parameter(Tensor(np.zeros(6, np.float32)), requires_grad=False)
        self.register_buffer("calls", Tensor(np.zeros(1, np.float32)), persistent=False)
        self.number, self.kept, self.named = 0, [], {}

    def construct(self, x: Tensor) -> Tensor:
        x = self.norm(self.up(x)) + 0.1 * ops.standard_normal((6,))
        self.calls.add_(1)
        default_generator._step(Tensor(10))  # as random functions of mint do, which have no kernel for the CPU
        ops.assign_add(self.mean, ops.stop_gradient(0.1 * x.mean(0)))
        self.number += 1
        self.kept.append(self.number)
        self.named[f"of {self.number}"] = self.number
        return x * (1 + random.random()) + np.random.rand()


Net = net_of(nn.Cell, Part, nn.Dense)


def model(is_raising: bool = False) -> nn.Cell:
    """Return a model with modes, frozen parameters and hooks of its user's; gradients are what functions return."""
    mindspore.set_seed(3)
    np.random.seed(3)
    net = Net(is_raising)
    net.set_train()
    net.second.set_train(False)
    net.second.norm.set_train()
    net.head.bias.requires_grad = False
    net.first.register_forward_pre_hook(unchanged)
    net.first.up.register_forward_hook(unchanged)
    net.first.up.weight.register_hook(lambda gradient: gradient)
    net.head.construct = functools.partial(nn.Dense.construct, net.head)
    net.head.note = "behind the function of its own"
    return net


def other(is_raising: bool = False) -> nn.Cell:
    """Return such a model with weights that are not those of the recording."""
    net = model(is_raising)
    net.head.weight.copy_(net.head.weight + 1)
    return net


def facts_of(tensor: Tensor) -> dict[str, object]:
    return {
        "bits": (str(tensor.dtype), tuple(tensor.shape), tensor.asnumpy().tobytes()),
        "learns": isinstance(tensor, Parameter) and tensor.requires_grad,
        "attributes": [(name, Itself(value)) for name, value in vars(tensor).items() if name != "load"],
        "hooks": list(map(Itself, tensor.hooks())),
        "memory": tensor.data_ptr(),
    }


def surroundings() -> dict[str, object]:
    return {
        "random numbers of mindspore": mindspore.get_rng_state().asnumpy().tobytes(),
        "random numbers of kernels": dict(_KERNEL_SEED),
        "grad": (executor.requires_grad(), executor.enable_grad(), executor.get_current_autodiff_engine_id()),
        "mode": mindspore.get_context("mode"),
        "call": nn.Cell.__call__,
        "hooks of the process": (calls.is_replaced(), "grad" in vars(executor), len(calls.watched)),
    }


def tensors_of(net: Net) -> dict[str, Tensor]:
    """Return parameters and buffers, by name."""
    return dict(net.parameters_and_names()) | {"calls 1": net.first.calls, "calls 2": net.second.calls}


MINDSPORE = Framework(
    lambda net: net.cells_and_names(), lambda net: tensors_of(net).items(), facts_of, surroundings
)  # fmt: skip


def seed() -> None:
    mindspore.set_seed(5)
    mindspore.manual_seed(5)
    random.seed(5)
    np.random.seed(5)


def run(net: Net) -> list[bytes]:
    """Make a step; return the gradients."""
    x = Tensor(np.random.default_rng(1).standard_normal((8, 6)).astype(np.float32))
    _, found = mindspore.value_and_grad(lambda: net(x).square().mean(), None, net.trainable_params())()
    return [each.asnumpy().tobytes() for each in found]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, net = tmp_path_factory.mktemp("left") / "a.h5", model()
    seed()
    with probe.capture(net, path, task="tensor", quiet=True):
        run(net)
        probe.step()
    return path


@pytest.mark.parametrize("weights", ["a", "b"])
@pytest.mark.parametrize("is_raising", [False, True], ids=["whole", "raising"])
def test_a_replay_leaves_a_model_as_it_was(recording: Path, weights: str, is_raising: bool) -> None:
    check_replay(MINDSPORE, other(is_raising), recording, weights=weights)


def test_a_step_under_inject_leaves_what_it_leaves_without(recording: Path) -> None:
    net = model()
    weights = {name: each.asnumpy().copy() for name, each in tensors_of(net).items()}
    gradients: list[list[bytes]] = []

    def begin() -> None:
        seed()
        for name, each in tensors_of(net).items():
            each.copy_(Tensor(weights[name]))
        for part in (net.first, net.second):
            part.number = 0
            part.kept.clear()
            part.named.clear()

    made: Callable[[], None] = lambda: gradients.append(run(net))  # noqa: E731
    begin()
    run(net)  # cells set themselves up when they run first
    check_inject(MINDSPORE, net, recording, begin, made)
    assert gradients[0] == gradients[1]


def test_inject_leaves_a_model_as_it_was(recording: Path) -> None:
    check_left_inject(MINDSPORE, model(), recording)
