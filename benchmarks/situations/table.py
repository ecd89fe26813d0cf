"""The table of situations: names, and the functions that train."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from benchmarks.situations.watching import Watch

Situation = Callable[[Watch], None]
F = TypeVar("F", bound=Situation)

SITUATIONS: dict[str, Situation] = {}
"""by name, in the order in which they are written down"""


def situation(function: F) -> F:
    """Enter a function into the table, by the first line of what is said of it."""
    text = (function.__doc__ or function.__name__).strip().splitlines()[0]
    assert text not in SITUATIONS, text
    SITUATIONS[text] = function
    return function
