"""Every test of the recorder begins with one seed, and leaves no recording."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import probe
from tests.toy import nn


@pytest.fixture(autouse=True)
def ended() -> Iterator[None]:
    nn.manual_seed(0)
    yield
    probe.stop()
