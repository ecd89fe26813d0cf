"""Waiting for a page whose policy forbids eval: playwright's own wait_for_function needs it from the second look on."""

from __future__ import annotations

import time
from typing import Any

from tests.view.conftest import WAITS


def until(page: Any, expression: str, arg: Any = None) -> None:
    """Wait until an expression, or a function of arg, is true in the page."""
    end = time.monotonic() + WAITS / 1000
    while not page.evaluate(expression, arg):
        if time.monotonic() > end:
            raise TimeoutError(f"{expression} with {arg!r} is not so after {WAITS} ms")
        page.wait_for_timeout(20)
