"""A model is put back as it was: weights, buffers, gradients, modes, random numbers, and what its modules keep to themselves."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from probe.adapters.base import Adapter
from probe.adapters.replaying import Replaying
from probe.adapters.shared.keeping import refilled

_CONTAINERS = (dict, list, set)


@contextlib.contextmanager
def kept(replaying: Replaying, model: Any, optimizer: Any = None) -> Iterator[None]:
    """Put a model, and an optimizer where one is given, back at the end of the block, bit for bit.

    Tensors stay the same objects. Of what else modules hold, the objects are put back, and the entries of dicts, lists and sets, and
    what is written to tensors among them; what modules write into other objects stays.
    """
    adapter = replaying.adapter
    modules = [each.module for each in adapter.modules(model)]
    parameters = [each.tensor for each in adapter.parameters(model)]
    with contextlib.ExitStack() as undone:
        for state, put_back in ((random.getstate(), random.setstate), (np.random.get_state(), np.random.set_state)):
            undone.callback(put_back, state)
        of_optimizer = adapter.keep_optimizer(optimizer) if adapter.is_optimizer(optimizer) else None
        for undo in (adapter.keep(parameters), of_optimizer):
            if undo is not None:
                undone.callback(undo)
        for tensor in {id(each): each for each in (*parameters, *_held(adapter, modules))}.values():
            undone.callback(_tensor_kept(adapter, tensor))
        for module in modules:
            undone.callback(_attributes_kept(module))
            undone.callback(replaying.set_training, module, adapter.is_training(module))
        yield


def _held(adapter: Adapter, modules: Sequence[Any]) -> Iterator[Any]:
    """Yield the tensors that modules hold, whatever as: buffers that no checkpoint has, and plain attributes."""
    for module in modules:
        for value in vars(module).values():
            entries = value.values() if isinstance(value, dict) else value if isinstance(value, list) else [value]
            yield from filter(adapter.is_tensor, entries)


def _tensor_kept(adapter: Adapter, tensor: Any) -> Callable[[], None]:
    with adapter.quiet():
        before = adapter.values(tensor)

    def restored() -> None:
        with adapter.quiet():
            if not _has_bits(adapter.values(tensor), before):  # not every write is counted: running statistics are not
                adapter.assign(tensor, before)

    return restored


def _has_bits(one: np.ndarray, other: np.ndarray) -> bool:
    """Return True if two arrays are equal bit for bit: NaN is what it is, and -0.0 is not 0.0."""
    return np.array_equal(*(np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in (one, other)))


def _attributes_kept(module: Any) -> Callable[[], None]:
    """Return what puts back the attributes of a module."""
    own = vars(module)
    before = dict(own)
    inside: list[tuple[Any, Any]] = [
        (value, kind(value)) for value in own.values() for kind in _CONTAINERS if isinstance(value, kind)
    ]

    def restored() -> None:
        if not _are_same(own, before):
            refilled(own, before)
        for value, copied in inside:
            if not (isinstance(value, dict) and _are_same(value, copied)):
                refilled(value, copied)

    return restored


def _are_same(one: dict[Any, Any], other: dict[Any, Any]) -> bool:
    """Return True if two dicts have the same objects under the same keys, in the same order."""
    same_keys = list(one) == list(other)
    return same_keys and all(value is other[key] for key, value in one.items())
