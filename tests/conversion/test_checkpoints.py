"""Files of weights: what is written is read again bit for bit, and what is no file of weights is refused in words."""

from __future__ import annotations

import json
import os
import pickle
import signal
import struct
import subprocess
import sys
import tempfile
from collections import OrderedDict
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from probe.checkpoints import Stored, open_checkpoint, write_checkpoint, written_whole
from probe.checkpoints.stored import blocks
from probe.errors import ConversionError
from tests.saved import torch_legacy

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
COMMON = [np.dtype(name) for name in ("f4", "f8", "f2", "i8", "i4", "i2", "i1", "u1", "?")] + [BFLOAT16]
DTYPES = {
    ".safetensors": [*COMMON, np.dtype("u2"), np.dtype("u4"), np.dtype("u8"), np.dtype(ml_dtypes.float8_e4m3fn)],
    ".pdparams": [*COMMON, np.dtype("c8")],
    ".ckpt": [*COMMON, np.dtype("u2"), np.dtype("u4"), np.dtype("u8")],
}
FRAMEWORKS = {".safetensors": "torch", ".pdparams": "paddle", ".ckpt": "mindspore"}
SUFFIXES = list(DTYPES)
Arrays = dict[str, np.ndarray]


@st.composite
def arrays(draw: st.DrawFn, dtypes: list[np.dtype]) -> np.ndarray:
    dtype = draw(st.sampled_from(dtypes))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
    raw = draw(hnp.arrays(np.uint8, (int(np.prod(shape)) * dtype.itemsize,)))
    return (raw % 2 if dtype.kind == "b" else raw).view(dtype).reshape(shape)


def write(folder: Path, suffix: str, *shards: Arrays) -> Path:
    everything = {name: array for shard in shards for name, array in shard.items()}
    announced = [[Stored(name, a.dtype, a.shape) for name, a in shard.items()] for shard in shards]
    write_checkpoint(folder, suffix, announced, everything.__getitem__, FRAMEWORKS[suffix])
    return folder


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=8).filter(
    lambda name: name != "__metadata__"
)


@pytest.mark.parametrize("suffix", SUFFIXES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_what_is_written_is_read_again(suffix: str, data: st.DataObject) -> None:
    state = data.draw(st.dictionaries(NAMES, arrays(DTYPES[suffix]), min_size=1, max_size=5))
    items = list(state.items())
    cut = data.draw(st.integers(0, len(items) - 1))
    shards = [dict(part) for part in (items[:cut], items[cut:]) if part]
    with tempfile.TemporaryDirectory() as folder:
        found = open_checkpoint(write(Path(folder), suffix, *shards))
        assert list(found.tensors) == list(state)
        assert len(found.files) == len(shards)
        for name, array in state.items():
            assert same(found.read(name), array)
            assert (found.tensors[name].dtype, found.tensors[name].shape) == (array.dtype, array.shape)


def test_arrays_that_are_not_in_c_order_are_written_as_they_are_meant(tmp_path: Path) -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3).T
    for suffix in SUFFIXES:
        folder = tmp_path / suffix
        folder.mkdir()
        assert same(open_checkpoint(write(folder, suffix, {"w": array})).read("w"), np.ascontiguousarray(array))


def test_blocks_are_no_larger_than_asked_for() -> None:
    array = np.arange(60, dtype=np.float32).reshape(4, 5, 3)
    for turned in (array, array.T, array.transpose(1, 0, 2), array[:, :0], np.float32(3).reshape(())):
        found = list(blocks(turned, 128))
        assert b"".join(found) == turned.tobytes()
        assert all(len(block) <= 128 for block in found)


def test_shards_have_an_index_that_says_where_each_tensor_lies(tmp_path: Path) -> None:
    one = np.ones((2, 3), np.float32)
    write(tmp_path, ".safetensors", {"a": one}, {"b": one, "c": one[0]})
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    second = "model-00002-of-00002.safetensors"
    assert index["weight_map"] == {"a": "model-00001-of-00002.safetensors", "b": second, "c": second}
    assert index["metadata"]["total_size"] == 24 + 24 + 12
    assert open_checkpoint(tmp_path / "model.safetensors.index.json").tensors.keys() == {"a", "b", "c"}


def test_a_pickle_of_paddle_as_older_versions_wrote_it(tmp_path: Path) -> None:
    path = tmp_path / "m.pdparams"
    one = np.ones(2, np.float32)
    old = {
        "w": ("linear_0.w_0", one), "b@@.0": one, "b@@.1": one * 2, "h": np.array([0x3FC0], np.uint16),
        "UnpackBigParamInfor@@": {"b": {"OriginShape": (2, 2), "slices": ["b@@.0", "b@@.1"]}},
        "StructuredToParameterName@@": {"w": "linear_0.w_0"},
    }  # fmt: skip
    path.write_bytes(pickle.dumps(old, 2))
    found = open_checkpoint(path)
    assert set(found.tensors) == {"w", "b", "h"}
    assert found.read("b").tolist() == [[1, 1], [2, 2]]
    assert (found.read("h").dtype, float(found.read("h")[0])) == (BFLOAT16, 1.5)


