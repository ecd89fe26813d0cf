"""What the tests of facts about PyTorch share."""

from typing import Any

import torch
from torch import Tensor

queue_callback = torch.autograd.Variable._execution_engine.queue_callback


def leaf(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def inner(*shape: int) -> Tensor:
    """A tensor with a producer, so not a leaf."""
    return leaf(*shape) * 2


def watch(tensor: Tensor, log: list, name: Any = None) -> None:
    """Append the gradient of ``tensor`` (or only ``name``) to ``log``, by a hook that returns None."""

    def hook(gradient: Tensor) -> None:
        log.append(gradient.clone() if name is None else name)

    tensor.register_hook(hook)
