"""Replay and inject leave a model of PaddlePaddle exactly as it was: what is compared stands in ``tests/left_as_it_was.py``."""

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

paddle = pytest.importorskip("paddle")
from hooks import live_hooks  # noqa: E402
from paddle import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from tests.left_as_it_was import Framework, Itself, check_inject, check_left_inject, check_replay  # noqa: E402


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


class Net(nn.Layer):
    def __init__(self, is_raising: bool = False) -> None:
        super().__init__()
        self.first, self.second, self.head = Part(), Part(), nn.Linear(6, 3)
        self.is_raising = is_raising

    def forward(self, x: Tensor) -> Tensor:
        x = self.head(self.second(self.first(x)))
        if self.is_raising:
            raise ValueError("behind all others")
        return x


def unchanged(*given: Any) -> None:
    """Be a hook that changes nothing."""


def model(is_raising: bool = False) -> Net:
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


def other(is_raising: bool = False) -> Net:
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
