"""What every test stands on."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, settings

from probe import origins

os.environ["PROBE_QUIET"] = "1"
"""here and in the processes that tests start, of which many hold what is printed against a run without probe"""

# How fast the machine is, and how many drawn examples fit, is no part of what a property says.
settings.register_profile(
    "anywhere", deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
settings.load_profile("anywhere")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add what `scripts/test --quick` asks for."""
    parser.addoption("--one-of-each", action="store_true", help="of each test, run one case only: the first")


@pytest.hookimpl(trylast=True)  # of those that -m and -k leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep the first case of each test, if asked to."""
    if config.getoption("--one-of-each"):
        first = {item.nodeid.partition("[")[0]: item for item in reversed(items)}
        config.hook.pytest_deselected(items=list(set(items) - set(first.values())))
        items[:] = reversed(first.values())


def pytest_configure(config: pytest.Config) -> None:
    """Say what marks mean."""
    config.addinivalue_line(
        "markers",
        "thorough: takes seconds, or shows at length what other tests show; `scripts/test --quick` leaves it out",
    )


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk have room: how much is free on the machine that runs the tests is no part of any of them."""
    usage = SimpleNamespace(total=1 << 50, used=0, free=1 << 50)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)


@pytest.fixture(autouse=True)
def no_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what a test told probe of its process: every recording of a later one would say it."""
    monkeypatch.setattr(origins, "_facts", {})
