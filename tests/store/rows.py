"""Recordings that are written row by row, for tests of the store."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from probe.numbers.packed import pack
from probe.numbers.statistics import measure
from probe.records import ModuleInfo, Phase, Role, RunInfo, StepState
from probe.store.writing.writer import Writer

INFO = RunInfo("run", "numpy", "2.0", "0.1", "2026-01-01T00:00:00+0000", 0, 1)
_MODULES: weakref.WeakKeyDictionary[Writer, dict[str, int]] = weakref.WeakKeyDictionary()


def module(writer: Writer, path: str) -> int:
    """Return the index of a module, which is added when it is new."""
    known = _MODULES.setdefault(writer, {})
    if path not in known:
        known[path] = len(known)
        writer.add_modules([ModuleInfo(path, "Net", -1)])
    return known[path]


def add_record(
    writer: Writer, array: np.ndarray, *, step: int = 0, micro: int = 0, path: str = "net", slot: str = "0",
    values: bool = True,
) -> int:  # fmt: skip
    """Append an array as the output of a module; return the id of the stored tensor."""
    stats, dtype = pack(measure(array)), array.dtype.name
    tensor = writer.tensor(stats, dtype, array.shape, array.copy) if values else -1
    head = (
        step, micro, 0, 0, Phase.FORWARD, module(writer, path), 0, Role.OUTPUT, writer.slot(slot), dtype.encode(),
        writer.shape(array.shape), False,
    )  # fmt: skip
    writer.add_record(head, stats, tensor)
    return tensor


def end_step(writer: Writer, step: int = 0, state: StepState = StepState.CLOSED, **rows: Any) -> None:
    """Close a step."""
    empty: dict[str, list[Any]] = {"calls": [], "scalars": [], "notes": [], "groups": []}
    writer.end_step(step, **{**empty, **rows}, wall_time=0.5, state=state)


def write(path: Path, steps: Iterable[Iterable[np.ndarray]]) -> None:
    """Write a recording with the given arrays in each of its steps."""
    writer = Writer(path, INFO)
    for step, arrays in enumerate(steps):
        for number, array in enumerate(arrays):
            add_record(writer, array, step=step, slot=str(number))
        end_step(writer, step)
    writer.close()
