"""What ``torch.save(state_dict)`` writes, zip archives and files of torch before 1.6 alike; torch is not needed."""

from __future__ import annotations

import io
import math
import struct
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np

from probe.checkpoints.stored import BFLOAT16, Stored, WeightFile, read_aligned, read_range
from probe.checkpoints.unpickling import WeightsUnpickler, state_dict_in
from probe.damage import Damaged
from probe.errors import ConversionError

RATIO = 16
"""a tensor, and what is packed, has no more bytes than so many times the file"""
_LOCAL = struct.Struct("<4s22x2H")  # before an entry: the signature, the lengths of its name and of what follows
_MAGIC = 0x1950A86A20F9469CFC6C
_STORAGES: dict[str, Any] = {
    "torch.FloatStorage": "<f4", "torch.DoubleStorage": "<f8", "torch.HalfStorage": "<f2", "torch.LongStorage": "<i8",
    "torch.IntStorage": "<i4", "torch.ShortStorage": "<i2", "torch.CharStorage": "i1", "torch.ByteStorage": "u1",
    "torch.BoolStorage": "?", "torch.BFloat16Storage": BFLOAT16, "torch.ComplexFloatStorage": "<c8",
    "torch.ComplexDoubleStorage": "<c16", "torch.storage.UntypedStorage": "u1", "torch.UntypedStorage": "u1",
}  # fmt: skip
_DTYPES = {
    "torch.float8_e4m3fn": ml_dtypes.float8_e4m3fn, "torch.float8_e5m2": ml_dtypes.float8_e5m2,
    "torch.uint16": "<u2", "torch.uint32": "<u4", "torch.uint64": "<u8",
}  # fmt: skip


@dataclass(frozen=True)
class _Kind:
    """The class of a storage, or the dtype of a tensor."""

    dtype: np.dtype


@dataclass(frozen=True)
class _Storage:
    """Where the bytes of one or more tensors lie."""

    key: str
    dtype: np.dtype
    numel: int


@dataclass(frozen=True)
class _View:
    """A tensor: a part of a storage."""

    storage: _Storage
    dtype: np.dtype
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def _rebuild(storage: _Storage, offset: int, shape: tuple[int, ...], strides: tuple[int, ...], *rest: Any) -> _View:
    are_whole = all(type(each) is int for each in (offset, *strides, *shape))
    if not isinstance(storage, _Storage) or not are_whole or min(shape, default=0) < 0:
        raise Damaged("a tensor is no part of a storage")
    kinds = [each.dtype for each in rest if isinstance(each, _Kind)]
    return _View(storage, kinds[0] if kinds else storage.dtype, offset, tuple(shape), tuple(strides))


_FUNCTIONS: dict[str, Any] = {
    "torch._utils._rebuild_tensor": _rebuild,
    "torch._utils._rebuild_tensor_v2": _rebuild,
    "torch._utils._rebuild_tensor_v3": _rebuild,
    "torch._utils._rebuild_parameter": lambda data, *_: data,
    "torch.Size": tuple,
}


def _also(name: str) -> Any:
    if name in _STORAGES or name in _DTYPES:
        return _Kind(np.dtype(_STORAGES.get(name) or _DTYPES.get(name)))
    return _FUNCTIONS.get(name)


def _storage(pid: Any) -> _Storage:
    _, kind, key, _, numel, *_ = pid
    return _Storage(str(key), kind.dtype, int(numel))


class TorchFile(WeightFile):
    """A file of the format, its pickle read.

    ``named`` returns the tensors by name of what was read, given that, the path, and the class of a tensor.
    """

    framework = "torch"

    def __init__(self, path: Path, named: Callable[[Any, Path, type], Mapping[str, Any]] = state_dict_in) -> None:
        self.path = path
        found, self._bytes_of = _read_zip(path) if zipfile.is_zipfile(path) else _read_legacy(path)
        self._views: dict[str, _View] = dict(named(found, path, _View))
        self.tensors = {name: Stored(name, view.dtype, view.shape) for name, view in self._views.items()}

    def read(self, name: str) -> np.ndarray:
        view = self._views[name]
        storage = view.storage
        count = storage.numel * storage.dtype.itemsize
        if not 0 <= max(count, self.tensors[name].nbytes) <= RATIO * self.path.stat().st_size:
            raise Damaged(f"it has {self.tensors[name].nbytes} bytes, for which the file has no room")
        data = self._bytes_of(storage.key, count)
        if data.size != count:
            raise ConversionError(f"{self.path} is damaged: {name} should have {count} bytes, it has {data.size}")
        array = data.view(view.dtype)
        reach = [(n - 1) * stride for n, stride in zip(view.shape, view.strides, strict=True)]
        first, last = (view.offset + sum(each for each in reach if (each > 0) is up) for up in (False, True))
        if math.prod(view.shape) and not 0 <= first <= last < array.size:
            raise ConversionError(f"{self.path} is damaged: {name} lies outside of its storage")
        strides = [stride * array.itemsize for stride in view.strides]
        return np.lib.stride_tricks.as_strided(array[view.offset :], view.shape, strides, writeable=False)


