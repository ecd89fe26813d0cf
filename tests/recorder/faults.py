"""What the tests of odd trainings share."""

from __future__ import annotations

import warnings
from collections.abc import Callable
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


def said(caught: list[warnings.WarningMessage]) -> list[str]:
    return [str(one.message).removeprefix("probe: ") for one in caught]
