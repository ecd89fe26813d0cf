"""A recording's values as named tensors: names are those below ``/tree``, ``step_0/micro_0/mlp/call_0/forward/output.0``."""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from probe.checkpoints import safetensors
from probe.checkpoints.stored import Stored
from probe.checkpoints.writing import written_whole
from probe.errors import NotRecordedError
from probe.numbers.statistics import dtype_of
from probe.ranks.layout.files import files_of
from probe.records import Phase, Role
from probe.store.reading.reader import Reader
from probe.store.tree import place


def readers_of(source: str | Path, opened: contextlib.ExitStack) -> list[Reader]:
    """Return a reader for each rank. Raises StoreError, FormatError where one cannot be read, NotRecordedError without steps."""
    readers = [opened.enter_context(Reader(path)) for path in files_of(source)]
    for reader in readers:
        reader.require_steps()
        if not len(reader.steps):
            raise NotRecordedError(f"{reader.path} has no complete step: record one")
    return readers


def counted(head: str, counts: Counter[str]) -> list[str]:
    """Return a note, or none where nothing was counted: ``left out: 60 state, 20 delta``."""
    named = ", ".join(f"{number:,} {what}" for what, number in counts.most_common() if number)
    return [f"{head}: {named}"] if named else []


def export_named(source: str | Path, target: str | Path, is_one: bool) -> tuple[int, list[str]]:
    """Write values into one new ``.safetensors`` file, or a new folder of ``.npy`` files, whose times tell the order.

    Return how many, and notes. ``.npy`` has neither bfloat16 nor float8: they become float32, in ``….bfloat16.npy``.
    Raises NotRecordedError where there are no values, ConversionError where the target is there or cannot be written.
    """
    left, other = Counter[str](), Counter[str]()
    with contextlib.ExitStack() as opened, written_whole(Path(target)) as path:
        readers = readers_of(source, opened)
        found = [each for reader in readers for each in _with_values(reader, len(readers) > 1, left)]
        if not found:
            raise NotRecordedError(f'{source} holds no values, statistics alone: record it with task="tensor"')
        known = safetensors.NAMES if is_one else {each.dtype for each, _, _ in found if each.dtype.isbuiltin == 1}
        other.update(str(each.dtype) for each, _, _ in found if each.dtype not in known)
        if is_one:
            found = [each for each in found if each[0].dtype in known]
            framework = readers[0].info.framework if readers[0].info.framework in ("torch", "mindspore") else "paddle"
            arrays = (reader.values(tensor) for _, reader, tensor in found)
            safetensors.write(path, [each for each, _, _ in found], arrays, framework)
        for at, (each, reader, tensor) in enumerate([] if is_one else found, time.time_ns() // 1000):
            file = path / (f"{each.name}.npy" if each.dtype in known else f"{each.name}.{each.dtype}.npy")
            file.parent.mkdir(parents=True, exist_ok=True)
            np.save(file, reader.values(tensor).astype(each.dtype if each.dtype in known else np.float32))
            os.utime(file, ns=(at * 1000, at * 1000))
    what = "left out, which safetensors cannot hold" if is_one else "written as float32"
    return len(found), counted("left out, without values", left) + counted(what, other)


def _with_values(reader: Reader, many: bool, left: Counter[str]) -> Iterator[tuple[Stored, Reader, int]]:
    """Yield what has values, by names that differ; count the rest."""
    known, rank = set[str](), f"rank{reader.info.rank}/" if many else ""
    for row in (row for step in reader.steps["step"].tolist() for row in reader.of_step("records", step)):
        role, tensor = Role(row["role"]), int(row["tensor"])
        seen = reader.modules[row["module"]].path, int(row["call"]), Phase(row["phase"]), role
        name = rank + place(int(row["step"]), int(row["micro"]), *seen, reader.slots[row["slot"]])
        if tensor < 0 or name in known:
            left[role.label if tensor < 0 else f"{role.label} seen again"] += 1
        else:
            yield Stored(name, dtype_of(row["dtype"].decode()), reader.shapes[row["shape"]]), reader, tensor
        known.add(name)