_BytesOf = Callable[[str, int], np.ndarray]


def _read_zip(path: Path) -> tuple[Any, _BytesOf]:
    with zipfile.ZipFile(path) as archive:
        pickles = [name for name in archive.namelist() if name.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise ConversionError(f"{path} is a zip archive, but none that torch.save() wrote")
        folder = pickles[0].removesuffix("data.pkl")
        if f"{folder}byteorder" in archive.namelist() and _entry(archive, f"{folder}byteorder", 16) != b"little":
            raise ConversionError(f"{path} was written on a big-endian machine, which probe does not read")
        text = _entry(archive, pickles[0], RATIO * path.stat().st_size)
    found = WeightsUnpickler(io.BytesIO(text), path, _also, _storage).load()

    def bytes_of(key: str, count: int) -> np.ndarray:
        with zipfile.ZipFile(path) as archive:
            info = archive.getinfo(f"{folder}data/{key}")
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                return np.frombuffer(_entry(archive, info.filename, count), np.uint8)
        return _as_stored(path, info, count)

    return found, bytes_of


def _as_stored(path: Path, info: zipfile.ZipInfo, most: int) -> np.ndarray:
    """Return what an entry begins with that is not packed, at a third of the time that zipfile takes."""
    with path.open("rb") as file:
        file.seek(info.header_offset)
        signature, *rest = _LOCAL.unpack(file.read(_LOCAL.size))
        if signature != b"PK\3\4":
            raise Damaged(f"the archive has no {info.filename}")
        file.seek(sum(rest), 1)
        data = read_aligned(file, min(most, info.file_size))
    if data.size == info.file_size and zlib.crc32(data) != info.CRC:
        raise Damaged(f"{info.filename} is not what was written")
    return data


def _entry(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """Return what an entry begins with, however much it would unpack to."""
    with archive.open(name) as file:
        return file.read(most)


def _read_legacy(path: Path) -> tuple[Any, _BytesOf]:
    """Read the format before 1.6: pickles, and behind them each storage's number of elements and its bytes."""
    sizes: dict[str, int] = {}

    def storage(pid: Any) -> _Storage:
        found = _storage(pid)
        sizes[found.key] = found.dtype.itemsize
        return found

    with path.open("rb") as file:
        if _load(file, path) != _MAGIC:
            raise ConversionError(f"{path} is not what torch.save() writes")
        for _ in range(2):  # the protocol's version, facts about the system
            _load(file, path)
        found = WeightsUnpickler(file, path, _also, storage).load()
        places = {}
        for key in _load(file, path):
            numel = int.from_bytes(file.read(8), "little")
            places[str(key)] = file.tell()
            file.seek(numel * sizes.get(str(key), 1), 1)
    return found, lambda key, count: read_range(path, places[key], count)


def _load(file: IO[bytes], path: Path) -> Any:
    return WeightsUnpickler(file, path).load()


def write_tensor(path: Path, array: np.ndarray) -> None:
    """Write one tensor as ``torch.save`` does; of a dtype that has no storage of its own as float32."""
    names = {np.dtype(dtype): name for name, dtype in _STORAGES.items() if "Untyped" not in name}
    array = array if array.dtype in names else array.astype(np.float32)
    strides = [int(np.prod(array.shape[at + 1 :])) for at in range(array.ndim)]
    size, shape, steps = (
        b"".join(b"\x8a\x08" + each.to_bytes(8, "little") for each in numbers)
        for numbers in ([array.size], array.shape, strides)
    )
    kind = names[array.dtype].replace(".", "\n").encode()
    storage = b"(X\x07\0\0\0storagec" + kind + b"\nX\x01\0\0\x000X\x03\0\0\0cpu" + size + b"tQ"
    tensor = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0(" + shape + b"t(" + steps + b"t"
    pickled = tensor + b"\x89ccollections\nOrderedDict\n)RtR."
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (("data.pkl", pickled), ("data/0", array.tobytes()), ("version", b"3\n")):
            archive.writestr(f"archive/{name}", data)
