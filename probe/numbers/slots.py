"""Slots: the dotted names of the tensors in a module's arguments and outputs."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping
from typing import Any

DEPTH = 17
"""levels of containers that are looked into"""
_FIRST = 8
_PLAIN = (bool, int, float, str)


def flatten(
    value: object, is_tensor: Callable[[object], bool], slot: str = "", missed: list[tuple[str, object]] | None = None
) -> list[tuple[str, Any]]:
    """Return (slot, tensor) for every tensor in nested lists, tuples, mappings and dataclasses.

    Parameters
    ----------
    value
        what a module was given or returned
    is_tensor
        tells a framework's tensors
    slot
        name of ``value`` itself; a bare tensor without a name is slot ``"0"``
    missed
        gets (slot, object) of what was not looked into: what is no container, and containers that lie too deep
    """
    if is_tensor(value):
        return [(slot or "0", value)]
    found: list[tuple[str, Any]] = []
    if value is not None:
        _collect(value, is_tensor, slot, (), found, [] if missed is None else missed)
    return found


def _collect(
    value: object, is_tensor: Callable[[object], bool], slot: str, around: tuple[int, ...],
    found: list[tuple[str, Any]], missed: list[tuple[str, object]],
) -> None:  # fmt: skip
    """Walk a container; those that it stands in, by id, are not entered again."""
    if id(value) in around:
        return
    items = None if len(around) >= DEPTH else _items(value)
    if items is None:
        missed.append((slot or "0", value))
        return
    for name, item in items:
        if item is None or type(item) in _PLAIN:
            continue
        path = f"{slot}.{name}" if slot else str(name)
        if is_tensor(item):
            found.append((path, item))
        else:
            _collect(item, is_tensor, path, (*around, id(value)), found, missed)


def is_container(value: object) -> bool:
    """Return True if `flatten` looks into an object."""
    return _items(value) is not None


def holds_tensor(value: object, is_tensor: Callable[[object], bool], levels: int = 3) -> bool:
    """Return True if an object (no function, no module) has a tensor among its first attributes, or in those of theirs."""
    inside = _items(value)
    if inside is None:
        inside = () if callable(value) else getattr(value, "__dict__", {}).items()
    items = [item for _, item in itertools.islice(inside, _FIRST)]
    return any(is_tensor(item) or (levels and holds_tensor(item, is_tensor, levels - 1)) for item in items)


def _items(value: object) -> Iterable[tuple[object, object]] | None:
    """Return the parts of a container with their names, or None of what is no container."""
    if isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None)
        return zip(names, value, strict=True) if names else enumerate(value)
    if isinstance(value, Mapping):
        return value.items()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value))
    return None
