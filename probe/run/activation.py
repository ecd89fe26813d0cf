"""Recording in this process, as soon as it imports a framework.

A process that has ``PROBE_RECORD`` in its environment runs this when python starts: nothing is imported here but what is needed for that.
"""

from __future__ import annotations

import atexit
import os
import sys
from typing import TYPE_CHECKING

from probe.run.imports import Imports

if TYPE_CHECKING:
    from probe.run.order import Order
    from probe.run.watching import Watch

_imports: Imports | None = None
_watches: list[Watch] = []
"""of the frameworks that have been imported, until one of them records"""


def from_environment() -> None:
    """Record what ``PROBE_RECORD`` asks for; python calls this when it starts, twice where it finds its packages by two ways."""
    if _imports is not None:
        return
    os.environ["PROBE_RECORD"] = os.path.abspath(os.environ["PROBE_RECORD"])
    _follow(None)


def begin(order: Order) -> None:
    """Record as ``python -m probe.run`` was asked to, whatever the environment says."""
    end()
    _follow(order)


def end() -> None:
    """Wait for no training any more; a recording that has begun goes on."""
    global _imports
    if _imports is not None:
        _imports.remove()
        _imports = None
    while _watches:
        _watches.pop().end()


def _follow(order: Order | None) -> None:
    """Wait for a framework; without an order, that of the environment counts."""
    global _imports

    def imported(framework: str) -> None:
        try:
            _watch(framework, order)
        except Exception as error:  # noqa: BLE001  the program's import must not fail by it
            print(f"probe: nothing is recorded: {error}", file=sys.stderr)
            end()

    _imports = Imports(imported)
    if order is not None:
        atexit.register(_tell_at_exit, order)


def _watch(framework: str, order: Order | None) -> None:
    from probe.adapters.base import adapter_named
    from probe.run.order import inherited
    from probe.run.watching import Watch

    watch = Watch(adapter_named(framework), order or inherited(), end)
    _watches.append(watch)
    if order is None:
        atexit.register(watch.tell_what_was_missed)


def _tell_at_exit(order: Order) -> None:
    """Say why a program that was run to be recorded was not."""
    from probe.messages import say

    if _imports is not None and not _watches and not order.quiet:
        say("nothing was recorded: the program imported none of torch, paddle and mindspore")
    for watch in _watches:
        watch.tell_what_was_missed()
