"""Files that cannot be made, are somebody else's, are damaged, or are pointers of Git LFS; the collections in which HDF5 keeps texts."""

from __future__ import annotations

import errno
import io
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import probe
from probe.checkpoints import open_checkpoint
from probe.curve_comparison.reading.files import read_curves
from probe.damage import Damaged
from probe.errors import ExistsError, FormatError, ProbeError, RecordingError, StoreError
from probe.numbers.packed import SIZE
from probe.numbers.sketch import WIDTH
from probe.settings.reading.files import read
from probe.store.reading import heaps
from probe.store.reading.reader import Reader
from probe.store.writing import system
from probe.store.writing import writer as writer_module
from probe.store.writing.writer import Writer
from probe.structure.printed import record_printed
from probe.testing import sample
from tests.store.rows import INFO, add_record, end_step, module, write

# ---- Files that cannot be made, are somebody else's, or are damaged; names that no file was made for.

# ---- places that cannot be written ---------------------------------------------------------------------


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_folder_that_may_not_be_written(number: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Root may write everywhere: the refusal is the system call's."""

    def refuse(*_: object) -> int:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(system, "open", refuse)
    with pytest.raises(StoreError) as caught:
        Writer(tmp_path / "a.h5", INFO)
    assert str(caught.value) == (
        f"cannot create {tmp_path / 'a.h5'}: {os.strerror(number)}; is the folder there and writable?"
    )


def test_two_writers_on_one_path(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    first = Writer(path, INFO)
    add_record(first, sample((5000,)))
    with pytest.raises(ExistsError, match="exists; give another name, or replace it"):
        Writer(path, INFO)
    end_step(first)
    first.close()
    with Reader(path) as reader:
        assert len(reader.steps) == 1 and reader.values(0).tobytes() == sample((5000,)).tobytes()


# ---- a flipped bit -------------------------------------------------------------------------------------


def chunk_of(path: Path, table: str) -> int:
    """Return where the rows of a table begin in the file."""
    with h5py.File(path) as file:
        return int(file[table].id.get_chunk_info(0).byte_offset)


@pytest.mark.parametrize("table", ["records", "sketches", "calls", "steps", "tensor_index"])
def test_a_flipped_bit_in_a_table_is_noticed(table: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    writer = Writer(path, INFO)
    add_record(writer, sample((5000,)))
    end_step(writer, calls=[(0, 0, 0, 1, 0, 0, -1, True, True, False, False, b"")])
    writer.close()
    raw = bytearray(path.read_bytes())
    with h5py.File(path) as file:  # of a number that any value could be: nothing but the checksum tells
        column = file[table].dtype.fields["mean"][1] + 2 if table == "records" else 1
    raw[chunk_of(path, table) + column] ^= 4
    path.write_bytes(raw)
    with pytest.raises(FormatError) as caught, Reader(path) as reader:
        reader.records, reader.sketches, reader.calls, reader.values(0)
    what = {"tensor_index": "/tensor_index"}.get(table, f"/{table}")
    assert str(caught.value).startswith(f"{path} is damaged: {what} cannot be read (")


@pytest.mark.parametrize("size", [5, 5000, 400_000], ids=str)
@pytest.mark.parametrize("chunk", [0, 1000])
def test_a_flipped_bit_in_the_values_is_noticed(chunk: int, size: int, tmp_path: Path) -> None:
    """They have no checksum; their hash stands in the record."""
    path = tmp_path / "a.h5"
    writer = Writer(path, INFO)
    add_record(writer, sample((size,)))
    end_step(writer)
    writer.close()
    values = sample((size,)).tobytes()
    flipped = values[:2] + bytes([values[2] ^ 1]) + values[3:]
    path.write_bytes(path.read_bytes().replace(values, flipped))
    with Reader(path) as reader, pytest.raises(FormatError) as caught:
        list(reader.parts(0, chunk))
    assert str(caught.value) == f"{path} is damaged: the values of tensor 0 are not those that were recorded"


@pytest.mark.parametrize("at", [9, 20, 44], ids=["size of addresses", "address", "checksum"])
def test_a_flipped_bit_in_the_superblock_is_noticed(at: int, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    write(path, [[sample((5000,))]])
    raw = bytearray(path.read_bytes())
    raw[at] ^= 4
    path.write_bytes(raw)
    with pytest.raises(FormatError) as caught:
        Reader(path)
    assert str(caught.value).startswith(f"{path} is not an HDF5 file, or is truncated (")


# ---- more than there is room for -----------------------------------------------------------------------


def test_names_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One text for all that is too much, so that it is said once; what has a name is recorded on."""
    monkeypatch.setattr(writer_module, "_NAMES_LIMIT", 10_500)
    writer = Writer(tmp_path / "a.h5", INFO)
    said = set()
    for number in range(1000):
        try:
            add_record(writer, np.zeros(1), slot=f"{number:04}", values=False)
        except RecordingError as error:
            said.add(str(error))
    add_record(writer, np.zeros(1), slot="0000", values=False)
    end_step(writer)
    writer.close()
    assert said == {"there are 100 different slots already: tensors with further ones are not recorded"}
    with Reader(tmp_path / "a.h5") as reader:
        assert len(reader.slots) == 100 and len(reader.records) == 101


def test_notes_are_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(writer_module, "_NOTES_LIMIT", 10)
    writer = Writer(tmp_path / "a.h5", INFO)
    for step in range(6):
        end_step(writer, step, notes=[(step, 0, f"{step}.{number}") for number in range(4)])
    writer.close()
    with Reader(tmp_path / "a.h5") as reader:
        assert [text for _, _, text in reader.notes] == [
            *(f"{step}.{number}" for step in range(2) for number in range(4)),
            "2.0",
            "there were 10 notes: further ones are not kept",
        ]


def test_hashes_of_long_ago_are_forgotten(tmp_path: Path) -> None:
    """A run of 100,000 steps needs no more memory than one of two."""
    writer = Writer(tmp_path / "a.h5", INFO)
    always, ids = sample((5,), 99), []
    for step in range(50):
        add_record(writer, sample((5,), step), step=step)
        ids.append(add_record(writer, always, step=step))
        end_step(writer, step)
        assert len(writer._known) + len(writer._known_before) <= 4
    again = add_record(writer, sample((5,), 0), step=50)
    writer.close()
    assert len(set(ids)) == 1, "what every step uses is stored once"
    assert again == 51, "and what none did for long is stored again"


def test_no_chunk_is_written_for_sketches_that_are_not_there(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.h5", INFO)
    module(writer, "net")
    facts = (0, 0, 0, 0, 1, 0, 0, 3, writer.slot("0"), b"float8_e4m3b11fnuz", writer.shape(()), False)
    for _ in range(3000):
        writer.add_record(facts, bytes(SIZE + 8 * WIDTH), -1, is_sketched=False)
    end_step(writer)
    writer.close()
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["sketches"].shape == (3000, 61) and file["sketches"].id.get_storage_size() == 0
    with Reader(tmp_path / "a.h5") as reader:
        assert not reader.sketches.any() and reader.records["dtype"][0] == b"float8_e4m3b11fnuz"


# ---- The collections in which HDF5 keeps texts, looked at before HDF5 walks through them.


def collection(*objects: tuple[int, int, bytes]) -> io.BytesIO:
    """Return a file of one collection: index, length and bytes of each object, as they stand there."""
    body = b"".join(struct.pack("<HHIQ", index, 1, 0, length) + data for index, length, data in objects)
    return io.BytesIO(struct.pack("<4sB3xQ", b"GCOL", 1, 16 + len(body)) + body)


def test_a_collection_that_ends_where_it_should() -> None:
    file = collection((1, 3, b"abc" + bytes(5)), (2, 8, b"x" * 8), (0, 16, b""))
    heaps.check(file, [0], len(file.getvalue()))


@pytest.mark.parametrize(
    "objects, place",
    [([(1, 99, b"x" * 8)], 0), ([(1, 2**64 - 1, b"x" * 8)], 0), ([(0, 17, b"")], 0), ([(1, 8, b"x" * 8)], 1), ([(1, 8, b"x" * 8)], 10**6)],
    ids=["longer", "as long as it gets", "more free than there is", "elsewhere", "behind the end"],
)  # fmt: skip
def test_a_collection_that_does_not(objects: list[tuple[int, int, bytes]], place: int) -> None:
    file = collection(*objects)
    with pytest.raises(Damaged):
        heaps.check(file, [place], len(file.getvalue()))


# ---- A pointer of Git LFS, which stands where a large file should, is called one by everything that opens files.

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:00ff\nsize 4976698672\n"
OPENS: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "a recording": ("a.h5", probe.open),
    "weights": ("model.safetensors", open_checkpoint),
    "weights of torch": ("pytorch_model.bin", open_checkpoint),
    "an index": ("model.safetensors.index.json", open_checkpoint),
    "a configuration": ("config.json", lambda path: read(str(path))),
    "a script": ("run.sh", lambda path: read(str(path))),
    "a log": ("train.log", read_curves),
    "a tree": ("tree.txt", lambda path: record_printed(path, path.with_suffix(".h5"))),
}


@pytest.mark.parametrize("case", OPENS)
def test_a_pointer_is_called_one(case: str, tmp_path: Path) -> None:
    name, opens = OPENS[case]
    path = tmp_path / name
    path.write_text(POINTER)
    with pytest.raises(ProbeError, match=f"{name} is a pointer of Git LFS, not the file itself: run git lfs pull"):
        opens(path)
