"""Every name in a recording: groups, columns and their types (format 1, ``docs/reference/file-format.md``)."""

from __future__ import annotations

import h5py
import numpy as np

from probe.records import Phase, Role, StepState

FORMAT = "probe"
VERSION = 1

_TEXT = h5py.string_dtype()
PHASE = h5py.enum_dtype({phase.label: int(phase) for phase in Phase}, basetype="u1")
ROLE = h5py.enum_dtype({role.label: int(role) for role in Role}, basetype="u1")
STATE = h5py.enum_dtype({state.name.lower(): int(state) for state in StepState}, basetype="u1")

NO_TENSOR = -1
"""value of a record's ``tensor`` when no values are stored"""
BLOB_LIMIT = 4096
"""tensors of fewer bytes share the dataset ``/tensors/blob``"""

DTYPE = "S24"
"""a dtype's name; the longest is ``float8_e4m3b11fnuz``"""

RECORDS = np.dtype(
    [
        ("step", "i4"),
        ("micro", "i4"),
        ("seq", "i4"),
        ("order", "i4"),
        ("phase", PHASE),
        ("module", "i4"),
        ("call", "i4"),
        ("role", ROLE),
        ("slot", "i4"),
        ("dtype", DTYPE),
        ("shape", "i4"),
        ("requires_grad", "i1"),
        ("min", "f8"),
        ("max", "f8"),
        ("mean", "f8"),
        ("rms", "f8"),
        ("norm", "f8"),
        ("nan", "i8"),
        ("posinf", "i8"),
        ("neginf", "i8"),
        ("zeros", "i8"),
        ("hash_lo", "u8"),
        ("hash_hi", "u8"),
        ("hash_kind", "u1"),
        ("tensor", "i8"),
    ]
)

CALLS = np.dtype(
    [
        ("step", "i4"),
        ("micro", "i4"),
        ("seq", "i4"),
        ("end", "i4"),
        ("module", "i4"),
        ("call", "i4"),
        ("caller", "i4"),
        ("training", "i1"),
        ("grad_enabled", "i1"),
        ("recomputed", "i1"),
        ("raised", "i1"),
        ("autocast", DTYPE),
    ]
)

MODULES = np.dtype(
    [
        ("path", _TEXT),
        ("class_name", _TEXT),
        ("parent", "i4"),
        ("file", _TEXT),
        ("line", "i4"),
        ("n_params", "i8"),
    ]
)

PARAMETERS = np.dtype(
    [
        ("names", _TEXT),
        ("module", "i4"),
        ("slot", _TEXT),
        ("shape", _TEXT),
        ("dtype", DTYPE),
        ("requires_grad", "i1"),
        ("is_buffer", "i1"),
        ("axes", _TEXT),
        ("canonical", _TEXT),
        ("is_persistent", "i1"),
    ]
)

OPTIMIZER = np.dtype(
    [
        ("step", "i4"),
        ("optimizer", "i4"),
        ("class_name", _TEXT),
        ("group", "i4"),
        ("hyper", _TEXT),
        ("parameters", _TEXT),
    ]
)

SCALARS = np.dtype([("step", "i4"), ("name", _TEXT), ("value", "f8")])
NOTES = np.dtype([("step", "i4"), ("module", "i4"), ("text", _TEXT)])
STEPS = np.dtype(
    [
        ("step", "i4"),
        ("n_records", "i8"),
        ("n_calls", "i8"),
        ("n_scalars", "i8"),
        ("n_notes", "i8"),
        ("n_optimizer", "i8"),
        ("wall_time", "f8"),
        ("state", STATE),
    ]
)
AXIS_SUMS = np.dtype([("step", "i4"), ("parameter", "i4"), ("axis", "i4"), ("start", "i8"), ("count", "i8")])
TENSOR_INDEX = np.dtype([("id", "i8"), ("dtype", DTYPE), ("shape", "i4"), ("offset", "i8"), ("nbytes", "i8")])

TABLES = {
    "modules": MODULES,
    "parameters": PARAMETERS,
    "calls": CALLS,
    "optimizer": OPTIMIZER,
    "records": RECORDS,
    "scalars": SCALARS,
    "notes": NOTES,
    "steps": STEPS,
    "tensor_index": TENSOR_INDEX,
    "axis_sums": AXIS_SUMS,
}
"""datasets of one row each per fact; all are extended, none is ever rewritten"""
