"""Putting back what a training step changes beside the weights."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any


def kept(value: Any, tensor: type, tensor_kept: Callable[[Any], Callable[[], Any]]) -> Callable[[], Any]:
    """Return what gives a value back as it is now; tensors, dicts, lists and sets stay the same objects.

    It is any value that an optimizer keeps; ``tensor`` is the framework's class of tensors, ``tensor_kept`` does this
    for one of them.
    """
    if isinstance(value, tensor):
        return tensor_kept(value)
    if isinstance(value, dict):
        entries = {key: kept(each, tensor, tensor_kept) for key, each in value.items()}
        return lambda: refilled(value, {key: restored() for key, restored in entries.items()})
    if isinstance(value, (list, set)):
        members = [kept(each, tensor, tensor_kept) for each in value]
        return lambda: refilled(value, [restored() for restored in members])
    copied = value if callable(value) else copy.deepcopy(value)
    return lambda: copied


def refilled(container: Any, content: Any) -> Any:
    """Let a dict, list or set hold what another one does."""
    container.clear()
    (container.extend if isinstance(container, list) else container.update)(content)
    return container
