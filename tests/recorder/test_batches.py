"""Batches are saved, replayed and compared."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import io
import itertools
import os
import re
import signal
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import probe
from probe import origins
from probe.errors import ConfigError, ExistsError, FormatError, ProbeError, StoreError
from tests.toy.tensor import Tensor


@pytest.fixture(autouse=True)
def _no_origins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins, "_facts", {})


def assert_same(a: Any, b: Any) -> None:
    assert type(a) is type(b), (a, b)
    if isinstance(a, dict):
        assert list(a) == list(b)
        for key in a:
            assert_same(a[key], b[key])
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b)
        for x, y in zip(a, b, strict=True):
            assert_same(x, y)
    elif isinstance(a, Tensor):
        assert_same(a.data, b.data)
    elif isinstance(a, (np.ndarray, np.generic)):
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    else:
        assert a == b or a != a


def batch(number: int = 0) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    return {
        "ids": Tensor(rng.integers(0, 9, (4, 3))),
        "pair": (rng.normal(size=(4, 2)).astype("float32"), [Tensor(np.float32(number)), None]),
        "names": ["a", "b", "c", "d"],
        "n": number,
        7: True,
    }


# Saving and loading

DTYPES = ["bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64",
          "complex64", "complex128"]  # fmt: skip
EXTRA = [ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2]
SHAPES = hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
ARRAYS = st.one_of(
    st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, SHAPES)),
    st.tuples(st.sampled_from(EXTRA), SHAPES).map(
        lambda drawn: np.arange(np.prod(drawn[1], dtype=int)).astype("float32").astype(drawn[0]).reshape(drawn[1])
    ),
    hnp.arrays("U5", SHAPES),
)
LEAVES = st.one_of(
    ARRAYS,
    ARRAYS.filter(lambda array: array.dtype.kind != "U").map(Tensor),
    ARRAYS.filter(lambda array: array.size and array.dtype.kind != "U").map(lambda array: array.ravel()[0]),
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(),
)  # fmt: skip
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    ),
    max_leaves=6,
)


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=3))
def test_what_was_saved_is_loaded(tmp_path_factory: pytest.TempPathFactory, batches: list[Any]) -> None:
    path = tmp_path_factory.mktemp("saved") / "batches.npz"
    assert probe.save_batches(iter(batches), path) == len(batches)
    loaded = probe.load_batches(path, like="numpy")
    assert len(loaded) == len(batches)
    for _ in range(2):  # as often as one likes
        for before, after in zip(batches, loaded, strict=True):
            assert_same(before, after)


def test_without_a_framework_tensors_are_arrays(tmp_path: Path) -> None:
    probe.save_batches([batch()], tmp_path / "b.npz")
    (loaded,) = probe.load_batches(tmp_path / "b.npz")
    assert type(loaded["ids"]) is np.ndarray and (loaded["ids"] == batch()["ids"].data).all()
    assert loaded[7] is True and loaded["names"] == ["a", "b", "c", "d"]


def test_batches_by_number(tmp_path: Path) -> None:
    path = tmp_path / "b.npz"
    assert probe.save_batches((batch(i) for i in itertools.count()), path, count=3) == 3
    loaded = probe.load_batches(path)
    assert [each["n"] for each in loaded] == [0, 1, 2]
    assert (loaded[1]["n"], loaded[-1]["n"]) == (1, 2)
    with pytest.raises(IndexError, match="b.npz has 3 batches, there is no 3"):
        loaded[3]
    loaded.close()


def test_any_program_can_read_the_arrays(tmp_path: Path) -> None:
    probe.save_batches([batch(5)], tmp_path / "b.npz")
    with np.load(tmp_path / "b.npz") as file:
        assert (file["0/0"] == batch(5)["ids"].data).all()


def test_other_containers_and_layouts(tmp_path: Path) -> None:
    @dataclasses.dataclass
    class Sample:
        x: np.ndarray
        y: int

    big_endian, transposed = np.arange(3, dtype=">i4"), np.asfortranarray(np.arange(6.0).reshape(2, 3))
    given = [collections.UserDict(x=big_endian), Sample(transposed, 3), collections.OrderedDict(z=transposed[:, ::2])]
    probe.save_batches([given], tmp_path / "b.npz")
    ((x, sample, z),) = probe.load_batches(tmp_path / "b.npz")
    assert x["x"].tolist() == [0, 1, 2] and x["x"].dtype == np.int32
    assert sample["x"].tolist() == transposed.tolist() and sample["y"] == 3
    assert z["z"].tolist() == [[0, 2], [3, 5]]


def test_the_same_batches_make_the_same_file(tmp_path: Path) -> None:
    for name in ("a", "b"):
        probe.save_batches([batch(1), batch(2)], tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    probe.save_batches([batch(2), batch(1)], tmp_path / "c")
    digests = {probe.load_batches(tmp_path / name).digest for name in "abc"}
    assert len(digests) == 2


def test_their_origin_is_kept(tmp_path: Path) -> None:
    probe.save_batches([batch()], tmp_path / "b.npz")
    digest = probe.load_batches(tmp_path / "b.npz").digest
    assert origins.facts()["inputs"] == [f"load_batches, digest {digest}, 1 batch"]


REFUSED: dict[str, tuple[Any, str]] = {
    "an object": ({"x": {"y": object()}}, "x.y of batch 1 is a builtins.object; expected tensors, arrays, numbers, text"),
    "an array of objects": ([np.array([object()])], "0 of batch 1 is an array of object, which cannot be written"),
    "dates": ([np.array(["2020-01-01"], "datetime64[D]")], "is an array of datetime64[D], which cannot be written"),
    "a generator": ((i for i in range(3)), "the batch of batch 1 is a builtins.generator"),
    "an odd key": ({(1, 2): 3}, "a batch has the key (1, 2); expected text or a number"),
}  # fmt: skip
REFUSED["itself"] = ([], "stands in more than 17 containers, or in itself")
REFUSED["itself"][0].append(REFUSED["itself"][0])


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_saved_is_named_and_leaves_no_file(tmp_path: Path, name: str) -> None:
    value, text = REFUSED[name]
    with pytest.raises(ConfigError, match=re.escape(text)):
        probe.save_batches([batch(), value], tmp_path / "b.npz")
    assert not list(tmp_path.iterdir())


def test_nothing_to_save(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="was given no batch"):
        probe.save_batches([], tmp_path / "b.npz")
    for count in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="expected a number of batches, from 1"):
            probe.save_batches([batch()], tmp_path / "b.npz", count)
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_stays(tmp_path: Path) -> None:
    (tmp_path / "b.npz").write_text("mine")
    with pytest.raises(
        ExistsError, match="b.npz exists already; probe never overwrites: delete it or give another name"
    ):
        probe.save_batches([batch()], tmp_path / "b.npz")
    assert (tmp_path / "b.npz").read_text() == "mine"
    with pytest.raises(StoreError, match="cannot be created: No such file or directory"):
        probe.save_batches([batch()], tmp_path / "missing" / "b.npz")


def test_a_loader_that_fails_leaves_no_file(tmp_path: Path) -> None:
    def loader() -> Iterator[Any]:
        yield batch()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        probe.save_batches(loader(), tmp_path / "b.npz")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full(io.FileIO):
        def write(self, data: Any) -> int:
            with open_before("/dev/full", "wb", buffering=0) as full:
                return full.write(data)

    monkeypatch.setattr(
        "builtins.open", lambda path, mode: open_before(path, mode) if mode != "xb" else Full(path, "xb")
    )
    with pytest.raises(StoreError, match="cannot be written: No space left on device"):
        probe.save_batches([batch()], tmp_path / "b.npz")
    assert not (tmp_path / "b.npz").exists()


open_before = open


# Damage


@pytest.mark.thorough
def test_every_damaged_byte_is_noticed_or_does_not_matter(tmp_path: Path) -> None:
    probe.save_batches([{"x": np.arange(5.0), "n": 3}], tmp_path / "b.npz")
    whole = (tmp_path / "b.npz").read_bytes()
    path, refused = tmp_path / "damaged.npz", 0
    for place in range(len(whole)):
        for flip in (0x01, 0x80):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ flip]) + whole[place + 1 :])
            try:
                loaded = list(probe.load_batches(path))
            except FormatError as error:
                assert str(path) in str(error)
                refused += 1
                continue
            assert len(loaded) == 1 and loaded[0]["n"] == 3
            assert loaded[0]["x"].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]
    assert refused > len(whole)


def test_cut_off_files(tmp_path: Path) -> None:
    probe.save_batches([batch(), batch(1)], tmp_path / "b.npz")
    whole = (tmp_path / "b.npz").read_bytes()
    path = tmp_path / "cut.npz"
    for length in {0, 1, 100, len(whole) // 2, len(whole) - 1}:
        path.write_bytes(whole[:length])
        with pytest.raises(FormatError, match="is damaged, or is not complete"):
            probe.load_batches(path)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no file"):
        probe.load_batches(tmp_path / "b.npz")
    (tmp_path / "run.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    with pytest.raises(FormatError, match="run.h5 is no file that save_batches wrote: File is not a zip file"):
        probe.load_batches(tmp_path / "run.h5")
    np.savez(tmp_path / "other.npz", x=np.ones(3))
    with pytest.raises(FormatError, match="does not hold batches that probe.save_batches wrote"):
        probe.load_batches(tmp_path / "other.npz")
    with zipfile.ZipFile(tmp_path / "new.npz", "w") as file:
        file.writestr("begin.json", '{"format": "probe batches", "version": 9}')
        file.writestr("end.json", '{"batches": 1, "digest": ""}')
    with pytest.raises(FormatError, match="has format 9, this probe reads up to 1: upgrade probe-align"):
        probe.load_batches(tmp_path / "new.npz")


def test_a_killed_process_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    path = tmp_path / "b.npz"
    code = (
        "import sys, os, signal, probe, numpy as np\n"
        "def loader():\n"
        "    yield {'x': np.ones(100000)}\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "probe.save_batches(loader(), sys.argv[1])"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], check=False)
    assert done.returncode == -signal.SIGKILL
    with pytest.raises(FormatError, match="is not complete"):
        probe.load_batches(path)


def test_memory_stays_with_one_batch(tmp_path: Path) -> None:
    size = 1 << 20

    def loader() -> Iterator[Any]:
        return ({"x": np.full(size // 8, i, "float64")} for i in range(20))

    tracemalloc.start()
    try:
        probe.save_batches(loader(), tmp_path / "b.npz")
        total = sum(float(each["x"][-1]) for each in probe.load_batches(tmp_path / "b.npz"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == sum(range(20)) and peak < 6 * size


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_forked_workers_read_the_same_file(tmp_path: Path) -> None:
    """The workers of a DataLoader: with one open file for all of them each would move the others' place in it."""
    probe.save_batches([batch(i) for i in range(3)], tmp_path / "b.npz")
    loaded = probe.load_batches(tmp_path / "b.npz")
    children = []
    for _ in range(2):
        child = os.fork()
        if not child:
            status = 1
            with contextlib.suppress(Exception):
                status = int(sum(each["n"] for _ in range(100) for each in loaded) != 300)
            os._exit(status)
        children.append(child)
    assert sum(each["n"] for _ in range(100) for each in loaded) == 300
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0]


