"""safetensors: a JSON header, then the bytes of every tensor. Read and written tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from probe.checkpoints.stored import BFLOAT16, Stored, WeightFile, as_announced, blocks, read_range
from probe.errors import ConversionError

_DTYPES = {
    "BOOL": np.dtype(bool), "U8": np.dtype("u1"), "I8": np.dtype("i1"), "U16": np.dtype("<u2"),
    "I16": np.dtype("<i2"), "U32": np.dtype("<u4"), "I32": np.dtype("<i4"), "U64": np.dtype("<u8"),
    "I64": np.dtype("<i8"), "F16": np.dtype("<f2"), "BF16": BFLOAT16, "F32": np.dtype("<f4"), "F64": np.dtype("<f8"),
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn), "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2), "C64": np.dtype("<c8"),
}  # fmt: skip
NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_HEADER_LIMIT = 100_000_000
_FORMATS = {"torch": "pt", "paddle": "np", "mindspore": "ms"}
_FRAMEWORKS = {"pt": "torch", "pd": "paddle", "ms": "mindspore"}


class SafetensorsFile(WeightFile):
    """A file of the format, its header read."""

    def __init__(self, path: Path) -> None:
        self.path = path
        header, self._start = _header(path)
        metadata = header.pop("__metadata__", None) or {}
        self.framework = _FRAMEWORKS.get(str(metadata.get("format", "")), "")
        self._offsets: dict[str, int] = {}
        self.tensors = {}
        size = path.stat().st_size - self._start
        for name, entry in header.items():
            self.tensors[name], self._offsets[name] = _entry(path, name, entry, size)

    def read(self, name: str) -> np.ndarray:
        stored = self.tensors[name]
        data = read_range(self.path, self._start + self._offsets[name], stored.nbytes)
        return data.view(stored.dtype).reshape(stored.shape)


def write(path: Path, tensors: Sequence[Stored], arrays: Iterable[np.ndarray], framework: str) -> None:
    """Write a file; the arrays are asked for one after the other."""
    header: dict[str, Any] = {"__metadata__": {"format": _FORMATS[framework]}}
    offset = 0
    for stored in tensors:
        if stored.dtype not in NAMES:
            raise ConversionError(f"{stored.name} is {stored.dtype}, which safetensors files cannot hold: give --dtype")
        header[stored.name] = {
            "dtype": NAMES[stored.dtype], "shape": list(stored.shape), "data_offsets": [offset, offset + stored.nbytes],
        }  # fmt: skip
        offset += stored.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for _, array in as_announced(tensors, arrays):
            file.writelines(blocks(array))


def _header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        text = file.read(length) if length <= _HEADER_LIMIT else b""
    try:
        header = json.loads(text)
    except ValueError:
        header = None
    if not isinstance(header, dict) or len(text) != length:
        raise ConversionError(f"{path} is no safetensors file, or it is damaged: its header cannot be read")
    return header, 8 + length


def _entry(path: Path, name: str, entry: Any, size: int) -> tuple[Stored, int]:
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(map(int, entry["shape"])), entry["data_offsets"]
    except (TypeError, KeyError, ValueError):
        raise ConversionError(f"{path} is damaged: the header's entry of {name} cannot be read") from None
    if dtype not in _DTYPES:
        raise ConversionError(f"{path}: {name} is {dtype}, which probe does not know")
    stored = Stored(name, _DTYPES[dtype], shape)
    if not 0 <= start <= stop <= size or stop - start != stored.nbytes:
        raise ConversionError(f"{path} is damaged: {name} should have {stored.nbytes} bytes, it has {stop - start}")
    return stored, start
