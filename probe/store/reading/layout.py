"""What the bytes of a recording may be: all inside of the file, and nothing larger than the file has room for.

HDF5 can store values in other files, link to them, run filters that it finds on the machine, and announce more rows than
there are bytes. probe writes none of that, and a recording may come from anybody: it is refused before it is read.
"""

from __future__ import annotations

import functools
import math
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from h5py import h5a, h5d, h5g, h5l, h5o, h5s, h5t, h5z

from probe.damage import Damaged
from probe.numbers.sketch import WIDTH
from probe.store import journal, schema
from probe.store.reading import heaps

RATIO = 16
"""a compressed table may be so many times as large as the file; one that is not compressed, as large as the file"""
_LARGEST_CHUNK = 1 << 20
"""bytes of a chunk that a file of any size may have"""
_MOST_ATTRIBUTES = 4096
_LONGEST_EXTRA = 256
"""bytes of a column that this version does not know"""


class Filters(NamedTuple):
    """Filters that may stand over the values of a dataset."""

    pipelines: frozenset[tuple[int, ...]]
    """each in their order"""
    names: str
    """for people"""


_OWN = {
    (*shuffle, *deflate, *checksum)
    for shuffle, deflate in (((), ()), ((), (h5z.FILTER_DEFLATE,)), ((h5z.FILTER_SHUFFLE,), (h5z.FILTER_DEFLATE,)))
    for checksum in ((), (h5z.FILTER_FLETCHER32,))
}
"""HDF5's own, each once"""
_OF_TABLES = Filters(frozenset(_OWN), "shuffle, deflate and fletcher32")
_IN_MEMORY, _IN_FILE = 8, 16
"""bytes of a text in a row: its address, or its length (4 bytes) and place"""
_TEXT = np.dtype([("length", "<u4"), ("place", "<u8"), ("index", "<u4")])
"""of a text, in a row of the file"""
_CHECKSUM = 4
_SIMPLE = (h5t.STRING, h5t.INTEGER, h5t.FLOAT, h5t.ENUM)
_OPTIONAL = {"parameters": ("canonical", "is_persistent"), "modules": ("arguments", "called_from")}
"""columns that older files lack"""
_COLUMNS = {
    **schema.TABLES,
    **dict.fromkeys(("slots", "shapes"), h5py.string_dtype()),
    "sketches": np.dtype("f8"),
    "sums": np.dtype("f4"),
    "tensors/blob": np.dtype("u1"),
}


class Columns(NamedTuple):
    """What the rows of a table are, looked at once for all tables that are stored alike: that takes longer than reading."""

    stored: h5t.TypeID
    dtype: np.dtype
    in_memory: h5t.TypeID
    """for HDF5, in memory"""
    texts: list[int]
    """where those of a row begin in the file"""


_KNOWN: dict[str, Columns] = {}
"""of the last table of a name"""

# Objects


def has(group: h5g.GroupID, name: str) -> bool:
    """Return True if a group has a name, without following it."""
    return group.links.exists(name.encode())


def opened(file: h5py.File, name: str, inside: h5g.GroupID | None = None) -> Any:
    """Return an object of the file, every name on the way to which is a hard link.

    ``inside`` is the group that it lies in, if that was opened before: then the last name alone is followed. Raises
    Damaged where a name is not there, or may lead out of the file.
    """
    at = h5g.open(file.id, b"/") if inside is None else inside
    for part in name.split("/") if inside is None else [name.rpartition("/")[2]]:
        if not isinstance(at, h5g.GroupID) or not has(at, part):
            raise Damaged(f"there is no /{name}")
        if at.links.get_info(part.encode()).type != h5l.TYPE_HARD:
            raise Damaged(f"/{name} is a link that may lead out of the file, and probe follows none")
        at = h5o.open(at, part.encode())
    return at


def dataset(
    file: h5py.File, name: str, inside: h5g.GroupID | None = None, allowed: Filters = _OF_TABLES
) -> h5d.DatasetID:
    """Return a dataset whose values lie in this file, under no filters but those that are allowed.

    The rest is as in `opened`. Raises Damaged where it is none.
    """
    found = opened(file, name, inside)
    if not isinstance(found, h5d.DatasetID):
        raise Damaged(f"/{name} is no dataset")
    how = found.get_create_plist()
    if how.get_layout() not in (h5d.COMPACT, h5d.CONTIGUOUS, h5d.CHUNKED):
        raise Damaged(f"/{name} is a virtual dataset, whose values lie in other files")
    if how.get_external_count():
        raise Damaged(f"the values of /{name} lie in another file")
    if filters_of(how) not in allowed.pipelines:
        raise Damaged(f"/{name} is stored through filters other than {allowed.names}, and probe runs none of them")
    return found


