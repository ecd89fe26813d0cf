"""Typed changes of a recording: of rows, texts, attributes, tables and the way in which they are stored."""

from __future__ import annotations

import io
import os
import random
import zlib
from collections.abc import Callable
from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s

from benchmarks.fuzz.mutators import EDGES

CANARY = f"/tmp/probe-fuzz-canary-{os.getpid():07}/other.h5"
"""a file that nothing may open; one for each program, which makes its folder"""
_TEXTS = (
    "", "x", "[]", "{}", "[1", "[-1]", "[1.5]", "[true]", '["a"]', "[0, 0]", "[1000000000000]", "[" * 5000, '{"a":' * 5000, "9" * 6000, "null", "NaN",
    '{"lr": "x"}', '{"lr": null, "betas": [0.9]}', '{"lr": 1e999, "eps": -1}', '{"betas": 3, "weight_decay": [1]}', '{"lr": {"a": 1}}', '{"phases": 3}',
    '{"steps": [[3, 1]]}', '{"modules": [1]}', '{"task": []}', '[[0, 0, {"lr": 2}]]', '{"settings": [[0]]}', '{"states": {"a": 1}}', "embed", "up.weight",
    "weight", "\x1b[2J", "a" * 20_000, "é" * 99, "..", ".", "layers.0", "\ud7ff", "0", "list", "DataParallel", "module", "Linear", "*[!",
)  # fmt: skip
_FLOATS = (0.0, -0.0, -1.0, 1e-320, 1e300, float("inf"), float("-inf"), float("nan"), 1.5)
_DTYPES = (
    b"",
    b"object",
    b"float64",
    b"bfloat16",
    b"int4",
    b"complex128",
    b"bool",
    b"S5",
    b"U3",
    b"f4,f4",
    b"M8[s]",
    b"finfo",
    b"V8",
    b">f4",
    b"float8_e4m3fn",
)

Change = Callable[[h5py.File, random.Random], None]


def _tables(file: h5py.File) -> list[str]:
    tensors = [f"tensors/{name}" for name in file["tensors"]] if "tensors" in file else []
    return [*(name for name, item in file.items() if isinstance(item, h5py.Dataset)), *tensors]


def _table(file: h5py.File, rng: random.Random, weighted: bool = True) -> h5py.Dataset:
    names = _tables(file)
    liked = [
        name for name in names if name in ("records", "calls", "modules", "parameters", "optimizer", "steps", "shapes")
    ]
    return file[rng.choice(liked if weighted and liked and rng.random() < 0.6 else names)]


def cell(file: h5py.File, rng: random.Random) -> None:
    """Change a number or a text in some rows."""
    table = _table(file, rng)
    rows = table[()]
    if not rows.size:
        return
    names = rows.dtype.names
    column = rows if names is None else rows[rng.choice(names)]
    flat = column.reshape(-1)
    for _ in range(rng.choice((1, 1, 1, 3, 40))):
        at = rng.randrange(flat.size)
        flat[at] = _other(flat, at, rng)
    table[()] = rows


def _other(flat: np.ndarray, at: int, rng: random.Random) -> Any:
    """Return another value of a column's type: one of its own, one near it or one at the edge."""
    kind, old = flat.dtype.kind, flat[at]
    if rng.random() < 0.3:
        return flat[rng.randrange(flat.size)]
    if kind in "iu":
        limits = np.iinfo(flat.dtype)
        near = int(old) + rng.choice((-1, 1, 2, 7))
        return min(
            max(rng.choice((near, near, rng.choice(EDGES), -rng.choice(EDGES))), int(limits.min)), int(limits.max)
        )
    if kind == "f":
        return rng.choice((*_FLOATS, float(old) * rng.choice((-1, 2, 1.0001, 1e30)), rng.uniform(-9, 9)))
    if kind == "S":
        return rng.choice(_DTYPES)
    if kind == "O":
        return rng.choice(_TEXTS).encode("utf-8", "replace")
    return old


def column(file: h5py.File, rng: random.Random) -> None:
    """Give all rows of a column one value, or turn it round."""
    table = _table(file, rng)
    rows = table[()]
    if rows.size and rows.dtype.names:
        values = rows[rng.choice(rows.dtype.names)]
        values[:] = rng.choice((_other(values, 0, rng), values[::-1].copy()))
        table[()] = rows


def rows(file: h5py.File, rng: random.Random) -> None:
    """Leave out rows, double them, or exchange two."""
    table = _table(file, rng)
    if table.maxshape == table.shape or not len(table):
        return
    values, kind = table[()], rng.randrange(4)
    if kind == 0:
        table.resize(rng.randrange(len(values)), axis=0)
    elif kind == 1:
        table.resize(len(values) + rng.choice((1, 3, 100)), axis=0)
        table[len(values)] = values[rng.randrange(len(values))]
    else:
        one, two = rng.randrange(len(values)), rng.randrange(len(values))
        values[[one, two]] = values[[two, one]]
        table[()] = values


