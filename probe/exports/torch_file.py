"""A tensor as ``torch.save`` writes it, without torch."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import numpy as np

_STORAGES = {
    "float64": "Double", "float32": "Float", "float16": "Half", "bfloat16": "BFloat16", "int64": "Long", "int32": "Int",
    "int16": "Short", "int8": "Char", "uint8": "Byte", "bool": "Bool", "complex64": "ComplexFloat", "complex128": "ComplexDouble",
}  # fmt: skip
"""by dtype; what is not here becomes float32"""


def write_tensor(path: Path, array: np.ndarray) -> None:
    """Write a file that ``torch.load(path, weights_only=True)`` reads."""
    array = array if array.dtype.name in _STORAGES else array.astype(np.float32)
    strides = [int(np.prod(array.shape[at + 1 :])) for at in range(array.ndim)]
    kind = f"ctorch\n{_STORAGES[array.dtype.name]}Storage\n".encode()
    storage = b"(" + _text("storage") + kind + _text("0") + _text("cpu") + _number(array.size) + b"tQ" + _number(0)
    sizes = b"".join(b"(" + b"".join(map(_number, each)) + b"t" for each in (array.shape, strides))
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + sizes + b"\x89ccollections\nOrderedDict\n)RtR"
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in (("data.pkl", b"\x80\x02" + tensor + b"."), ("data/0", array.tobytes()), ("version", b"3\n")):
            archive.writestr(f"archive/{name}", data)


def _number(value: int) -> bytes:
    return b"\x8a\x08" + struct.pack("<q", value)


def _text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value)) + value.encode()
