"""Compressed values: how a tensor is cut into chunks, the filters over them, and what is looked at before a chunk is unpacked.

The filters are not HDF5's own: hdf5plugin brings them, which is loaded where values are written or read. They believe what a chunk says
of itself, such as how large it becomes, so a reader looks at that first.
"""

from __future__ import annotations

import functools
import itertools
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import h5py
import numpy as np
from h5py import h5p, h5s, h5z

from probe.config import Compression
from probe.damage import Damaged
from probe.store.reading.layout import RATIO, Filters, filters_of

_BITSHUFFLE, _ZSTD = 32008, 32015
"""filters, as the HDF Group has registered them"""
_LZ4 = 2
"""of bitshuffle's settings: what it does to the bits that it has sorted"""
_LEVEL = 1
"""of zstd; higher ones find little more in trained numbers"""
_CHUNK = 1 << 20
"""bytes of a chunk, at most"""
_LEAST = 1 << 16
"""bytes of a tensor that is worth it: HDF5 keeps 2 KiB about its chunks, and they begin at the border of a page"""
_ALWAYS = 64 << 20
"""bytes of a tensor that a file of any size may announce"""
_BLOCK = 8192
"""bytes that bitshuffle packs together"""
_EIGHT = 8
"""elements that it sorts together; what is left of a chunk it leaves as it is"""
_LARGEST_ELEMENT = 64
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_LACKING = "pip install 'probe-align[compression]'"
_OLDEST = 7
"""hdf5plugin whose zstd says so where it fails"""

FILTERS = Filters(
    frozenset({(), (_BITSHUFFLE,), (h5z.FILTER_SHUFFLE, _ZSTD)}), "bitshuffle alone and shuffle with zstd"
)
"""of tensors"""


def missing() -> str:
    """Load the filters; return what is to be installed where they are not there."""
    try:
        import hdf5plugin
    except ImportError as error:
        return f"{_LACKING} ({error})"
    is_old = int(hdf5plugin.version.partition(".")[0]) < _OLDEST
    return f"{_LACKING} (hdf5plugin {hdf5plugin.version} is older than {_OLDEST})" if is_old else ""


# Chunks


