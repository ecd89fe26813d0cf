"""Objects of the user's: their attributes, which may raise anything, and which object it is, without keeping it alive."""

from __future__ import annotations

import weakref
from typing import Any, Protocol


class Identity(Protocol):
    """Which object something was."""

    def is_of(self, value: object) -> bool:
        """Return True if a value is that very object."""

    def lives(self) -> bool:
        """Return True if the object still exists."""


class WeakIdentity:
    """By a weak reference: for what nobody counts these of."""

    __slots__ = ("_reference",)

    def __init__(self, value: Any) -> None:
        self._reference = weakref.ref(value)

    def is_of(self, value: object) -> bool:
        return self._reference() is value

    def lives(self) -> bool:
        return self._reference() is not None


def attribute(holder: object, name: str) -> Any:
    """Return an attribute of an object of the user's, None where it has none: what raises another error has none either."""
    try:
        return getattr(holder, name, None)
    except Exception:  # noqa: BLE001  a __getattr__ of the user's, which was not written for this
        return None
