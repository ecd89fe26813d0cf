"""Mutated inputs: a short run of each kind, what fell once, and single typed changes of a recording.

A case that `scripts/fuzz` has kept is a file and what it is (``.json``). Packed by gzip it goes to ``tests/data/fuzz``, under the name of its
cause: ``gzip -c fuzz-fell/KIND-0-1.h5 > tests/data/fuzz/KIND-cause.h5.gz``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from probe.errors import FormatError
from probe.store import schema
from probe.store.reading.reader import Reader
from tests.programs import ROOT, benchmark
from tests.toys import record

CASES = ROOT / "tests" / "data" / "fuzz"
EDGES = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF)
COUNTS = {"recordings": 60, "mappings": 150, "options": 150, "curves": 300, "checkpoints": 1000, "batches": 500}
only_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="its memory and the files that are opened are watched as Linux does"
)


@only_linux
@pytest.mark.parametrize("kind", COUNTS)
def test_no_mutated_input_falls(kind: str, tmp_path: Path) -> None:
    said = benchmark("fuzz", "--kind", kind, "--count", str(COUNTS[kind]), "--seed", "12", "--keep", str(tmp_path))
    assert said.startswith(f"{kind}: {COUNTS[kind]} inputs") and "'refused'" in said


def test_what_fell_once_stands() -> None:
    said = benchmark("fuzz", "--cases", str(CASES))
    assert len(said.splitlines()) == len(list(CASES.glob("*.gz"))) > 0


# ---- single changes, typed -----------------------------------------------------------------------------

TABLES = [*schema.TABLES, "slots", "shapes"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5), st.lists, max_leaves=5
)
NUMBERS = st.sampled_from([*EDGES, *(-edge for edge in EDGES)]) | st.integers(-9, 99)
TEXTS = st.text(max_size=20).map(lambda text: text.replace("\0", "")) | JSON.map(repr)


def value_for(data: st.DataObject, dtype: np.dtype) -> object:
    """Draw a value that a column of this type can hold."""
    if dtype.kind in "iu":
        limits = np.iinfo(dtype)
        return min(max(data.draw(NUMBERS), int(limits.min)), int(limits.max))
    if dtype.kind == "f":
        return data.draw(st.floats())
    return data.draw(TEXTS).encode("utf-8", "replace")


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = tmp_path_factory.mktemp("valid")
    tasks = ("statistics", "tensor", "structure", "norms")
    return [record(folder / f"{task}.h5", steps=2, task=task).read_bytes() for task in tasks]


def read_whole(reader: Reader) -> None:
    """Read all that a recording offers."""
    for name in ("info", "modules", "parameters", "slots", "shapes", "records", "calls", "sketches", "scalars", "notes",
                 "optimizer", "environment", "behind_last_step", "steps_made"):  # fmt: skip
        getattr(reader, name)
    for index, parameter in enumerate(reader.parameters):
        reader.axis_sums(0, index, range(len(parameter.shape)))
    for tensor in set(reader.records["tensor"].tolist()) - {-1}:
        reader.values(tensor)


@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=st.data())
def test_a_changed_value_is_read_or_refused(
    data: st.DataObject, recordings: list[bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever stands in a row: all that a reader offers is there, or it says which table is damaged."""
    path = tmp_path_factory.mktemp("typed") / "a.h5"
    path.write_bytes(data.draw(st.sampled_from(recordings)))
    with h5py.File(path, "r+") as file:
        table = file[data.draw(st.sampled_from([name for name in TABLES if len(file[name])]))]
        name, rows = table.name, table[()]
        column = rows if rows.dtype.names is None else rows[data.draw(st.sampled_from(rows.dtype.names))]
        column[data.draw(st.integers(0, len(rows) - 1))] = value_for(data, column.dtype)
        table[()] = rows
    try:
        with Reader(path) as reader:
            read_whole(reader)
    except FormatError as error:
        assert str(error).startswith(f"{path} is damaged: ") and ("/" in str(error) or name in str(error))
