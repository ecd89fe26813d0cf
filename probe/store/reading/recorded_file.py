"""An HDF5 file as the reader sees it: tables and tensors that have been looked at before they are read."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import h5py
import numpy as np
from h5py import h5d, h5g, h5s

from probe.damage import CAUSES, Damaged, closed, said_of
from probe.errors import FormatError, ProbeError
from probe.store import compression
from probe.store.reading import layout
from probe.store.reading.opening import attempts, opened

T = TypeVar("T")


class RecordedFile:
    """One open file, which a writer may be changing.

    Raises StoreError where there is no such file, or it cannot be opened, and FormatError where it is not a
    recording, or one of a newer format.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file, self.attributes = opened(path)
        """by the name of the group"""
        self.is_closed = False
        self._tables: dict[str, h5d.DatasetID] = {}
        self._tensors: h5g.GroupID | None = None
        """the group of the tensors, once it was opened"""

    def let_go(self) -> None:
        """Give back the memory in which HDF5 keeps what was read of tables: up to 8 MiB of each, while it is open."""
        self._tables.clear()
        self._tensors = None

    def close(self) -> None:
        """Close the file; what was not read cannot be read any more."""
        self.is_closed = True
        self._release()

    def _release(self) -> None:
        self.let_go()
        self._file.close()

    def attempt(self, what: str, read: Callable[[], T]) -> T:
        """Read something; open the file anew and try again where a writer has changed it meanwhile.

        The first attempt has the file as it was opened, however long ago, so what has become of it since tells
        nothing. Each later one opens it within the attempt: what is written between opening and reading counts as a
        change.

        Raises FormatError where the file is damaged, or leads out of itself, and StoreError where it was closed.
        """
        for again in itertools.chain((False,), (True for _ in attempts(self.path))):
            if again:
                self._release()
                self._file, self.attributes = opened(self.path)
            try:
                return read()
            except ProbeError:
                raise
            except (Damaged, *CAUSES) as error:
                failure = error
            if self.is_closed:
                raise closed(self.path) from None
            if self.attributes["/"].get("closed", False):
                break
        raise FormatError(said_of(self.path, what, failure)) from failure

    def has(self, name: str) -> bool:
        """Return True if the file has something at its top, which older ones may lack."""
        return layout.has(h5g.open(self._file.id, b"/"), name)

    def rows(self, name: str, first: int = 0, last: int | None = None) -> np.ndarray:
        """Return rows of a table, without the objects that h5py makes of a table: making them takes longer than reading few rows."""
        table = self._table(name)
        count, *rest = table.shape
        last = count if last is None else last
        if not 0 <= first <= last <= count:
            raise Damaged(f"it has {count} rows, {last} were counted")
        columns = layout.columns_of(table, name)
        found = np.empty((last - first, *rest), columns.dtype)
        if found.size:
            where = table.get_space()
            where.select_hyperslab((first, *(0 for _ in rest)), found.shape)
            table.read(h5s.create_simple(found.shape), where, found, columns.in_memory)
        return found

    def columns(self, name: str, columns: list[str], first: int, last: int) -> np.ndarray:
        """Return some columns of a table."""
        return h5py.Dataset(self._table(name)).fields(columns)[first:last]

    def count(self, name: str) -> int:
        """Return how many rows a table has."""
        return self._table(name).shape[0]

    def tensor(self, number: int, stored: np.dtype, shape: tuple[int, ...]) -> h5py.Dataset:
        """Return the dataset of a tensor that does not lie in the blob, its values being of the dtype ``stored``."""
        name = f"tensors/{number}"
        if self._tensors is None:
            self._tensors = layout.opened(self._file, "tensors")
        lies = layout.dataset(self._file, name, self._tensors, compression.FILTERS)
        found, size = h5py.Dataset(lies), math.prod(shape) * stored.itemsize
        if lies.dtype != stored or found.shape != shape:
            raise Damaged(f"/{name} holds {found.dtype} {found.shape}, expected {stored} {shape}")
        if lies.get_create_plist().get_layout() == h5d.CHUNKED:
            compression.check(found, self._size())
        elif size > self._size():
            raise Damaged(f"/{name} has {size} bytes, for which the file has no room")
        return found

    def _table(self, name: str) -> h5d.DatasetID:
        found = self._tables.get(name)
        if found is None:
            found = self._tables[name] = layout.table(self._file, name, self.path)
        return found

    def _size(self) -> int:
        return self.path.stat().st_size
