"""Compressed values: they come back bit for bit, whatever is wrong in a file is said, and nothing else needs what unpacks them."""

from __future__ import annotations

import errno
import math
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import h5py
import hypothesis
import numpy as np
import pytest
from click.testing import CliRunner
from h5py import h5d, h5p, h5s, h5z
from hypothesis import strategies as st

import probe
from probe.answer.result import Verdict
from probe.commands.cli import main
from probe.config import Compression
from probe.errors import ConfigError, FormatError, StoreError
from probe.numbers.statistics import dtype_of
from probe.records import CompressionName
from probe.store import compression
from probe.store.reading.reader import Reader
from probe.store.tree import write_tree
from probe.store.writing.disk import PAGE
from probe.store.writing.writer import Writer
from probe.testing import DTYPES, sample
from tests.store.compressing import NEEDS
from tests.store.failing import Failing
from tests.store.rows import INFO, add_record, end_step
from tests.toy import nn
from tests.toy.tensor import Tensor

pytestmark = NEEDS

BITSHUFFLE, ZSTD = 32008, 32015
SHAPES = [(37, 1, 9000), (1 << 18,), (3, 400_001), (2, 3, 5, 7000), (), (0, 3), (1000,)]
HOW = pytest.mark.parametrize("how", Compression)


def trained(name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return random bits of a dtype, half of them zeros: there is something to compress."""
    dtype = dtype_of(name)
    raw = np.random.default_rng(len(shape)).integers(0, 256, (*shape, dtype.itemsize), np.uint8)
    raw.reshape(-1)[: raw.size // 2] = 0
    return (raw % 2 if dtype.kind == "b" else raw).view(dtype)[..., 0]


def written(path: Path, arrays: list[np.ndarray], how: Compression | None) -> Path:
    writer = Writer(path, INFO, compression=how)
    for number, array in enumerate(arrays):
        add_record(writer, array, slot=str(number))
    end_step(writer)
    writer.close()
    return path


def pipeline(dataset: h5py.Dataset) -> list[int]:
    how = dataset.id.get_create_plist()
    return [how.get_filter(number)[0] for number in range(how.get_nfilters())]


# ---- they come back


@HOW
@pytest.mark.parametrize("name", DTYPES)
def test_values_come_back_whole_and_in_parts(name: str, how: Compression, tmp_path: Path) -> None:
    arrays = [trained(name, shape) for shape in SHAPES]
    with Reader(written(tmp_path / "a.h5", arrays, how)) as reader:
        for tensor, array in zip(reader.records["tensor"].tolist(), arrays, strict=True):
            values = reader.values(tensor)
            assert (values.dtype, values.shape, values.tobytes()) == (array.dtype, array.shape, array.tobytes())
            for buffer in (None, np.empty(10_000 * array.itemsize, np.uint8)):
                parts = [part.tobytes() for part in reader.parts(tensor, 10_000, buffer)]
                assert b"".join(parts) == array.tobytes()
                assert all(len(part) == 10_000 * array.itemsize for part in parts[:-1])
            kept = array.reshape([size for size in array.shape if size != 1])
            box = [slice(size // 3, size // 3 + size // 2) for size in kept.shape]
            assert reader.block(tensor, box).tobytes() == np.ascontiguousarray(kept[tuple(box)]).tobytes()


@HOW
def test_what_is_compressed_and_how(how: Compression, tmp_path: Path) -> None:
    arrays = [sample((300, 300)), trained("bool", (300, 300)), sample((100, 100)), sample((10,))]
    write_tree(written(tmp_path / "a.h5", arrays, how))
    with h5py.File(tmp_path / "a.h5") as file:
        group = file["tensors"]
        expected = [BITSHUFFLE] if how is Compression.LZ4 else [h5z.FILTER_SHUFFLE, ZSTD]
        assert pipeline(group["0"]) == expected and pipeline(group["1"]) == [BITSHUFFLE]
        assert group["2"].chunks is None, "40 KB are not worth it"
        assert "3" not in group and group["1"].id.get_storage_size() < arrays[1].nbytes / 4
        assert file["tree/step_0/micro_0/net/call_0/forward/output.0"].id == group["0"].id


def test_without_the_option_nothing_changes(tmp_path: Path) -> None:
    with h5py.File(written(tmp_path / "a.h5", [sample((300, 300))], None)) as file:
        assert file["tensors/0"].chunks is None


@hypothesis.given(
    shape=st.lists(st.integers(1, 3000), min_size=1, max_size=5).filter(lambda shape: math.prod(shape) < 1 << 26),
    itemsize=st.sampled_from([1, 2, 4, 8, 16]),
)
@hypothesis.settings(deadline=None)
def test_chunks_are_runs_in_C_order(shape: list[int], itemsize: int) -> None:
    chunk = compression.chunk_of(shape, itemsize)
    assert math.prod(chunk) * itemsize <= 1 << 20
    split = next((axis for axis, (size, step) in enumerate(zip(shape, chunk, strict=True)) if step > 1 or size == 1), 0)
    assert chunk[split + 1 :] == tuple(shape[split + 1 :]) or shape[split] == 1
    hypothesis.assume(math.prod(-(-size // step) for size, step in zip(shape, chunk, strict=True)) < 1000)
    end = 0
    for start, count in compression.runs(shape, chunk):
        assert int(np.ravel_multi_index(start, shape)) == end
        end += math.prod(count)
    assert end == math.prod(shape)


@HOW
def test_parts_take_the_memory_of_some_chunks(how: Compression, tmp_path: Path) -> None:
    written(tmp_path / "a.h5", [np.zeros((40, 1 << 18), np.float32)], how)
    with Reader(tmp_path / "a.h5") as reader:
        tensor = int(reader.records["tensor"][0])
        tracemalloc.start()
        assert sum(part.size for part in reader.parts(tensor, 1 << 18)) == 40 << 18
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
        tracemalloc.stop()


def test_what_a_reader_would_not_believe_is_not_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of zeros in a small file looks like one that is to fill the memory."""
    monkeypatch.setattr(compression, "_ALWAYS", 1 << 16)
    arrays = [np.full((1 << 20,), number, np.float32) for number in range(4)]
    with Reader(written(tmp_path / "a.h5", arrays, Compression.ZSTD)) as reader:
        for tensor, array in zip(reader.records["tensor"].tolist(), arrays, strict=True):
            np.testing.assert_array_equal(reader.values(tensor), array)
    with h5py.File(tmp_path / "a.h5") as file:
        assert file["tensors/0"].chunks is None and file["tensors/3"].chunks is not None


@HOW
def test_what_a_broken_disk_does_not_take_is_not_held(how: Compression, tmp_path: Path) -> None:
    array = np.random.default_rng(0).random(2 << 20)
    with Failing("pwritev", 5, error=errno.EIO, lasting=True):
        writer = Writer(tmp_path / "a.h5", INFO, compression=how)
        add_record(writer, array)
        end_step(writer)
        with pytest.raises(StoreError, match="Input/output error"):
            writer.close()
    assert len(writer._disk._held) * PAGE < array.nbytes / 4


# ---- recordings


def train(path: Path, how: CompressionName | None, eps: float = 1e-6) -> Path:
    nn.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 200), nn.RMSNorm(200, eps=eps), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 3))
    optimizer = nn.AdamW(net.parameters(), 0.01)
    probe.start(net, path, task="tensor", compression=how, quiet=True)
    for step in range(2):
        output = net(Tensor(sample((100, 16), step)))
        loss = (output * output).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        probe.step(loss=loss)
    probe.stop()
    return path


