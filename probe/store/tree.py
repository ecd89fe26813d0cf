"""The readable tree: every stored tensor under the name of its module, as hard links."""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import h5py
import numpy as np
from h5py import h5g, h5s

from probe.errors import FormatError, StoreError
from probe.numbers.statistics import dtype_of
from probe.records import Phase, Role
from probe.store import journal
from probe.store.reading import layout
from probe.store.reading.hdf5 import open_on
from probe.store.reading.reader import Reader
from probe.store.tables import create_dataset, in_header, storable
from probe.store.writing import system
from probe.store.writing.disk import Disk

_OPEN_GROUPS = 1000
_PART = 1 << 22
_COLUMNS = ("step", "micro", "module", "call", "phase", "role", "slot", "tensor")


def place(step: int, micro: int, path: str, call: int, phase: Phase, role: Role, slot: str) -> str:
    """Return where an observation stands below ``/tree``, names percent-encoded."""
    pass_name = f"micro_{micro}" if micro >= 0 else f"eval_{-micro - 1}"
    names = [f"step_{step}", pass_name, *_encoded_path(path), f"call_{call}", phase.label]
    return "/".join([*names, _encoded(f"{role.label}.{slot}")])


def storable_text(text: str) -> str:
    """Return text as HDF5 can hold it: with NUL and lone surrogates as ``\\x00`` and ``\\udc80``."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def write_tree(path: str | Path) -> int:
    """Give every stored tensor of a closed recording its readable place; return how many names there are."""
    _complete(Path(path))
    with Reader(path) as reader:
        links = list(links_of(reader.records, [module.path for module in reader.modules], reader.slots))
        reader.check_stored(tensor for _, tensor in links)
    try:
        _change(Path(path), links)
    except OSError as error:
        raise StoreError(f"cannot write to {path}: {error.strerror or error}; the recording is as it was") from None
    return len(links)


def _change(path: Path, links: list[tuple[str, int]]) -> None:
    """Make the tree anew: all of it, or, whatever fails, nothing. Raises OSError."""
    disk = Disk(path, system.CHANGED)
    try:
        with open_on(disk, "r+") as file:
            if layout.has(file.id, "tree"):
                del file["tree"]
            link_tree(file, links)
        disk.commit()
    except BaseException as error:
        disk.freeze()
        with contextlib.suppress(OSError):
            disk.close()
        if disk.error is not None and isinstance(error, Exception):  # HDF5 says in its own words what it stumbled over
            raise disk.error from None
        raise
    disk.close()


def _complete(path: Path) -> None:
    """Complete what a killed process was committing."""
    try:
        if path.is_file():
            journal.repair(path)
    except FormatError:
        raise
    except OSError as error:
        raise StoreError(f"cannot write to {path}: {error}") from None


def links_of(records: np.ndarray, modules: Sequence[str], slots: Sequence[str]) -> Iterator[tuple[str, int]]:
    """Yield (place, tensor id) of the records whose values are stored."""
    stored = records[records["tensor"] >= 0]
    for step, micro, module, call, phase, role, slot, tensor in zip(
        *(stored[c].tolist() for c in _COLUMNS), strict=True
    ):
        yield place(step, micro, modules[module], call, Phase(phase), Role(role), slots[slot]), tensor


def link_tree(file: h5py.File, links: Iterable[tuple[str, int]]) -> None:
    """Give every (place, tensor id) its name below ``/tree``, which must not exist."""
    tree = _Tree(file)
    for name, tensor in links:
        tree.link(name, tensor)


class _Tree:
    """The groups below ``/tree``; what there is of them is known here and never asked of the file."""

    def __init__(self, file: h5py.File) -> None:
        self._root = file.create_group("tree").id
        self._tensors, self._blob = file["tensors"].id, file["tensors/blob"]
        self._index = {int(row["id"]): row for row in file["tensor_index"][:]}
        self._shapes = file["shapes"].asstr()[:]
        self._names: set[str] = set()
        self._open: dict[str, h5g.GroupID] = {}
        self._small: dict[int, str] = {}
        self._begin, self._part = 0, np.empty(0, np.uint8)

    def link(self, name: str, tensor: int) -> None:
        row = self._index.get(tensor)
        if row is None or name in self._names:
            return
        self._names.add(name)
        above, _, last = name.rpartition("/")
        group = self._group(above)
        if row["offset"] < 0:
            group.links.create_hard(last.encode(), self._tensors, str(tensor).encode())
        elif tensor in self._small:
            group.links.create_hard(last.encode(), self._root, self._small[tensor].encode())
        else:
            self._unpack(group, last, row)
            self._small[tensor] = name

    def _group(self, path: str) -> h5g.GroupID:
        if not path:
            return self._root
        group = self._open.get(path)
        if group is None:
            above, _, last = path.rpartition("/")
            parent = self._group(above)
            known = path in self._names
            group = h5g.open(parent, last.encode()) if known else h5g.create(parent, last.encode())
            self._names.add(path)
            if len(self._open) >= _OPEN_GROUPS:
                self._open.clear()
            self._open[path] = group
        return group

    def _unpack(self, group: h5g.GroupID, name: str, row: np.void) -> None:
        """Copy a small tensor from the blob."""
        dtype = row["dtype"].decode()
        raw = self._from_blob(int(row["offset"]), int(row["nbytes"]))
        array = storable(raw.view(dtype_of(dtype)).reshape(json.loads(self._shapes[row["shape"]])))
        create_dataset(group, name.encode(), array, dtype, in_header()).write(h5s.ALL, h5s.ALL, array)

    def _from_blob(self, start: int, count: int) -> np.ndarray:
        """Return bytes of the blob, which is read in larger parts than one tensor."""
        if not self._begin <= start <= start + count <= self._begin + len(self._part):
            self._begin, self._part = start, self._blob[start : start + max(count, _PART)]
        return self._part[start - self._begin : start - self._begin + count]


@functools.lru_cache(maxsize=512)
def _encoded_path(path: str) -> list[str]:
    return [_encoded(part) for part in path.split(".") if part]


@functools.lru_cache(maxsize=512)
def _encoded(part: str) -> str:
    text = storable_text(part).replace("%", "%25").replace("/", "%2F")
    return "%2E" if text == "." else text
