"""A hint that fails costs its own text, not the comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from probe.errors import ProbeError
from probe.notes import note

T = TypeVar("T")


def unless_it_fails(compute: Callable[[], T], otherwise: T, name: str, place: str, notes: list[Any]) -> T:
    """Return what a hint says; where it fails what stands for none, and add a note that names it.

    Files that cannot be read are errors still.
    """
    try:
        return compute()
    except (ProbeError, OSError):
        raise
    except Exception as error:
        notes.append(note("hint-failed", hint=name, path=place, error=type(error).__name__, message=str(error)))
        return otherwise
