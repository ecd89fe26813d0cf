"""Writing a recording: one thread owns the file, a byte-bounded queue feeds it.

The recorder hands over rows and tensors and goes on. ``end_step`` is a barrier in the queue: the thread
writes what came before it and the step's row in ``/steps``, and commits. So a file that is left behind by a
killed process is readable, and holds every step that stands in ``/steps``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from probe.config import Compression
from probe.errors import ConfigError, RecordingError, StoreError
from probe.numbers.packed import HASH, HASH_KIND, SKETCH
from probe.numbers.sketch import WIDTH
from probe.records import ModuleInfo, OptimizerGroup, ParameterInfo, RunInfo, StepState
from probe.store import schema
from probe.store.compression import missing
from probe.store.tables import Table, Values, packer
from probe.store.tree import link_tree, links_of, storable_text
from probe.store.writing.creation import Opening, as_json, begin, create, discard, plain
from probe.store.writing.queue import PAUSE, Queue

_BATCH = 1024
"""records that are handed over together"""
_HANDOVER = 8 << 20
"""bytes of values that are handed over together"""
_TREE_LIMIT = 20_000
_NOTES_LIMIT = 10_000
_SWITCH = 1e-5
"""seconds, while the end of the writer's thread is waited for"""
_NO_SKETCH = bytes(8 * WIDTH)
_NAMES_LIMIT = 32 << 20
"""bytes of memory for the names of slots, and for shapes"""


