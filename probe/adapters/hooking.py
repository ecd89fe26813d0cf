"""Hooks on the calls of modules: all of them are set or none, and copies of a module carry none that does anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Removal = Callable[[], None]


def all_or_none(*registrations: Callable[[], Removal]) -> Removal:
    """Set hooks, all of them or, should something interrupt, none; return what takes them off."""
    removals: list[Removal] = []

    def remove() -> None:
        for removal in removals:
            removal()

    try:
        for register in registrations:
            removals.append(register())
        return remove
    except BaseException:
        remove()
        raise


class CallHook:
    """A hook that belongs to one module: in copies of it (deepcopy, pickle, ``torch.save``) it does nothing.

    Parameters
    ----------
    module
        returns the module, as long as it lives
    call
        what is to be called
    """

    def __init__(self, module: Callable[[], object], call: Callable[..., None]) -> None:
        self._module, self._call = module, call

    def __deepcopy__(self, memo: dict[int, Any]) -> CallHook:
        return type(self)(nothing, nothing)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (nothing, nothing)


def nothing(*args: object) -> None:
    """Do nothing."""
    return None
