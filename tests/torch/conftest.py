"""The tests of PyTorch: they need it and transformers, and begin with one seed, in one thread, nothing recorded."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import probe

torch = pytest.importorskip("torch")
torch.set_num_threads(1)  # also where a fixture of a module records
pytest.importorskip("transformers")

for folder in ("examples", "notebooks"):  # as Python does for a script in that folder
    sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / folder))


@pytest.fixture(autouse=True)
def one_thread_one_seed() -> Iterator[None]:
    torch.manual_seed(0)
    yield
    torch.set_num_threads(1)
    probe.stop()
