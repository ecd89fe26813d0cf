"""What is worked out once for each step that is judged."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Keeping(Protocol):
    """Something that keeps what was worked out of it."""

    kept: dict[Any, Any]
    """what functions found, by the function"""


K = TypeVar("K", bound=Keeping)


def once(function: Callable[[K], T]) -> Callable[[K], T]:
    """Let a function be worked out once for each object."""

    @functools.wraps(function)
    def known(of: K) -> T:
        if function not in of.kept:
            of.kept[function] = function(of)
        return of.kept[function]

    return known
