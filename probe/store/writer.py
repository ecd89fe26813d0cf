"""Writing a recording: one thread owns the file, a byte-bounded queue feeds it.

The recorder hands over rows and tensors and goes on. ``end_step`` is a barrier in the queue: the thread
writes what came before it, commits, appends the step's row to ``/steps`` and commits again. So a file that is
left behind by a killed process is readable, and holds every step that stands in ``/steps``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from probe.errors import ExistsError, StoreError
from probe.records import (
    HashKind,
    ModuleInfo,
    OptimizerGroup,
    ParameterInfo,
    RunInfo,
    StepState,
    TensorStats,
)
from probe.sketch import WIDTH
from probe.store import schema
from probe.store.disk import Disk
from probe.store.tree import link_tree, storable_text

_BATCH = 1024
_TREE_LIMIT = 20_000


class Writer:
    """Appends one run to a new HDF5 file.

    Parameters
    ----------
    path
        must not exist yet
    info
        the attributes of the run
    queue_bytes
        the queue holds at most this much; who hands over more waits

    Raises
    ------
    ExistsError
        the file is already there
    StoreError
        the file cannot be created
    """

    def __init__(self, path: Path, info: RunInfo, queue_bytes: int = 256 << 20) -> None:
        self.path = path
        self.error: Exception | None = None
        self._disk, self._file = _create(path, info)
        self._slots: dict[str, int] = {}
        self._shapes: dict[tuple[int, ...], int] = {}
        self._new_names: dict[str, list[str]] = {"slots": [], "shapes": []}
        self._tensors: dict[tuple[object, ...], int] = {}
        self._n_tensors = 0
        self._rows: list[tuple[Any, ...]] = []
        self._sketches: list[np.ndarray] = []
        self._counts = dict.fromkeys(("records", "calls", "scalars", "notes", "optimizer"), 0)
        self._links: list[tuple[str, int]] = []
        self._blob_end = 0
        self._queue = _Queue(queue_bytes)
        self._working = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="probe-writer", daemon=True)
        self._thread.start()
        _LIVE.add(self)

    # Handed over by the recorder's thread

    def add_modules(self, modules: Iterable[ModuleInfo]) -> None:
        """Append modules; their index is their place in the order of all that were added."""
        rows = [
            (storable_text(m.path), storable_text(m.class_name), m.parent, storable_text(m.file), m.line,
             m.n_params)
            for m in modules
        ]  # fmt: skip
        self._queue.put(lambda: self._append("modules", rows))

    def add_parameters(self, parameters: Iterable[ParameterInfo]) -> None:
        """Append parameters and buffers; their index is their place in the order of all that were added."""
        rows = [
            (json.dumps(p.names), p.module, storable_text(p.slot), json.dumps(p.shape), p.dtype.encode(),
             p.requires_grad, p.is_buffer, json.dumps(p.axes))
            for p in parameters
        ]  # fmt: skip
        self._queue.put(lambda: self._append("parameters", rows))

    def set_attributes(self, group: str, attributes: dict[str, object]) -> None:
        """Set attributes of a group; what is not a string or number is stored as JSON."""
        plain = {storable_text(key): _plain(value) for key, value in attributes.items()}
        self._queue.put(lambda: self._file.require_group(group).attrs.update(plain))

    def slot(self, name: str) -> int:
        """Return the index of a slot's name in ``/slots``."""
        return self._interned(self._slots, name, "slots", name)

    def shape(self, shape: tuple[int, ...]) -> int:
        """Return the index of a shape in ``/shapes``."""
        return self._interned(self._shapes, shape, "shapes", json.dumps(shape))

    def _interned(self, table: dict[Any, int], key: object, dataset: str, text: str) -> int:
        index = table.get(key)
        if index is None:
            index = table[key] = len(table)
            self._new_names[dataset].append(storable_text(text))
        return index

    def tensor(self, stats: TensorStats, dtype: str, shape: tuple[int, ...], values: Callable[[], np.ndarray]) -> int:
        """Store values unless equal ones are stored already; return the tensor's id.

        ``values`` is called only when they are new, and must return an array that nobody writes to again.
        """
        key = (stats.hash_hi, stats.hash_lo, stats.hash_kind, dtype, shape)
        tensor = self._tensors.get(key)
        if tensor is not None and stats.hash_kind is not HashKind.NONE:
            return tensor
        array = values()
        tensor = self._tensors[key] = self._n_tensors
        self._n_tensors += 1
        index = self.shape(shape)
        self._queue.put(lambda: self._store(tensor, array, dtype, index), array.nbytes)
        return tensor

    def add_record(self, row: tuple[Any, ...], sketch: np.ndarray, place: str | None = None) -> None:
        """Append a record (the columns of `schema.RECORDS`, in order) and its sketch.

        ``place`` is where a stored tensor is found in ``/tree``.
        """
        self._rows.append(row)
        self._sketches.append(sketch)
        if place is not None and len(self._links) <= _TREE_LIMIT:
            self._links.append((place, row[-1]))
        if len(self._rows) >= _BATCH:
            self._put_records()

    def end_step(
        self,
        step: int,
        *,
        calls: list[tuple[Any, ...]],
        scalars: list[tuple[int, str, float]],
        notes: list[tuple[int, int, str]],
        groups: list[OptimizerGroup],
        wall_time: float,
        state: StepState,
    ) -> None:
        """Close a step: all that was added since the last one belongs to it. Does not wait."""
        self._put_records()
        optimizer = [
            (step, g.optimizer, storable_text(g.class_name), g.group, _as_json(g.hyper),
             json.dumps(g.parameters))
            for g in groups
        ]  # fmt: skip
        parts = {
            "calls": calls,
            "scalars": [(at, storable_text(name), value) for at, name, value in scalars],
            "notes": [(at, module, storable_text(text)) for at, module, text in notes],
            "optimizer": optimizer,
        }
        for table, rows in parts.items():
            self._counts[table] += len(rows)
        counts = self._counts
        row = (step, counts["records"], counts["calls"], counts["scalars"], counts["notes"],
               counts["optimizer"], wall_time, int(state))  # fmt: skip
        self._queue.put(lambda: self._close_step(parts, row))

    def close(self) -> None:
        """Write what is left, the readable tree, and close the file. Raises StoreError if writing failed."""
        if self._thread.is_alive():
            self._put_names()
            self._queue.put(self._finish)
            self._queue.put(None)
            self._thread.join()
        _LIVE.discard(self)
        if self.error is not None:
            raise StoreError(_failure_text(self.path, self.error)) from self.error

    def abandon(self) -> None:
        """Let go of the file without writing to it again."""
        if self._thread.is_alive():
            self._queue.close()
            self._thread.join()
        self._let_go()

    def _put_records(self) -> None:
        self._put_names()
        rows, sketches = self._rows, self._sketches
        if not rows:
            return
        self._rows, self._sketches = [], []
        self._counts["records"] += len(rows)
        self._queue.put(lambda: self._append_records(rows, sketches), len(rows) * 8 * (WIDTH + 24))

    def _put_names(self) -> None:
        for dataset, names in self._new_names.items():
            if names:
                self._queue.put(functools.partial(self._append, dataset, names))
                self._new_names[dataset] = []

    # Done by the writer's thread

    def _run(self) -> None:
        try:
            while (job := self._queue.get()) is not None:
                with self._working:
                    job()
                if self._disk.error is not None:
                    raise self._disk.error
        except Exception as error:  # noqa: BLE001  whatever went wrong, the training goes on
            self.error = error
            self._queue.close()
            with self._working:
                self._let_go()

    def _let_go(self) -> None:
        """Close the file, left as it is on disk; HDF5 must not hold it any more when the process ends."""
        _LIVE.discard(self)
        self._disk.freeze()
        with contextlib.suppress(Exception):
            self._file.close()
        self._disk.close()

    def _append(self, table: str, rows: list[Any]) -> None:
        if rows:
            dataset = self._file[table]
            array = np.array(rows, dtype=dataset.dtype)
            dataset.resize(dataset.shape[0] + len(rows), axis=0)
            dataset[-len(rows) :] = array

    def _append_records(self, rows: list[tuple[Any, ...]], sketches: list[np.ndarray]) -> None:
        self._append("records", rows)
        dataset = self._file["sketches"]
        dataset.resize(dataset.shape[0] + len(sketches), axis=0)
        dataset[-len(sketches) :] = np.stack(sketches)

    def _close_step(self, parts: dict[str, list[tuple[Any, ...]]], row: tuple[Any, ...]) -> None:
        for table, rows in parts.items():
            self._append(table, rows)
        self._commit()
        self._append("steps", [row])
        self._commit()

    def _commit(self) -> None:
        self._file.flush()
        self._disk.commit()

    def _store(self, tensor: int, array: np.ndarray, dtype: str, shape: int) -> None:
        data = _storable(array)
        if array.nbytes >= schema.BLOB_LIMIT:
            dataset = self._file["tensors"].create_dataset(str(tensor), data=data)
            dataset.attrs["dtype"] = dtype
            offset = -1
        else:
            blob = self._file["tensors/blob"]
            offset = self._blob_end
            self._blob_end += array.nbytes
            blob.resize(self._blob_end, axis=0)
            if array.nbytes:
                blob[offset : self._blob_end] = np.frombuffer(data.tobytes(), dtype=np.uint8)
        self._append("tensor_index", [(tensor, dtype.encode(), shape, offset, array.nbytes)])

    def _finish(self) -> None:
        if len(self._links) <= _TREE_LIMIT:
            link_tree(self._file, self._links)
        self._file.attrs["closed"] = True
        self._file.close()
        self._disk.commit()
        self._disk.close()


