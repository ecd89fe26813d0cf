"""Counting hooks: PaddlePaddle does not say which hooks a tensor has, so they are counted as they are set and removed."""

from __future__ import annotations

from typing import Any

import paddle
from paddle import nn

_set: dict[int, int] = {}
"""hooks by id of their tensor"""


def _count(name: str, by: int) -> None:
    original = getattr(paddle.Tensor, name)

    def counting(tensor: paddle.Tensor, *args: Any) -> Any:
        result = original(tensor, *args)
        if result is not False:
            _set[id(tensor)] = _set.get(id(tensor), 0) + by
        return result

    setattr(paddle.Tensor, name, counting)


_count("_register_grad_hook", 1)
_count("_remove_grad_hook", -1)


def _methods() -> dict[tuple[type, str], Any]:
    found, left = {}, [paddle.optimizer.Optimizer]
    while left:
        each = left.pop()
        found.update({(each, name): member for name, member in vars(each).items() if callable(member)})
        left += each.__subclasses__()
    return found


_CALL = nn.Layer.__call__
_ORIGINAL = _methods()
"""of all optimizer classes, before anything is recorded"""


def wrapped_methods() -> list[tuple[type, str]]:
    """Return the methods of optimizer classes that are not those that were there at first."""
    return [place for place, member in _methods().items() if member is not _ORIGINAL.get(place, member)]


def live_hooks(*objects: Any) -> int:
    """Count the hooks on layers, their parameters, and tensors, and those of the process."""
    count = len(wrapped_methods()) + (nn.Layer.__call__ is not _CALL)
    for item in objects:
        if isinstance(item, nn.Layer):
            for layer in item.sublayers(include_self=True):
                count += len(layer._forward_pre_hooks) + len(layer._forward_post_hooks)
            count += sum(_set.get(id(parameter), 0) for parameter in item.parameters())
        elif isinstance(item, paddle.Tensor):
            count += _set.get(id(item), 0)
    return count
