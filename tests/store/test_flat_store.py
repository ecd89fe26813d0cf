"""HDF5 itself holds no more of a long recording than of a short one."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import pytest

from probe.records import RunInfo
from probe.store.tables import Table
from probe.store.writing import creation

ROUNDS = 1200
CHUNKS = 3
"""that each round fills"""


class _Allocated(ctypes.Structure):
    """``struct mallinfo2`` of the GNU C library."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def allocated() -> int:
    """Return the bytes that the C library has given out."""
    try:
        mallinfo = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError):
        pytest.skip("no mallinfo2 in this C library")
    mallinfo.restype = _Allocated
    return mallinfo().uordblks


def test_a_file_that_grows_takes_no_more_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(creation, "_CACHE", 64 << 10)  # the cache is full before a third of the rounds
    info = RunInfo("0", "numpy", "1", "1", "now", 0, 1)
    disk, file = creation.create(tmp_path / "a.h5", info)
    table, texts = Table(file, "sketches"), Table(file, "slots")
    rows = np.zeros((67 * CHUNKS, 61))
    seen = []
    for round_ in range(ROUNDS):
        table.append(rows)
        texts.append_rows([f"a text of its own {round_}"])
        file.flush()
        disk.commit()
        if round_ in (ROUNDS // 3, ROUNDS - 1):
            seen.append(allocated())
    file.close()
    disk.close()
    assert (seen[1] - seen[0]) / (ROUNDS - ROUNDS // 3) < 150
