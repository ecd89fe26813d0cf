"""Where the commands run, and a recording to look at."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.running import record


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a folder of recordings the current one."""
    monkeypatch.chdir(tmp_path)
    for name in ("FORCE_COLOR", "NO_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.fixture(scope="session")
def plain_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One recording for all tests that only look at it."""
    return record(tmp_path_factory.mktemp("plain") / "a.h5")
