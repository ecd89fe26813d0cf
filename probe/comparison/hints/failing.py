"""A hint that fails costs its own text, not the comparison."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from probe.errors import ProbeError

T = TypeVar("T")


def unless_it_fails(compute: Callable[[], T], otherwise: T, name: str, place: str, warnings: list[str]) -> T:
    """Return what a hint says; where it fails what stands for none, and add a warning that names it.

    Files that cannot be read are errors still.
    """
    try:
        return compute()
    except (ProbeError, OSError):
        raise
    except Exception as error:
        said = f"{type(error).__name__}: {error}".replace("\n", " ")
        warnings.append(
            f"the hint “{name}” failed at {place or 'the whole model'} and is left out: {said}; please report"
        )
        return otherwise