@HOW
def test_a_compressed_recording_is_the_one_that_is_not(how: Compression, tmp_path: Path) -> None:
    a, b = train(tmp_path / "a.h5", None), train(tmp_path / "b.h5", how.value)
    assert b.stat().st_size < a.stat().st_size
    answer = probe.compare(a, b)
    assert answer.verdict is Verdict.ALIGNED and answer.first_divergence is None
    with Reader(a) as plain, Reader(b) as packed:
        assert packed.info.config["compression"] == how.value and plain.info.config["compression"] is None
        for tensor in {*plain.records["tensor"].tolist()} - {-1}:
            assert plain.values(tensor).tobytes() == packed.values(tensor).tobytes()


def forms(path: Path, folder: Path) -> dict[str, object]:
    """Return what is made of a recording: its pages, tables, arrays and weights."""
    folder.mkdir()
    (moved := folder / "a.h5").write_bytes(path.read_bytes())
    with probe.open(moved) as run:
        output = run["2"].output[0]
        found = {"values": output.values().tobytes(), "slice": output[3:7, 2:9].tobytes(), "show": repr(run["2"])}
    found["tree"] = write_tree(moved)
    invoke = CliRunner().invoke
    assert invoke(main, ["view", str(moved), "-o", str(folder / "run.html")]).exit_code == 0
    found["shown"] = invoke(main, ["show", str(moved), "*", "--phase", "forward"]).output
    return {**found, "page": len((folder / "run.html").read_text())}


