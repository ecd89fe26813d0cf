"""A model is put back as it was: weights, buffers, gradients, modes, random numbers, and what its modules keep to themselves."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from probe.adapters.base import Adapter, NamedTensor
from probe.adapters.replaying import Replaying

_CONTAINERS = (dict, list, set)


@contextlib.contextmanager
def kept(replaying: Replaying, model: Any) -> Iterator[None]:
    """Put a model back at the end of the block, bit for bit.

    Tensors stay the same objects. Of what else modules hold, the objects are put back, and the entries of dicts, lists and sets; what
    they write into other objects stays.
    """
    adapter = replaying.adapter
    tensors = list(adapter.parameters(model))
    with contextlib.ExitStack() as undone:
        for state, put_back in ((random.getstate(), random.setstate), (np.random.get_state(), np.random.set_state)):
            undone.callback(put_back, state)
        undo = adapter.keep([each.tensor for each in tensors])
        if undo is not None:
            undone.callback(undo)
        for each in tensors:
            undone.callback(_tensor_kept(adapter, each))
        for named in list(adapter.modules(model)):
            undone.callback(_attributes_kept(named.module))
            undone.callback(replaying.set_training, named.module, adapter.is_training(named.module))
        yield


def _tensor_kept(adapter: Adapter, each: NamedTensor) -> Callable[[], None]:
    with adapter.quiet():
        before = adapter.values(each.tensor)
    version = adapter.version_of(each.tensor)

    def restored() -> None:
        if version is None or adapter.version_of(each.tensor) != version:
            with adapter.quiet():
                adapter.assign(each.tensor, before)

    return restored


def _attributes_kept(module: Any) -> Callable[[], None]:
    """Return what puts back the attributes of a module."""
    own = vars(module)
    before = dict(own)
    inside = [(value, kind(value)) for value in own.values() for kind in _CONTAINERS if isinstance(value, kind)]

    def restored() -> None:
        if not _are_same(own, before):
            own.clear()
            own.update(before)
        for value, copied in inside:
            if isinstance(value, dict):
                if not _are_same(value, copied):
                    value.clear()
                    value.update(copied)
            elif isinstance(value, list):
                value[:] = copied
            else:
                value.clear()
                value.update(copied)

    return restored


def _are_same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """Tell whether two dicts have the same objects under the same keys, in the same order."""
    same_keys = list(one) == list(other)
    return same_keys and all(value is other[key] for key, value in one.items())
