"""Recordings written record by record, without a framework."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from probe.numbers.packed import pack
from probe.numbers.statistics import measure
from probe.records import HashKind, ModuleInfo, ParameterInfo, Phase, Role, RunInfo, StepState, TensorStats
from probe.store.writing.writer import Writer


def run_info(run_id: str) -> RunInfo:
    """Return the attributes of a run that nobody made."""
    return RunInfo(run_id, "none", "0", "0", "2024-01-01T00:00:00+0000", 0, 1)


@dataclass(frozen=True)
class Tensor:
    """A tensor that is to stand in a file, as an output of the root unless told otherwise."""

    array: np.ndarray
    role: Role = Role.OUTPUT
    phase: Phase = Phase.FORWARD
    slot: str = "0"
    axes: tuple[int, ...] = ()
    hash_kind: HashKind = HashKind.XXH3_128
    stats: TensorStats | None = None
    """in place of what `measure` says"""


def write_tensors(path: Path, tensors: Iterable[Tensor], *, values: bool) -> Path:
    """Write one step with one call of one module, and a record per tensor, in their order."""
    writer = Writer(path, run_info(path.stem))
    writer.add_modules([ModuleInfo("", "Net", -1)])
    tensors = list(tensors)
    writer.add_parameters(
        ParameterInfo((t.slot,), 0, t.slot.partition(".")[0], t.array.shape, str(t.array.dtype), True, False, t.axes)
        for t in tensors
        if t.axes
    )
    for seq, tensor in enumerate(tensors):
        _add(writer, seq, tensor, values)
    writer.end_step(0, calls=[(0, 0, 0, 1, 0, 0, -1, 1, 1, 0, 0, b"")], scalars=[], notes=[], groups=[],
                    wall_time=0.0, state=StepState.CLOSED)  # fmt: skip
    writer.close()
    return path


def _add(writer: Writer, seq: int, tensor: Tensor, values: bool) -> None:
    array = tensor.array
    s = pack(tensor.stats or measure(array, tensor.axes, tensor.hash_kind))
    dtype = str(array.dtype)
    stored = writer.tensor(s, dtype, array.shape, lambda: array) if values else -1
    writer.add_record(
        (0, 0, seq, seq, tensor.phase, 0, 0, tensor.role, writer.slot(tensor.slot), dtype.encode(),
         writer.shape(array.shape), False),
        s, stored,
    )  # fmt: skip


def arrays(*items: object, dtype: str | np.dtype = "float32") -> Sequence[Tensor]:
    """Return tensors of plain values."""
    return [Tensor(np.asarray(item).astype(dtype)) for item in items]
