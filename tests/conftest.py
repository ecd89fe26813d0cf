"""What every test stands on."""

from __future__ import annotations

import shutil
from types import SimpleNamespace

import pytest


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the disk have room: how much is free on the machine that runs the tests is no part of any of them."""
    usage = SimpleNamespace(total=1 << 50, used=0, free=1 << 50)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
