"""Recordings of small models that the tests of the comparison share."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

from tests.toys import record
from tests.verdict.planted import MODEL_FAULTS, Clean, Faulty, Model, Recorder, changed


@pytest.fixture
def run(tmp_path: Path) -> Recorder:
    """Record a run into a new file; it may end by a ZeroDivisionError."""

    def recorded(model: Model | None = None, **options: Any) -> Path:
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.h5"
        with contextlib.suppress(ZeroDivisionError):
            record(path, model, **options)
        return path

    return recorded


@pytest.fixture(scope="session")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Clean:
    """The clean run of two steps, by task."""
    folder = tmp_path_factory.mktemp("clean")

    def path(task: str = "statistics") -> Path:
        file = folder / f"{task}.h5"
        return file if file.exists() else record(file, steps=2, task=task)

    return path


@pytest.fixture(scope="session")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Faulty:
    """A run of one step with a fault of MODEL_FAULTS, by its name and the task."""
    folder = tmp_path_factory.mktemp("faulty")

    def path(name: str, task: str = "statistics") -> Path:
        file = folder / f"{list(MODEL_FAULTS).index(name)}-{task}.h5"
        return file if file.exists() else record(file, changed(MODEL_FAULTS[name][0]), task=task)

    return path
