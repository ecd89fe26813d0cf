"""MindSpore's ``.ckpt``: protobuf messages, one or more per parameter. mindspore is not needed.

    Checkpoint  { repeated Value value = 1 }
    Value       { string tag = 1; TensorProto tensor = 2 }
    TensorProto { repeated int64 dims = 1; string tensor_type = 2; bytes tensor_content = 3 }

Large parameters lie in several values with the same tag, one behind the other.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

import numpy as np

from probe.checkpoints.stored import BFLOAT16, Stored, WeightFile, as_announced, blocks, read_range
from probe.errors import ConversionError

_DTYPES = {
    "Bool": np.dtype(bool), "Int8": np.dtype("i1"), "UInt8": np.dtype("u1"), "Int16": np.dtype("<i2"),
    "UInt16": np.dtype("<u2"), "Int32": np.dtype("<i4"), "UInt32": np.dtype("<u4"), "Int64": np.dtype("<i8"),
    "UInt64": np.dtype("<u8"), "Float16": np.dtype("<f2"), "Float32": np.dtype("<f4"), "Float64": np.dtype("<f8"),
    "BFloat16": BFLOAT16,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_SLICE = 64 << 20
_CHECKSUM = b"crc_num"
_CHECKSUM_SIZE = 17
_VARINT, _BYTES = 0, 2


class CkptFile(WeightFile):
    """A file of the format, its messages walked through."""

    framework = "mindspore"

    def __init__(self, path: Path) -> None:
        self.path = path
        self._places: dict[str, list[tuple[int, int]]] = {}
        self.tensors = {}
        try:
            with path.open("rb") as file:
                self._walk(file, _end(file))
        except (EOFError, UnicodeDecodeError):
            raise ConversionError(f"{path} is no MindSpore checkpoint, or it is damaged or encrypted") from None
        for name, stored in self.tensors.items():
            found = sum(size for _, size in self._places[name])
            if found != stored.nbytes:
                raise ConversionError(f"{path} is damaged: {name} should have {stored.nbytes} bytes, it has {found}")

    def read(self, name: str) -> np.ndarray:
        stored = self.tensors[name]
        parts = [read_range(self.path, start, size) for start, size in self._places[name]]
        data = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return data.view(stored.dtype).reshape(stored.shape)

    def _walk(self, file: IO[bytes], end: int) -> None:
        for number, size in _fields(file, end):
            if number != 1:
                raise EOFError(f"field {number}")
            stop = file.tell() + size
            tag, tensor = "", (0, 0)
            for inner, length in _fields(file, stop):
                if inner == 1:
                    tag = file.read(length).decode()
                elif inner == 2:
                    tensor = file.tell(), length
                    file.seek(length, os.SEEK_CUR)
                else:
                    raise ConversionError(f"{self.path}: {tag} is a map parameter, which probe does not convert")
            file.seek(tensor[0])
            self._add(file, tag, sum(tensor))
            file.seek(stop)

    def _add(self, file: IO[bytes], tag: str, stop: int) -> None:
        dims: list[int] = []
        kind = ""
        place = (0, 0)
        for number, size in _fields(file, stop):
            if number == 1:
                dims.append(size)
            elif number == 2:
                kind = file.read(size).decode()
            else:
                place = file.tell(), size
                file.seek(size, os.SEEK_CUR)
        if kind == "str":
            return  # a remark of the training loop, no weight
        if kind not in _DTYPES:
            raise ConversionError(f"{self.path}: {tag} is {kind or 'of no type'}, which probe does not know")
        shape = () if dims == [0] and place[1] else tuple(dims)
        self.tensors.setdefault(tag, Stored(tag, _DTYPES[kind], shape))
        self._places.setdefault(tag, []).append(place)


def write(path: Path, tensors: Sequence[Stored], arrays: Iterable[np.ndarray], framework: str) -> None:
    """Write a file that ``mindspore.load_checkpoint`` reads; the arrays are asked for one after the other."""
    for stored in tensors:
        if stored.dtype not in _NAMES:
            raise ConversionError(f"{stored.name} is {stored.dtype}, which .ckpt files cannot hold: give --dtype")
    with path.open("wb") as file:
        for stored, array in as_announced(tensors, arrays):
            for part in blocks(array, _SLICE) if array.size else [memoryview(b"")]:
                file.write(_head(stored, len(part)))
                file.write(part)


def _head(stored: Stored, size: int) -> bytes:
    """Return what stands before some bytes of a tensor."""
    kind, tag = _NAMES[stored.dtype].encode(), stored.name.encode()
    dims = b"".join(b"\x08" + _varint(length) for length in stored.shape)
    tensor = dims + b"\x12" + _varint(len(kind)) + kind + b"\x1a" + _varint(size)
    value = b"\x0a" + _varint(len(tag)) + tag + b"\x12" + _varint(len(tensor) + size) + tensor
    return b"\x0a" + _varint(len(value) + size) + value


def _end(file: IO[bytes]) -> int:
    """Return where the messages end: before the checksum, where there is one."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _CHECKSUM_SIZE))
    has_checksum = size >= _CHECKSUM_SIZE and file.read(len(_CHECKSUM)) == _CHECKSUM
    file.seek(0)
    return size - _CHECKSUM_SIZE if has_checksum else size


def _fields(file: IO[bytes], end: int) -> Iterator[tuple[int, int]]:
    """Yield (number, value) of integer fields and (number, length) of those with bytes, which are then next."""
    while file.tell() < end:
        number, kind = divmod(_read_varint(file), 8)
        value = _read_varint(file)
        if kind not in (_VARINT, _BYTES) or (kind == _BYTES and file.tell() + value > end):
            raise EOFError(f"field {number}")
        yield number, value


def _read_varint(file: IO[bytes]) -> int:
    value = shift = 0
    while shift < 70:
        byte = file.read(1)
        if not byte:
            raise EOFError("in a number")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
    raise EOFError("in a number")


def _varint(value: int) -> bytes:
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)
