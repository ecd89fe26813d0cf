"""What the tests of odd trainings share."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import probe
from probe.adapters.numpy import nn
from probe.adapters.numpy.tensor import Tensor, backward_hooks
from probe.testing import sample


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    nn.manual_seed(0)
    yield
    probe.stop()


def batch(seed: int = 0) -> Tensor:
    return Tensor(sample((5, 4), seed))


def block(forward: Callable[..., Any], **members: Any) -> nn.Module:
    return type("Block", (nn.Module,), {"forward": forward})(**members)


def hooks(model: nn.Module) -> int:
    count = len(nn.step_pre_hooks) + len(nn.step_post_hooks) + len(backward_hooks)
    return count + sum(len(m.pre_hooks) + len(m.post_hooks) for _, m in model.modules())


def said(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message).removeprefix("probe: ") for one in caught]
