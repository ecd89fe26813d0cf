"""The readable tree: every stored tensor under the name of its module, as hard links."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np

from probe.errors import StoreError
from probe.records import Phase, Role
from probe.statistics import dtype_of
from probe.store.reader import Reader


def place(step: int, micro: int, path: str, call: int, phase: Phase, role: Role, slot: str) -> str:
    """Return where an observation stands below ``/tree``, names percent-encoded."""
    pass_name = f"micro_{micro}" if micro >= 0 else f"eval_{-micro - 1}"
    parts = [f"step_{step}", pass_name, *path.split("."), f"call_{call}", phase.label, f"{role.label}.{slot}"]
    return "/".join(_encoded(part) for part in parts if part)


def storable_text(text: str) -> str:
    """Return text as HDF5 can hold it: with NUL and lone surrogates as ``\\x00`` and ``\\udc80``."""
    return text.encode("utf-8", "backslashreplace").decode().replace("\0", "\\x00")


def write_tree(path: str | Path) -> int:
    """Give every stored tensor of a closed recording its readable place; return how many names there are."""
    with Reader(path) as reader:
        names = [
            place(int(r["step"]), int(r["micro"]), reader.modules[r["module"]].path, int(r["call"]), Phase(r["phase"]),
                  Role(r["role"]), reader.slots[r["slot"]])
            for r in reader.records
        ]  # fmt: skip
        links = [
            (name, int(tensor)) for name, tensor in zip(names, reader.records["tensor"], strict=True) if tensor >= 0
        ]
    try:
        with h5py.File(path, "r+", locking=False) as file:
            link_tree(file, links)
    except OSError as error:
        raise StoreError(f"cannot write to {path}: {error}") from error
    return len(links)


def _encoded(part: str) -> str:
    text = storable_text(part).replace("%", "%25").replace("/", "%2F")
    return "%2E" if text == "." else text


def link_tree(file: h5py.File, links: Iterable[tuple[str, int]]) -> None:
    """Give every (place, tensor id) its name below ``/tree``."""
    tree = file.require_group("tree")
    index = {int(row["id"]): row for row in file["tensor_index"][:]}
    shapes = file["shapes"].asstr()[:]
    made: dict[int, h5py.Dataset] = {}
    for name, tensor in links:
        if name in tree or tensor not in index:
            continue
        if index[tensor]["offset"] < 0:
            tree[name] = file[f"tensors/{tensor}"]
        elif tensor in made:
            tree[name] = made[tensor]
        else:
            made[tensor] = _unpacked(file, tree, name, index[tensor], shapes)


def _unpacked(file: h5py.File, tree: h5py.Group, name: str, row: np.void, shapes: np.ndarray) -> h5py.Dataset:
    dtype = dtype_of(row["dtype"].decode())
    raw = file["tensors/blob"][row["offset"] : row["offset"] + row["nbytes"]]
    if dtype.type.__module__.startswith("ml_dtypes"):
        dtype = np.dtype(f"u{dtype.itemsize}")
    array = np.frombuffer(raw.tobytes(), dtype=dtype).reshape(json.loads(shapes[row["shape"]]))
    dataset = tree.create_dataset(name, data=array)
    dataset.attrs["dtype"] = row["dtype"].decode()
    return dataset