class _Queue:
    """First in, first out; holds at most ``limit`` bytes (or one item that is larger)."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._items: deque[tuple[Callable[[], object] | None, int]] = deque()
        self._bytes = 0
        self._closed = False
        self._changed = threading.Condition()

    def put(self, job: Callable[[], object] | None, nbytes: int = 0) -> None:
        with self._changed:
            while nbytes and self._items and self._bytes + nbytes > self._limit and not self._closed:
                self._changed.wait()
            if self._closed:
                return
            self._items.append((job, nbytes))
            self._bytes += nbytes
            self._changed.notify_all()

    def get(self) -> Callable[[], object] | None:
        with self._changed:
            while not self._items:
                self._changed.wait()
            job, nbytes = self._items.popleft()
            self._bytes -= nbytes
            self._changed.notify_all()
            return job

    def close(self) -> None:
        """Drop what is left; later items are dropped too."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._items.append((None, 0))
            self._changed.notify_all()


def _create(path: Path, info: RunInfo) -> tuple[Disk, h5py.File]:
    try:
        disk = Disk(path)
    except FileExistsError as error:
        text = f"{path} exists already; probe never overwrites: delete it or give another name"
        raise ExistsError(text) from error
    except OSError as error:
        text = f"cannot create {path}: {error.strerror}; is the folder there and writable?"
        raise StoreError(text) from error
    file = h5py.File(disk, "w")
    _lay_out(file, info)
    file.flush()
    try:
        disk.commit()
    except OSError as error:
        file.close()
        disk.close()
        path.unlink()
        raise StoreError(f"cannot write {path}: {error.strerror}") from error
    return disk, file


