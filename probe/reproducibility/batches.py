"""`save_batches`, `load_batches`, `compare_batches`: one side's data on the other side, and whether it is the same.

The file is a zip archive (`numpy.load` opens it too): ``<batch>/<number>.npy`` for every tensor, uncompressed, and
``<batch>/batch.json`` for what they stand in. The last entry counts the batches: a file without it is not complete.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import math
import os
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import ml_dtypes
import numpy as np
import xxhash

from probe import origins
from probe.adapters.base import Adapter, adapters_in_use
from probe.damage import CAUSES, Damaged, closed, parsed
from probe.errors import ConfigError, ExistsError, FormatError, StoreError
from probe.numbers.statistics import dtype_of
from probe.reproducibility.inputs import tensor_maker

FORMAT, VERSION = "probe batches", 1
_DEPTH = 17
_PLAIN = (str, int, float, bool, type(None))
_KINDS = "biufcUS"
"""kinds of dtypes that are written, besides those of ml_dtypes"""
_PIECE = 1 << 20
_DIGITS = 4000
"""of a whole number in a batch; Python writes and reads no more"""
_ZIP = b"PK\x03\x04"
_DATE = (1980, 1, 1, 0, 0, 0)

Make = Callable[[np.ndarray], Any]


def save_batches(batches: Iterable[Any], path: str | os.PathLike[str], count: int | None = None) -> int:
    """Write what a DataLoader gives to a new file, one batch at a time.

    Parameters
    ----------
    batches
        nested mappings, lists, tuples and dataclasses of tensors, arrays, numbers and text
    path
        the file to create
    count
        how many batches at most; default all

    Returns
    -------
    int
        how many were written

    Raises
    ------
    ConfigError
        there is no batch, or one holds something that cannot be written
    ExistsError, StoreError
        the file is already there, or cannot be written
    """
    check_count("save_batches", count)
    path = Path(path)
    try:
        raw = open(path, "xb")
    except FileExistsError:
        raise ExistsError(f"{path} exists already; probe never overwrites: delete it or give another name") from None
    except OSError as error:
        raise StoreError(f"{path} cannot be created: {error.strerror}") from None
    try:
        with raw, zipfile.ZipFile(raw, "w", zipfile.ZIP_STORED) as archive:
            return _Saver(archive).save(itertools.islice(batches, count))
    except BaseException as error:
        path.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and not isinstance(error, StoreError):
            raise StoreError(f"{path} cannot be written: {error.strerror}") from None
        raise


def load_batches(path: str | os.PathLike[str], like: Any = None) -> Batches:
    """Open batches that `save_batches` wrote, to go over as often as one likes.

    Parameters
    ----------
    path
        the file
    like
        a model or a framework's name, whose tensors take the place of those that were saved, on the model's device;
        without it, numpy arrays

    Raises
    ------
    StoreError, FormatError
        there is no such file, or it is none, damaged or not complete
    """
    return Batches(path, None if like is None else tensor_maker(like))


class Batches:
    """The batches of a file, read one at a time, in their order."""

    def __init__(self, path: str | os.PathLike[str], make: Make | None = None) -> None:
        self.path = Path(path)
        self._make = make
        if not self.path.is_file():
            raise StoreError(f"there is no file {self.path}")
        self._opened_by, self._is_closed = -1, False
        names = set(self._opened().namelist())
        if "begin.json" not in names or "end.json" not in names:
            what = "is not complete" if "begin.json" in names else "does not hold batches that probe.save_batches wrote"
            raise FormatError(f"{self.path} {what}")
        with self._reading():
            self._check_version(self._json("begin.json"))
            end = self._json("end.json")
            self._count, self.digest = int(end["batches"]), str(end["digest"])
            if not 0 <= self._count <= len(names):
                raise Damaged(f"it counts {self._count} batches")
        origins.note_input(f"load_batches, digest {self.digest}, {self._count} batch{'' if self._count == 1 else 'es'}")

    def _check_version(self, begin: dict[str, Any]) -> None:
        if begin.get("format") != FORMAT:
            raise FormatError(f"{self.path} does not hold batches that probe.save_batches wrote")
        if begin["version"] > VERSION:
            raise FormatError(
                f"{self.path} has format {begin['version']}, this probe reads up to {VERSION}: upgrade probe-align"
            )

    def _opened(self) -> zipfile.ZipFile:
        """Return the archive; a forked process opens its own: two that move one place in a file read nonsense."""
        if self._is_closed:
            raise closed(self.path, "probe.load_batches")
        if self._opened_by != os.getpid():
            with self._reading():
                self._archive = zipfile.ZipFile(self.path)
            self._opened_by = os.getpid()
        return self._archive

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Any]:
        return (self[number] for number in range(self._count))

    def __getitem__(self, number: int) -> Any:
        if not -self._count <= number < self._count:
            raise IndexError(f"{self.path.name} has {self._count} batches, there is no {number}")
        folder = number % self._count
        with self._reading():
            node = self._json(f"{folder}/batch.json")
            arrays = [self._stored(folder, number, *each) for number, each in enumerate(_tensors_in(node))]
        return self._value(node, iter(arrays))

    def close(self) -> None:
        """Close the file."""
        self._is_closed = True
        self._archive.close()

    def _value(self, node: Any, arrays: Iterator[np.ndarray]) -> Any:
        """Return what a node that was looked at stands for, given its arrays in their order."""
        if not isinstance(node, dict):
            return node
        ((kind, value),) = node.items()
        if kind == "mapping":
            return {key: self._value(inner, arrays) for key, inner in value}
        if kind in ("list", "tuple"):
            items = [self._value(inner, arrays) for inner in value]
            return items if kind == "list" else tuple(items)
        array = next(arrays)
        if kind == "scalar":
            return array[()]
        return self._make(array) if kind == "tensor" and self._make is not None else array

    def _json(self, name: str) -> Any:
        archive = self._opened()
        self._check_entry(archive.getinfo(name))
        return parsed(archive.read(name), _DIGITS)

    def _stored(self, folder: int, number: int, kind: str, facts: Any) -> np.ndarray:
        """Return the array of a node, the so many-th of its batch."""
        entry, dtype, shape = facts["entry"], dtype_of(facts["dtype"]), tuple(facts["shape"])
        if entry != number or not all(type(size) is int and size >= 0 for size in shape):
            raise Damaged(f"array {entry} of shape {shape} is not what the file should have there")
        if dtype.kind not in _KINDS and not hasattr(ml_dtypes, dtype.name):
            raise Damaged(f"array {entry} is of {dtype}")
        if kind == "scalar" and shape:
            raise Damaged(f"array {entry} should be a scalar")
        return self._array(f"{folder}/{entry}.npy", dtype, shape)

    def _check_entry(self, entry: zipfile.ZipInfo) -> None:
        """Raise Damaged where an entry would unpack to more than the file has."""
        if entry.compress_type != zipfile.ZIP_STORED or entry.file_size > self.path.stat().st_size:
            raise Damaged(f"{entry.filename} is compressed, or larger than the file: save_batches writes it as it is")

    def _array(self, name: str, dtype: np.dtype, shape: tuple[int, ...]) -> np.ndarray:
        """Read an array into its own memory; its bytes are checked when the last of them is read."""
        archive = self._opened()
        info = archive.getinfo(name)
        self._check_entry(info)
        head = info.file_size - math.prod(shape) * dtype.itemsize
        if head < 0:
            raise EOFError(name)
        array = np.empty(shape, dtype)
        left = memoryview(array.reshape(-1).view(np.uint8)) if array.nbytes else memoryview(b"")
        with archive.open(name) as entry:
            if len(entry.read(head)) < head:
                raise EOFError(name)
            while left:
                got = entry.readinto(left[:_PIECE])
                if not got:
                    raise EOFError(name)
                left = left[got:]
        if dtype.kind == "U" and array.size and array.reshape(-1).view(np.uint32).max() > sys.maxunicode:
            raise Damaged(f"{name} holds text that is none")
        return array

    @contextlib.contextmanager
    def _reading(self) -> Iterator[None]:
        """Turn whatever damaged bytes lead to into a FormatError."""
        try:
            yield
        except FormatError:
            raise
        except PermissionError as error:
            raise StoreError(f"{self.path} may not be read: {error.strerror}") from None
        except zipfile.BadZipFile as error:
            kind = (
                "is damaged, or is not complete" if _begins_as_zip(self.path) else "is no file that save_batches wrote"
            )
            raise FormatError(f"{self.path} {kind}: {error}") from None
        except (Damaged, *CAUSES) as error:
            raise FormatError(f"{self.path} is damaged, or is not complete: {error}") from None


def _tensors_in(node: Any) -> Iterator[tuple[str, Any]]:
    """Yield kind and facts of each array that a batch has, in their order. Raises Damaged where a node is none."""
    if isinstance(node, _PLAIN):
        return
    if not isinstance(node, dict) or len(node) != 1:
        raise Damaged("a batch holds what save_batches does not write")
    ((kind, value),) = node.items()
    if kind in ("tensor", "array", "scalar"):
        yield kind, value
    elif kind in ("list", "tuple") and isinstance(value, list):
        for inner in value:
            yield from _tensors_in(inner)
    elif kind == "mapping" and isinstance(value, list):
        for key, inner in value:
            if not isinstance(key, (str, int)):
                raise Damaged(f"a batch has the key {key!r}")
            yield from _tensors_in(inner)
    else:
        raise Damaged(f"a batch holds a {kind}")


def _begins_as_zip(path: Path) -> bool:
    """Return True if a file begins as an archive does, or is too short to tell."""
    with path.open("rb") as file:
        return _ZIP.startswith(file.read(len(_ZIP)))


class _Saver:
    """Writes batches into an archive."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._adapters = adapters_in_use()
        self._digest = xxhash.xxh3_128()
        self._number = self._entries = 0

    def save(self, batches: Iterable[Any]) -> int:
        """Write all; return how many there were."""
        self._text("begin.json", {"format": FORMAT, "version": VERSION})
        for batch in batches:
            self._adapters = adapters_in_use() if not self._number else self._adapters
            self._entries = 0
            self._text(f"{self._number}/batch.json", self._node(batch, ""))
            self._number += 1
        if not self._number:
            raise ConfigError("save_batches was given no batch")
        self._text("end.json", {"batches": self._number, "digest": self._digest.hexdigest()})
        return self._number

    def _text(self, name: str, value: Any) -> None:
        text = json.dumps(value).encode()
        self._digest.update(text)
        with self._entry(name) as entry:
            entry.write(text)

    def _entry(self, name: str) -> IO[bytes]:
        return self._archive.open(zipfile.ZipInfo(name, _DATE), "w", force_zip64=True)

    def _node(self, value: Any, field: str, depth: int = 0) -> Any:
        """Return what stands for a value in JSON; tensors in it are written."""
        if type(value) in _PLAIN:
            return value
        if depth > _DEPTH:
            raise self._refused(field, "stands in more than 17 containers, or in itself")
        parts = parts_of(value)
        if parts is not None:
            kind, items = parts
            inner = [(key, self._node(item, joined(field, key), depth + 1)) for key, item in items]
            return {kind: inner if kind == "mapping" else [node for _, node in inner]}
        if isinstance(value, (np.ndarray, np.generic)):
            return self._write("array" if isinstance(value, np.ndarray) else "scalar", np.asarray(value), field)
        for adapter in self._adapters:
            if adapter.is_tensor(value):
                return self._write("tensor", adapter.values(value), field)
            words = adapter.unreadable(value)
            if words:
                raise self._refused(field, f"is one of the {words}, which cannot be written")
        kind = f"{type(value).__module__}.{type(value).__qualname__}"
        raise self._refused(field, f"is a {kind}; expected tensors, arrays, numbers, text, and containers of them")

    def _write(self, kind: str, array: np.ndarray, field: str) -> dict[str, Any]:
        native = array.dtype.newbyteorder("=")
        name = native.str if native.kind in "US" else native.name
        if native.kind not in _KINDS and not hasattr(ml_dtypes, name):
            raise self._refused(field, f"is an array of {array.dtype}, which cannot be written")
        plain = np.ascontiguousarray(array, native).reshape(array.shape)
        entry = self._entries
        self._entries += 1
        with self._entry(f"{self._number}/{entry}.npy") as file:
            np.lib.format.write_array(file, plain, allow_pickle=False)
        if plain.size:
            self._digest.update(plain.reshape(-1).view(np.uint8).data)
        return {kind: {"entry": entry, "dtype": name, "shape": list(array.shape)}}

    def _refused(self, field: str, why: str) -> ConfigError:
        return ConfigError(f"save_batches: {field or 'the batch'} of batch {self._number} {why}")


def parts_of(value: Any) -> tuple[str, list[tuple[Any, Any]]] | None:
    """Return the kind of a container and its (name, part); None of what is none.

    Raises
    ------
    ConfigError
        a key is neither text nor a number
    """
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, (str, int)):
                raise ConfigError(f"a batch has the key {key!r}; expected text or a number")
        return "mapping", list(value.items())
    if isinstance(value, (list, tuple)):
        return "list" if isinstance(value, list) else "tuple", list(enumerate(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return "mapping", [(field.name, getattr(value, field.name)) for field in dataclasses.fields(value)]
    return None


def joined(field: str, key: Any) -> str:
    """Return the dotted name of a part."""
    return f"{field}.{key}" if field else str(key)


def array_of(value: Any, adapters: Iterable[Adapter]) -> np.ndarray | None:
    """Return a tensor or array as an array; None of what is neither."""
    if isinstance(value, (np.ndarray, np.generic)):
        return np.asarray(value)
    return next((adapter.values(value) for adapter in adapters if adapter.is_tensor(value)), None)


def check_count(name: str, count: int | None) -> None:
    """Raise ConfigError where a number of batches is none."""
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or count < 1):
        raise ConfigError(f"{name}: count={count!r}; expected a number of batches, from 1")
