"""Mutated inputs: a short run of each kind, what fell once, and single typed changes of a recording.

A case that `scripts/fuzz` has kept is a file and what it is (``.json``). Packed by gzip it goes to ``tests/data/fuzz``, under the name of its
cause: ``gzip -c fuzz-fell/KIND-0-1.h5 > tests/data/fuzz/KIND-cause.h5.gz``.
"""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import h5py
import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from benchmarks.fuzz.mutators import EDGES
from benchmarks.fuzz.trials import TRIALS, quietly, read_whole
from benchmarks.fuzz.workers import Kind, prepared, run
from probe.errors import FormatError
from probe.store import schema
from probe.store.reading.reader import Reader

CASES = sorted((Path(__file__).parents[1] / "data" / "fuzz").glob("*.gz"))
COUNTS = {"recordings": 60, "mappings": 150, "options": 150, "curves": 300, "checkpoints": 1000, "batches": 500}
only_linux = pytest.mark.skipif(
    sys.platform != "linux", reason="its memory and the files that are opened are watched as Linux does"
)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kind]:
    """Valid inputs of each kind, made when they are asked for."""
    folder = tmp_path_factory.mktemp("fuzz")
    return _Made(folder)


class _Made(dict[str, Kind]):
    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, name: str) -> Kind:
        self[name] = prepared(name, self.folder / name)
        return self[name]


@only_linux
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", COUNTS)
def test_no_mutated_input_falls(name: str, kinds: dict[str, Kind], tmp_path: Path) -> None:
    tally = run(kinds[name], COUNTS[name], 12, tmp_path)
    assert tally.count == COUNTS[name] and tally.fell == {}
    assert 0 < tally.outcomes["refused"] < tally.count


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name.partition(".")[0])
def test_what_fell_once_stands(case: Path, kinds: dict[str, Kind], tmp_path: Path) -> None:
    name, suffix = case.name.partition("-")[0], case.name.removesuffix(".gz").partition(".")[2]
    path = tmp_path / f"case.{suffix}"
    path.write_bytes(gzip.decompress(case.read_bytes()))
    kind = kinds[name]
    assert quietly(TRIALS[name], kind.valid(kind.seeds[0]), path)


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


@hypothesis.settings(max_examples=60, deadline=None, suppress_health_check=list(hypothesis.HealthCheck))
@hypothesis.given(data=st.data())
def test_a_changed_value_is_read_or_refused(
    data: st.DataObject, kinds: dict[str, Kind], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whatever stands in a row: all that a reader offers is there, or it says which table is damaged."""
    path = tmp_path_factory.mktemp("typed") / "a.h5"
    path.write_bytes(data.draw(st.sampled_from(kinds["recordings"].seeds)).data)
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
