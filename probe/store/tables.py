"""Tables that only grow, and the values of tensors."""

from __future__ import annotations

import functools
import math
import operator
import struct
from collections.abc import Iterable
from typing import Any

import h5py
import numpy as np
from h5py import h5a, h5d, h5p, h5s, h5t

from probe.config import Compression
from probe.store import compression, schema
from probe.store.reading.layout import stored_dtype
from probe.store.writing.disk import Disk

_MAX_RANK = 32
"""axes that a dataset can have"""
_TEXT = h5py.string_dtype()
_TEXT_KIND = h5t.py_create(_TEXT, logical=True)
_CODES = {"i1": "b", "u1": "B", "i4": "i", "i8": "q", "u8": "Q", "f8": "d"}


def packer(dtype: np.dtype, packed: str = "", to: str = "") -> struct.Struct:
    """Return what packs one row of a table without text; the columns from ``packed`` to ``to`` come as bytes, packed already."""
    codes, names = [], list(dtype.names or ())
    for name in names:
        column = dtype[name]
        codes.append(f"{column.itemsize}s" if column.kind == "S" else _CODES[f"{column.kind}{column.itemsize}"])
    if packed:
        first, last = names.index(packed), names.index(to)
        size = struct.calcsize("<" + "".join(codes[first : last + 1]))
        codes[first : last + 1] = [f"{size}s"]
    return struct.Struct("<" + "".join(codes))


class Table:
    """A dataset that rows are appended to, through h5py's lower level: its slicing costs ten times as much."""

    def __init__(self, file: h5py.File, name: str) -> None:
        dataset = file[name]
        self.dtype, self._id, self._shape = dataset.dtype, dataset.id, dataset.shape
        self._in_memory = None if dataset.dtype.hasobject else dataset.id.get_type()

    def append_rows(self, rows: list[Any]) -> None:
        """Append rows given as tuples, or text."""
        if rows:
            self.append(np.array(rows, dtype=self.dtype))

    def append(self, rows: np.ndarray) -> None:
        """Append an array of the table's dtype."""
        start = self._shape[0]
        self.extend(len(rows))
        place = self._id.get_space()
        place.select_hyperslab((start, *[0] * (rows.ndim - 1)), rows.shape)
        self._id.write(h5s.create_simple(rows.shape), place, rows, self._in_memory)

    def extend(self, count: int) -> None:
        """Append rows of zeros, of which nothing is written."""
        self._shape = (self._shape[0] + count, *self._shape[1:])
        self._id.set_extent(self._shape)


class Values:
    """The tensors of a file: large ones as datasets, which may be compressed, small ones in the blob."""

    def __init__(self, file: h5py.File, disk: Disk, how: Compression | None = None) -> None:
        self._group, self._disk, self._how = file["tensors"].id, disk, how
        self._index, self._blob = Table(file, "tensor_index"), Table(file, "tensors/blob")
        self._rows: list[bytes] = []
        self._blob_end = 0
        self._pack = packer(schema.TENSOR_INDEX).pack

    def store(self, tensors: Iterable[tuple[int, np.ndarray, str, int]]) -> None:
        """Write tensors, given as (id, values, dtype, index of the shape); `flush` makes them known."""
        small, large, packed, layout = [], [], [], _at_once()
        for tensor, array, dtype, shape in tensors:
            data, offset = storable(array), -1
            if data.nbytes < schema.BLOB_LIMIT or data.ndim > _MAX_RANK:
                offset = self._blob_end
                self._blob_end += data.nbytes
                small.append(data.tobytes())
            elif self._how is not None and compression.is_worth_it(data.nbytes, self._disk.size):
                packed.append((tensor, data, dtype))
            else:
                dataset = create_dataset(self._group, b"%d" % tensor, data, dtype, layout)
                large.append((dataset.get_offset(), memoryview(data.reshape(-1).view(np.uint8))))
            self._rows.append(self._pack(tensor, dtype.encode(), shape, offset, data.nbytes))
        self._disk.write_many(sorted(large, key=operator.itemgetter(0)))
        for each in packed:
            self._pack_values(*each)
        if small:
            self._blob.append(np.frombuffer(b"".join(small), np.uint8))

    def _pack_values(self, tensor: int, data: np.ndarray, dtype: str) -> None:
        """Write a tensor compressed, chunk by chunk; no further one where the disk has failed: what it does not take is held in memory."""
        layout = compression.properties(self._how, data.shape, data.itemsize)
        dataset = create_dataset(self._group, b"%d" % tensor, data, dtype, layout, compression.unbuffered())
        flat, place, kind, begin = data.reshape(-1), dataset.get_space(), dataset.get_type(), 0
        for start, count in compression.runs(data.shape, layout.get_chunk()):
            if self._disk.error is not None:
                break
            part = flat[begin : begin + math.prod(count)]
            place.select_hyperslab(start, count)
            here = h5s.create_simple(count)  # of the same shape as there: HDF5 takes four times as long otherwise
            dataset.write(here, place, part, kind)
            begin += part.size

    def flush(self) -> None:
        """Write down where tensors lie."""
        if self._rows:
            self._index.append(np.frombuffer(b"".join(self._rows), schema.TENSOR_INDEX))
            self._rows = []


def storable(array: np.ndarray) -> np.ndarray:
    """Return an array as HDF5 can hold it: in C order, little-endian, ml_dtypes' numbers as unsigned integers."""
    stored, is_view = stored_dtype(array.dtype)
    if is_view:
        return np.asarray(array, order="C").view(stored)
    return np.asarray(array, stored, order="C")


def create_dataset(
    group: Any, name: bytes, data: np.ndarray, dtype: str, layout: Any, access: Any = None
) -> h5d.DatasetID:
    """Create a dataset for values; where its own type does not say what they are, an attribute does."""
    kind, says_all = _kind(data.dtype, dtype)
    dataset = h5d.create(group, name, kind, h5s.create_simple(data.shape), layout, None, access)
    if not says_all:
        text = np.array(dtype, _TEXT)
        h5a.create(dataset, b"dtype", _TEXT_KIND, h5s.create(h5s.SCALAR)).write(text)
    return dataset


@functools.cache
def _kind(stored: np.dtype, dtype: str) -> tuple[h5t.TypeID, bool]:
    """Return the type of a dataset, and whether it is the dtype of that name."""
    return h5t.py_create(stored, logical=True), stored.name == dtype


@functools.cache
def _at_once() -> h5p.PropDCID:
    """Return properties of a dataset that has its place in the file as soon as it is created."""
    layout = h5p.create(h5p.DATASET_CREATE)
    layout.set_alloc_time(h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5d.FILL_TIME_NEVER)
    layout.set_obj_track_times(False)
    return layout


@functools.cache
def in_header() -> h5p.PropDCID:
    """Return properties of a small dataset whose values stand beside its description."""
    layout = h5p.create(h5p.DATASET_CREATE)
    layout.set_layout(h5d.COMPACT)
    layout.set_obj_track_times(False)
    return layout
