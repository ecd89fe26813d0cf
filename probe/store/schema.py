"""Every name in a recording: groups, columns and their types (format 1, ``docs/reference/file-format.md``)."""

from __future__ import annotations

import h5py
import numpy as np

from probe.records import Phase, Role, StepState

FORMAT = "probe"
VERSION = 1
BLOB_LIMIT = 4096
"""tensors of fewer bytes share the dataset ``/tensors/blob``"""
_KINDS = {
    "text": h5py.string_dtype(),
    "dtype": "S24",  # a dtype's name; the longest is ``float8_e4m3b11fnuz``
    "phase": h5py.enum_dtype({phase.label: int(phase) for phase in Phase}, basetype="u1"),
    "role": h5py.enum_dtype({role.label: int(role) for role in Role}, basetype="u1"),
    "state": h5py.enum_dtype({state.name.lower(): int(state) for state in StepState}, basetype="u1"),
}
"""of columns, beside those of numpy"""


def _rows(columns: str) -> np.dtype:
    """Return the dtype of rows, given their columns in order, those of a kind that follow one another together: ``a b: i4, c: text``."""
    groups = (group.split(": ") for group in columns.split(", "))
    return np.dtype([(name, _KINDS.get(kind, kind)) for names, kind in groups for name in names.split()])


RECORDS = _rows(
    "step micro seq order: i4, phase: phase, module call: i4, role: role, slot: i4, dtype: dtype, shape: i4, requires_grad: i1, "
    "min max mean rms norm: f8, nan posinf neginf zeros: i8, hash_lo hash_hi: u8, hash_kind: u1, tensor: i8"
)
"""``tensor`` is −1 where no values are stored"""
CALLS = _rows("step micro seq end module call caller: i4, training grad_enabled recomputed raised: i1, autocast: dtype")
PARAMETERS = _rows(
    "names: text, module: i4, slot shape: text, dtype: dtype, requires_grad is_buffer: i1, axes canonical: text, is_persistent: i1"
)
MODULES = _rows("path class_name: text, parent: i4, file: text, line: i4, n_params: i8, arguments called_from: text")
STEPS = _rows("step: i4, n_records n_calls n_scalars n_notes n_optimizer: i8, wall_time: f8, state: state")
TENSOR_INDEX = _rows("id: i8, dtype: dtype, shape: i4, offset nbytes: i8")
TABLES = {
    "modules": MODULES,
    "parameters": PARAMETERS,
    "calls": CALLS,
    "optimizer": _rows("step optimizer: i4, class_name: text, group: i4, hyper parameters: text"),
    "records": RECORDS,
    "scalars": _rows("step: i4, name: text, value: f8"),
    "notes": _rows("step module: i4, text: text"),
    "steps": STEPS,
    "tensor_index": TENSOR_INDEX,
    "axis_sums": _rows("step parameter axis: i4, start count: i8"),
}
"""datasets of one row each per fact; all are extended, none is ever rewritten"""
