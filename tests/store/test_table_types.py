"""Tables of one name that are stored otherwise, read in one process."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from probe.store.reading import layout

TABLES = [
    np.array([(1, 0.5)], [("step", "<i4"), ("value", "<f4")]),
    np.array([(1, 0.5, 7)], [("step", "<i8"), ("value", "<f8"), ("more", "<u2")]),
    np.array([(2, "a"), (3, "bc")], [("step", "<i4"), ("name", h5py.string_dtype())]),
    np.array([(2, 4)], [("step", "<i4"), ("name", "<i4")]),
    np.arange(6, dtype="<f8").reshape(2, 3),
]


@pytest.mark.parametrize("first", range(len(TABLES)))
def test_each_is_read_as_it_is_stored(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the rows of a table are is kept for the next one of its name, where that is stored alike."""
    monkeypatch.setattr(layout, "_check_columns", lambda *_: None)  # these are no tables of a recording
    for number in (first, *range(len(TABLES)), first):
        table = TABLES[number]
        with h5py.File(tmp_path / "table.h5", "w") as file:
            file["table"] = table
            stored = file["table"].id
            columns = layout.columns_of(stored, "table")
            found = np.empty(stored.shape, columns.dtype)
            stored.read(h5py.h5s.ALL, h5py.h5s.ALL, found, columns.in_memory)
        assert found.dtype == table.dtype
        texts = [[each.decode() if isinstance(each, bytes) else each for each in row] for row in found.tolist()]
        assert texts == [list(row) for row in table.tolist()]
