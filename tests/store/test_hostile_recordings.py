"""Recordings of anybody: nothing outside of the file is read, nothing larger than it is made room for, and all damage is said."""

from __future__ import annotations

import json
import resource
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
import xxhash
from h5py import h5d, h5p, h5s

from probe.answer.left_out import What
from probe.comparing import compare
from probe.errors import FormatError
from probe.store import journal
from probe.store.reading.reader import Reader
from probe.store.tree import write_tree
from probe.store.writing.writer import Writer
from probe.testing import sample
from tests.store.rows import INFO, add_record, end_step

SECRET = b"root:x:0:0:root:/root:/bin/bash\n" * 2048


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A valid recording; beside it a file that is nobody's business."""
    (tmp_path / "secret").write_bytes(SECRET)
    writer = Writer(tmp_path / "a.h5", INFO)
    add_record(writer, sample((5000,)))
    add_record(writer, sample((3,)), slot="1")
    end_step(writer, calls=[(0, 0, 0, 1, 0, 0, -1, True, True, False, False, b"")], scalars=[(0, "loss", 1.0)])
    writer.close()
    return tmp_path / "a.h5"


def read_all(path: Path) -> None:
    """Read all that a reader offers."""
    with Reader(path) as reader:
        _ = reader.info, reader.modules, reader.parameters, reader.slots, reader.shapes, reader.records, reader.calls
        _ = (
            reader.sketches,
            reader.scalars,
            reader.notes,
            reader.optimizer,
            reader.environment,
            reader.axis_sums(0, 0, ()),
        )
        for tensor in set(reader.records["tensor"].tolist()) - {-1}:
            reader.values(tensor)
            list(reader.parts(tensor, 1000))
            reader.block(tensor, [slice(0, 2)])


def remade(file: h5py.File, name: str, change: Callable[[h5p.PropDCID], None] = lambda how: None, rows: int | None = None,
           chunks: tuple[int, ...] | None = None) -> h5d.DatasetID:  # fmt: skip
    """Put a dataset of the same type in the place of one, stored otherwise."""
    old = file[name]
    shape = old.shape if rows is None else (rows, *old.shape[1:])
    kind, how = old.id.get_type(), h5p.create(h5p.DATASET_CREATE)
    if chunks is not None:
        how.set_chunk(chunks)
    change(how)
    del file[name]
    return h5d.create(file.id, name.encode(), kind, h5s.create_simple(shape), how)


# ---- layouts that leave the file -----------------------------------------------------------------------


def external_values(file: h5py.File, name: str, secret: Path) -> None:
    remade(file, name, lambda how: how.set_external(str(secret).encode(), 0, len(SECRET)))


def external_link(file: h5py.File, name: str, secret: Path) -> None:
    with h5py.File(secret.with_suffix(".h5"), "w") as other:
        file.copy(file[name], other, "it")
    del file[name]
    file[name] = h5py.ExternalLink(str(secret.with_suffix(".h5")), "/it")


def soft_link(file: h5py.File, name: str, secret: Path) -> None:
    external_link(file, name, secret)
    file.move(name, "elsewhere")
    file[name] = h5py.SoftLink("/elsewhere")


def virtual(file: h5py.File, name: str, secret: Path) -> None:
    with h5py.File(secret.with_suffix(".h5"), "w") as other:
        file.copy(file[name], other, "it")
    old = file[name]
    layout = h5py.VirtualLayout(old.shape, old.dtype)
    layout[...] = h5py.VirtualSource(str(secret.with_suffix(".h5")), "it", old.shape, old.dtype)
    del file[name]
    file.create_virtual_dataset(name, layout)


LAYOUTS = {"external values": external_values, "an external link": external_link, "a soft link": soft_link,
           "a virtual dataset": virtual}  # fmt: skip
TABLES = ("records", "sketches", "steps", "scalars", "calls", "tensor_index", "tensors/blob")


@pytest.mark.parametrize("name", [*TABLES, "modules", "slots", "tensors/0"])
@pytest.mark.parametrize("how", LAYOUTS)
def test_a_layout_that_leaves_the_file_is_refused(how: str, name: str, path: Path) -> None:
    with h5py.File(path, "r+") as file:
        if how == "external values" and file[name].dtype.hasobject:
            pytest.skip("HDF5 has no texts there")
        LAYOUTS[how](file, name, path.parent / "secret")
    with pytest.raises(FormatError) as caught:
        read_all(path)
    what = name.replace("tensors/0", "tensor 0").replace("tensors/blob", "tensor")
    assert str(path) in str(caught.value) and what in str(caught.value)
    assert any(each in str(caught.value) for each in ("virtual", "another file", "link that may lead out"))