class Writer:
    """Appends one run to a new HDF5 file.

    ``info`` has the attributes of the run. The queue holds at most ``queue_bytes``: who hands over more waits.
    ``compression`` is how large tensors are compressed. Raises ExistsError where the file is already there,
    StoreError where it cannot be created, ConfigError where what compresses is not installed.
    """

    def __init__(
        self, path: Path, info: RunInfo, queue_bytes: int = 256 << 20, compression: Compression | None = None
    ) -> None:
        if compression is not None and (lacks := missing()):
            raise ConfigError(f"compression={compression.value!r} needs more: {lacks}")
        self.path = path
        self.error: Exception | None = None
        self._slots, self._shapes = _Names("slots", storable_text), _Names("shapes", json.dumps)
        self.slot = self._slots.index
        """Returns the index of a slot's name in ``/slots``. Raises RecordingError when there are too many."""
        self.shape = self._shapes.index
        """Returns the index of a shape in ``/shapes``. Raises RecordingError when there are too many."""
        self._known: dict[tuple[object, ...], int] = {}
        self._known_before: dict[tuple[object, ...], int] = {}
        self._n_tensors = self._n_sums = 0
        self._new_tensors: list[tuple[int, np.ndarray, str, int]] = []
        self._records: list[bytes] = []
        """a row and its sketch each, in one piece: an interrupt finds both or neither"""
        self._sums: list[tuple[tuple[int, ...], np.ndarray]] = []
        self._counts = dict.fromkeys(("records", "calls", "scalars", "notes", "optimizer"), 0)
        self._pack_row = packer(schema.RECORDS, "min", "hash_kind").pack
        self._jobs: deque[Callable[[], object]] = deque()
        self._jobs_bytes = 0
        self._queue = Queue(queue_bytes)
        self._modules: list[str] = []
        self._stored: list[np.ndarray] = []
        self._n_stored = 0
        self._torn = self._finishing = False
        self._working = threading.Lock()
        self._ended = False
        """the thread has done its work; `join` takes a thread for ended once it was interrupted (CPython 3.11)"""
        self._thread = threading.Thread(target=self._run, name="probe-writer", daemon=True)
        opening = Opening(functools.partial(self._open, path, info, compression), path)
        try:
            opening.run()
            begin(self._thread, path)
        except BaseException as error:
            opening.cancel()
            if opening.has_succeeded:
                self.abandon()
                discard(path, error)
            raise

    def _open(self, path: Path, info: RunInfo, compression: Compression | None) -> None:
        self._disk, self._file = create(path, info)
        _LIVE.add(self)
        try:
            self._tables = {
                name: Table(self._file, name) for name in (*schema.TABLES, "slots", "shapes", "sketches", "sums")
            }
            self._values = Values(self._file, self._disk, compression)
        except BaseException as error:
            self.abandon()
            discard(path, error)
            raise

    @property
    def n_records(self) -> int:
        """How many records were handed over."""
        return self._counts["records"] + len(self._records)

    # Handed over by the recorder's thread

    def add_modules(self, modules: Iterable[ModuleInfo]) -> None:
        """Append modules; their index is their place in the order of all that were added."""
        rows = [
            (storable_text(m.path), storable_text(m.class_name), m.parent, storable_text(m.file), m.line,
             m.n_params, storable_text(m.arguments), storable_text(m.called_from))
            for m in modules
        ]  # fmt: skip
        self._modules += [row[0] for row in rows]
        self._jobs.append(lambda: self._tables["modules"].append_rows(rows))

    def add_parameters(self, parameters: Iterable[ParameterInfo]) -> None:
        """Append parameters and buffers; their index is their place in the order of all that were added."""
        rows = [
            (json.dumps(p.names), p.module, storable_text(p.slot), json.dumps(p.shape), p.dtype.encode(),
             p.requires_grad, p.is_buffer, json.dumps(p.axes), storable_text(p.canonical), p.is_persistent)
            for p in parameters
        ]  # fmt: skip
        self._jobs.append(lambda: self._tables["parameters"].append_rows(rows))

    def set_attributes(self, group: str, attributes: dict[str, object]) -> None:
        """Set attributes of a group; what is not a string or number is stored as JSON."""
        stored = {storable_text(key): plain(value) for key, value in attributes.items()}
        self._jobs.append(lambda: self._file.require_group(group).attrs.update(stored))

    def slot_name(self, number: int) -> str:
        """Return what has a number in ``/slots``."""
        return self._slots.names[number]

    def tensor(self, stats: bytes, dtype: str, shape: tuple[int, ...], values: Callable[[], np.ndarray]) -> int:
        """Store values, unless equal ones were met in this step or in the one before; return the tensor's id.

        ``values`` is called only when they are new, and must return an array that nobody writes to again.
        """
        key = (stats[HASH], dtype, shape)
        tensor = self._known.get(key, self._known_before.get(key))
        if tensor is None or not stats[HASH_KIND]:
            index, array = self.shape(shape), values()
            tensor = self._n_tensors
            self._n_tensors += 1
            self._new_tensors.append((tensor, array, dtype, index))
            self._jobs_bytes += array.nbytes
        self._known[key] = tensor
        self._relieve()
        return tensor

    def add_record(self, head: tuple[Any, ...], stats: bytes, tensor: int, is_sketched: bool = True) -> None:
        """Append a record.

        ``head`` has its columns before the statistics, see `schema.RECORDS`; ``stats`` are as
        `probe.numbers.packed.pack` returns them; ``tensor`` is the id of its values, −1 for none. With
        ``is_sketched`` the sketch stands in the file; otherwise its numbers are zeros.
        """
        row = self._pack_row(*head, stats, tensor)
        self._records.append(row + (stats[SKETCH] if is_sketched else _NO_SKETCH))
        if len(self._records) >= _BATCH:
            self._take_records()
            self._hand_over()
            self._queue.wait_for_room()

    def add_axis_sums(self, step: int, parameter: int, sums: Sequence[np.ndarray]) -> None:
        """Append the sums along each axis of a parameter (float32, one axis each), as it was when a step began."""
        for axis, each in enumerate(sums):
            self._sums.append(((step, parameter, axis, self._n_sums, len(each)), each))
            self._n_sums += len(each)
            self._jobs_bytes += each.nbytes
        self._relieve()

    def _relieve(self) -> None:
        """Hand over what was collected, where that is much."""
        if self._jobs_bytes >= min(_HANDOVER, self._queue.limit // 4):
            self._hand_over()
            self._queue.wait_for_room()

    def end_step(
        self, step: int, *, calls: list[tuple[Any, ...]], scalars: list[tuple[int, str, float]],
        notes: list[tuple[int, int, str]], groups: list[OptimizerGroup], wall_time: float, state: StepState,
    ) -> None:  # fmt: skip
        """Close a step: all that was added since the last one belongs to it. Does not wait: `wait_for_room` does."""
        self._take_records()
        optimizer = [
            (step, g.optimizer, storable_text(g.class_name), g.group, as_json(g.hyper),
             json.dumps(g.parameters))
            for g in groups
        ]  # fmt: skip
        parts = {
            "calls": calls,
            "scalars": [(at, storable_text(name), value) for at, name, value in scalars],
            "notes": [(at, module, storable_text(text)) for at, module, text in self._kept(notes)],
            "optimizer": optimizer,
        }
        for table, rows in parts.items():
            self._counts[table] += len(rows)
        row = (step, *self._counts.values(), wall_time, int(state))
        self._jobs.append(lambda: self._close_step(parts, row))
        self._known, self._known_before = {}, self._known
        self._hand_over()

    def wait_for_room(self) -> None:
        """Wait while the queue holds more than it may."""
        self._queue.wait_for_room()

    def finish(self) -> None:
        """Let what is left be written, and the readable tree, and the file be closed. Does not wait for it."""
        if not self._finishing:
            self._jobs.append(self._finish)
            self._hand_over()
            self._queue.put(None)
            self._finishing = True

    def close(self) -> None:
        """Finish, and wait for it. Raises StoreError if writing failed."""
        self.finish()
        self._wait_for_end()
        self._queue.close()  # whoever is inside a hook still need not wait for a thread that has ended
        _LIVE.discard(self)
        if self.error is not None:
            raise StoreError(_failure_text(self.path, self.error)) from self.error

    def abandon(self) -> None:
        """Let go of the file without writing to it again, unless it is being finished: then wait for that."""
        if not self._finishing:
            self._queue.close()
        self._wait_for_end()
        self._let_go()

    def _wait_for_end(self) -> None:
        """Wait for the thread, and let it have the interpreter within 10 µs whenever it asks for it.

        It asks some 20 times for each name of the readable tree; beside a thread that goes on training in Python it would
        wait 5 ms each time, minutes in all.
        """
        if not self._thread.is_alive():  # in a forked process
            return
        interval = sys.getswitchinterval()
        sys.setswitchinterval(min(interval, _SWITCH))
        try:
            while not self._ended:
                time.sleep(PAUSE)
            self._thread.join()
        finally:
            sys.setswitchinterval(interval)

    def _kept(self, notes: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
        """Return the notes that there is room for; the last says that there was none for more."""
        room = _NOTES_LIMIT - self._counts["notes"]
        if len(notes) < room or not room:
            return notes[:room]
        more = (notes[-1][0], -1, f"there were {_NOTES_LIMIT:,} notes: further ones are not kept")
        return [*notes[: room - 1], more]

    def _take_records(self) -> None:
        """Make a job of the records so far."""
        if self._records:
            records, self._records = self._records, []
            self._jobs.append(functools.partial(self._append_records, records))
            self._jobs_bytes += len(records) * (schema.RECORDS.itemsize + len(_NO_SKETCH))
            self._counts["records"] += len(records)

    def _hand_over(self) -> None:
        """Put into the queue what was collected, behind the names that it refers to.

        What is interrupted here (Ctrl-C, no memory, no room on the stack) may have been put there or not: then no more
        is written.
        """
        if self._torn:
            self.error = self.error or RecordingError("interrupted while rows were handed over")
            self._queue.close()
            return
        self._torn = True
        jobs, nbytes = self._jobs, self._jobs_bytes
        if self._sums:
            jobs.appendleft(functools.partial(self._append_sums, self._sums))
            self._sums = []
        jobs.appendleft(functools.partial(self._values.store, self._new_tensors))
        for names in (self._slots, self._shapes):
            jobs.appendleft(functools.partial(self._tables[names.table].append_rows, names.taken()))
        self._jobs, self._jobs_bytes, self._new_tensors = deque(), 0, []
        self._queue.put(functools.partial(_do, jobs), nbytes)
        self._torn = False

    # Done by the writer's thread

    def _run(self) -> None:
        try:
            while (job := self._queue.get()) is not None:
                with self._working:
                    job()
                if self._disk.error is not None:
                    raise self._disk.error
        except Exception as error:  # noqa: BLE001  whatever went wrong, the training goes on
            self.error = self._disk.error or error  # HDF5 says in its own words what it stumbled over
            self._queue.close()
        try:
            if self.error is not None:
                with self._working:
                    self._let_go()
        finally:
            self._ended = True

    def _let_go(self) -> None:
        """Close the file, left as it is on disk; HDF5 must not hold it any more when the process ends."""
        _LIVE.discard(self)
        self._disk.freeze()
        with contextlib.suppress(Exception):
            self._file.close()
        with contextlib.suppress(OSError):
            self._disk.close()

    def _append_records(self, records: list[bytes]) -> None:
        size = schema.RECORDS.itemsize
        parts = np.frombuffer(b"".join(records), np.uint8).reshape(len(records), -1)
        rows = np.ascontiguousarray(parts[:, :size]).view(schema.RECORDS)[:, 0]
        sketches = np.ascontiguousarray(parts[:, size:]).view(np.float64)
        self._tables["records"].append(rows)
        if parts[:, size:].any():
            self._tables["sketches"].append(sketches)
        else:
            self._tables["sketches"].extend(len(rows))
        stored = rows[rows["tensor"] >= 0]
        self._n_stored += len(stored)
        if len(stored) and self._n_stored <= _TREE_LIMIT:
            self._stored.append(stored)

    def _append_sums(self, sums: list[tuple[tuple[int, ...], np.ndarray]]) -> None:
        rows, values = zip(*sums, strict=True)
        self._tables["sums"].append(np.concatenate(values))
        self._tables["axis_sums"].append_rows(list(rows))

    def _close_step(self, parts: dict[str, list[tuple[Any, ...]]], row: tuple[Any, ...]) -> None:
        self._values.flush()
        for table, rows in parts.items():
            self._tables[table].append_rows(rows)
        self._tables["steps"].append_rows([row])
        self._file.flush()
        self._disk.commit()

    def _finish(self) -> None:
        if not self._file:  # done already
            return
        self._values.flush()
        if self._stored and self._n_stored <= _TREE_LIMIT:
            link_tree(self._file, links_of(np.concatenate(self._stored), self._modules, self._slots.names))
        self._file.attrs["closed"] = True
        self._file.close()
        self._disk.commit()
        self._disk.close()


class _Names:
    """Names that are stored once and have numbers: ``/slots``, ``/shapes``."""

    def __init__(self, table: str, text: Callable[[Any], str]) -> None:
        self.table = table
        self._text = text
        self._numbers: dict[Any, int] = {}
        self._taken = self._bytes = 0

    @property
    def names(self) -> list[Any]:
        """All of them, by number."""
        return list(self._numbers)

    def index(self, name: Any) -> int:
        """Return the number of a name, the next one for a new name. Raises RecordingError where there is no room for it."""
        number = self._numbers.get(name)
        return self._add(name) if number is None else number

    def _add(self, name: Any) -> int:
        size = len(self._text(name)) + 100
        if self._bytes + size > _NAMES_LIMIT:
            self._bytes = _NAMES_LIMIT  # nor is there room for shorter ones: it is said once
            raise RecordingError(
                f"there are {len(self._numbers):,} different {self.table} already: tensors with further ones are not recorded"
            )
        self._bytes += size
        number = self._numbers[name] = len(self._numbers)
        return number

    def taken(self) -> list[str]:
        """Return the texts that are not in the file yet, to be appended there."""
        count = len(self._numbers) - self._taken
        new = list(itertools.islice(reversed(self._numbers), count))[::-1]
        self._taken += count
        return [self._text(name) for name in new]


def _do(jobs: deque[Callable[[], object]]) -> None:
    """Do jobs in their order, and hold none of them longer than it takes."""
    while jobs:
        jobs.popleft()()


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