def chunk_of(shape: Sequence[int], itemsize: int) -> tuple[int, ...]:
    """Return the shape of a chunk: a run of elements in C order, of 1 MiB at most and all about as long."""
    chunk, left = [], max(_CHUNK // itemsize, 1)
    for size in reversed(shape):
        take = -(-size // -(-size // left))
        chunk.append(take)
        left = left // size if take == size else 1
    return tuple(reversed(chunk))


def _places(shape: Sequence[int], chunk: Sequence[int], box: Sequence[slice]) -> Iterator[tuple[int, ...]]:
    """Yield where the chunks begin that a box has a part of, in C order."""
    return itertools.product(
        *(
            range(part.start - part.start % step, min(part.stop, size), step)
            for size, step, part in zip(shape, chunk, box, strict=True)
        )
    )


def runs(shape: Sequence[int], chunk: Sequence[int]) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield where each chunk of a tensor begins, and how much of it the tensor fills; they follow each other in C order."""
    for start in _places(shape, chunk, [slice(0, size) for size in shape]):
        yield start, tuple(min(step, size - at) for step, size, at in zip(chunk, shape, start, strict=True))


# Writing


def is_worth_it(nbytes: int, file_size: int) -> bool:
    """Return True if a tensor is compressed; not where a reader would take it for one that the file has no room for."""
    return _LEAST <= nbytes <= max(_ALWAYS, RATIO // 2 * file_size)


@functools.lru_cache(maxsize=512)
def properties(how: Compression, shape: tuple[int, ...], itemsize: int) -> h5p.PropDCID:
    """Return the properties of a compressed dataset.

    Where values are single bytes there is nothing for zstd's shuffle to sort, and it is the shuffle that notices where zstd has failed.
    """
    layout = h5p.create(h5p.DATASET_CREATE)
    layout.set_chunk(chunk_of(shape, itemsize))
    if how is Compression.ZSTD and itemsize > 1:
        layout.set_shuffle()
        layout.set_filter(_ZSTD, h5z.FLAG_MANDATORY, (_LEVEL,))
    else:
        layout.set_filter(_BITSHUFFLE, h5z.FLAG_MANDATORY, (0, _LZ4))
    layout.set_obj_track_times(False)
    return layout


@functools.cache
def unbuffered() -> h5p.PropDAID:
    """Return properties by which a chunk is written as soon as it is whole, not when the dataset is closed."""
    access = h5p.create(h5p.DATASET_ACCESS)
    access.set_chunk_cache(1, 0, 1.0)
    return access


# Reading


def check(found: h5py.Dataset, file_size: int) -> None:
    """Raise Damaged where a dataset in chunks is none that a writer makes, or is absurdly large."""
    how, itemsize = found.id.get_create_plist(), found.dtype.itemsize
    settings = _SETTINGS.get(filters_of(how))
    if settings is None or not settings(how, itemsize):
        raise Damaged(f"{found.name} stands in chunks without filters, or these have other settings than they should")
    if found.chunks != chunk_of(found.shape, itemsize):
        raise Damaged(f"{found.name} has chunks of {found.chunks}, expected {chunk_of(found.shape, itemsize)}")
    if found.nbytes > max(_ALWAYS, RATIO * file_size):
        raise Damaged(f"{found.name} unpacks to {found.nbytes} bytes, for which a file of {file_size} has no room")


def read(found: h5py.Dataset, box: Sequence[slice]) -> np.ndarray:
    """Return a part of a compressed tensor. Raises Damaged, and whatever HDF5 does."""
    _look_at(found, _places(found.shape, found.chunks, box))
    return found[tuple(box)]


def read_run(found: h5py.Dataset, start: tuple[int, ...], count: tuple[int, ...]) -> np.ndarray:
    """Return the elements of one chunk, flat. Raises Damaged, and whatever HDF5 does."""
    _look_at(found, [start])
    where = found.id.get_space()
    where.select_hyperslab(start, count)
    run = np.empty(math.prod(count), found.dtype)
    found.id.read(h5s.create_simple(count), where, run, found.id.get_type())
    return run


def _look_at(found: h5py.Dataset, places: Iterable[tuple[int, ...]]) -> None:
    """Raise Damaged where a chunk that begins at a place does not unpack to what it should hold."""
    itemsize = found.dtype.itemsize
    nbytes = math.prod(found.chunks) * itemsize
    fits = _FITS[filters_of(found.id.get_create_plist())]
    buffer = np.empty(nbytes + nbytes // 64 + 4096, np.uint8)  # more than a filter makes of what cannot be compressed
    for start in places:
        mask, data = found.id.read_direct_chunk(start, out=buffer)
        if mask or not fits(data, nbytes, itemsize):
            raise Damaged(
                f"the chunk of {found.name} at {start} does not unpack to the {nbytes} bytes that it should hold"
            )


def _is_bitshuffle(how: h5p.PropDCID, itemsize: int) -> bool:
    """Return True if the settings are the version (two numbers), the size of an element, the usual blocks, and LZ4."""
    is_even = itemsize <= _LARGEST_ELEMENT and not _BLOCK % itemsize
    return is_even and how.get_filter(0)[2][2:] == (itemsize, 0, _LZ4)


def _is_zstd(how: h5p.PropDCID, itemsize: int) -> bool:
    return itemsize > 1 and how.get_filter(0)[2] == (itemsize,)


def _fits_bitshuffle(data: Any, nbytes: int, itemsize: int) -> bool:
    """Return True if blocks follow each other to the very end: the filter goes from one to the next without looking where it ends."""
    size, block = struct.unpack_from(">QI", data)
    if size != nbytes or block != _BLOCK:
        return False
    elements, in_block = nbytes // itemsize, _BLOCK // itemsize
    place = 12
    for _ in range(elements // in_block + (elements % in_block >= _EIGHT)):
        place += 4 + struct.unpack_from(">I", data, place)[0]
    return place + elements % _EIGHT * itemsize == len(data)


def _fits_zstd(data: Any, nbytes: int, itemsize: int) -> bool:
    """Return True if a frame says that it unpacks to so many bytes: the filter makes room for what it says (RFC 8878)."""
    if bytes(data[:4]) != _ZSTD_MAGIC:
        return False
    descriptor = int(data[4])
    is_one_segment = descriptor >> 5 & 1
    width = (is_one_segment, 2, 4, 8)[descriptor >> 6]
    begin = 6 - is_one_segment + (0, 1, 2, 4)[descriptor & 3]
    size = int.from_bytes(bytes(data[begin : begin + width]), "little") + (256 if width == 2 else 0)
    return width > 0 and size == nbytes


_SETTINGS = {(_BITSHUFFLE,): _is_bitshuffle, (h5z.FILTER_SHUFFLE, _ZSTD): _is_zstd}
_FITS = {(_BITSHUFFLE,): _fits_bitshuffle, (h5z.FILTER_SHUFFLE, _ZSTD): _fits_zstd}
