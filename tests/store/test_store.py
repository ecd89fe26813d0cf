"""What is written is what is read: records, tensors of every dtype, names, the readable tree, tables stored otherwise, rows in order."""

from __future__ import annotations

import ctypes
import dataclasses
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import h5py
import hypothesis
import ml_dtypes
import numpy as np
import pytest
from hypothesis import strategies as st

from probe.errors import ExistsError, FormatError, NotRecordedError, StoreError
from probe.matching.automatic.weights.packing import order_between
from probe.numbers.fused import order_of, reordered
from probe.numbers.packed import pack
from probe.numbers.statistics import dtype_of, measure
from probe.records import HashKind, ModuleInfo, OptimizerGroup, ParameterInfo, RunInfo, StepState
from probe.store import schema
from probe.store.places import Unshared
from probe.store.reading import layout
from probe.store.reading.reader import Reader
from probe.store.tables import Table
from probe.store.tree import storable_text
from probe.store.writing import creation
from probe.store.writing.writer import Writer
from probe.testing import DTYPES, arrays, sample
from tests.limits import HANGS
from tests.store.rows import INFO, add_record, end_step, module, write
from tests.toys import record

# ---- What is written is what is read: records, tensors of every dtype, names of every kind, the readable tree.

SETTINGS = hypothesis.settings(max_examples=40, deadline=None)
TEXT = st.text(st.characters(), max_size=8) | st.sampled_from(["a\0b", "\ud800", "x\udcff.y", "é😀", "a/b", ".", ""])
"""lone surrogates, NUL and all"""


def folder(factory: pytest.TempPathFactory) -> Path:
    return factory.mktemp("store") / "a.h5"


