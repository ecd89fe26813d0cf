"""Slots: the dotted names of the tensors in a module's arguments and outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

_DEPTH = 16


def flatten(value: object, is_tensor: Callable[[object], bool], slot: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (slot, tensor) for every tensor in nested lists, tuples, mappings and dataclasses.

    Parameters
    ----------
    value
        what a module was given or returned
    is_tensor
        tells a framework's tensors
    slot
        name of ``value`` itself; a bare tensor without a name is slot ``"0"``
    """
    if is_tensor(value):
        yield slot or "0", value
    else:
        yield from _flatten(value, is_tensor, slot, ())


def _flatten(
    value: object, is_tensor: Callable[[object], bool], slot: str, around: tuple[int, ...]
) -> Iterator[tuple[str, Any]]:
    """Walk a container; those that it stands in, by id, are not entered again."""
    if id(value) in around or len(around) > _DEPTH:
        return
    for name, item in _items(value):
        path = f"{slot}.{name}" if slot else name
        if is_tensor(item):
            yield path, item
        elif item is not None:
            yield from _flatten(item, is_tensor, path, (*around, id(value)))


def _items(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping):
        return ((str(key), item) for key, item in value.items())
    if isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None) or range(len(value))
        return ((str(name), item) for name, item in zip(names, value, strict=True))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    return iter(())