class Evil:
    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("echo harm",)


@pytest.mark.parametrize("name", ["m.pdparams", "pytorch_model.bin"])
def test_a_pickle_that_runs_programs_is_refused(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / name
    path.write_bytes(pickle.dumps({"w": Evil()}))
    with pytest.raises(ConversionError, match=r"does not hold weights alone: it refers to posix\.system"):
        open_checkpoint(path)
    assert "harm" not in capfd.readouterr().out


def ckpt(*values: tuple[str, bytes]) -> bytes:
    """Return the bytes of a .ckpt whose values all fit one byte of length."""
    made = b""
    for tag, tensor in values:
        value = b"\x0a" + bytes([len(tag)]) + tag.encode() + b"\x12" + bytes([len(tensor)]) + tensor
        made += b"\x0a" + bytes([len(value)]) + value
    return made


FLOATS = b"\x08\x02\x12\x07Float32\x1a\x08" + struct.pack("<2f", 1, 2)


def test_a_ckpt_with_slices_remarks_scalars_and_a_checksum(tmp_path: Path) -> None:
    half = b"\x08\x04\x12\x07Float32\x1a\x08" + struct.pack("<2f", 1, 2)
    remark = b"\x08\x00\x12\x03str\x1a\x04abcd"
    scalar = b"\x08\x00\x12\x05Int32\x1a\x04" + struct.pack("<i", 7)
    path = tmp_path / "m.ckpt"
    path.write_bytes(ckpt(("w", half), ("w", half), ("epoch", remark), ("step", scalar)) + b"crc_num" + b"0" * 10)
    found = open_checkpoint(path)
    assert set(found.tensors) == {"w", "step"}
    assert found.read("w").tolist() == [1, 2, 1, 2]
    assert same(found.read("step"), np.array(7, np.int32))


DAMAGED = {
    "cut.safetensors": (b"\x40\0\0\0\0\0\0\0{}", "its header cannot be read"),
    "long.safetensors": (b"\xff" * 16, "its header cannot be read"),
    "outside.safetensors": (
        b"\x3b\0\0\0\0\0\0\0" + b'{"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}     ' + b"\0" * 4,
        "w should have 8 bytes",
    ),
    "odd.safetensors": (b"\x10\0\0\0\0\0\0\0" + b'{"w":{"dtype":1}}'[:16], "its header cannot be read"),
    "cut.ckpt": (ckpt(("w", FLOATS))[:-1], "damaged or encrypted"),
    "short.ckpt": (ckpt(("w", FLOATS[:-9] + b"\x04" + FLOATS[-8:-4])), "w should have 8 bytes, it has 4"),
    "text.ckpt": (b"this is no checkpoint", "damaged or encrypted"),
    "cut.pdparams": (pickle.dumps({"w": np.ones(3)})[:-9], "damaged, or no file of weights"),
    "list.pdparams": (pickle.dumps([1, 2]), "holds no state_dict: expected tensors by name, got list"),
    "training.pdparams": (pickle.dumps({"lr": 0.1}), "lr is a float, not a tensor"),
    "objects.pdparams": (pickle.dumps({"w": np.array(["a", None], object)}), "w is an array of object, not of numbers"),
    "text.bin": (b"not a pickle", "damaged, or no file of weights"),
    "other.bin": (pickle.dumps({"w": np.ones(3)}), "is not what torch.save"),
    "readme.md": (b"", "cannot tell the format"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_what_is_no_file_of_weights_is_named(tmp_path: Path, name: str) -> None:
    content, message = DAMAGED[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConversionError, match=message) as caught:
        open_checkpoint(tmp_path / name)
    assert name in str(caught.value)


def test_folders_and_indices_that_are_not_whole_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConversionError, match="there is no"):
        open_checkpoint(tmp_path / "nowhere")
    with pytest.raises(ConversionError, match="holds no weights: expected model.safetensors"):
        open_checkpoint(tmp_path)
    write(tmp_path, ".safetensors", {"a": np.ones(1)}, {"b": np.ones(1)})
    (tmp_path / "model-00002-of-00002.safetensors").rename(tmp_path / "gone")
    with pytest.raises(ConversionError, match="names model-00002-of-00002.safetensors, which is not beside it"):
        open_checkpoint(tmp_path)
    first = (tmp_path / "model-00001-of-00002.safetensors").read_bytes()
    (tmp_path / "model-00002-of-00002.safetensors").write_bytes(first)
    with pytest.raises(ConversionError, match="a is in model-00001-of-00002.safetensors and in model-00002"):
        open_checkpoint(tmp_path)


def test_an_index_cannot_lead_out_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write(tmp_path, ".safetensors", {"a": np.ones(1)})
    index = {"weight_map": {"a": "../model.safetensors"}}
    (tmp_path / "in" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ConversionError, match="names model.safetensors, which is not beside it"):
        open_checkpoint(tmp_path / "in")


def test_a_dtype_that_a_format_cannot_hold_is_named(tmp_path: Path) -> None:
    eight = np.ones(2, ml_dtypes.float8_e4m3fn)
    for suffix in (".pdparams", ".ckpt"):
        with pytest.raises(ConversionError, match=f"w is float8_e4m3fn, which {suffix} files cannot hold"):
            write(tmp_path, suffix, {"w": eight})
    with pytest.raises(ConversionError, match="w is complex128, which safetensors files cannot hold"):
        write(tmp_path, ".safetensors", {"w": np.ones(2, complex)})


def test_a_target_is_there_as_a_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new"
    with pytest.raises(ZeroDivisionError), written_whole(target) as partial:
        partial.mkdir()
        (partial / "file").write_text("half")
        raise ZeroDivisionError
    assert list(tmp_path.iterdir()) == []
    with written_whole(target) as partial:
        partial.write_text("whole")
        written = partial.stat().st_ino
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    assert target.stat().st_ino == written, "copied, not renamed"
    with pytest.raises(ConversionError, match="new exists already"), written_whole(target):
        pass
    with pytest.raises(ConversionError, match="there is no folder"), written_whole(tmp_path / "a" / "b"):
        pass


KILLED = """
import signal, sys
from pathlib import Path
import numpy as np
from probe.checkpoints import Stored, write_checkpoint, written_whole

def read(name):
    print(name, flush=True)
    if name == sys.argv[2]:
        signal.pause()
    return np.ones(1000, np.float32)

shards = [[Stored(f"{i}.{j}", np.dtype("f4"), (1000,)) for j in range(3)] for i in range(3)]
with written_whole(Path(sys.argv[1])) as partial:
    partial.mkdir()
    write_checkpoint(partial, ".safetensors", shards, read, "torch")
print("done", flush=True)
"""


@pytest.mark.parametrize("last", ["0.0", "1.0", "2.2", "done"])
def test_killed_in_the_middle(tmp_path: Path, last: str) -> None:
    target = tmp_path / "new"
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", KILLED, str(target), last]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        assert process.stdout is not None
        assert f"{last}\n" in process.stdout  # where it waits, or has ended
        process.send_signal(signal.SIGKILL)
    assert target.exists() is (last == "done")
    if target.exists():
        assert len(open_checkpoint(target).tensors) == 9


def test_an_ordered_dict_is_a_state_dict_too(tmp_path: Path) -> None:
    path = tmp_path / "m.pdparams"
    path.write_bytes(pickle.dumps(OrderedDict(w=np.ones(2))))
    assert list(open_checkpoint(path).tensors) == ["w"]


def torch_file(path: Path, shape: bytes, strides: bytes) -> Path:
    """Write what torch.save writes of six floats, as a tensor of another shape and strides (as pickled)."""
    path.write_bytes(torch_legacy().replace(b"K\x02K\x03\x86K\x03K\x01\x86", shape + b"\x86" + strides + b"\x86"))
    return path


def test_a_tensor_that_the_file_has_no_room_for(tmp_path: Path) -> None:
    """A stride of 0 makes of one number as many as one likes."""
    million = b"J" + struct.pack("<i", 1_000_000)
    found = open_checkpoint(torch_file(tmp_path / "m.bin", million * 2, b"K\x00K\x00"))
    with pytest.raises(ConversionError, match="for which the file has no room"):
        found.read("up.weight")


@pytest.mark.parametrize("strides", [b"J\xf8\xff\xff\xffK\x05", b"K\x09K\x01"], ids=["before", "behind"])
def test_a_tensor_that_reaches_out_of_its_storage(strides: bytes, tmp_path: Path) -> None:
    found = open_checkpoint(torch_file(tmp_path / "m.bin", b"K\x02K\x03", strides))
    with pytest.raises(ConversionError, match="lies outside of its storage"):
        found.read("up.weight")


@pytest.mark.parametrize(
    "suffix, data",
    [(".safetensors", (40).to_bytes(8, "little") + b"[" * 40), (".safetensors", (20_000).to_bytes(8, "little") + b"[" * 20_000),
     (".safetensors", (36).to_bytes(8, "little") + b'{"__metadata__": [1], "a": 3}       '), (".bin", b"PK\x05\x06" + bytes(18)),
     (".pdparams", pickle.dumps({"UnpackBigParamInfor@@": {"a": 3}})), (".ckpt", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01")],
    ids=["list", "deep", "metadata", "empty zip", "parts", "length"],
)  # fmt: skip
def test_damage_is_said(suffix: str, data: bytes, tmp_path: Path) -> None:
    path = tmp_path / f"m{suffix}"
    path.write_bytes(data)
    with pytest.raises(ConversionError) as caught:
        open_checkpoint(path)
    assert str(path) in str(caught.value)
