"""Reading a recording. Nothing behind the last row of ``/steps`` is ever looked at."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, TypeVar

import h5py
import numpy as np
import xxhash

from probe.damage import Damaged, said_of
from probe.errors import FormatError, NotRecordedError, StoreError
from probe.numbers.axis_sums import reordered, squeezed
from probe.numbers.statistics import dtype_of
from probe.records import HashKind, ModuleInfo, OptimizerGroup, ParameterInfo, RunInfo
from probe.store import compression
from probe.store.places import is_local, place_of
from probe.store.reading import layout, streams, validation
from probe.store.reading.recorded_file import RecordedFile
from probe.store.reading.validation import text_in

T = TypeVar("T")

_ROWS = 1 << 16
"""of a table, that are read at once where only some of them are kept"""
_COUNTERS = {"sketches": "n_records"}
"""of steps, by the tables whose name they do not have"""


class Reader:
    """One recording, opened for reading; tables are read when first asked for.

    The file was written by `probe.start`, and may still be being written. Raises StoreError where there is none, or
    it cannot be opened, and FormatError where it is not a recording, or one of a newer format.
    """

    is_of_ranks: ClassVar[bool] = False
    """whether several files are read as one"""

    def __init__(self, path: str | os.PathLike[str], known: dict[object, Any] | None = None) -> None:
        """Open a recording.

        ``known`` has what was made of tables of other files of the run, by their rows: ranks of one stage have the
        same modules.
        """
        self.path = place_of(path)
        self._known = known
        self._file = RecordedFile(self.path)
        self.attributes = self._file.attributes["/"]
        try:
            self._steps = self._made("steps", validation.steps)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Reader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def let_go(self) -> None:
        """Give back the memory in which HDF5 keeps what was read of tables; they can be read again."""
        self._file.let_go()

    @functools.cached_property
    def info(self) -> RunInfo:
        """The attributes of the run."""
        return self._attempt("/", lambda: validation.run_info(self.attributes))

    @property
    def steps(self) -> np.ndarray:
        """Complete steps, rows of `schema.STEPS`."""
        return self._steps

    def require_steps(self) -> None:
        """Raise StoreError where a process was ended before it had completed a step: there is nothing to look at."""
        if not len(self._steps) and not self.info.closed:
            raise StoreError(
                f"{self.path} has no complete step: its process was ended before the first was written, is still in it, or could "
                "not write it (is the disk full?)"
            )

    def _complete(self, counter: str) -> int:
        return int(self._steps[counter][-1]) if len(self._steps) else 0

    def _attempt(self, what: str, read: Callable[[], T]) -> T:
        return self._file.attempt(what, read)

    def _made(self, name: str, make: Callable[[np.ndarray], T], first: int = 0, last: int | None = None) -> T:
        """Read rows of a table and make something of them, which raises where they cannot be right."""
        return self._attempt(f"/{name}", lambda: make(self._file.rows(name, first, last)))

    def _made_once(self, name: str, make: Callable[[np.ndarray], T], *of: object) -> T:
        """Do what `_made` does, once for all files of a run that have the same rows; ``of`` is what else the result depends on."""
        known = self._known

        def made(rows: np.ndarray) -> T:
            if known is None:
                return make(rows)
            key = name, *of, tuple(rows.tolist())
            if key not in known:
                known[key] = make(rows)
            return known[key]

        return self._made(name, made)

    def _rows_of_steps(self, table: str, first: int, last: int) -> np.ndarray:
        """Return rows of a table that belong to complete steps."""
        return self._made(table, functools.partial(self._checked_rows, table, first), first, last)

    def _checked_rows(self, table: str, first: int, rows: np.ndarray) -> np.ndarray:
        """Return rows, the first of which has a number, once they were looked at."""
        for start in range(0, len(rows) if table in ("records", "calls") else 0, _ROWS):
            part = rows[start : start + _ROWS]
            if table == "calls":
                validation.calls(part, self._steps, first + start, len(self.modules))
            else:
                known = {"module": len(self.modules), "slot": len(self.slots), "shape": len(self.shapes)}
                tensors = self._tensor_ids if part["tensor"].max() >= 0 else np.empty(0, np.int64)
                validation.records(part, self._steps, first + start, known, self._sizes, tensors)
        return rows

    def of_step(self, table: str, step: int) -> np.ndarray:
        """Return the rows of ``records``, ``calls`` or ``sketches`` that belong to a complete step."""
        counter = _COUNTERS.get(table, f"n_{table}")
        found = np.flatnonzero(self._steps["step"] == step)
        if not found.size:
            return self._rows_of_steps(table, 0, 0)
        first = int(self._steps[counter][found[0] - 1]) if found[0] else 0
        last = int(self._steps[counter][found[0]])
        return self._rows_of_steps(table, first, last)

    @property
    def observations(self) -> int:
        """How many records the complete steps have."""
        return self._complete("n_records")

    def calls_before(self, step: int) -> int:
        """Return how many calls the complete steps before one have: rows of ``calls`` begin there."""
        earlier = self._steps[self._steps["step"] < step]
        return int(earlier["n_calls"][-1]) if len(earlier) else 0

    @functools.cached_property
    def records(self) -> np.ndarray:
        """Rows of `schema.RECORDS`, one per observation."""
        return self._of_all_steps("records")

    @functools.cached_property
    def calls(self) -> np.ndarray:
        """Rows of `schema.CALLS`, one per module call."""
        return self._of_all_steps("calls")

    @functools.cached_property
    def sketches(self) -> np.ndarray:
        """float64, shape (records, 61)."""
        return self._of_all_steps("sketches")

    def _of_all_steps(self, table: str) -> np.ndarray:
        return self._rows_of_steps(table, 0, self._complete(_COUNTERS.get(table, f"n_{table}")))

    @functools.cached_property
    def modules(self) -> list[ModuleInfo]:
        """All modules, in the order of the tree."""
        return self._made_once("modules", validation.modules)

    @functools.cached_property
    def parameters(self) -> list[ParameterInfo]:
        """All parameters and buffers."""
        count = len(self.modules)
        return self._made_once("parameters", lambda rows: validation.parameters(rows, count), count)

    def axis_sums(self, step: int, parameter: int, axes: Sequence[int]) -> tuple[np.ndarray, ...]:
        """Return the sums along each axis of a parameter as a step began with it; nothing where there are none.

        They are those of `probe.numbers.axis_sums`; ``axes`` is the order in which its stored axes are meant.
        """
        sums = tuple(self._sums[start : start + count] for start, count in self._axis_sums.get((step, parameter), ()))
        recorded = self.parameters[parameter].axes if sums else ()
        recorded = (*recorded, *range(len(recorded), len(axes)))
        return sums if tuple(axes) == recorded else reordered(sums, [recorded.index(axis) for axis in axes])

    @functools.cached_property
    def _axis_sums(self) -> dict[tuple[int, int], list[tuple[int, int]]]:
        """By step and parameter: the place and number of its sums along each axis."""
        if not self._file.has("axis_sums"):  # older files have none
            return {}
        shapes = [
            squeezed([each.shape[axis] for axis in each.axes or range(len(each.shape))]) for each in self.parameters
        ]
        return self._made("axis_sums", lambda rows: validation.axis_sums(rows, shapes, len(self._sums)))

    @functools.cached_property
    def _sums(self) -> np.ndarray:
        return self._made("sums", np.asarray)

    @functools.cached_property
    def slots(self) -> list[str]:
        """Names of slots, by index."""
        return self._made("slots", lambda rows: [text_in(name) for name in rows])

    @functools.cached_property
    def shapes(self) -> list[tuple[int, ...]]:
        """Shapes, by index."""
        return self._made("shapes", lambda rows: [validation.shape_in(text) for text in rows])

    @functools.cached_property
    def _sizes(self) -> np.ndarray:
        return np.array([math.prod(shape) for shape in self.shapes], np.float64)

    @functools.cached_property
    def scalars(self) -> list[tuple[int, str, float]]:
        """(step, name, value) of everything that was logged as a number."""
        rows = self._of_all_steps("scalars")
        return [(int(r["step"]), text_in(r["name"]), float(r["value"])) for r in rows]

    def scalars_of(self, step: int) -> dict[str, float]:
        """Return what was logged as a number in a step, by name."""
        return dict(self._scalars_by_step.get(step, ()))

    @functools.cached_property
    def _scalars_by_step(self) -> dict[int, list[tuple[str, float]]]:
        return _by_step(self.scalars)

    @functools.cached_property
    def notes(self) -> list[tuple[int, int, str]]:
        """(step, module or −1, text) of what could not be recorded."""
        rows = self._of_all_steps("notes")
        return [(int(r["step"]), int(r["module"]), text_in(r["text"])) for r in rows]

    @functools.cached_property
    def optimizer(self) -> list[tuple[int, OptimizerGroup]]:
        """(step, group) for every parameter group of every recorded step."""
        return self._made(
            "optimizer", lambda rows: validation.optimizer(rows, len(self.parameters)), 0, self._complete("n_optimizer")
        )

    def groups_of(self, step: int) -> list[OptimizerGroup]:
        """Return the parameter groups of a step."""
        return [group for (group,) in self._groups_by_step.get(step, ())]

    @functools.cached_property
    def _groups_by_step(self) -> dict[int, list[tuple[OptimizerGroup]]]:
        return _by_step(self.optimizer)

    @functools.cached_property
    def environment(self) -> dict[str, Any]:
        """What was recorded of the machine and its software."""
        return self._file.attributes.get("environment", {})

    @property
    def steps_made(self) -> int | None:
        """How many steps the run made until it was stopped, recorded or not; None where the file does not say."""
        made = self.environment.get("steps_made")
        known = functools.partial(validation.count_of_steps, made)
        return None if made is None else self._attempt("/environment steps_made", known)

    @functools.cached_property
    def behind_last_step(self) -> dict[str, Any]:
        """What the optimizers were set to, and the hashes of their states, where that changed behind the last step."""
        text = self.environment.get("behind_last_step", "{}")
        return self._attempt("/environment behind_last_step", lambda: validation.behind_last_step(text))

    def listed(self, fact: str) -> list[str]:
        """Return what of the environment is a list of texts; an empty one where it was not recorded."""
        text = self.environment.get(fact, "[]")
        return self._attempt(f"/environment {fact}", lambda: [str(each) for each in validation.list_in(text)])

    def records_of(self, modules: Sequence[int]) -> np.ndarray:
        """Return the records of some modules, without keeping those of the others."""
        return self._chosen(None, lambda rows: np.isin(rows["module"], modules))

    def chosen_records(self, columns: Sequence[str], wanted: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """Return some columns of the records for which ``wanted`` is true, without keeping those of the others."""
        return self._chosen(list(columns), wanted)

    def _chosen(self, columns: list[str] | None, wanted: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        def part(start: int, stop: int) -> np.ndarray:
            if columns is not None:
                rows = self._file.columns("records", columns, start, stop)
                return rows[wanted(rows)]
            rows = self._checked_rows("records", start, self._file.rows("records", start, stop))
            return rows[wanted(rows)]

        total = self._complete("n_records")
        parts = [functools.partial(part, start, min(start + _ROWS, total)) for start in range(0, max(total, 1), _ROWS)]
        return np.concatenate([self._attempt("/records", each) for each in parts])

    @functools.cached_property
    def _tensor_index(self) -> np.ndarray:
        rows = self._made(
            "tensor_index", lambda rows: validation.tensor_index(rows, self.shapes, self._file.count("tensors/blob"))
        )
        return rows[np.argsort(rows["id"], kind="stable")]

    @functools.cached_property
    def _tensor_ids(self) -> np.ndarray:
        return np.ascontiguousarray(self._tensor_index["id"])

    def _row_of(self, tensor: int) -> np.void:
        """Return where a tensor lies."""
        at = _place_in(self._tensor_ids, tensor)
        if at is None:
            raise NotRecordedError(f"no values were stored for this tensor in {self.path}; record with task='tensor'")
        return self._tensor_index[at]

    def values(self, tensor: int) -> np.ndarray:
        """Return the stored values of a tensor, in their own dtype.

        Raises NotRecordedError where ``tensor`` is −1, or the file does not hold it.
        """
        (whole,) = self.parts(tensor, chunk=0)
        return whole

    def parts(self, tensor: int, chunk: int, into: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield the values of a tensor in C order, flat, ``chunk`` elements at a time; at once and shaped if 0.

        Where there is a buffer ``into`` (bytes), a part may lie in it, and the next one overwrites it.
        """
        yield from self._checked(tensor, self._parts(self._row_of(tensor), chunk, into))

    def piece(self, tensor: int) -> streams.Piece | None:
        """Return where the values of a tensor lie in one piece of a file of this machine; None where they lie otherwise."""
        row = self._row_of(tensor)
        if row["offset"] >= 0 or not is_local(self.path):
            return None
        offset = self._attempt(f"tensor {tensor}", lambda: self._offset(row))
        if offset is None:
            return None
        dtype, digest = _dtype(row), self._hash_of(tensor, -1)
        count = int(row["nbytes"]) // dtype.itemsize
        return streams.Piece(self.path, offset, count, dtype, None if digest < 0 else digest)

    def _checked(self, tensor: int, parts: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """Pass values on; raise FormatError behind the last of them if they do not have the hash of their record."""
        digest = xxhash.xxh3_128()
        yield from streams.hashed(parts, digest)
        if digest.intdigest() != self._hash_of(tensor, digest.intdigest()):
            raise FormatError(f"{self.path} is damaged: the values of tensor {tensor} are not those that were recorded")

    def _hash_of(self, tensor: int, unknown: int) -> int:
        """Return the hash over the bytes of a stored tensor; ``unknown`` where it has none."""
        rows = self._hashes
        at = _place_in(rows["tensor"], tensor)
        return unknown if at is None else int(rows["hash_hi"][at]) << 64 | int(rows["hash_lo"][at])

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
        what = f"tensor {row['id']}"
        dtype = _dtype(row)
        if row["offset"] >= 0:
            yield from streams.split(self._attempt(what, lambda: self._from_blob(row)), chunk)
        elif not chunk or row["nbytes"] <= chunk * dtype.itemsize:
            whole = self._attempt(what, lambda: self._part_of(row, [slice(0, size) for size in self._shape_of(row)]))
            yield from streams.split(_typed(whole, dtype), chunk)
        else:
            count, offset = int(row["nbytes"]) // dtype.itemsize, self._attempt(what, lambda: self._offset(row))
            if offset is None:
                runs = (_typed(run, dtype) for run in self._runs(row, what))
                yield from streams.cut(runs, count, dtype, chunk, into)
                return
            try:
                yield from streams.read(self.path, offset, count, dtype, chunk, into)
            except OSError as error:
                raise FormatError(said_of(self.path, what, error)) from None

    def _dataset(self, row: np.void) -> h5py.Dataset:
        """Return the dataset of a tensor that does not lie in the blob."""
        stored, _ = layout.stored_dtype(_dtype(row))
        return self._file.tensor(int(row["id"]), stored, self._shape_of(row))

    def _part_of(self, row: np.void, box: Sequence[slice]) -> np.ndarray:
        """Return a part of a tensor that does not lie in the blob, as it is stored."""
        found = self._unpackable(row)
        return found[tuple(box)] if found.chunks is None else compression.read(found, box)

    def _unpackable(self, row: np.void) -> h5py.Dataset:
        """Return the dataset of a tensor. Raises StoreError where it is compressed, and what unpacks it is not installed."""
        found = self._dataset(row)
        if found.chunks is not None and (lacks := compression.missing()):
            raise StoreError(f"{self.path} holds compressed values; to read them: {lacks}")
        return found

    def _offset(self, row: np.void) -> int | None:
        """Return where the bytes of a tensor begin in the file; None where they are compressed."""
        found = self._unpackable(row)
        offset = found.id.get_offset()
        if offset is None and found.chunks is None:
            raise Damaged("it has no storage")
        return None if offset is None else int(offset)

    def _runs(self, row: np.void, what: str) -> Iterator[np.ndarray]:
        """Yield the elements of a compressed tensor chunk by chunk, as they are stored; the file may be opened anew in between."""
        found = self._attempt(what, lambda: self._unpackable(row))

        def run(start: tuple[int, ...], count: tuple[int, ...]) -> np.ndarray:
            nonlocal found
            found = found or self._unpackable(row)  # one whose file was closed is false
            return compression.read_run(found, start, count)

        for start, count in compression.runs(found.shape, found.chunks):
            yield self._attempt(what, functools.partial(run, start, count))

    def _shape_of(self, row: np.void) -> tuple[int, ...]:
        return self.shapes[row["shape"]]

    def _from_blob(self, row: np.void) -> np.ndarray:
        start, count = int(row["offset"]), int(row["nbytes"])
        raw = self._file.rows("tensors/blob", start, start + count)
        return raw.view(_dtype(row)).reshape(self._shape_of(row))

    def block(self, tensor: int, box: Sequence[slice]) -> np.ndarray:
        """Return a part of a stored tensor; axes of size 1 are left out, in ``box`` too."""
        row = self._row_of(tensor)
        left = list(box)
        wanted = tuple(left.pop(0) if size != 1 else slice(0, 1) for size in self._shape_of(row))
        if row["offset"] >= 0:
            part = self.values(tensor)[wanted]
        else:
            part = _typed(self._attempt(f"tensor {tensor}", lambda: self._part_of(row, wanted)), _dtype(row))
        return part.reshape([each.stop - each.start for each in box])

    def check_stored(self, tensors: Iterable[int]) -> None:
        """Raise FormatError where one of some stored tensors lies elsewhere than in this file, or is not what the index says."""
        for tensor in dict.fromkeys(tensors):
            row = self._row_of(tensor)
            if row["offset"] < 0:
                self._attempt(f"tensor {tensor}", functools.partial(self._dataset, row))

    def shape_of(self, tensor: int) -> tuple[int, ...]:
        """Return the shape of a stored tensor."""
        return self._shape_of(self._row_of(tensor))


def _dtype(row: np.void) -> np.dtype:
    return dtype_of(row["dtype"].decode())


def _place_in(numbers: np.ndarray, wanted: int) -> int | None:
    """Return where a number stands in an ascending array; None where it does not."""
    at = int(np.searchsorted(numbers, wanted))
    return at if at < len(numbers) and numbers[at] == wanted else None


def _by_step(rows: Iterable[tuple[int, *tuple[T, ...]]]) -> dict[int, list[tuple[T, ...]]]:
    found: dict[int, list[tuple[T, ...]]] = {}
    for step, *rest in rows:
        found.setdefault(step, []).append(tuple(rest))
    return found


def _typed(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    return array if array.dtype == dtype else array.view(dtype)
