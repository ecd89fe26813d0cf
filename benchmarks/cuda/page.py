"""The page of the figures."""

from __future__ import annotations

from typing import Any

_WRITTEN = "{}, Python {}, PyTorch {}, triton {}; CPU kernel: {}."


def page(results: dict[str, Any]) -> str:
    """Return the page."""
    return "# On a GPU\n"
