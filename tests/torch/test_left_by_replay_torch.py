"""Replay and inject leave a model of PyTorch exactly as it was: what is compared stands in ``tests/left_as_it_was.py``."""

from __future__ import annotations

import contextlib
import copy
import functools
import random
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")
from torch import Tensor, nn  # noqa: E402

import probe  # noqa: E402
from tests.left_as_it_was import Framework, Itself, check_inject, check_left_inject, check_replay, seen  # noqa: E402

_DEVICE = "cpu"


class Part(nn.Module):
    """It writes to everything that a module may write to, and uses random numbers of all three kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.dropout = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Dropout(0.25)
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("calls", torch.zeros(()), persistent=False)
        self.number, self.kept, self.named, self.cache = 0, [], {"first": 0}, torch.zeros(2)
        self.is_rebinding = True
        """its buffer becomes another object at each call"""

    def forward(self, x: Tensor) -> Tensor:
        x = self.dropout(self.norm(self.up(x))) + 0.1 * torch.randn(6)
        with torch.no_grad():
            self.mean.add_(0.1 * x.detach().mean(0))
            self.cache.add_(1)
        if self.is_rebinding:
            self.calls = self.calls + 1
        self.number += 1
        self.kept.append(self.number)
        self.named[f"of {self.number}"] = self.number
        return x * (1 + random.random()) + np.random.rand()


class Net(nn.Module):
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
    torch.manual_seed(3)
    net = Net(is_raising)
    net.second.eval()
    net.second.norm.train()
    net.head.bias.requires_grad_(False)
    for number, parameter in enumerate(net.parameters()):
        if parameter.requires_grad and number % 2:
            parameter.grad = torch.randn(parameter.shape)
    net.first.register_forward_pre_hook(unchanged)
    net.first.up.register_forward_hook(unchanged)
    net.second.up.register_full_backward_hook(unchanged)
    net.first.up.weight.register_hook(unchanged)
    net.second.up.weight.register_post_accumulate_grad_hook(unchanged)
    net.head.forward = functools.partial(nn.Linear.forward, net.head)
    net.head.note = "behind the function of its own"
    return net


def other(is_raising: bool = False) -> Net:
    """Return such a model with weights that are not those of the recording."""
    net = model(is_raising)
    with torch.no_grad():
        net.head.weight.add_(1)
    return net


def bits(tensor: Tensor) -> bytes:
    return tensor.detach().contiguous().view(torch.uint8).numpy().tobytes() if tensor.ndim else repr(tensor).encode()


def facts_of(tensor: Tensor) -> dict[str, object]:
    gradient = tensor.grad
    return {
        "bits": (tensor.dtype, tuple(tensor.shape), bits(tensor)),
        "gradient": Itself(gradient),
        "bits of the gradient": None if gradient is None else bits(gradient),
        "learns": tensor.requires_grad,
        "hooks": [seen(tensor._backward_hooks), seen(tensor._post_accumulate_grad_hooks)],
        "memory": tensor.data_ptr(),
    }


def surroundings() -> dict[str, object]:
    hooks = {name: seen(value) for name, value in vars(nn.modules.module).items() if name.startswith("_global_")}
    return hooks | {
        "random numbers of torch": torch.get_rng_state().tolist(),
        "autocast": (torch.is_autocast_enabled(_DEVICE), torch.get_autocast_dtype(_DEVICE), torch.is_autocast_cache_enabled()),
        "grad": (torch.is_grad_enabled(), torch.is_inference_mode_enabled()),
        "call": nn.Module.__call__,
        "threads": torch.get_num_threads(),
    }  # fmt: skip


def tensors_of(net: Net) -> dict[str, Tensor]:
    """Return parameters, buffers, and tensors that are plain attributes, by name."""
    caches = {"first.cache": net.first.cache, "second.cache": net.second.cache}
    return dict(net.named_parameters()) | dict(net.named_buffers()) | caches


TORCH = Framework(lambda net: net.named_modules(), lambda net: tensors_of(net).items(), facts_of, surroundings)


def seed() -> None:
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)


def run(net: Net) -> None:
    x = torch.randn(8, 6, generator=torch.Generator().manual_seed(1))
    net(x).square().mean().backward()


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path, net = tmp_path_factory.mktemp("left") / "a.h5", model()
    seed()
    with probe.capture(net, path, task="tensor", quiet=True):
        run(net)
        probe.step()
    return path


def with_autocast() -> AbstractContextManager[object]:
    return torch.autocast(_DEVICE, torch.bfloat16)


@pytest.mark.parametrize("around", [contextlib.nullcontext, with_autocast, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("is_raising", [False, True], ids=["whole", "raising"])
def test_a_replay_leaves_a_model_as_it_was(recording: Path, around: Any, is_raising: bool) -> None:
    net = other(is_raising)
    with around():
        check_replay(TORCH, net, recording)


@pytest.mark.parametrize("options", [{"weights": "b"}, {"reference": True}], ids=str)
def test_so_does_every_kind_of_replay(recording: Path, options: dict[str, Any]) -> None:
    check_replay(TORCH, other(), recording, **options)


def test_a_step_under_inject_leaves_what_it_leaves_without(recording: Path) -> None:
    net = model()
    weights, gradients = copy.deepcopy(net.state_dict()), [copy.deepcopy(each.grad) for each in net.parameters()]
    for parameter in net.parameters():
        if parameter.requires_grad and parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)

    def begin() -> None:
        seed()
        net.load_state_dict(weights)
        for part in (net.first, net.second):
            part.number, part.is_rebinding = 0, False
            part.cache.zero_()
            part.kept.clear()
            part.named.clear()
        for parameter, gradient in zip(net.parameters(), gradients, strict=True):
            if parameter.grad is not None:
                parameter.grad.copy_(torch.zeros(()) if gradient is None else gradient)

    check_inject(TORCH, net, recording, begin, functools.partial(run, net))


def test_inject_leaves_a_model_as_it_was(recording: Path) -> None:
    check_left_inject(TORCH, model(), recording)