def of_bytes(name: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Return an array of any dtype with random bits, so with all kinds of NaN."""
    dtype = dtype_of(name)
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    return (raw % 2 if dtype.kind == "b" else raw).view(dtype)[..., 0]


# ---- tensors -------------------------------------------------------------------------------------------


@pytest.mark.thorough
@SETTINGS
@hypothesis.given(tensors=st.lists(arrays(), max_size=4))
def test_small_tensors_come_back(tensors: list[np.ndarray], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = folder(tmp_path_factory)
    write(path, [tensors])
    with Reader(path) as reader:
        assert len(reader.records) == len(tensors)
        for row, array, sketch in zip(reader.records, tensors, reader.sketches, strict=True):
            values, stats = reader.values(int(row["tensor"])), measure(array)
            assert (values.dtype, values.shape) == (array.dtype, array.shape)
            assert values.tobytes() == array.tobytes()
            assert reader.shapes[row["shape"]] == reader.shape_of(int(row["tensor"])) == array.shape
            assert dtype_of(row["dtype"].decode()) == array.dtype
            for name in ("min", "max", "mean", "rms", "norm", "nan", "posinf", "neginf", "zeros", "hash_lo",
                         "hash_hi", "hash_kind"):  # fmt: skip
                assert row[name] == getattr(stats, name) or row[name] != row[name]
            np.testing.assert_array_equal(sketch, stats.sketch)


@pytest.mark.parametrize("name", [*DTYPES, "uint16", "uint32", "uint64", "float8_e4m3fnuz", "float8_e8m0fnu"])
def test_large_tensors_come_back_whole_and_in_parts(name: str, tmp_path: Path) -> None:
    if name == "float8_e8m0fnu" and not hasattr(ml_dtypes, name):
        pytest.skip(f"this ml_dtypes has no {name}")
    array = of_bytes(name, (37, 1, 300))
    write(tmp_path / "a.h5", [[array, array[:2]]])
    with Reader(tmp_path / "a.h5") as reader:
        for tensor, expected in zip(reader.records["tensor"], [array, array[:2]], strict=True):
            values = reader.values(int(tensor))
            assert (values.dtype, values.shape) == (expected.dtype, expected.shape)
            assert values.tobytes() == expected.tobytes()
            parts = list(reader.parts(int(tensor), 1000))
            assert [part.size for part in parts[:-1]] == [1000] * (len(parts) - 1)
            assert b"".join(part.tobytes() for part in parts) == expected.tobytes()
            block = reader.block(int(tensor), [slice(1, 2), slice(20, 130)])
            assert block.shape == (1, 110)
            assert block.tobytes() == np.ascontiguousarray(expected[1:2, 0, 20:130]).tobytes()


def test_equal_tensors_are_stored_once(tmp_path: Path) -> None:
    nan = np.array([0x7FC00000, 0x7FC00001, 0xFFC00000], np.uint32).view(np.float32)
    zero, big = np.zeros(4, np.float32), sample((50, 50))
    different = [nan[:1], nan[1:2], nan[2:], zero, -zero, zero.view(np.int32), zero.reshape(2, 2), zero[:0],
                 zero[:0].reshape(0, 3), np.array(0, np.float32), zero[:1], big, big.T, big.ravel()]  # fmt: skip
    asked = []

    def values(array: np.ndarray) -> np.ndarray:
        asked.append(array)
        return array.copy()

    writer = Writer(tmp_path / "a.h5", INFO)
    ids = [
        writer.tensor(pack(measure(array)), array.dtype.name, array.shape, lambda array=array: values(array))
        for array in different * 2
    ]
    writer.close()
    assert ids == [*range(len(different))] * 2
    assert len(asked) == len(different), "values that are known are not copied again"
    with Reader(tmp_path / "a.h5") as reader:
        for tensor, array in zip(ids, different, strict=False):
            assert reader.values(tensor).tobytes() == array.tobytes()


def test_tensors_without_a_hash_are_never_taken_for_equal(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.h5", INFO)
    stats = pack(measure(np.zeros(3), hash_kind=HashKind.NONE))
    ids = [writer.tensor(stats, "float64", (3,), lambda i=i: np.full(3, i, float)) for i in range(4)]
    writer.close()
    with Reader(tmp_path / "a.h5") as reader:
        assert [reader.values(tensor)[0] for tensor in ids] == [0, 1, 2, 3]


@pytest.mark.parametrize("elements, own", [(1023, False), (1024, True)])
def test_small_tensors_share_a_dataset(elements: int, own: bool, tmp_path: Path) -> None:
    write(tmp_path / "a.h5", [[sample((elements,))]])
    with h5py.File(tmp_path / "a.h5") as file:
        assert ("0" in file["tensors"]) is own
        assert file["tensors/blob"].size == (0 if own else 4 * elements)
        if own:
            assert file["tensors/0"].chunks is None, "contiguous: it can be read without HDF5"


@pytest.mark.thorough
@pytest.mark.parametrize(("steps", "elements"), [(1, 1024), (3, 1280), (1, 2048)], ids=["4 KiB", "5 KiB", "8 KiB"])
def test_more_tensors_in_a_step_than_hdf5_keeps_metadata_of(steps: int, elements: int, tmp_path: Path) -> None:
    """It writes the headers of datasets while their values wait: both may lie in one page."""
    arrays = [np.full(elements, number, np.float32) for number in range(2000 * steps)]
    write(tmp_path / "a.h5", [arrays[step::steps] for step in range(steps)])
    with Reader(tmp_path / "a.h5") as reader:
        values = [reader.values(int(tensor)) for tensor in reader.of_step("records", steps - 1)["tensor"]]
        assert [each[0] for each in values] == [each[0] for each in arrays[steps - 1 :: steps]]
        assert all((each == each[0]).all() and len(each) == elements for each in values)
    with h5py.File(tmp_path / "a.h5") as file:
        assert len([file["tensors"][name] for name in file["tensors"]]) == len(arrays) + 1


def test_what_is_not_stored_is_said(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a.h5", INFO)
    add_record(writer, sample((3,)), values=False)
    end_step(writer)
    writer.close()
    with Reader(tmp_path / "a.h5") as reader, pytest.raises(NotRecordedError) as caught:
        reader.values(int(reader.records["tensor"][0]))
    assert str(caught.value) == (
        f"no values were stored for this tensor in {tmp_path / 'a.h5'}; record with task='tensor'"
    )


# ---- rows ----------------------------------------------------------------------------------------------


@pytest.mark.thorough
@SETTINGS
@hypothesis.given(data=st.data())
def test_rows_come_back(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever the names are; NUL and lone surrogates, which HDF5 cannot hold, as backslash escapes."""
    path = folder(tmp_path_factory)
    number = st.integers(-(2**31), 2**31 - 1)
    paths = data.draw(st.lists(TEXT, min_size=1, max_size=3, unique_by=storable_text))
    modules = [
        ModuleInfo(path, data.draw(TEXT), data.draw(st.integers(-1, above)), data.draw(TEXT), data.draw(number))
        for above, path in enumerate(paths, -1)
    ]
    index = st.integers(0, len(modules) - 1)
    names = st.lists(TEXT, min_size=1, max_size=3).map(tuple)
    parameters = data.draw(
        st.lists(
            st.builds(ParameterInfo, names, index, TEXT, st.tuples(*[st.integers(0, 2**20)] * 2), st.just("bfloat16"),
                      st.booleans(), st.booleans(), st.sampled_from([(), (1, 0)])),
            max_size=3,
        )
    )  # fmt: skip
    scalars = data.draw(st.lists(st.tuples(st.just(7), TEXT, st.floats(allow_nan=False)), max_size=3))
    notes = data.draw(st.lists(st.tuples(st.just(7), number, TEXT), max_size=3))
    used = st.lists(st.integers(0, max(len(parameters) - 1, 0)), max_size=3 if parameters else 0).map(tuple)
    hyper = st.dictionaries(TEXT, st.floats(allow_nan=False) | TEXT | st.none() | st.lists(number), max_size=3)
    groups = data.draw(st.lists(st.builds(OptimizerGroup, number, TEXT, number, hyper, used), max_size=3))
    facts = data.draw(st.dictionaries(TEXT.filter(bool), TEXT | number | st.floats(allow_nan=False) | st.booleans()))

    writer = Writer(path, INFO)
    writer.add_modules(modules)
    writer.add_parameters(parameters)
    writer.set_attributes("environment", facts)
    end_step(writer, 7, StepState.ABORTED, scalars=scalars, notes=notes, groups=groups)
    writer.close()

    clean = storable_text
    with Reader(path) as reader:
        assert reader.modules == [
            dataclasses.replace(m, path=clean(m.path), class_name=clean(m.class_name), file=clean(m.file))
            for m in modules
        ]
        assert reader.parameters == [dataclasses.replace(p, slot=clean(p.slot)) for p in parameters]
        assert reader.scalars == [(step, clean(name), value) for step, name, value in scalars]
        assert reader.notes == [(step, module, clean(text)) for step, module, text in notes]
        assert reader.optimizer == [(7, dataclasses.replace(g, class_name=clean(g.class_name))) for g in groups]
        assert reader.environment == {
            clean(key): clean(value) if isinstance(value, str) else value for key, value in facts.items()
        }
        assert reader.steps["state"].tolist() == [StepState.ABORTED]


@pytest.mark.thorough
@SETTINGS
@hypothesis.given(slots=st.lists(TEXT, max_size=6))
def test_slots_and_calls_come_back(slots: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = folder(tmp_path_factory)
    writer = Writer(path, INFO)
    module(writer, "net")
    for slot in slots:
        add_record(writer, np.zeros(2), slot=slot)
    calls = [(0, -1, i, i + 1, 0, 0, -1, True, False, True, False, b"bfloat16") for i in range(3)]
    end_step(writer, calls=calls)
    writer.close()
    with Reader(path) as reader:
        assert [reader.slots[row["slot"]] for row in reader.records] == [storable_text(slot) for slot in slots]
        assert reader.calls.tolist() == calls


def test_attributes_of_any_kind_and_size(tmp_path: Path) -> None:
    holds_itself: list[object] = []
    holds_itself.append(holds_itself)
    config = {"labels": {str(i): "x" * 20 for i in range(10_000)}, "dtype": np.float32}
    writer = Writer(tmp_path / "a.h5", dataclasses.replace(INFO, model_config=config, world_size=8, rank=3))
    facts = {"long": "y" * 200_000, "huge": 2**70, "numpy": np.int64(3), "none": None, "keys": {(1, 2): 3},
             "itself": holds_itself}  # fmt: skip
    writer.set_attributes("environment", facts)
    writer.close()
    with Reader(tmp_path / "a.h5") as reader:
        assert reader.info.model_config == {**config, "dtype": "<class 'numpy.float32'>"}
        assert (reader.info.rank, reader.info.world_size, reader.info.closed) == (3, 8, True)
        assert reader.environment == {"long": "y" * 200_000, "huge": str(2**70), "numpy": 3, "none": "null",
                                      "keys": '"{(1, 2): 3}"', "itself": '"[[...]]"'}  # fmt: skip


def test_many_slots_and_records_are_written_in_batches(tmp_path: Path) -> None:
    """A row at a time costs a quarter of a millisecond."""
    array, began = np.zeros(1), time.process_time()
    writer = Writer(tmp_path / "a.h5", INFO)
    for number in range(30_000):
        writer.slot(f"slot{number}")
    for _ in range(3000):
        add_record(writer, array, values=False)
    end_step(writer)
    writer.close()
    assert time.process_time() - began < 4
    with Reader(tmp_path / "a.h5") as reader:
        assert reader.slots[12_345] == "slot12345"
        assert len(reader.records) == 3000


# ---- the readable tree ---------------------------------------------------------------------------------

PLACES = [
    ("", "0", 0, "step_0/micro_0/call_0/forward/output.0"),
    ("model.layers.0.mlp", "0.1", 1, "step_0/micro_1/model/layers/0/mlp/call_0/forward/output.0.1"),
    ("net", "0", -2, "step_0/eval_1/net/call_0/forward/output.0"),
    ("experts.a/b", "x/y", 0, "step_0/micro_0/experts/a%2Fb/call_0/forward/output.x%2Fy"),
    ("a..b", ".", 0, "step_0/micro_0/a/b/call_0/forward/output.."),
    ("100%", "%2F", 0, "step_0/micro_0/100%25/call_0/forward/output.%252F"),
    ("é.😀", "ключ", 0, "step_0/micro_0/é/😀/call_0/forward/output.ключ"),
    ("a\0b", "\ud800", 0, "step_0/micro_0/a\\x00b/call_0/forward/output.\\ud800"),
    ("n" * 5000, "s" * 70_000, 0, f"step_0/micro_0/{'n' * 5000}/call_0/forward/output.{'s' * 70_000}"),
    (".".join("m" * 300), "0", 0, f"step_0/micro_0/{'/'.join('m' * 300)}/call_0/forward/output.0"),
]


@pytest.mark.parametrize("size", [3, 3000], ids=["small", "large"])
@pytest.mark.parametrize("path, slot, micro, place", PLACES, ids=range(len(PLACES)))
def test_tensors_are_found_by_name(path: str, slot: str, micro: int, place: str, size: int, tmp_path: Path) -> None:
    array = sample((size,))
    writer = Writer(tmp_path / "a.h5", INFO)
    add_record(writer, array, path=path, slot=slot, micro=micro)
    end_step(writer)
    writer.close()
    with h5py.File(tmp_path / "a.h5") as file:
        np.testing.assert_array_equal(file["tree"][place][()], array)


def test_the_tree_holds_no_second_copy(tmp_path: Path) -> None:
    large, small = sample((3000,)), sample((3,)).astype(ml_dtypes.bfloat16)
    write(tmp_path / "a.h5", [[large, small], [large, small]])
    with h5py.File(tmp_path / "a.h5") as file:
        tree, where = file["tree"], "step_{}/micro_0/net/call_0/forward/output.{}"
        assert tree[where.format(0, 0)] == tree[where.format(1, 0)] == file["tensors/0"]
        assert tree[where.format(0, 1)] == tree[where.format(1, 1)]
        bits = tree[where.format(0, 1)]
        assert bits.attrs["dtype"] == "bfloat16" and bits.dtype == np.uint16
        assert bits[()].tobytes() == small.tobytes()


# ---- files that are not what they should be ------------------------------------------------------------


def test_a_thread_that_computes_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """Each name of the tree asks for the interpreter some 20 times, and beside such a thread waited 5 ms each time."""
    interval, busy = sys.getswitchinterval(), True
    writer = Writer(tmp_path / "a.h5", INFO)
    for number in range(200):
        add_record(writer, sample((3, 5), seed=number), slot=str(number))
    end_step(writer, 0)

    def compute() -> None:
        while busy:
            sum(range(1000))

    thread = threading.Thread(target=compute)
    thread.start()
    try:
        began = time.process_time()
        writer.close()
        assert time.process_time() - began < 4  # most of it the other thread's, as long as this one waits
    finally:
        busy = False
        thread.join()
    assert sys.getswitchinterval() == interval
    with Reader(tmp_path / "a.h5") as reader:
        assert reader.info.closed


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a.h5").write_text("precious")
    with pytest.raises(ExistsError) as caught:
        Writer(tmp_path / "a.h5", INFO)
    expected = f"{tmp_path / 'a.h5'} exists; give another name, or replace it: probe.start(..., overwrite=True) or PROBE_OVERWRITE=1"
    assert str(caught.value) == expected
    assert isinstance(caught.value, FileExistsError)
    assert (tmp_path / "a.h5").read_text() == "precious"


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "a.h5"
    with pytest.raises(StoreError) as caught:
        Writer(path, INFO)
    expected = f"cannot create {path}: No such file or directory; is the folder there and writable?"
    assert str(caught.value) == expected


def damaged(path: Path, kind: str) -> None:
    """Put something at the path that is not a readable recording."""
    if kind in ("text", "noise", "empty"):
        path.write_text({"text": "\x1b[1mhello\x1b[0m — 1\n", "noise": "hello\x00", "empty": ""}[kind])
    elif kind == "folder":
        path.mkdir()
    elif kind == "other":
        with h5py.File(path, "w") as file:
            file["x"] = 1
    elif kind != "missing":
        write(path, [[sample((5000,))]])
    if kind == "newer":
        with h5py.File(path, "r+") as file:
            file.attrs["version"] = schema.VERSION + 1
    if kind == "truncated":
        path.write_bytes(path.read_bytes()[:-5000])
    if kind == "no steps":
        with h5py.File(path, "r+") as file:
            del file["steps"]


@pytest.mark.parametrize(
    "kind, error, text",
    [
        ("missing", StoreError, "there is no file {path}"),
        ("folder", StoreError, "{path} is a folder; give the recording in it, a file that probe.start wrote (.h5)"),
        ("text", FormatError, "{path} is a text file; expected a recording, a file that probe.start wrote"),
        (
            "noise",
            FormatError,
            "{path} is not an HDF5 file, or is truncated (*file signature not found*); expected a recording, a file that probe.start wrote",
        ),
        ("empty", FormatError, "{path} is empty; expected a recording, a file that probe.start wrote"),
        (
            "truncated",
            FormatError,
            "{path} is not an HDF5 file, or is truncated (*truncated file*); expected a recording, a file that probe.start wrote",
        ),
        (
            "other",
            FormatError,
            "{path} is an HDF5 file, but not a recording of probe; expected a file that probe.start wrote",
        ),
        ("newer", FormatError, "{path} has format 2, this probe reads up to format 1: upgrade probe-align"),
        ("no steps", FormatError, "{path} is damaged: /steps cannot be read (*"),
    ],
)
def test_files_that_cannot_be_read(kind: str, error: type[Exception], text: str, tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    damaged(path, kind)
    with pytest.raises(StoreError) as caught:
        Reader(path)
    assert type(caught.value) is error
    message, parts = str(caught.value), text.format(path=path).split("*")
    assert message.startswith(parts[0]) and message.endswith(parts[-1])
    assert all(part in message for part in parts)
    if path.is_file():
        path.unlink()
        write(path, [])  # nothing holds the file open


@pytest.mark.parametrize("table", ["records", "sketches", "slots", "shapes", "tensor_index", "tensors/0"])
def test_a_part_that_is_missing_is_named(table: str, tmp_path: Path) -> None:
    write(tmp_path / "a.h5", [[sample((5000,))]])
    with h5py.File(tmp_path / "a.h5", "r+") as file:
        del file[table]
    name = table.removeprefix("tensors/0") and f"/{table}" or "tensor 0"
    with Reader(tmp_path / "a.h5") as reader, pytest.raises(FormatError) as caught:
        reader.records, reader.sketches, reader.slots, reader.shapes, reader.values(0)
    assert str(caught.value).startswith(f"{tmp_path / 'a.h5'} is damaged: {name} cannot be read (")


# ---- In which order rows lie, read from one number for each.

ROWS = np.random.default_rng(0).normal(size=96)


@pytest.mark.parametrize(
    "order", [order_of((1, 1, 1), 1, 4), order_of((1, 1), 8, 1), order_of((4, 1, 1), 1, 2), (2, 0, 3, 1)]
)
def test_any_order_of_equal_rows_is_found(order: tuple[int, ...]) -> None:
    assert order_between(reordered(ROWS, order), ROWS) == order


def test_a_usual_order_is_found_of_rows_that_were_cast() -> None:
    order = order_of((1, 1, 1), 1, 4)
    cast = ROWS * (1 + 2e-3 * np.random.default_rng(1).normal(size=len(ROWS)))
    assert order_between(reordered(cast, order), ROWS) == order
    assert order_between(reordered(cast, order_of((4, 1, 1), 1, 2)), ROWS) is None


def test_rows_that_lie_alike_and_other_rows() -> None:
    assert order_between(ROWS * 1.001, ROWS) == ()
    assert order_between(np.sort(np.random.default_rng(2).normal(size=96)), ROWS) is None
    assert order_between(ROWS, ROWS[:48]) is None


# ---- Tables of one name that are stored otherwise, read in one process.

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


# ---- HDF5 itself holds no more of a long recording than of a short one.

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


# ---- A recording that a process has opened more than once, and one that is open as the process ends.

MANY = """
import sys, h5py
from pathlib import Path
from probe.store.reading.recorded_file import RecordedFile
path = Path(sys.argv[1])
for other in (RecordedFile, lambda path: h5py.File(path, "r", locking=False)):
    for turn in range(20):
        before, file = other(path), RecordedFile(path)
        rows = before.rows("modules") if other is RecordedFile else before["modules"][:]
        assert file.rows("modules").tolist() == rows.tolist()
        before.close()
        assert file.rows("modules").tolist() == rows.tolist()
        file.close()
"""

OPEN = """
import gc, sys
from probe.store.reading.reader import Reader
reader = Reader(sys.argv[1])
reader.modules
reader.itself = reader  # only the garbage collector could close it
gc.freeze()
"""


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("unshared") / "a.h5", task="tensor")


@pytest.mark.parametrize("code", [MANY, OPEN], ids=["others that are closed before", "open as the process ends"])
def test_a_process_does_not_crash(code: str, recording: Path) -> None:
    """HDF5 takes two that are opened by path for one, and calls Python where a file is open at the end."""
    done = subprocess.run(
        [sys.executable, "-c", code, recording], capture_output=True, text=True, timeout=HANGS, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_forked_process_reads_at_places_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(range(100)))
    file = Unshared(path)
    file.seek(10)
    child = os.fork()
    if not child:
        file.seek(50)
        os._exit(file.read(5)[0])
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 50
    assert file.read(200) == bytes(range(10, 100)) and file.tell() == 100
    file.close()
    file.close()  # as often as one likes
