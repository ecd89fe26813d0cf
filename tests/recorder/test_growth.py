"""Whether a recording will fit on its disk."""

from __future__ import annotations

import pytest

from probe.store.writing.growth import shortage, size

GIB = 1 << 30


def test_a_known_number_of_steps() -> None:
    assert shortage(GIB, 10, 10 * GIB, "/data") == ""
    assert shortage(GIB, 0, 0, "/data") == ""
    assert shortage(0.7 * GIB, 999, 79 * GIB, "/data") == (
        "a recorded step takes about 716.8 MiB, the 999 that are still to come would take 699.3 GiB, and 79.0 GiB are free "
        "in /data, enough for 112: choose fewer by steps=, modules=, phases= or tensors="
    )
    assert shortage(0.7 * GIB, 999, 79 * GIB, "/data", is_compressed=True).startswith(
        "a recorded step takes about 716.8 MiB before it is compressed, the 999 that are still to come would take 699.3 GiB, "
    )


def test_steps_without_an_end() -> None:
    assert shortage(GIB / 1000, None, GIB, "/data") == ""
    assert shortage(1.024 * GIB, None, 20 * GIB, ".") == (
        "a recorded step takes about 1.0 GiB, 1,000 more would take 1.0 TiB, and 20.0 GiB are free in ., "
        "enough for 19: choose fewer by steps=, modules=, phases= or tensors="
    )


@pytest.mark.parametrize(
    "count, text",
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1000, "1.0 KiB"),
        (1536, "1.5 KiB"),
        (GIB, "1.0 GiB"),
        (2**70, "1,048,576.0 PiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text
