"""Arguments and results with other tensors in them: the counterpart of `probe.numbers.slots.flatten`."""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Callable, Mapping
from typing import Any

from probe.numbers.slots import DEPTH


def replaced(
    value: Any, by: Mapping[str, Any], is_tensor: Callable[[object], bool], slot: str = "", depth: int = 0
) -> Any:
    """Return a nested value with other tensors in some slots; containers are new ones, all else stays the same object.

    Parameters
    ----------
    value
        what a module is given or returned
    by
        tensors by slot, as `flatten` names them
    is_tensor
        tells a framework's tensors
    slot
        name of ``value`` itself
    """
    if is_tensor(value):
        return by.get(slot or "0", value)
    if value is None or depth > DEPTH or not by:
        return value

    def inside(name: object, item: Any) -> Any:
        return replaced(item, by, is_tensor, f"{slot}.{name}" if slot else str(name), depth + 1)

    if isinstance(value, Mapping):
        items = {name: inside(name, item) for name, item in value.items()}
        return _with(value, items, value.__getitem__, operator.setitem)
    if isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None) or range(len(value))
        items = [inside(name, item) for name, item in zip(names, value, strict=True)]
        if all(one is other for one, other in zip(items, value, strict=True)):
            return value
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        before = {each.name: getattr(value, each.name, None) for each in dataclasses.fields(value)}
        items = {name: inside(name, item) for name, item in before.items()}
        return _with(value, items, before.__getitem__, object.__setattr__)
    return value


def _with(
    value: Any, items: Mapping[Any, Any], before: Callable[[Any], Any], put: Callable[[Any, Any, Any], None]
) -> Any:
    """Return a container with other items, a new one where any is another object than before."""
    changed = {name: item for name, item in items.items() if item is not before(name)}
    made = copy.copy(value) if changed else value
    for name, item in changed.items():
        put(made, name, item)
    return made


def built(slots: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return positional and named arguments that have these tensors in their slots; what is between them is None."""
    tree: dict[str, Any] = {}
    for slot, tensor in slots.items():
        *path, last = slot.split(".")
        at = tree
        for name in path:
            at = at.setdefault(name, {})
        at[last] = tensor
    whole = {name: _container(item) for name, item in tree.items()}
    positions = [int(name) for name in whole if name.isdigit()]
    args = tuple(whole.get(str(at)) for at in range(max(positions, default=-1) + 1))
    return args, {name: item for name, item in whole.items() if not name.isdigit()}


def _container(item: Any) -> Any:
    if not isinstance(item, dict):
        return item
    inside = {name: _container(each) for name, each in item.items()}
    if all(name.isdigit() for name in inside):
        return tuple(inside.get(str(at)) for at in range(max(map(int, inside)) + 1))
    return inside