@pytest.mark.thorough
def test_all_that_is_made_of_values_is_the_same(tmp_path: Path) -> None:
    """Pages, tables and the answer about two runs that differ."""
    made = {how: train(tmp_path / f"{how}.h5", how) for how in (None, "lz4", "zstd")}
    wrong = {how: train(tmp_path / f"wrong {how}.h5", how, 1e-2) for how in made}
    expected = forms(made[None], tmp_path / "plain")
    expected["page"] = pytest.approx(expected["page"], abs=1000)  # it holds times and a size, and is packed
    answer = probe.compare(made[None], wrong[None])
    for how in ("lz4", "zstd"):
        assert forms(made[how], tmp_path / how) == expected
        found = probe.compare(made[how], wrong[how])
        assert found.verdict is Verdict.DIVERGED and str(found.first_divergence) == str(answer.first_divergence)
        assert repr([each.metrics for each in found.slots]) == repr([each.metrics for each in answer.slots])
        assert found.save(tmp_path / f"{how}.html").stat().st_size > 10_000


@pytest.fixture
def without_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)


def test_recording_without_the_library(without_filters: None, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        train(tmp_path / "a.h5", "lz4")
    assert str(caught.value).startswith("compression='lz4' needs more: pip install 'probe-align[compression]' (")
    assert not list(tmp_path.iterdir())


def test_an_old_library_passes_over_the_errors_of_zstd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hdf5plugin.version", "6.0.0")
    with pytest.raises(
        ConfigError, match=r"pip install 'probe-align\[compression\]' \(hdf5plugin 6.0.0 is older than 7\)"
    ):
        Writer(tmp_path / "a.h5", INFO, compression=Compression.ZSTD)


@HOW
def test_all_but_values_is_read_without_the_library(
    how: Compression, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    a, b = train(tmp_path / "a.h5", how.value), train(tmp_path / "b.h5", how.value)
    request.getfixturevalue("without_filters")
    assert probe.compare(a, b).verdict is Verdict.ALIGNED, "equal hashes are equal values"
    assert write_tree(a) > 0
    with Reader(a) as reader:
        large = next(row for row in reader._tensor_index if row["offset"] < 0 and row["nbytes"] > 100_000)
        said = f"{a} holds compressed values; to read them: pip install 'probe-align[compression]' ("
        for read in (
            lambda: reader.values(large["id"]),
            lambda: list(reader.parts(large["id"], 100)),
            lambda: reader.block(large["id"], [slice(0, 2), slice(0, 2)]),
        ):
            with pytest.raises(StoreError) as caught:
                read()
            assert str(caught.value).startswith(said)


@pytest.mark.thorough
def test_the_commands_without_the_library(tmp_path: Path) -> None:
    """In a process that never had it: HDF5 keeps filters that were loaded once."""
    a = train(tmp_path / "a.h5", "zstd")
    code = "import sys; sys.modules['hdf5plugin'] = None; from probe.commands.cli import main; main()"
    for arguments, status in ((["info", a], 0), (["show", a, "*"], 0), (["compare", a, a], 2)):
        command = [sys.executable, "-c", code, *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2])
        assert done.returncode == status, done.stderr


# ---- files of anybody


@pytest.fixture(params=Compression)
def packed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A recording of one tensor of 3 chunks."""
    return written(tmp_path / "a.h5", [trained("float32", (3, 200_000))], request.param)


def read_all(path: Path) -> list[bytes]:
    """Read it in each way."""
    with Reader(path) as reader:
        found = [reader.values(0), np.concatenate(list(reader.parts(0, 10_000)))]
        reader.block(0, [slice(0, 3), slice(0, 5)])
        return [each.tobytes() for each in found]


def first_chunk(file: h5py.File) -> bytearray:
    return bytearray(file["tensors/0"].id.read_direct_chunk((0, 0))[1])


def put(file: h5py.File, data: bytes, mask: int = 0) -> None:
    file["tensors/0"].id.write_direct_chunk((0, 0), bytes(data), mask)


def is_zstd(file: h5py.File) -> bool:
    return ZSTD in pipeline(file["tensors/0"])


def announce_gigabytes(file: h5py.File) -> None:
    data = first_chunk(file)
    if is_zstd(file):  # a frame with a window, and its size in eight bytes
        data = bytearray(b"\x28\xb5\x2f\xfd\xc0\x58" + struct.pack("<Q", 1 << 40)) + data[9:]
    else:
        data[:8] = struct.pack(">Q", 1 << 40)
    put(file, data)


def leave_the_size_out(file: h5py.File) -> None:
    put(file, b"\x28\xb5\x2f\xfd\x00\x58" + first_chunk(file)[9:] if is_zstd(file) else first_chunk(file)[4:])


def lead_out_of_the_chunk(file: h5py.File) -> None:
    data = first_chunk(file)
    data[12:16] = b"\x7f\xff\xff\xff"
    put(file, data if not is_zstd(file) else b"PK" + data[2:])


def block_of_another_size(file: h5py.File) -> None:
    data = first_chunk(file)
    data[8 if not is_zstd(file) else 4 :][:4] = b"\0\0\0\0"
    data[4:12] = bytes(8)
    put(file, data)


WRONG: dict[str, Callable[[h5py.File], None]] = {
    "announces gigabytes": announce_gigabytes,
    "does not say its size": leave_the_size_out,
    "leads out of the chunk": lead_out_of_the_chunk,
    "has blocks of no size": block_of_another_size,
    "was not filtered": lambda file: put(file, bytes(800_000), 1),
    "is cut off": lambda file: put(file, first_chunk(file)[:-5]),
    "is longer": lambda file: put(file, first_chunk(file) + bytes(3_000_000)),
    "is empty": lambda file: put(file, b"\0"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_chunk_that_would_not_unpack_to_what_it_should(what: str, packed: Path) -> None:
    """The filters believe what a chunk says: they would make room for it, or read behind its end."""
    with h5py.File(packed, "r+") as file:
        WRONG[what](file)
    with Reader(packed) as reader:
        for read in (
            lambda: reader.values(0),
            lambda: list(reader.parts(0, 10_000)),
            lambda: reader.block(0, [slice(0, 3), slice(0, 5)]),
        ):
            with pytest.raises(FormatError) as caught:
                read()
            assert str(caught.value).startswith(f"{packed} is damaged: tensor 0 cannot be read (")


@pytest.mark.thorough
def test_flipped_bits_and_noise_are_said(packed: Path) -> None:
    """Behind what is looked at: what the filters make of it has not the hash of the record."""
    whole = read_all(packed)
    with h5py.File(packed) as file:
        found = file["tensors/0"].id.get_chunk_info(1)
    raw = packed.read_bytes()
    for seed in range(120):
        random, damaged = np.random.default_rng(seed), bytearray(raw)
        place = found.byte_offset + int(random.integers(found.size - 64))
        if seed % 2:
            damaged[place] ^= 1 << int(random.integers(8))
        else:
            damaged[place : place + 64] = random.bytes(64)
        packed.write_bytes(damaged)
        try:
            assert read_all(packed) == whole, "what says nothing, such as a bit that zstd leaves out, changes nothing"
        except FormatError as error:
            assert str(packed) in str(error)


def stored_otherwise(
    path: Path, shape: tuple[int, ...], chunk: tuple[int, ...], *filters: tuple[int, tuple[int, ...]]
) -> None:
    with h5py.File(path, "r+") as file:
        kind, how = file["tensors/0"].id.get_type(), h5p.create(h5p.DATASET_CREATE)
        how.set_chunk(chunk)
        for code, values in filters:
            how.set_shuffle() if code == h5z.FILTER_SHUFFLE else how.set_filter(code, 0, values)
        del file["tensors/0"]
        made = h5d.create(file["tensors"].id, b"0", kind, h5s.create_simple(shape), how)
        made.write(h5s.ALL, h5s.ALL, np.zeros(shape, np.float32))


OTHERWISE = {
    "other chunks": ((1, 100_000), [(BITSHUFFLE, (0, 2))], "has chunks of"),
    "chunks of one element": ((1, 1), [(BITSHUFFLE, (0, 2))], "has chunks of"),
    "no filter": ((1, 200_000), [], "without filters"),
    "bitshuffle alone": ((1, 200_000), [(BITSHUFFLE, (0, 0))], "other settings"),
    "bitshuffle with zstd": ((1, 200_000), [(BITSHUFFLE, (0, 3, 1))], "other settings"),
    "other blocks": ((1, 200_000), [(BITSHUFFLE, (1024, 2))], "other settings"),
    "zstd alone": ((1, 200_000), [(ZSTD, (1,))], "filters other than bitshuffle alone and shuffle with zstd"),
    "zstd twice": ((1, 200_000), [(h5z.FILTER_SHUFFLE, ()), (ZSTD, (1,)), (ZSTD, (1,))], "filters other than"),
    "deflate": ((1, 200_000), [(h5z.FILTER_DEFLATE, (1,))], "filters other than"),
}


@pytest.mark.parametrize("what", OTHERWISE)
def test_tensors_that_are_stored_otherwise_are_refused(what: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", [trained("float32", (3, 200_000))], Compression.LZ4)
    chunk, filters, said = OTHERWISE[what]
    if len(chunk) == 2 and chunk == (1, 1):
        with h5py.File(path, "r+") as file:
            del file["tensors/0"]
            file.create_dataset(
                "tensors/0",
                shape=(3, 200_000),
                dtype="f4",
                chunks=(1, 1),
                compression=BITSHUFFLE,
                compression_opts=(0, 2),
            )
    else:
        stored_otherwise(path, (3, 200_000), chunk, *filters)
    with pytest.raises(FormatError, match=said):
        read_all(path)


@HOW
def test_more_values_than_a_file_has_room_for(
    how: Compression, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(tmp_path / "a.h5", [np.zeros((1 << 21,), np.float32)], how)
    read_all_flat(path)
    monkeypatch.setattr(compression, "_ALWAYS", 1 << 20)
    with pytest.raises(FormatError, match=r"unpacks to 8388608 bytes, for which a file of \d+ has no room"):
        read_all_flat(path)


def read_all_flat(path: Path) -> None:
    with Reader(path) as reader:
        reader.values(0)


@HOW
def test_a_chunk_that_was_never_written(how: Compression, tmp_path: Path) -> None:
    path = written(tmp_path / "a.h5", [trained("float32", (3, 200_000))], how)
    with h5py.File(path, "r+") as file:
        kind = file["tensors/0"].id.get_type()
        plan = compression.properties(how, (3, 200_000), 4)
        del file["tensors/0"]
        made = h5d.create(file["tensors"].id, b"0", kind, h5s.create_simple((3, 200_000)), plan)
        assert not made.get_num_chunks()
    with pytest.raises(FormatError, match="is damaged: tensor 0 cannot be read") as caught:
        read_all(path)
    assert "settings" not in str(caught.value)
