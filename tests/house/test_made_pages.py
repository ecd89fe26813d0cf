"""What programs write is what they would write now, and the list of mutations fits the tree; running those takes minutes."""

from __future__ import annotations

import pytest

from tests.programs import benchmark


@pytest.mark.parametrize("name", ["verdict_page", "settings.reference_page", "mutations"])
def test_nothing_is_stale(name: str) -> None:
    benchmark(name, "--check")
