"""What every test of MindSpore begins and ends with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

mindspore = pytest.importorskip("mindspore")


@pytest.fixture(autouse=True)
def in_pynative_mode() -> Iterator[None]:
    """After an exception in a differentiated function MindSpore goes on as if it were still inside it."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    yield
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    mindspore.nn.cell._pynative_executor.clear_res()
