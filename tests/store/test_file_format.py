"""docs/reference/file-format.md says what is so: every table and column, the code, the test vectors."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.numbers.sketch import axes_of, splitmix64
from probe.numbers.statistics import measure
from probe.records import HashKind, Phase, Role, StepState
from probe.store import schema
from probe.testing import sample
from tests.toy import nn
from tests.toy.tensor import Tensor
from tests.vectors import SPECIFICATION, array_of, assert_vector, blocks, vectors

TEXT = SPECIFICATION.read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^#+ (.+?)\n(.*?)(?=^#|\Z)", re.sub(r"```.*?```", "", TEXT, flags=re.S), re.M | re.S))
TYPES = {"text": "object", "JSON": "object", "bytes24": "|S24", "enum": "uint8"}


def rows(title: str) -> Iterator[list[str]]:
    """Yield the cells of the table in the section whose title begins so."""
    (body,) = [body for name, body in SECTIONS.items() if name.partition(":")[0] == title]
    lines = [line for line in body.splitlines() if line.startswith("|")]
    for line in lines[2:]:
        yield [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    net = nn.Sequential(nn.Linear(4, 40), nn.ReLU(), nn.Linear(40, 2))
    optimizer = nn.SGD(net.parameters(), 0.1)
    with probe.capture(net, tmp_path / "a.h5", task="tensor"):
        for step in range(2):
            net(Tensor(sample((40, 4), step))).sum().backward()
            optimizer.step()
            probe.step(loss=1.0)
    return tmp_path / "a.h5"


@pytest.mark.parametrize("table", schema.TABLES)
def test_every_column_is_described(table: str) -> None:
    described = [(name.strip("`"), TYPES.get(kind, kind)) for name, kind, _ in rows(f"`/{table}`")]
    dtype = schema.TABLES[table]
    assert described == [(name, str(dtype[name])) for name in dtype.names]


@pytest.mark.parametrize(
    "table, column, values", [("records", "phase", Phase), ("records", "role", Role), ("steps", "state", StepState)]
)
def test_every_value_of_an_enum_is_described(table: str, column: str, values: Any) -> None:
    (text,) = [text for name, _, text in rows(f"`/{table}`") if name == f"`{column}`"]
    assert re.findall(r"`(\w+)` (\d+)", text) == [(value.name.lower(), str(int(value))) for value in values]
    stored = h5py.check_enum_dtype(schema.TABLES[table][column])
    assert stored == {value.name.lower(): int(value) for value in values}


def test_every_group_and_attribute_is_described(recording: Path) -> None:
    with h5py.File(recording) as file:
        attributes = {name for cells in rows("Top level") for name in re.findall(r"`(\w+)`", cells[0])}
        assert attributes == set(file.attrs)
        assert all(f"`/{name}`" in TEXT or f"`/{name}/" in TEXT for name in file)
        for name in file["environment"].attrs:
            assert f"`{name}`" in SECTIONS["Top level"]
        assert file["sketches"].dtype == np.float64 and file["sketches"].shape[1] == 61


def test_the_code_runs(recording: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(recording.parent)
    for code in blocks("python"):
        exec(compile(code, str(SPECIFICATION), "exec"), {})
    printed = capsys.readouterr().out
    assert re.search(r"^step 1 0 0: norm [\d.]+, 0 NaN$", printed, re.M)
    assert "0/call_0/forward/output.0 (40, 40)" in printed


# ---- numbers -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", vectors(), ids=lambda v: f"{v['dtype']}{v['shape']}{v.get('order', '')}")
def test_vectors(vector: dict[str, Any]) -> None:
    array, order = array_of(vector), tuple(vector.get("order", ()))
    for kind in (HashKind.XXH3_128, HashKind.WSUM64):
        assert_vector(measure(array, order, kind), vector)


def test_there_are_vectors_of_every_kind() -> None:
    assert {vector["dtype"] for vector in vectors()} >= {"float32", "bfloat16", "complex64", "int64", "bool"}
    assert any(vector["nan"] and vector["posinf"] and vector["neginf"] for vector in vectors())
    assert max(np.prod(vector["shape"]) for vector in vectors()) > 249_856


def test_constants() -> None:
    for x, expected in ((0, "e220a8397b1dcdaf"), (1, "910a2dec89025cc1"), (2**64 - 1, "e4d971771b652c20")):
        assert f"{int(splitmix64(np.uint64(x))):016x}" == expected
        assert f"`{expected}`" in SECTIONS["The sketch"]
    seeds, strides, signs = (cells[2:] for cells in rows("Axes"))
    axes = axes_of((4, 7, 4))
    assert seeds == [f"`{int(axis.seed):016x}`" for axis in axes]
    assert strides == [str(axis.stride) for axis in axes]
    assert signs == [" ".join("+" if s > 0 else "−" for s in axis.signs(0, axis.size)) for axis in axes]
