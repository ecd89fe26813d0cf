"""What the tests of facts about PyTorch share."""

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402

queue_callback = torch.autograd.Variable._execution_engine.queue_callback


@pytest.fixture(autouse=True)
def one_thread_one_seed() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


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