def filters_of(how: Any) -> tuple[int, ...]:
    """Return the filters of a dataset in their order, by its properties."""
    return tuple(how.get_filter(number)[0] for number in range(how.get_nfilters()))


# Tables


def table(file: h5py.File, name: str, path: Path) -> h5d.DatasetID:
    """Return a table whose columns are those of the schema, and for whose rows the file at a path has room.

    Raises Damaged where it is none.
    """
    found, size = dataset(file, name), path.stat().st_size
    columns = columns_of(found, name)
    shape, how = found.shape, found.get_create_plist()
    if how.get_layout() != h5d.CHUNKED or len(shape) == 0 or shape[1:] != ((WIDTH,) if name == "sketches" else ()):
        raise Damaged(f"/{name} has the shape {shape}, or is not stored in chunks")
    row = (found.get_type().get_size() + len(columns.texts) * (_IN_FILE - _IN_MEMORY)) * math.prod(shape[1:])
    stored, filters, chunk = found.get_storage_size(), filters_of(how), how.get_chunk()
    is_compressed = h5z.FILTER_DEFLATE in filters
    # of sketches that are not there nothing is written, however many rows there are
    most = (
        table(file, "records", path).shape[0] * row if name == "sketches" else RATIO * size if is_compressed else stored
    )
    if stored > size or shape[0] * row > most:
        raise Damaged(f"/{name} announces {shape[0]} rows, for which a file of {size} bytes has no room")
    if name != "sketches" and found.get_num_chunks() < -(-shape[0] // chunk[0]):
        raise Damaged(f"/{name} announces {shape[0]} rows, of which some were never written")
    if chunk[1:] != shape[1:] or chunk[0] * row > max(_LARGEST_CHUNK, size):
        raise Damaged(f"/{name} has chunks of {chunk[0] * row} bytes in a file of {size} bytes")
    _check_chunks(found, name, row, columns.texts, path)
    return found


def columns_of(found: h5d.DatasetID, name: str) -> Columns:
    """Return what the rows of a table are.

    Raises Damaged where a column is not that of the schema, or leads elsewhere.
    """
    stored, known = found.get_type(), _KNOWN.get(name)
    if known is None or not stored.equal(known.stored):
        dtype = found.dtype
        _check_columns(dtype, name)
        stored = h5t.py_create(dtype, logical=True)
        known = _KNOWN[name] = Columns(stored, dtype, h5t.py_create(dtype), _texts(dtype))
    return known


def _check_columns(actual: np.dtype, name: str) -> None:
    """Raise Damaged where columns are not those of the schema, or there is one that leads elsewhere."""
    expected = _COLUMNS[name]
    if expected.names is None:
        if actual.names is not None or not _is_alike(actual, expected):
            raise Damaged(f"/{name} holds {actual}, expected {expected}")
        return
    columns = {each: actual[each] for each in actual.names or ()}
    for each in expected.names:
        if each not in columns and each not in _OPTIONAL.get(name, ()):
            raise Damaged(f"/{name} has no column {each}")
    for each, dtype in columns.items():
        is_known = each in expected.names
        if not (_is_alike(dtype, expected[each]) if is_known else _is_harmless(dtype)):
            raise Damaged(
                f"/{name} has a column {each} of {dtype}" + (f", expected {expected[each]}" if is_known else "")
            )


def _is_alike(actual: np.dtype, expected: np.dtype) -> bool:
    if expected.hasobject:
        return actual.hasobject and h5py.check_string_dtype(actual) is not None
    if expected.kind == "S":
        return actual.kind == "S" and 0 < actual.itemsize <= _LONGEST_EXTRA
    return actual == expected and h5py.check_enum_dtype(actual) == h5py.check_enum_dtype(expected)


def _is_harmless(dtype: np.dtype) -> bool:
    return dtype.kind in "biufS" and dtype.itemsize <= _LONGEST_EXTRA


def _texts(dtype: np.dtype) -> list[int]:
    """Return where the texts of a row begin in the file."""
    if dtype.names is None:
        return [0] if dtype.hasobject else []
    places = sorted(dtype.fields[name][1] for name in dtype.names if dtype[name].hasobject)
    return [place + number * (_IN_FILE - _IN_MEMORY) for number, place in enumerate(places)]


def _check_chunks(found: h5d.DatasetID, name: str, row: int, texts: list[int], path: Path) -> None:
    """Raise Damaged where a chunk unpacks to more than it should hold, or texts are none, or longer together than the file."""
    size, heaps_of_texts = path.stat().st_size, set[int]()
    how, rows = found.get_create_plist(), found.shape[0]
    count, total = how.get_chunk()[0], 0
    lengths = np.dtype(
        {"names": [str(at) for at in texts], "formats": [_TEXT] * len(texts), "offsets": texts, "itemsize": row}
    )
    for start, data in _chunks(found, count * row, bool(texts)):
        if len(data) != count * row:
            raise Damaged(f"/{name} has a chunk of {len(data)} bytes, expected {count * row}")
        if texts:
            if h5z.FILTER_SHUFFLE in filters_of(how):  # never left out: it always can be done
                data = np.frombuffer(data, np.uint8).reshape(row, count).T.tobytes()
            held = np.frombuffer(data, lengths)[: rows - start]
            for each in held.dtype.names:
                total += int(held[each]["length"].sum(dtype=np.int64))
                heaps_of_texts.update(held[each]["place"][held[each]["length"] > 0].tolist())
    if total > size:
        raise Damaged(f"the texts of /{name} have {total} bytes, for which a file of {size} bytes has no room")
    if heaps_of_texts:
        with journal.readable(path) as raw:
            heaps.check(raw, sorted(heaps_of_texts), size)


def _chunks(found: h5d.DatasetID, expected: int, has_to_be_read: bool) -> Iterator[tuple[int, bytes]]:
    """Yield the first row of each chunk that has to be read, and its bytes unpacked: one more than expected at most.

    HDF5 itself believes the number of bytes that a chunk is said to have: a filter that gets too few of them reads what is behind.
    """
    how = found.get_create_plist()
    filters, (count, *rest) = filters_of(how), how.get_chunk()
    for start in range(0, found.shape[0], count):
        place = (start, *(0 for _ in rest))
        info = found.get_chunk_info_by_coord(place)
        if info.byte_offset is None:
            continue
        run = {each for number, each in enumerate(filters) if not info.filter_mask >> number & 1}
        checksum = _CHECKSUM if h5z.FILTER_FLETCHER32 in run else 0
        is_packed = h5z.FILTER_DEFLATE in run
        if info.size <= checksum if is_packed else info.size != expected + checksum:
            raise Damaged(f"it has a chunk of {info.size} bytes, expected {expected + checksum}")
        if is_packed:
            yield start, zlib.decompressobj().decompress(found.read_direct_chunk(place)[1], expected + 1)
        elif has_to_be_read:
            yield start, found.read_direct_chunk(place)[1][:expected]


# Values


@functools.cache
def stored_dtype(dtype: np.dtype) -> tuple[np.dtype, bool]:
    """Return the dtype that values are stored as, and whether it stands for their bits."""
    if dtype.kind == "V" or dtype.type.__module__.startswith("ml_dtypes"):
        return np.dtype(f"<u{dtype.itemsize}"), True
    return dtype.newbyteorder("<"), False


# Attributes


def attributes(at: h5g.GroupID, size: int) -> dict[str, Any]:
    """Return the attributes of a group: single numbers and texts, together no longer than a file of so many bytes.

    Raises Damaged where there is another one.
    """
    count, total, group = h5a.get_num_attrs(at), 0, h5py.Group(at)
    if count > _MOST_ATTRIBUTES:
        raise Damaged(f"it has {count} attributes")
    found = {}
    for number in range(count):
        attribute = h5a.open(at, index=number)
        name, kind = attribute.name.decode("utf-8", "replace"), attribute.get_type()
        is_single = attribute.get_space().get_simple_extent_type() == h5s.SCALAR
        if not is_single or kind.get_class() not in _SIMPLE or kind.get_size() > size:
            raise Damaged(f"its attribute {name} is neither a number nor a text")
        value = group.attrs[name]
        found[name] = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        total += len(value) if isinstance(value, (bytes, str)) else 0
        if total > size:
            raise Damaged("the texts of its attributes are longer than the file")
    return found
