"""Recording what a test trains without a line of probe, in the test's own process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import probe
from probe import session
from probe.adapters.base import adapter_named
from probe.run.order import Order
from probe.run.watching import Watch
from probe.testing import Recording

FILE = Path("a.h5")


@contextlib.contextmanager
def watched(framework: str, **order: Any) -> Iterator[Watch]:
    """Record what is trained inside of the block to ``a.h5``, as a process that `probe.run` has started does."""
    session._starts = 0
    watch = Watch(adapter_named(framework), Order(FILE.absolute(), **order), lambda: watch.end())
    try:
        yield watch
        watch.tell_what_was_missed()
    finally:
        watch.end()
        probe.stop()


def recorded() -> Recording:
    """Return what was recorded."""
    return Recording(FILE)


def roots() -> list[str]:
    """Return the class names of the models that were recorded."""
    run = probe.open(FILE)
    classes = [module.class_name for module in run.modules]
    return [each.class_name for each in run.modules if each.parent == 0] if classes[0] == "list" else classes[:1]
