"""What ``paddle.save(state_dict)`` writes: a pickle of numpy arrays, bfloat16 as its bits. paddle is not needed."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from probe.checkpoints.stored import BFLOAT16, Stored, WeightFile, as_announced, blocks
from probe.checkpoints.unpickling import WeightsUnpickler, state_dict_in
from probe.damage import Damaged
from probe.errors import ConversionError

_NAME_TABLE = "StructuredToParameterName@@"
_PARTS = "UnpackBigParamInfor@@"


class PdparamsFile(WeightFile):
    """A file of the format; it is read whole when a tensor is asked for, and kept until `forget` is called.

    ``arrays_in`` returns the arrays by name of an open file, given that and the path.
    """

    framework = "paddle"

    def __init__(self, path: Path, arrays_in: Callable[[IO[bytes], Path], dict[str, np.ndarray]] | None = None) -> None:
        self.path, self._arrays_in = path, arrays_in or _arrays_in
        self._arrays: dict[str, np.ndarray] | None = None
        self.tensors = {name: Stored(name, a.dtype, a.shape) for name, a in self._all().items()}
        self.forget()

    def read(self, name: str) -> np.ndarray:
        return self._all()[name]

    def forget(self) -> None:
        self._arrays = None

    def _all(self) -> dict[str, np.ndarray]:
        if self._arrays is None:
            with self.path.open("rb") as file:
                self._arrays = self._arrays_in(file, self.path)
        return self._arrays


def _arrays_in(file: IO[bytes], path: Path) -> dict[str, np.ndarray]:
    arrays = _plain(WeightsUnpickler(file, path).load(), path)
    size = path.stat().st_size
    large = next((name for name, value in arrays.items() if value.nbytes > size), None)
    if large is not None:
        raise Damaged(f"{large} has {arrays[large].nbytes} bytes, for which the file has no room")
    objects = [name for name, value in arrays.items() if value.dtype.kind not in "biufc"]
    if objects:
        raise ConversionError(f"{path}: {objects[0]} is an array of {arrays[objects[0]].dtype}, not of numbers")
    return {name: _array(value) for name, value in arrays.items()}


def write(path: Path, tensors: Sequence[Stored], arrays: Iterable[np.ndarray], framework: str) -> None:
    """Write a file that ``paddle.load`` reads; the arrays are asked for one after the other."""
    for stored in tensors:
        if stored.dtype.kind not in "biufc" and stored.dtype != BFLOAT16:
            raise ConversionError(f"{stored.name} is {stored.dtype}, which .pdparams files cannot hold: give --dtype")
    with path.open("wb") as file:
        _Pickler(file, protocol=4).dump(_Items(as_announced(tensors, arrays)))


def _plain(found: Any, path: Path) -> dict[str, Any]:
    if isinstance(found, dict):
        found.pop(_NAME_TABLE, None)
        for name, info in found.pop(_PARTS, {}).items():  # arrays beyond 4 GiB under old protocols
            parts = [found.pop(part) for part in info["slices"]]
            found[name] = np.concatenate(parts).reshape(info["OriginShape"])
        found = {name: value[1] if _is_named(value) else value for name, value in found.items()}
    return dict(state_dict_in(found, path, np.ndarray))


def _is_named(value: Any) -> bool:
    """Return True if a value is a tensor with its name in paddle: how it pickles them outside of a state_dict."""
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], np.ndarray)


def _array(value: np.ndarray) -> np.ndarray:
    return value.view(BFLOAT16) if value.dtype == np.uint16 else value


class _Items:
    """A dict whose values come one after the other."""

    def __init__(self, pairs: Iterator[tuple[Stored, np.ndarray]]) -> None:
        self.pairs = pairs


class _Pickler(pickle._Pickler):
    """Writes `_Items` as a dict, and arrays so that numpy 1 and 2 can read them."""

    dispatch = dict(pickle._Pickler.dispatch)

    def _save_items(self, items: _Items) -> None:
        self.write(pickle.EMPTY_DICT)
        for stored, array in items.pairs:
            self.save(stored.name)
            self._save_array(array.view(np.uint16) if array.dtype == BFLOAT16 else array)
            self.write(pickle.SETITEM)

    def _save_array(self, array: np.ndarray) -> None:
        self._save_global("numpy.core.multiarray", "_reconstruct")
        self._save_global("numpy", "ndarray")
        self.save((0,))
        self.save(b"b")
        self.write(pickle.TUPLE3 + pickle.REDUCE + pickle.MARK)
        self.save(1)
        self.save(array.shape)
        self._save_global("numpy", "dtype")
        self.save((array.dtype.str.lstrip("<|=>"), False, True))
        self.write(pickle.REDUCE)
        self.save((3, "|" if array.dtype.itemsize == 1 else "<", None, None, None, -1, -1, 0))
        self.write(pickle.BUILD)
        self.save(False)
        self.framer.write_large_bytes(pickle.BINBYTES8 + array.nbytes.to_bytes(8, "little"), b"")
        for part in blocks(array):
            self.framer.file_write(part)
        self.write(pickle.TUPLE + pickle.BUILD)

    def _save_global(self, module: str, name: str) -> None:
        self.write(pickle.GLOBAL + f"{module}\n{name}\n".encode())

    dispatch[_Items] = _save_items
