"""Replay in PaddlePaddle, both models in one call; models are left as they were."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hooks import live_hooks

torch = pytest.importorskip("torch")
paddle = pytest.importorskip("paddle")

from paddle import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from tests.left_as_it_was import Framework, Itself, check_inject, check_left_inject, check_replay, net_of, unchanged  # noqa: E402
from tests.programs import benchmark  # noqa: E402
from tests.torch.dialect import TORCH  # noqa: E402
from tests.two_models import SITUATIONS, Dialect, check  # noqa: E402

# ---- A port to PaddlePaddle replayed with what PyTorch recorded, and Paddle's optimizers with the gradients of one another.


def test_a_port_is_replayed_with_what_torch_recorded() -> None:
    """Clean, and with three faults, which alone are named."""
    benchmark("replay.ports", "--small", "paddle")


class Uncorrected(paddle.optimizer.Adam):
    """Adam whose powers of beta are those of a late step: no correction of bias."""

    def _add_moments_pows(self, p: Any) -> None:
        super()._add_moments_pows(p)
        for name in (self._beta1_pow_acc_str, self._beta2_pow_acc_str):
            power = self._get_accumulator(name, p)
            power.set_value(paddle.full(power.shape, 1e-9, power.dtype))


def net() -> nn.Layer:
    paddle.seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.Linear(16, 4))


def replayed(tmp_path: Path, kind_a: Any, a: dict[str, Any], kind_b: Any, b: dict[str, Any]) -> str:
    model = net()
    optimizer = kind_a(parameters=model.parameters(), **a)
    x = paddle.to_tensor(np.random.default_rng(0).standard_normal((16, 8)).astype(np.float32))
    with probe.capture(model, tmp_path / "a.h5", task="tensor", quiet=True, overwrite=True):
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        probe.step(loss=loss)
    other = net()
    before = {name: each.numpy() for name, each in other.state_dict().items()}
    found = probe.replay_gradients(other, kind_b(parameters=other.parameters(), **b), tmp_path / "a.h5")
    assert all(np.array_equal(before[name], each.numpy()) for name, each in other.state_dict().items())
    return str(found.verdict)


ADAM: dict[str, Any] = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01}
MOMENTUM: dict[str, Any] = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01}


@pytest.mark.parametrize("kind", [paddle.optimizer.Adam, paddle.optimizer.AdamW])
@pytest.mark.parametrize("options, verdict", [
    ({}, "aligned"), ({"learning_rate": 1.02e-3}, "diverged"), ({"weight_decay": 0.1}, "diverged"), ({"beta1": 0.8}, "diverged"),
    ({"beta2": 0.99}, "diverged"), ({"epsilon": 1e-5}, "diverged"), ({"amsgrad": True}, "diverged"),
], ids=str)  # fmt: skip
def test_adam(tmp_path: Path, kind: Any, options: dict[str, Any], verdict: str) -> None:
    assert replayed(tmp_path, kind, ADAM, kind, {**ADAM, **options}) == verdict


def test_other_forms_of_adam(tmp_path: Path) -> None:
    adam, adamw = paddle.optimizer.Adam, paddle.optimizer.AdamW
    assert replayed(tmp_path, adam, ADAM, adam, {**ADAM, "use_multi_tensor": True}) == "aligned"
    assert replayed(tmp_path, adam, ADAM, adamw, ADAM) == "diverged"
    assert replayed(tmp_path, adam, ADAM, Uncorrected, ADAM) == "diverged"


@pytest.mark.parametrize("options, verdict", [
    ({}, "aligned"), ({"learning_rate": 0.102}, "diverged"), ({"momentum": 0.5}, "diverged"), ({"weight_decay": 0.1}, "diverged"),
    ({"use_nesterov": True}, "diverged"),
], ids=str)  # fmt: skip
def test_sgd_with_momentum(tmp_path: Path, options: dict[str, Any], verdict: str) -> None:
    kind = paddle.optimizer.Momentum
    assert replayed(tmp_path, kind, MOMENTUM, kind, {**MOMENTUM, **options}) == verdict


# ---- Replay and inject leave a model of PaddlePaddle exactly as it was: what is compared stands in ``tests/left_as_it_was.py``.


class Part(nn.Layer):
    """It writes to everything that a layer may write to, and uses random numbers of all three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.dropout = nn.Linear(6, 6), nn.BatchNorm1D(6), nn.Dropout(0.25)
        self.register_buffer("mean", paddle.zeros([6]))
        self.register_buffer("calls", paddle.zeros([1]), persistable=False)
        self.number, self.kept, self.named = 0, [], {}

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.norm(self.up(x))) + 0.1 * paddle.randn([6])
        with paddle.no_grad():
            self.mean.add_(0.1 * x.detach().mean(0))
            self.calls.add_(paddle.ones([1]))
        self.number += 1
        self.kept.append(self.number)
        self.named[f"of {self.number}"] = self.number
        return x * (1 + random.random()) + np.random.rand()


Net = net_of(nn.Layer, Part, nn.Linear)


def model(is_raising: bool = False) -> nn.Layer:
    """Return a model with modes, gradients, frozen parameters and hooks of its user's."""
    paddle.seed(3)
    net = Net(is_raising)
    net.second.eval()
    net.second.norm.train()
    net.head.bias.stop_gradient = True
    for number, parameter in enumerate(net.parameters()):
        if not parameter.stop_gradient and number % 2:
            parameter.grad = paddle.randn(parameter.shape)
    net.first.register_forward_pre_hook(unchanged)
    net.first.up.register_forward_post_hook(unchanged)
    net.first.up.weight.register_hook(unchanged)
    net.head.forward = functools.partial(nn.Linear.forward, net.head)
    net.head.note = "behind the function of its own"
    return net


