"""What probe says without being asked, through the logger ``probe``.

Warnings go through `probe.errors.warn`. Silence the rest with ``probe.start(quiet=True)``, ``PROBE_QUIET=1`` or
``logging.getLogger("probe").setLevel("WARNING")``.
"""

from __future__ import annotations

import logging
import os
import sys
from typing import TextIO

LOGGER = logging.getLogger("probe")


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to what is ``sys.stderr`` at the time, which notebooks and pytest replace."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(logging.Formatter("probe: %(message)s"))

    @property
    def stream(self) -> TextIO:
        return sys.stderr


def say(text: str) -> None:
    """Log a line; it goes to stderr, unless the program has given the logger ``probe`` handlers of its own.

    Handlers of the root logger do not see it: frameworks set some, which print it in their own form or not at all.
    """
    if os.environ.get("PROBE_QUIET", "") not in ("", "0"):
        return
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(logging.INFO)
    if not LOGGER.handlers:
        LOGGER.addHandler(_ToStderr())
        LOGGER.propagate = False
    LOGGER.info(text)
