"""The public names."""

from __future__ import annotations

import inspect
import pkgutil

import probe


def test_every_public_name_is_there_and_sorted() -> None:
    assert probe.__all__ == sorted(probe.__all__)
    assert len(set(probe.__all__)) == len(probe.__all__)
    for name in probe.__all__:
        assert getattr(probe, name) is not None
    assert {"capture", "compare", "log", "open", "start", "step", "stop"} <= set(probe.__all__)


def test_every_public_name_says_what_it_does() -> None:
    for name in probe.__all__:
        value = getattr(probe, name)
        if callable(value):
            assert inspect.getdoc(value), name


def test_no_module_has_the_name_of_a_public_one() -> None:
    """``import probe.compare`` would put the module in the function's place."""
    modules = {module.name for module in pkgutil.iter_modules(probe.__path__)}
    assert not modules & set(probe.__all__)
