"""Slots: the dotted names of the tensors in a module's arguments and outputs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_DEPTH = 16
_PLAIN = (bool, int, float, str)


def flatten(value: object, is_tensor: Callable[[object], bool], slot: str = "") -> list[tuple[str, Any]]:
    """Return (slot, tensor) for every tensor in nested lists, tuples, mappings and dataclasses.

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
        return [(slot or "0", value)]
    found: list[tuple[str, Any]] = []
    if value is not None:
        _collect(value, is_tensor, slot, (), found)
    return found


def _collect(
    value: object, is_tensor: Callable[[object], bool], slot: str, around: tuple[int, ...],
    found: list[tuple[str, Any]],
) -> None:  # fmt: skip
    """Walk a container; those that it stands in, by id, are not entered again."""
    if id(value) in around or len(around) > _DEPTH:
        return
    for name, item in _items(value):
        if item is None or type(item) in _PLAIN:
            continue
        path = f"{slot}.{name}" if slot else str(name)
        if is_tensor(item):
            found.append((path, item))
        else:
            _collect(item, is_tensor, path, (*around, id(value)), found)


def _items(value: object) -> Iterable[tuple[object, object]]:
    if isinstance(value, Mapping):
        return value.items()
    if isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None)
        return zip(names, value, strict=True) if names else enumerate(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    return ()
