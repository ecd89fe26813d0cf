"""Tensors in files of any kind, one at a time: ``.npy``, ``.npz``, and what `probe.checkpoints` reads."""

from __future__ import annotations

import functools
import math
import weakref
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from probe.checkpoints.ckpt import CkptFile
from probe.checkpoints.pdparams import PdparamsFile
from probe.checkpoints.safetensors import SafetensorsFile
from probe.checkpoints.stored import BFLOAT16, WeightFile, read_aligned
from probe.checkpoints.torch_pickle import RATIO, TorchFile
from probe.checkpoints.unpickling import ObjectUnpickler
from probe.damage import Damaged, reading, refuse_pointer
from probe.dumps.files import leaves
from probe.errors import ConversionError, FormatError
from probe.numbers.kernel import KINDS
from probe.numbers.statistics import dtype_of, is_float

Load = Callable[[], np.ndarray]
_HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_UNKNOWN = {"|V2": BFLOAT16, "|V1.float8_e4m3fn": dtype_of("float8_e4m3fn")}  # as numpy writes what it does not know
_LARGE = 64 << 20
"""bytes up to which an entry of an archive may be packed as small as it likes"""
_DTYPES = frozenset((*KINDS, "complex64", "complex128", "float8_e4m3fn", "float8_e5m2"))


def tensors_in(path: Path) -> Iterator[tuple[str, Load]]:
    """Yield the tensors of a file by name, in its order; the name is empty in a file of one. Raises FormatError, ConversionError."""
    refuse_pointer(path)
    if path.suffix == ".npy" and not is_of_objects(path):
        yield "", functools.partial(_npy, path)
    elif path.suffix == ".npz":
        with reading(path), zipfile.ZipFile(path) as archive:
            names = archive.namelist()
        for name in names:
            yield name.removesuffix(".npy"), functools.partial(_npz, path, name)
    else:
        with reading(path):
            opened = _READERS[path.suffix](path) if path.suffix != ".npy" else PdparamsFile(path, _objects)
        for name in opened.tensors:
            yield name, functools.partial(_stored, path, opened, name)


def _named(found: Any, path: Path, kind: type) -> Mapping[str, Any]:
    """Return the tensors of what torch.save() wrote, by name: one tensor, or those in lists and dicts."""
    if isinstance(found, kind):
        return {"": found}
    named = dict(leaves(found, lambda each: isinstance(each, kind)))
    if not named and not (isinstance(found, dict) and {*found} == {"value", "meta"}):  # SGLang's is any object
        raise ConversionError(f"{path} holds a {type(found).__name__} without tensors")
    return named


def _objects(file: IO[bytes], path: Path) -> dict[str, np.ndarray]:
    """Return what ``ReprodLogger.save`` wrote."""
    _header(file)
    return dict(_named(ObjectUnpickler(file, path).load(), path, np.ndarray))


_READERS: dict[str, Callable[[Path], WeightFile]] = {
    ".safetensors": SafetensorsFile, ".pdparams": PdparamsFile, ".ckpt": CkptFile,
    **dict.fromkeys((".pt", ".pth", ".bin"), lambda path: TorchFile(path, _named)),
}  # fmt: skip
SUFFIXES = (".npy", ".npz", *_READERS)
_READ: weakref.WeakSet[WeightFile] = weakref.WeakSet()
"""the file that was read last, which may hold what it read"""


def load(path: Path) -> np.ndarray:
    """Return the only tensor of a file."""
    found = [only for _, only in tensors_in(path)]
    if len(found) != 1:
        raise FormatError(f"{path} holds {len(found)} tensors, expected one")
    return found[0]()


def is_of_objects(path: Path) -> bool:
    """Return True for a ``.npy`` file whose array holds Python objects, as reprod_log writes it."""
    with reading(path), path.open("rb") as file:
        return _header(file)[2].hasobject


def _stored(path: Path, opened: WeightFile, name: str) -> np.ndarray:
    for other in _READ - {opened}:
        other.forget()
    _READ.clear()
    _READ.add(opened)
    with reading(path, name):
        return opened.read(name)


def _npy(path: Path) -> np.ndarray:
    with reading(path), path.open("rb") as file:
        return _array(file, path.stat().st_size, path.stat().st_size, path.name)


def _npz(path: Path, name: str) -> np.ndarray:
    with reading(path, name), zipfile.ZipFile(path) as archive, archive.open(name) as file:
        return _array(file, archive.getinfo(name).file_size, path.stat().st_size, name)


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    version = np.lib.format.read_magic(file)
    if version not in _HEADERS:
        raise Damaged(f"version {version} of the format is not known")
    shape, is_fortran, dtype = _HEADERS[version](file)
    return shape, is_fortran, dtype


def _array(file: IO[bytes], size: int, on_disk: int, name: str) -> np.ndarray:
    """Read an array of so many bytes, with its header, in a file of so many: the header may claim no more than there is."""
    shape, is_fortran, dtype = _header(file)
    dtype = _UNKNOWN.get(dtype.str + Path(name.removesuffix(".npy")).suffix * (dtype.itemsize == 1), dtype)
    if dtype.hasobject or (dtype.kind not in "biufc" and dtype not in _UNKNOWN.values()):
        raise Damaged(f"it holds {'Python objects' if dtype.hasobject else dtype}, no numbers")
    nbytes = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or nbytes > size or (nbytes > _LARGE and nbytes > RATIO * on_disk):
        raise Damaged(f"an array of shape {shape} has {nbytes} bytes, for which the file has no room")
    data = read_aligned(file, nbytes)
    if data.size != nbytes:
        raise Damaged(f"it ends after {data.size} of {nbytes} bytes")
    found = data.view(dtype).reshape(shape, order="F" if is_fortran else "C")
    return found if dtype.isnative else found.astype(dtype.newbyteorder("="))


def dtype_named(text: str) -> str:
    """Return numpy's, or ml_dtypes', name for a framework's: ``float32`` for ``torch.float32``, ``Float32`` and what is unknown."""
    name = text.rpartition(".")[2].lower()
    return name if name in _DTYPES else "float32"


def as_declared(array: np.ndarray, dtype: str) -> np.ndarray:
    """Return values in the dtype that the tensor had: tools write bfloat16 as float32, or as the bits of unsigned integers."""
    wanted = dtype_of(dtype)
    if array.dtype == wanted or not is_float(wanted):
        return array
    if array.dtype.kind == "u" and array.dtype.itemsize == wanted.itemsize:
        return array.view(wanted)
    with np.errstate(over="ignore", invalid="ignore"):
        narrow = array.astype(wanted)
        return narrow if np.array_equal(narrow.astype(array.dtype), array, equal_nan=True) else array