# Comparing


def loader(count: int = 3, **changes: Any) -> list[dict[str, Any]]:
    return [{**batch(i), **(changes if i == 1 else {})} for i in range(count)]


def test_equal_pipelines(tmp_path: Path) -> None:
    found = probe.compare_batches(loader(), loader())
    assert found.equal and found.difference is None and found.batches == 3
    assert str(found) == "3 batches are equal in ids, pair.0, pair.1.0, pair.1.1, names, n, 7"
    probe.save_batches(loader(), tmp_path / "b.npz")
    assert probe.compare_batches(tmp_path / "b.npz", loader()).equal
    assert probe.compare_batches(loader(), str(tmp_path / "b.npz"), count=2).batches == 2
    assert str(probe.compare_batches([np.ones(3)], [np.ones(3)])) == "1 batch is equal"


def test_a_file_is_not_compared_with_itself(tmp_path: Path) -> None:
    probe.save_batches(loader(), tmp_path / "b.npz")
    with pytest.raises(ConfigError, match="b.npz is given twice; expected what the other side gave"):
        probe.compare_batches(tmp_path / "b.npz", str(tmp_path / "." / "b.npz"))


def changed_ids(sample: int) -> Tensor:
    ids = batch(1)["ids"].data.copy()
    ids[sample, 2] = 99
    return Tensor(ids)