def attribute(file: h5py.File, rng: random.Random) -> None:
    """Change, leave out or add an attribute."""
    at = rng.choice((file, file, file["environment"])) if "environment" in file else file
    name = rng.choice([*at.attrs, "behind_last_step", "steps_made", "inputs", "loss_functions"])
    values = (
        *_TEXTS,
        0,
        -1,
        2**62,
        1.5,
        float("nan"),
        True,
        np.zeros(3),
        np.void(b"xy"),
        h5py.Empty("f4"),
        b"\xff\xfe",
        ["a", "b"],
        np.arange(1000),
    )
    if rng.random() < 0.15 and name in at.attrs:
        del at.attrs[name]
    else:
        at.attrs[name] = rng.choice(values)


def without(file: h5py.File, rng: random.Random) -> None:
    """Leave out a table or a group."""
    del file[rng.choice([*_tables(file), *file])]


def other_type(file: h5py.File, rng: random.Random) -> None:
    """Give a table other columns."""
    table = _table(file, rng)
    if table.dtype.names is None:
        kinds: Any = rng.choice(("i1", "f8", "S3", "c8", h5py.string_dtype(), h5py.vlen_dtype("i4"), h5py.ref_dtype))
    else:
        kinds = [(n, table.dtype[n]) for n in table.dtype.names]
        at = rng.randrange(len(kinds))
        kinds[at] = (
            kinds[at][0],
            rng.choice(("i8", "u1", "f4", ">i4", "S2", "S300", ("f8", (3,)), h5py.ref_dtype, h5py.vlen_dtype("u1"))),
        )
        if rng.random() < 0.3:
            kinds.pop(rng.randrange(len(kinds)))
    name, count = table.name, len(table) if table.shape else 0
    del file[name]
    file.create_dataset(
        name,
        (count,),
        dtype=np.dtype(kinds) if isinstance(kinds, list) else kinds,
        chunks=(max(count, 1),),
        maxshape=(None,),
    )


def size(file: h5py.File, rng: random.Random) -> None:
    """Announce more than there is."""
    table = _table(file, rng, weighted=False)
    name, dtype, rest = table.name, table.dtype, table.shape[1:]
    kind, count = rng.randrange(4), rng.choice((10**5, 10**7, 10**9, 2**40, 2**60))
    if kind == 0 and table.chunks and table.maxshape[0] is None:
        table.resize(count, axis=0)
        return
    values = table[()]
    del file[name]
    chunk = (rng.choice((1, 64, 10**5, 10**6)), *rest)
    facts = {"compression": "gzip"} if kind == 1 else {}
    new = file.create_dataset(name, (count, *rest), dtype, chunks=chunk, maxshape=(None, *rest), **facts)
    if kind == 1 and chunk[0] < 10**5 and not dtype.hasobject and len(values):
        new.id.write_direct_chunk((0,) * values.ndim, zlib.compress(bytes(30_000_000)))


def layout(file: h5py.File, rng: random.Random) -> None:
    """Let a table lie elsewhere."""
    names = [*_tables(file), "environment", "tensors"]
    name, kind = rng.choice(names), rng.randrange(6)
    if kind == 3 and isinstance(file[name], h5py.Dataset) and not file[name].dtype.hasobject:
        old = file[name]
        how, shape, dtype = h5p.create(h5p.DATASET_CREATE), old.shape, old.id.get_type()
        how.set_external(CANARY.encode(), 0, h5py.h5f.UNLIMITED)
        del file[name]
        h5d.create(file.id, name.encode(), dtype, h5s.create_simple(shape), how)
    elif kind == 4 and isinstance(file[name], h5py.Dataset):
        old = file[name]
        virtual = h5py.VirtualLayout(old.shape, old.dtype)
        virtual[...] = h5py.VirtualSource(CANARY, "it", old.shape, old.dtype)
        del file[name]
        file.create_virtual_dataset(name, virtual)
    elif kind == 5 and isinstance(file[name], h5py.Dataset) and file[name].size and file[name].shape:
        old, facts = file[name][()], {"scaleoffset": 1} if file[name].dtype.kind in "iu" else {"compression": "lzf"}
        del file[name]
        file.create_dataset(name, data=old, chunks=True, **facts)
    else:
        del file[name]
        links = (h5py.ExternalLink(CANARY, "/it"), h5py.SoftLink("/records"), h5py.SoftLink(f"/{name}"))
        file[name] = links[min(kind, 2)]


def swap(file: h5py.File, rng: random.Random) -> None:
    """Let one table stand in the place of another."""
    names = _tables(file)
    one, two = rng.choice(names), rng.choice(names)
    if one != two:
        del file[one]
        file[one] = file[two]


CHANGES: tuple[Change, ...] = (
    (cell,) * 10 + (column,) * 2 + (rows,) * 3 + (attribute,) * 4 + (without, other_type, size, layout, layout, swap)
)


def restructured(data: bytes, rng: random.Random) -> bytes:
    """Return a recording changed in one to three ways; as far as they could be made."""
    buffer = io.BytesIO(data)
    with h5py.File(buffer, "r+") as file:
        for _ in range(rng.choice((1, 1, 1, 1, 2, 3))):
            change = rng.choice(CHANGES)
            try:
                change(file, rng)
            except (OSError, ValueError, TypeError, KeyError, OverflowError, RuntimeError, IndexError, AttributeError):
                continue  # a change that HDF5 itself refuses, often of what another one has left out
            if change is size:
                break  # nothing could be read of what there is too much of
    return buffer.getvalue()