def other(is_raising: bool = False) -> nn.Layer:
    """Return such a model with weights that are not those of the recording."""
    net = model(is_raising)
    with paddle.no_grad():
        net.head.weight.add_(paddle.ones_like(net.head.weight))
    return net


def facts_of(tensor: Tensor) -> dict[str, object]:
    gradient = tensor.grad
    return {
        "bits": (str(tensor.dtype), tuple(tensor.shape), tensor.numpy().tobytes()),
        "memory of the gradient": None if gradient is None else gradient.data_ptr(),
        "bits of the gradient": None if gradient is None else gradient.numpy().tobytes(),
        "learns": not tensor.stop_gradient,
        "attributes": [(name, Itself(value)) for name, value in vars(tensor).items()],
        "hooks": live_hooks(tensor),
        "memory": tensor.data_ptr(),
    }


def surroundings() -> dict[str, object]:
    tracer = paddle.framework._dygraph_tracer()
    return {
        "random numbers of paddle": [each.current_seed() for each in paddle.get_rng_state("cpu")],
        "next random numbers": after_this(),
        "autocast": (str(tracer._amp_level), str(tracer._amp_dtype), tracer._get_amp_op_list()),
        "grad": tracer._has_grad,
        "call": nn.Layer.__call__,
        "hooks of the process": live_hooks(),
    }


def after_this() -> bytes:
    """Return the random numbers that would come next: a generator's state has no bits to look at."""
    before = paddle.get_rng_state("cpu")
    found = paddle.randn([4]).astype("float32").numpy().tobytes()
    paddle.set_rng_state(before, "cpu")
    return found


PADDLE = Framework(
    lambda net: net.named_sublayers(include_self=True), lambda net: [*net.named_parameters(), *net.named_buffers()],
    facts_of, surroundings,
)  # fmt: skip


def seed() -> None:
    paddle.seed(5)
    random.seed(5)
    np.random.seed(5)


def run(net: Net) -> None:
    x = paddle.to_tensor(np.random.default_rng(1).standard_normal((8, 6)).astype(np.float32))
    net(x).square().mean().backward()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path, net = tmp_path_factory.mktemp("left") / "a.h5", model()
    seed()
    with probe.capture(net, path, task="tensor", quiet=True):
        run(net)
        probe.step()
    return path


def with_autocast() -> AbstractContextManager[object]:
    return paddle.amp.auto_cast(True, dtype="bfloat16", level="O1")


@pytest.mark.parametrize("around", [contextlib.nullcontext, with_autocast, paddle.no_grad])
@pytest.mark.parametrize("is_raising", [False, True], ids=["whole", "raising"])
def test_a_replay_leaves_a_model_as_it_was(recording: Path, around: Any, is_raising: bool) -> None:
    net = other(is_raising)
    with around():
        check_replay(PADDLE, net, recording)


@pytest.mark.parametrize("options", [{"weights": "b"}, {"reference": True}], ids=str)
def test_so_does_every_kind_of_replay(recording: Path, options: dict[str, Any]) -> None:
    check_replay(PADDLE, other(), recording, **options)


def test_a_step_under_inject_leaves_what_it_leaves_without(recording: Path) -> None:
    net = model()
    weights = {name: each.numpy() for name, each in net.state_dict().items()}
    gradients = [None if each.grad is None else each.grad.numpy() for each in net.parameters()]
    for parameter in net.parameters():
        if not parameter.stop_gradient and parameter.grad is None:
            parameter.grad = paddle.zeros_like(parameter)

    def begin() -> None:
        seed()
        for name, each in net.state_dict().items():
            each.set_value(weights[name])
        for part in (net.first, net.second):
            part.number = 0
            part.calls.zero_()
            part.kept.clear()
            part.named.clear()
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            if parameter.grad is not None:
                parameter.grad.set_value(np.zeros(parameter.shape, np.float32) if gradient is None else gradient)

    check_inject(PADDLE, net, recording, begin, functools.partial(run, net))


def test_inject_leaves_a_model_as_it_was(recording: Path) -> None:
    check_left_inject(PADDLE, model(), recording)


# ---- Both models in one call and one process: A in PyTorch, B in PaddlePaddle.


class Functional:
    """Functions of tensors, by the names that `tests.two_models` has."""

    relu, tanh, zeros, ones_like = nn.functional.relu, paddle.tanh, paddle.zeros, paddle.ones_like


PADDLE_BOTH = Dialect(
    nn,
    Functional,
    nn.Layer,
    nn.LSTM,
    nn.MultiHeadAttention,
    lambda length: paddle.tril(paddle.ones([length, length], dtype="bool")),
    lambda model, lr, beta2, decay: paddle.optimizer.AdamW(
        lr, beta2=beta2, weight_decay=decay, parameters=model.parameters()
    ),
)


@pytest.mark.parametrize("wrong", [False, True], ids=["clean", "fault"])
@pytest.mark.parametrize("name", SITUATIONS)
def test_a_model_of_paddle_against_one_of_pytorch(name: str, wrong: bool) -> None:
    torch.manual_seed(0)
    check(SITUATIONS[name], TORCH, PADDLE_BOTH, wrong)