def test_the_first_sample_and_field_are_named() -> None:
    names = ["a", "b", "c", "x"]
    found = probe.compare_batches(loader(), loader(ids=changed_ids(2), names=names))
    assert not found.equal and found.difference is not None
    assert (found.difference.batch, found.difference.sample, found.difference.field) == (1, 2, "ids")
    before = batch(1)["ids"].data[2, 2]
    assert (
        str(found) == f"first difference: batch 1, sample 2, ids: {before} against 99 at [2, 2]; 1 of 12 values differ"
    )
    names = ["a", "y", "c", "x"]  # a later field, an earlier sample
    found = probe.compare_batches(loader(), loader(ids=changed_ids(2), names=names))
    assert str(found.difference) == "batch 1, sample 1, names: 'b' against 'y' at [1]; 2 of 4 values differ"


DIFFERENT: dict[str, tuple[dict[str, Any], str]] = {
    "shape": ({"ids": Tensor(np.zeros((4, 2), int))}, "batch 1, ids: shape [4, 3] against [4, 2]"),
    "value": ({"n": 5}, "batch 1, n: 1 against 5"),
    "type": ({"n": 1.0}, "batch 1, n: 1 against 1.0"),
    "more": ({"extra": 1}, "batch 1: extra only in B"),
    "tensor or not": ({"ids": 3}, "batch 1, ids: array("),
    "order": ({"ids": Tensor(batch(1)["ids"].data[::-1].copy())}, "they are the same samples in another order"),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_what_differs_is_said(name: str) -> None:
    changes, text = DIFFERENT[name]
    found = probe.compare_batches(loader(), loader(**changes))
    assert text in str(found) and not found.equal


def test_floats_may_round_where_it_is_allowed() -> None:
    a, b = [[{"x": np.array([[1.0, np.nan], [2.0, np.inf]]) + d}] for d in (0, 1e-6)]
    assert probe.compare_batches(a, a).equal
    assert str(probe.compare_batches(a, b).difference).startswith(
        "batch 0, sample 0, x: 1.0 against 1.000001 at [0, 0]; 2 of 4"
    )
    assert probe.compare_batches(a, b, atol=1e-5).equal
    c = [{"x": np.array([[1.0, 0.0], [2.0, np.inf]])}]
    assert str(probe.compare_batches(a, c, atol=1e-5).difference) == (
        "batch 0, sample 0, x: nan against 0.0 at [0, 1]; 1 of 4 values differ"
    )
    small = [{"x": np.ones(3).astype(ml_dtypes.bfloat16)}]
    assert not probe.compare_batches(small, [{"x": np.array([1, 1, 2]).astype(ml_dtypes.bfloat16)}]).equal


def test_other_dtypes_and_names_are_notes() -> None:
    found = probe.compare_batches([{"x": np.ones(3, "int64")}], [{"x": np.ones(3, "int32")}])
    assert found.equal and found.notes == ("x is int64 in A and int32 in B",)
    found = probe.compare_batches([{"x": np.ones(3), "y": np.zeros(3)}], [[np.ones(3), np.zeros(3)]])
    assert found.equal and found.notes == ("fields are paired by their order: x with 0, y with 1",)
    found = probe.compare_batches([{"x": np.ones(3)}], [[np.ones(3), np.zeros(3)]])
    assert str(found.difference) == "batch 0: x only in A; 0, 1 only in B"


def test_one_side_that_ends_or_gives_nothing() -> None:
    found = probe.compare_batches(loader(3), loader(2))
    assert str(found.difference) == "batch 2: B ends after 2 batches, A goes on" and not found.equal
    assert probe.compare_batches(loader(3), loader(2), count=2).equal
    for a, b, text in (
        ([], [], "neither side gave a batch"),
        (loader(), [], "B gave no batch"),
        ([{}], [{}], "hold neither"),
    ):
        with pytest.raises(ConfigError, match=text):
            probe.compare_batches(a, b)


def test_errors_are_ours(tmp_path: Path) -> None:
    with pytest.raises(ProbeError, match="there is no file"):
        probe.compare_batches(tmp_path / "a.npz", tmp_path / "b.npz")