def _lay_out(file: h5py.File, info: RunInfo) -> None:
    attributes = {name: getattr(info, name) for name in info.__dataclass_fields__}
    file.attrs.update({"format": schema.FORMAT, "version": schema.VERSION})
    file.attrs.update({key: _plain(value) for key, value in attributes.items()})
    for table, dtype in schema.TABLES.items():
        file.create_dataset(table, shape=(0,), maxshape=(None,), dtype=dtype, chunks=(_BATCH,))
    for table in ("slots", "shapes"):
        file.create_dataset(table, shape=(0,), maxshape=(None,), dtype=h5py.string_dtype(), chunks=(_BATCH,))
    file.create_dataset("sketches", shape=(0, WIDTH), maxshape=(None, WIDTH), dtype="f8", chunks=(256, WIDTH))
    file.create_dataset("tensors/blob", shape=(0,), maxshape=(None,), dtype="u1", chunks=(1 << 16,))
    file.create_group("environment")


def _plain(value: object) -> object:
    """Return a value as an attribute can hold it: text, a number, or JSON."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float) or (isinstance(value, int) and -(2**63) <= value < 2**63):
        return value
    return storable_text(value) if isinstance(value, str) else _as_json(value)


def _as_json(value: object) -> str:
    """Return JSON of any value; what JSON cannot say is given as Python prints it."""
    try:
        return json.dumps(value, default=repr)
    except (TypeError, ValueError, RecursionError):  # keys that are no strings, a value that holds itself
        return json.dumps(repr(value))


def _storable(array: np.ndarray) -> np.ndarray:
    """Return an array as HDF5 can hold it: ml_dtypes' numbers as unsigned integers of their width."""
    if array.dtype.kind == "V" or array.dtype.type.__module__.startswith("ml_dtypes"):
        return array.view(f"u{array.dtype.itemsize}")
    return array


def _failure_text(path: Path, error: Exception) -> str:
    return f"writing {path} failed ({error}); the recording has stopped, complete steps in it can be read"


_LIVE: set[Writer] = set()


def _let_go_of_all() -> None:
    """Close what was never closed: HDF5 would do it after Python has ended, and crash."""
    for writer in list(_LIVE):
        writer.abandon()


_PAUSED: list[Writer] = []


def _pause_all() -> None:
    """Wait until no writer is inside HDF5: a process that is forked then would find it locked for ever."""
    for writer in list(_LIVE):
        writer._working.acquire()
        _PAUSED.append(writer)


def _resume_all() -> None:
    while _PAUSED:
        _PAUSED.pop()._working.release()


atexit.register(_let_go_of_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_pause_all, after_in_parent=_resume_all, after_in_child=_resume_all)


def now() -> str:
    """Return the local time with its offset, to the second (ISO 8601)."""
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")
