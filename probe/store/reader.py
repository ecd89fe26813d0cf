"""Reading a recording. Nothing behind the last row of ``/steps`` is ever looked at."""

from __future__ import annotations

import functools
import io
import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

import h5py
import numpy as np
import xxhash
from h5py import h5d, h5s, h5t

from probe.axis_sums import reordered
from probe.errors import FormatError, NotRecordedError, StoreError
from probe.records import HashKind, ModuleInfo, OptimizerGroup, ParameterInfo, RunInfo
from probe.statistics import dtype_of
from probe.store.opening import ATTEMPTS, opened

T = TypeVar("T")

_TYPES: dict[str, tuple[np.dtype, h5t.TypeID, h5t.TypeID]] = {}
"""of tables by name: what the rows of the last one are, here, in memory for HDF5, and as they are stored"""
_ROWS = 1 << 16
"""of a table, that are read at once where only some of them are kept"""


class Reader:
    """One recording, opened for reading; tables are read when first asked for.

    Parameters
    ----------
    path
        a file written by `probe.start`, which may still be being written

    Raises
    ------
    StoreError
        there is no such file, or it cannot be opened
    FormatError
        it is not a recording, or one of a newer format
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._file = opened(self.path)
        self.attributes = dict(self._file.attrs)
        self._steps = self._table("steps")

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    @functools.cached_property
    def info(self) -> RunInfo:
        """The attributes of the run."""
        known = {name: self.attributes[name] for name in RunInfo.__dataclass_fields__ if name in self.attributes}
        for name in ("parallel", "config", "model_config"):
            known[name] = json.loads(known.get(name, "{}"))
        for name in ("rank", "world_size"):
            known[name] = int(known[name])
        for name in ("closed", "tells_writes"):
            known[name] = bool(known.get(name, False))
        return RunInfo(**known)

    @property
    def steps(self) -> np.ndarray:
        """Complete steps, rows of `schema.STEPS`."""
        return self._steps

    def require_steps(self) -> None:
        """Raise StoreError where a process was ended before it had completed a step: there is nothing to look at."""
        if not len(self._steps) and not self.info.closed:
            raise StoreError(
                f"{self.path} has no complete step: its process was ended in the first one, is still in it, or could not write it "
                "(is the disk full?)"
            )

    def _complete(self, counter: str) -> int:
        return int(self._steps[counter][-1]) if len(self._steps) else 0

    def _table(self, name: str, rows: int | None = None) -> np.ndarray:
        return self._attempt(f"/{name}", lambda: _rows(self._file, name, 0, rows))

    def _attempt(self, what: str, read: Callable[[], T]) -> T:
        """Read something; open the file anew and try again where a writer has changed it since it was opened."""
        for attempt in range(ATTEMPTS):
            try:
                return read()
            except (KeyError, OSError) as error:
                failure = error
            if self.attributes.get("closed", False):
                break
            self._file.close()
            self.__dict__.pop("_blob", None)  # it belonged to the file that was closed
            time.sleep(0.01 * attempt)
            self._file = opened(self.path)
        raise FormatError(f"{self.path} is damaged: {what} cannot be read ({failure})") from failure

    def of_step(self, table: str, step: int) -> np.ndarray:
        """Return the rows of ``records``, ``calls`` or ``sketches`` that belong to a complete step."""
        counter = "n_calls" if table == "calls" else "n_records"
        found = np.flatnonzero(self._steps["step"] == step)
        if not found.size:
            return self._table(table, 0)
        first = int(self._steps[counter][found[0] - 1]) if found[0] else 0
        last = int(self._steps[counter][found[0]])
        return self._attempt(f"/{table}", lambda: _rows(self._file, table, first, last))

    @property
    def observations(self) -> int:
        """How many records the complete steps have."""
        return self._complete("n_records")

    @functools.cached_property
    def records(self) -> np.ndarray:
        """Rows of `schema.RECORDS`, one per observation."""
        return self._table("records", self._complete("n_records"))

    @functools.cached_property
    def calls(self) -> np.ndarray:
        """Rows of `schema.CALLS`, one per module call."""
        return self._table("calls", self._complete("n_calls"))

    @functools.cached_property
    def sketches(self) -> np.ndarray:
        """float64, shape (records, 61)."""
        return self._table("sketches", self._complete("n_records"))

    @functools.cached_property
    def modules(self) -> list[ModuleInfo]:
        """All modules, in the order of the tree."""
        return [
            ModuleInfo(_text(r["path"]), _text(r["class_name"]), int(r["parent"]), _text(r["file"]), int(r["line"]),
                       int(r["n_params"]))
            for r in self._table("modules")
        ]  # fmt: skip

    @functools.cached_property
    def parameters(self) -> list[ParameterInfo]:
        """All parameters and buffers."""
        rows = self._table("parameters")
        later = {"canonical": b"", "is_persistent": 1}  # columns that older files lack
        columns = [rows[name] if name in rows.dtype.names else [old] * len(rows) for name, old in later.items()]
        return [
            ParameterInfo(
                tuple(json.loads(r["names"])), int(r["module"]), _text(r["slot"]), tuple(json.loads(r["shape"])),
                r["dtype"].decode(), bool(r["requires_grad"]), bool(r["is_buffer"]), tuple(json.loads(r["axes"])),
                _text(canonical), bool(is_persistent),
            )
            for r, canonical, is_persistent in zip(rows, *columns, strict=True)
        ]  # fmt: skip

    def axis_sums(self, step: int, parameter: int, axes: Sequence[int]) -> tuple[np.ndarray, ...]:
        """Return the sums along each axis of a parameter as a step began with it (`probe.axis_sums`); nothing where there are none.

        Parameters
        ----------
        axes
            the order in which its stored axes are meant
        """
        sums = tuple(self._sums[start : start + count] for start, count in self._axis_sums.get((step, parameter), ()))
        recorded = self.parameters[parameter].axes if sums else ()
        recorded = (*recorded, *range(len(recorded), len(axes)))
        return sums if tuple(axes) == recorded else reordered(sums, [recorded.index(axis) for axis in axes])

    @functools.cached_property
    def _axis_sums(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        rows = self._table("axis_sums") if "axis_sums" in self._file else ()  # older files have none
        for step, parameter, _, start, count in rows:
            found.setdefault((int(step), int(parameter)), []).append((int(start), int(count)))
        return found

    @functools.cached_property
    def _sums(self) -> np.ndarray:
        return self._table("sums")

    @functools.cached_property
    def slots(self) -> list[str]:
        """Names of slots, by index."""
        return [_text(name) for name in self._table("slots")]

    @functools.cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes, by index."""
        return [tuple(json.loads(text)) for text in self._table("shapes")]

    @functools.cached_property
    def scalars(self) -> list[tuple[int, str, float]]:
        """(step, name, value) of everything that was logged as a number."""
        rows = self._table("scalars", self._complete("n_scalars"))
        return [(int(r["step"]), _text(r["name"]), float(r["value"])) for r in rows]

    def scalars_of(self, step: int) -> dict[str, float]:
        """Return what was logged as a number in a step, by name."""
        return self._scalars_by_step.get(step, {})

    @functools.cached_property
    def _scalars_by_step(self) -> dict[int, dict[str, float]]:
        found: dict[int, dict[str, float]] = {}
        for step, name, value in self.scalars:
            found.setdefault(step, {})[name] = value
        return found

    @functools.cached_property
    def notes(self) -> list[tuple[int, int, str]]:
        """(step, module or −1, text) of what could not be recorded."""
        rows = self._table("notes", self._complete("n_notes"))
        return [(int(r["step"]), int(r["module"]), _text(r["text"])) for r in rows]

    @functools.cached_property
    def optimizer(self) -> list[tuple[int, OptimizerGroup]]:
        """(step, group) for every parameter group of every recorded step."""
        rows = self._table("optimizer", self._complete("n_optimizer"))
        return [
            (int(r["step"]),
             OptimizerGroup(int(r["optimizer"]), _text(r["class_name"]), int(r["group"]), json.loads(r["hyper"]),
                            tuple(json.loads(r["parameters"]))))
            for r in rows
        ]  # fmt: skip

    def groups_of(self, step: int) -> list[OptimizerGroup]:
        """Return the parameter groups of a step."""
        return self._groups_by_step.get(step, [])

    @functools.cached_property
    def _groups_by_step(self) -> dict[int, list[OptimizerGroup]]:
        found: dict[int, list[OptimizerGroup]] = {}
        for step, group in self.optimizer:
            found.setdefault(step, []).append(group)
        return found

    @functools.cached_property
    def environment(self) -> dict[str, Any]:
        """What was recorded of the machine and its software."""
        return dict(self._file["environment"].attrs) if "environment" in self._file else {}

    def listed(self, fact: str) -> list[str]:
        """Return what of the environment is a list of texts; an empty one where it was not recorded."""
        try:
            return [str(each) for each in json.loads(self.environment.get(fact, "[]"))]
        except (TypeError, ValueError) as error:
            raise FormatError(f"{self.path} is damaged: /environment {fact} cannot be read ({error})") from error

    def records_of(self, modules: Sequence[int]) -> np.ndarray:
        """Return the records of some modules, without keeping those of the others."""
        return self._chosen(None, lambda rows: np.isin(rows["module"], modules))

    def chosen_records(self, columns: Sequence[str], wanted: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return some columns of the records for which ``wanted`` is true, without keeping those of the others."""
        return self._chosen(list(columns), wanted)

    def _chosen(self, columns: list[str] | None, wanted: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        def part(start: int, stop: int) -> np.ndarray:
            table = self._file["records"]
            rows = (table if columns is None else table.fields(columns))[start:stop]
            return rows[wanted(rows)]

        total = self._complete("n_records")
        parts = [functools.partial(part, start, min(start + _ROWS, total)) for start in range(0, max(total, 1), _ROWS)]
        return np.concatenate([self._attempt("/records", each) for each in parts])

    @functools.cached_property
    def _tensor_index(self) -> np.ndarray:
        rows = self._table("tensor_index")
        return rows[np.argsort(rows["id"], kind="stable")]

    @functools.cached_property
    def _tensor_ids(self) -> np.ndarray:
        return np.ascontiguousarray(self._tensor_index["id"])

    def _row_of(self, tensor: int) -> np.void:
        """Return where a tensor lies."""
        at = int(np.searchsorted(self._tensor_ids, tensor))
        if at == len(self._tensor_ids) or self._tensor_ids[at] != tensor:
            raise NotRecordedError(f"no values were stored for this tensor in {self.path}; record with task='tensor'")
        return self._tensor_index[at]

    def values(self, tensor: int) -> np.ndarray:
        """Return the stored values of a tensor, in their own dtype.

        Raises
        ------
        NotRecordedError
            ``tensor`` is −1, or the file does not hold it
        """
        parts = list(self.parts(tensor, chunk=0))
        return parts[0]

    def parts(self, tensor: int, chunk: int, into: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield the values of a tensor in C order, flat, ``chunk`` elements at a time; at once and shaped if 0.

        Where there is a buffer ``into`` (bytes), a part may lie in it, and the next one overwrites it.
        """
        yield from self._checked(tensor, self._parts(self._row_of(tensor), chunk, into))

    def _checked(self, tensor: int, parts: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """Pass values on; raise FormatError behind the last of them if they do not have the hash of their record."""
        digest = xxhash.xxh3_128()
        for part in parts:
            digest.update(np.ascontiguousarray(part).reshape(-1).view(np.uint8))
            yield part
        if digest.intdigest() != self._hash_of(tensor, digest.intdigest()):
            raise FormatError(f"{self.path} is damaged: the values of tensor {tensor} are not those that were recorded")

    def _hash_of(self, tensor: int, unknown: int) -> int:
        """Return the hash over the bytes of a stored tensor; ``unknown`` where it has none."""
        rows = self._hashes
        at = int(np.searchsorted(rows["tensor"], tensor))
        is_there = at < len(rows["tensor"]) and rows["tensor"][at] == tensor
        return int(rows["hash_hi"][at]) << 64 | int(rows["hash_lo"][at]) if is_there else unknown

    @functools.cached_property
    def _hashes(self) -> dict[str, np.ndarray]:
        """By columns, in the order of their numbers: the stored tensors that have a hash over their bytes."""
        columns = ("tensor", "hash_hi", "hash_lo")
        rows = self.chosen_records(
            (*columns, "hash_kind"), lambda rows: (rows["tensor"] >= 0) & (rows["hash_kind"] == HashKind.XXH3_128)
        )
        last = len(rows) - 1 - np.unique(rows["tensor"][::-1], return_index=True)[1]
        return {name: np.ascontiguousarray(rows[name][last]) for name in columns}

    def _parts(self, row: np.void, chunk: int, into: np.ndarray | None) -> Iterator[np.ndarray]:
        tensor = int(row["id"])
        what = f"tensor {tensor}"
        dtype = dtype_of(row["dtype"].decode())
        if row["offset"] >= 0:
            yield from _split(self._attempt(what, lambda: self._from_blob(row)), chunk)
        elif not chunk or row["nbytes"] <= chunk * dtype.itemsize:
            whole = self._attempt(what, lambda: self._file[f"tensors/{tensor}"][()])
            yield from _split(_typed(whole, dtype), chunk)
        else:
            offset = self._attempt(what, lambda: _offset(self._file[f"tensors/{tensor}"]))
            try:
                yield from _streamed(self.path, offset, int(row["nbytes"]) // dtype.itemsize, dtype, chunk, into)
            except OSError as error:
                raise FormatError(f"{self.path} is damaged: {what} cannot be read ({error})") from error

    @functools.cached_property
    def _blob(self) -> h5py.Dataset:
        return self._file["tensors/blob"]

    def _from_blob(self, row: np.void) -> np.ndarray:
        raw = self._blob[row["offset"] : row["offset"] + row["nbytes"]]
        return raw.view(dtype_of(row["dtype"].decode())).reshape(self.shapes[row["shape"]])

    def block(self, tensor: int, box: Sequence[slice]) -> np.ndarray:
        """Return a part of a stored tensor; axes of size 1 are left out, in ``box`` too."""
        row = self._row_of(tensor)
        left = list(box)
        wanted = tuple(left.pop(0) if size != 1 else slice(0, 1) for size in self.shapes[row["shape"]])
        if row["offset"] >= 0:
            part = self.values(tensor)[wanted]
        else:
            dataset = f"tensors/{tensor}"
            raw = self._attempt(f"tensor {tensor}", lambda: self._file[dataset][wanted])
            part = _typed(raw, dtype_of(row["dtype"].decode()))
        return part.reshape([each.stop - each.start for each in box])

    def shape_of(self, tensor: int) -> tuple[int, ...]:
        """Return the shape of a stored tensor."""
        return self.shapes[self._row_of(tensor)["shape"]]


def _rows(file: h5py.File, name: str, first: int, last: int | None) -> np.ndarray:
    """Return rows of a table, without the objects that h5py makes of a table: making them takes longer than reading few rows."""
    table = h5d.open(file.id, name.encode())
    count, *rest = table.shape
    last = count if last is None else min(last, count)
    dtype, in_memory = _types(name, table)
    found = np.empty((max(last - first, 0), *rest), dtype)
    if found.size:
        where = table.get_space()
        where.select_hyperslab((first, *(0 for _ in rest)), found.shape)
        table.read(h5s.create_simple(found.shape), where, found, in_memory)
    return found


def _types(name: str, table: h5d.DatasetID) -> tuple[np.dtype, h5t.TypeID]:
    """Return what a table's rows are, kept for the next table that is stored alike: to tell it anew takes longer than reading."""
    known = _TYPES.get(name)
    if known is None or not table.get_type().equal(known[2]):
        dtype = table.dtype
        known = _TYPES[name] = dtype, h5t.py_create(dtype), h5t.py_create(dtype, logical=True)
    return known[:2]


def _split(array: np.ndarray, chunk: int) -> Iterator[np.ndarray]:
    if not chunk:
        yield array
        return
    flat = array.reshape(-1)
    for start in range(0, flat.size, chunk):
        yield flat[start : start + chunk]


def _offset(dataset: h5py.Dataset) -> int:
    """Return where the bytes of a contiguous dataset begin in the file."""
    offset = dataset.id.get_offset()
    if offset is None:
        raise OSError("it has no storage")
    return int(offset)


def _streamed(
    path: Path, offset: int, count: int, dtype: np.dtype, chunk: int, into: np.ndarray | None
) -> Iterator[np.ndarray]:
    """Read values ``chunk`` at a time, straight from their bytes in the file."""
    with open(path, "rb", buffering=0) as raw:
        raw.seek(offset)
        while count:
            size = min(chunk, count)
            part = np.empty(size, dtype) if into is None else into[: size * dtype.itemsize].view(dtype)
            _fill(raw, memoryview(part.view(np.uint8)))
            count -= size
            yield part


def _fill(raw: io.FileIO, wanted: memoryview) -> None:
    """Read as many bytes as there is room for."""
    while wanted:
        got = raw.readinto(wanted)
        if not got:
            raise OSError("the file ends too early")
        wanted = wanted[got:]


def _typed(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return array if array.dtype == dtype else array.view(dtype)


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
