"""Recording what a test trains without a line of probe, in the test's own process."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import probe
from probe import session
from probe.adapters.base import adapter_named
from probe.run.order import Order
from probe.run.watching import Watch
from probe.testing import Recording

FILE = Path("a.h5")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """In an empty folder; what other tests have left is not looked at."""
    monkeypatch.chdir(tmp_path)
    everything = gc.get_objects
    kinds = tuple(each for name in ("torch", "paddle", "mindspore") if name in sys.modules for each in _kinds(name))
    old = [each for each in everything() if issubclass(type(each), kinds)]
    left = {id(each) for each in old}
    monkeypatch.setattr(
        "probe.run.choosing.gc.get_objects", lambda: [each for each in everything() if id(each) not in left]
    )
    yield
    del old


def _kinds(framework: str) -> tuple[type, ...]:
    module = sys.modules[framework]
    if framework == "mindspore":
        return (module.nn.Cell,)
    return (
        (module.nn.Module, module.optim.Optimizer)
        if framework == "torch"
        else (module.nn.Layer, module.optimizer.Optimizer)
    )


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
