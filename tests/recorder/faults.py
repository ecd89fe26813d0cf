"""What the tests of odd trainings share."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Callable, Iterator
from typing import Any

from probe.testing import sample
from tests.toy import nn
from tests.toy.tensor import Tensor, backward_hooks


def batch(seed: int = 0) -> Tensor:
    return Tensor(sample((5, 4), seed))


def block(forward: Callable[..., Any], **members: Any) -> nn.Module:
    return type("Block", (nn.Module,), {"forward": forward})(**members)


def hooks(model: nn.Module) -> int:
    count = len(nn.step_pre_hooks) + len(nn.step_post_hooks) + len(backward_hooks)
    return count + sum(len(m.pre_hooks) + len(m.post_hooks) for _, m in model.modules())


@contextlib.contextmanager
def room_for(frames: int) -> Iterator[None]:
    before = sys.getrecursionlimit()
    frame, depth = sys._getframe(), 0
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    sys.setrecursionlimit(depth + frames)
    try:
        yield
    finally:
        sys.setrecursionlimit(before)


def said(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message).removeprefix("probe: ") for one in caught]