@pytest.mark.parametrize("group", ["tensors", "environment", "tree"])
def test_a_group_in_another_file_is_never_opened(group: str, path: Path) -> None:
    """Not even to look whether it is there: a pipe in its place would wait for ever."""
    with h5py.File(path, "r+") as file:
        del file[group]
        file[group] = h5py.ExternalLink(str(path.parent / "pipe"), "/")
    import os

    os.mkfifo(path.parent / "pipe")
    if group == "tree":
        assert write_tree(path) == 2
    else:
        with pytest.raises(FormatError, match="link that may lead out of the file"):
            read_all(path)


def test_a_filter_that_is_none_of_those_that_HDF5_brings_for_all_is_refused(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        rows = file["sums"].shape
        del file["sums"]
        file.create_dataset("sums", (max(rows[0], 4),), "f4", chunks=(4,), scaleoffset=2)
    with pytest.raises(FormatError, match="filters other than shuffle, deflate and fletcher32"), Reader(path) as reader:
        _ = reader._sums


# ---- sizes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("compression", [None, "gzip"])
@pytest.mark.parametrize("name", TABLES)
def test_rows_that_the_file_has_no_room_for(name: str, compression: str | None, path: Path) -> None:
    """A hundred million of them in a few kilobytes, of which nothing is written."""
    with h5py.File(path, "r+") as file:
        old, count = file[name], 100_000_000
        facts = {"dtype": old.dtype, "chunks": old.chunks, "shape": (count, *old.shape[1:]), "compression": compression}
        if name == "steps":
            counts = old[:]
        del file[name]
        new = file.create_dataset(name, **facts)
        if name == "steps":
            new[:1] = counts
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(FormatError, match=r"announces 100000000 rows, for which a file of \d+ bytes has no room"):
        read_all(path)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


def test_a_chunk_that_unpacks_to_more_than_it_should_hold(path: Path) -> None:
    """HDF5 itself would make room for all of it."""
    import zlib

    with h5py.File(path, "r+") as file:
        values = file["records"][:]
        del file["records"]
        table = file.create_dataset("records", data=values, chunks=(2,), compression="gzip")
        table.id.write_direct_chunk((0,), zlib.compress(bytes(50_000_000)))
    with pytest.raises(FormatError, match="a chunk of [0-9]+ bytes, expected"):
        read_all(path)


def test_texts_that_are_one_text_in_the_file(path: Path) -> None:
    """A thousand rows may all refer to the same megabyte."""
    with h5py.File(path, "r+") as file:
        chunk = file["slots"].chunks[0]
        file["slots"].resize((1000,))
        file["slots"][:1] = "x" * 100_000
        _, raw = file["slots"].id.read_direct_chunk((0,))
        file["slots"].id.write_direct_chunk((0,), raw[:16] * chunk)
    with pytest.raises(FormatError, match="the texts of /slots have 100000000 bytes"):
        read_all(path)


def test_shapes_beyond_what_is_stored(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["shapes"][0] = "[1000000000, 1000000]"
    with pytest.raises(FormatError, match="tensor 0 has [0-9]+ bytes, which its shape and dtype do not have"):
        read_all(path)


@pytest.mark.parametrize("value", [np.zeros((3,)), np.zeros(1 << 12), h5py.Empty("f8")], ids=str)
def test_attributes_are_single_numbers_and_texts(value: object, path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.attrs["rank"] = value
    with pytest.raises(FormatError, match="its attribute rank is neither a number nor a text"):
        Reader(path)


# ---- the journal ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body", [b"\0" * 7, struct.pack("<QQ", 0, 1 << 40), struct.pack("<QQ", 1 << 62, 3) + b"abc"], ids=len
)
def test_a_journal_with_the_right_hash_and_a_wrong_length(body: bytes, path: Path) -> None:
    end = journal._END.pack(b"probeJNL", len(body), xxhash.xxh3_64_intdigest(body))
    path.write_bytes(path.read_bytes() + body + end)
    with pytest.raises(FormatError, match="is damaged: its journal cannot be read"):
        Reader(path)
    with pytest.raises(FormatError, match="is damaged: its journal cannot be read"):
        write_tree(path)


# ---- rows that cannot be -------------------------------------------------------------------------------


def set_number(table: str, column: str, value: object) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        rows = file[table][:]
        rows[column][0] = value
        file[table][:] = rows

    return change


def set_text(table: str, text: str, column: str | None = None) -> Callable[[h5py.File], None]:
    def change(file: h5py.File) -> None:
        if column is None:
            file[table][0] = text
        else:
            set_number(table, column, text)(file)

    return change


def set_attribute(name: str, value: object) -> Callable[[h5py.File], None]:
    return lambda file: file.attrs.__setitem__(name, value)


WRONG = {
    "/records module": set_number("records", "module", 9), "/records slot": set_number("records", "slot", -1),
    "/records shape": set_number("records", "shape", 2**31 - 1), "/records phase": set_number("records", "phase", 77),
    "/records role": set_number("records", "role", 200), "/records hash_kind": set_number("records", "hash_kind", 3),
    "/records dtype": set_number("records", "dtype", b"object"), "/records tensor": set_number("records", "tensor", 7),
    "/records nan": set_number("records", "nan", -1), "/records step": set_number("records", "step", 5),
    "/records neginf": set_number("records", "neginf", 1), "/records norm": set_number("records", "norm", 1e9),
    "/records norm absent": set_number("records", "norm", float("nan")),
    "/records zeros": set_number("records", "zeros", 10**6), "/calls caller": set_number("calls", "caller", 0), "/calls module": set_number("calls", "module", -1),
    "/steps state": set_number("steps", "state", 2), "/records counted": set_number("steps", "n_records", 99),
    "/steps counter": set_number("steps", "n_calls", -1), "/modules parent": set_number("modules", "parent", 0),
    "tensor index offset": set_number("tensor_index", "offset", 10**9), "tensor index nbytes": set_number("tensor_index", "nbytes", 8),
    "tensor index twice": set_number("tensor_index", "id", 1), "/shapes no JSON": set_text("shapes", "[1,"),
    "/shapes nested": set_text("shapes", "[" * 100_000), "/shapes negative": set_text("shapes", "[-5000]"),
    "/shapes digits": set_text("shapes", f"[{'9' * 5000}]"), "/ config": set_attribute("config", json.dumps([1])),
    "/ config phases": set_attribute("config", json.dumps({"phases": ["none"]})), "/ run_id": set_attribute("run_id", 3),
    "/ model_config": set_attribute("model_config", '{"a":' * 100_000), "/ rank": set_attribute("rank", "first"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_rows_that_cannot_be(what: str, path: Path) -> None:
    with h5py.File(path, "r+") as file:
        WRONG[what](file)
    with pytest.raises(FormatError) as caught:
        read_all(path)
    place = what.split()[0].replace("tensor", "/tensor_index")
    assert str(caught.value).startswith(f"{path} is damaged: {place} cannot be read (")
    assert str(caught.value).endswith("; copy it again from where it was written, or write it again")


def test_columns_of_another_type(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        rows = file["records"][:]
        wide = np.dtype([(n, "f8" if n == "module" else rows.dtype[n]) for n in rows.dtype.names])
        del file["records"]
        file.create_dataset("records", data=rows.astype(wide), chunks=(8,), maxshape=(None,))
    with pytest.raises(FormatError, match="/records has a column module of float64, expected int32"):
        read_all(path)


def test_the_command_says_so_and_is_no_error_in_probe_itself(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        set_number("records", "slot", 99)(file)
    done = subprocess.run(
        [sys.executable, "-m", "probe", "info", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3 and "is damaged: /records cannot be read" in done.stderr and "itself" not in done.stderr


def test_a_chunk_of_fewer_bytes_than_its_rows(path: Path) -> None:
    """HDF5's checksum filter would read on behind them."""
    with h5py.File(path, "r+") as file:
        info = file["records"].id.get_chunk_info(0)
        file["records"].id.write_direct_chunk((0,), bytes(1000), 0)
        assert file["records"].id.get_chunk_info(0).size == 1000 < info.size
    with pytest.raises(FormatError, match="/records cannot be read [(]it has a chunk of 1000 bytes, expected"):
        read_all(path)


@pytest.mark.parametrize("made, count", [(2**31, 2**31 - 1), (1, 0)])
def test_steps_that_a_run_is_said_to_have_made_are_counted_one_by_one_by_nobody(
    made: int, count: int, path: Path
) -> None:
    with h5py.File(path, "r+") as file:
        file["environment"].attrs["steps_made"] = made
    found = [each for each in compare(path, path).left_out if each.what is What.STEPS]
    assert [each.count for each in found] == ([count] if count else []) and all(
        len(each.names) == 10_000 for each in found
    )


@pytest.mark.parametrize("made", [2**62, -1, "many"])
def test_numbers_of_steps_that_no_run_can_have_made(made: object, path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["environment"].attrs["steps_made"] = made
    with pytest.raises(FormatError, match="/environment steps_made cannot be read"):
        compare(path, path)
