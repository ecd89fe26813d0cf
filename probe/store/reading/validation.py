"""What the rows of a recording must be, whoever wrote them: what passes here cannot make a comparison fail."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, TypeVar

import ml_dtypes
import numpy as np

from probe.config import RecordConfig
from probe.damage import Damaged, parsed
from probe.errors import ConfigError
from probe.numbers.axis_sums import axes_with_sums
from probe.numbers.statistics import dtype_of
from probe.records import HashKind, ModuleInfo, OptimizerGroup, ParameterInfo, Phase, Role, RunInfo, StepState
from probe.store.schema import PARAMETERS

T = TypeVar("T")

_MOST_AXES = 64
"""of a tensor: as many as PyTorch and numpy know"""
_MOST = 2**63 - 1
_MOST_STEPS = 2**31
_KINDS = "biufc"
_PHASES = {
    Role.PARAM: (Phase.INIT, Phase.FORWARD, Phase.UPDATE), Role.BUFFER: (Phase.INIT, Phase.UPDATE),
    Role.INPUT: (Phase.FORWARD,), Role.OUTPUT: (Phase.FORWARD,), Role.VALUE: (Phase.FORWARD, Phase.LOSS),
    Role.GRAD_OUTPUT: (Phase.BACKWARD,), Role.GRAD_INPUT: (Phase.BACKWARD,), Role.GRAD_TOTAL: (Phase.BACKWARD,),
    Role.PARAM_GRAD: (Phase.GRADIENT, Phase.UPDATE), Role.STATE: (Phase.UPDATE,), Role.DELTA: (Phase.UPDATE,),
}  # fmt: skip
"""in which phases a role is recorded"""
_IS_RECORDED = np.array([[phase in _PHASES[role] for role in Role] for phase in Phase])
_SUMMED = 1e-6
"""relative difference of two numbers that were made of one sum of squares in float64"""
_SMALLEST = 1e-150
"""norms whose squares float64 keeps in full"""
_COUNTERS = ("n_records", "n_calls", "n_scalars", "n_notes", "n_optimizer")


def between(rows: np.ndarray, column: str, low: int, high: int) -> None:
    """Raise Damaged where a column has a number that is not in ``range(low, high)``."""
    values = rows[column]
    if len(values) and not (low <= int(values.min()) and int(values.max()) < high):
        wrong = np.flatnonzero((values < low) | (values >= high))[0]
        raise Damaged(f"{column} is {values[wrong]} in row {wrong}, expected {low} to {high - 1}")


def steps(rows: np.ndarray) -> np.ndarray:
    """Return ``/steps``: each once, in their order, and counters that grow."""
    between(rows, "step", 0, _MOST)
    between(rows, "state", 0, len(StepState))
    if np.any(rows["step"][1:] <= rows["step"][:-1]):
        raise Damaged("its steps are not in order, or stand there twice")
    for column in _COUNTERS:
        counted = rows[column]
        if len(counted) and (counted[0] < 0 or np.any(counted[1:] < counted[:-1])):
            raise Damaged(f"{column} does not grow from step to step")
    return rows


def records(
    rows: np.ndarray, step_rows: np.ndarray, first: int, known: Mapping[str, int], sizes: np.ndarray, tensors: np.ndarray
) -> None:  # fmt: skip
    """Check rows of ``/records``.

    ``step_rows`` are all of ``/steps``; ``first`` is the number of the first of the rows. ``known`` says how many
    there are of what the columns ``module``, ``slot`` and ``shape`` number; ``sizes`` are the elements of each shape;
    ``tensors`` are the numbers of the stored tensors, ascending, looked at where a row refers to one.
    """
    _of_steps(rows, step_rows, "n_records", first)
    enums = {"phase": len(Phase), "role": len(Role), "hash_kind": len(HashKind), "requires_grad": 2}
    for column, high in {**known, **enums}.items():
        between(rows, column, 0, high)
    _roles(rows)
    for column in ("call", "nan", "posinf", "neginf", "zeros"):
        between(rows, column, 0, _MOST)
    for column in ("rms", "norm"):
        if np.any(rows[column] < 0):
            raise Damaged(f"{column} is {rows[column].min()} in a row, expected 0 or more")
    between(rows, "tensor", -1, _MOST)
    dtypes(set(rows["dtype"].tolist()))
    _statistics(rows, sizes)
    stored = rows["tensor"][rows["tensor"] >= 0]
    if len(stored):
        at = np.minimum(np.searchsorted(tensors, stored), max(len(tensors) - 1, 0))
        if not len(tensors) or np.any(tensors[at] != stored):
            raise Damaged("it refers to a tensor that /tensor_index does not have")


def _roles(rows: np.ndarray) -> None:
    """Raise Damaged where a role is recorded in a phase in which there is none of it: nothing would look for it there."""
    wrong = np.flatnonzero(~_IS_RECORDED[rows["phase"], rows["role"]])
    if len(wrong):
        role, phase = Role(rows["role"][wrong[0]]).label, Phase(rows["phase"][wrong[0]]).label
        raise Damaged(f"row {wrong[0]} is the {role} of a module in the phase {phase}, in which there is none")


def _statistics(rows: np.ndarray, sizes: np.ndarray) -> None:
    """Raise Damaged where the norm, the root mean square and the counts of a row are not those of one tensor of its size."""
    of_complex = [name for name in set(rows["dtype"].tolist()) if dtype_of(name.decode()).kind == "c"]
    numbers = sizes[rows["shape"]] * np.where(np.isin(rows["dtype"], of_complex), 2, 1)
    finite = numbers - rows["nan"] - rows["posinf"] - rows["neginf"]
    norm, rms = rows["norm"], rows["rms"]
    with np.errstate(all="ignore"):
        is_one = np.isclose(norm, rms * np.sqrt(finite), rtol=_SUMMED, atol=_SMALLEST)
        is_one |= np.isnan(rms) & (np.isnan(norm) | (norm == 0))  # not measured, or of no finite element
    wrong = np.flatnonzero((rows["zeros"] > finite) | ~is_one)
    if len(wrong):
        row = rows[wrong[0]]
        counts = ", ".join(f"{name} {row[name]:g}" for name in ("norm", "rms", "nan", "posinf", "neginf", "zeros"))
        raise Damaged(f"row {wrong[0]} has statistics ({counts}) that no tensor of {numbers[wrong[0]]:g} numbers has")


def _of_steps(rows: np.ndarray, step_rows: np.ndarray, counter: str, first: int) -> None:
    """Raise Damaged where rows do not belong to the step that counts them."""
    at = np.searchsorted(step_rows[counter], np.arange(first, first + len(rows)), side="right")
    if np.any(step_rows["step"][np.minimum(at, len(step_rows) - 1)] != rows["step"]):
        raise Damaged("it has rows of another step than the one that counts them")


def calls(rows: np.ndarray, step_rows: np.ndarray, first: int, modules: int) -> None:
    """Check rows of ``/calls``: each was made in one before it."""
    _of_steps(rows, step_rows, "n_calls", first)
    between(rows, "module", 0, modules)
    between(rows, "call", 0, _MOST)
    for column in ("training", "grad_enabled", "recomputed", "raised"):
        between(rows, column, 0, 2)
    if np.any((rows["caller"] < -1) | (rows["caller"] >= np.arange(first, first + len(rows)))):
        raise Damaged("it has a call that was made in a later one")
    dtypes(set(rows["autocast"].tolist()) - {b""})


def of_step(rows: np.ndarray, call_rows: np.ndarray) -> None:
    """Check the records of one step against each other and against its calls: nothing of it may go by unseen.

    What modules were given and returned stands in a micro in which a module was called, parameters' gradients in one of them or in the
    first, weights and updates in the first; what an update changed is recorded too.
    """
    phases, micros = rows["phase"], rows["micro"]
    called = np.unique(call_rows["micro"])
    wrong = (np.isin(phases, (Phase.INIT, Phase.UPDATE)) & (micros != 0)) | (
        (phases == Phase.GRADIENT) & ~np.isin(micros, [0, *called])
    )
    if len(call_rows):
        wrong |= np.isin(phases, (Phase.FORWARD, Phase.BACKWARD)) & ~np.isin(micros, called)
    if wrong.any():
        row = rows[np.flatnonzero(wrong)[0]]
        raise Damaged(f"it has a tensor of micro {row['micro']}, in which no module was called")
    is_update, is_left = rows["role"] == Role.DELTA, (rows["role"] == Role.PARAM) & (phases == Phase.UPDATE)
    places = np.stack([rows[name].astype(np.int64) for name in ("module", "slot", "shape")], axis=1)
    left = set(map(tuple, places[is_left].tolist()))
    if not left.issuperset(map(tuple, places[is_update].tolist())):
        raise Damaged("it has the update of a parameter, and not what a parameter of that shape became")


def modules(rows: np.ndarray) -> list[ModuleInfo]:
    """Return ``/modules``: parents before their children, every path once."""
    columns = [
        rows[name].tolist() if name in rows.dtype.names else [b""] * len(rows)  # older files lack the last two
        for name in ("path", "class_name", "parent", "file", "line", "n_params", "arguments", "called_from")
    ]
    found = [
        ModuleInfo(text_in(path), text_in(class_name), parent, text_in(file), line, count, *map(text_in, more))
        for path, class_name, parent, file, line, count, *more in zip(*columns, strict=True)
    ]
    first = next((index for index, module in enumerate(found) if module.is_operation), len(found))
    if not all(module.is_operation and module.parent < first for module in found[first:]):
        raise Damaged("it has a module behind an operation, or an operation inside of one")
    for index, module in enumerate(found):
        if not -1 <= module.parent < index:
            raise Damaged(f"the parent of module {index} is {module.parent}, which does not stand before it")
    if len({module.path for module in found}) < len(found):
        raise Damaged("it has two modules of one path")
    return found


def parameters(rows: np.ndarray, modules: int) -> list[ParameterInfo]:
    """Return ``/parameters``: all belong to modules."""
    between(rows, "module", 0, modules)
    dtypes(set(rows["dtype"].tolist()))
    later = {"canonical": b"", "is_persistent": 1}  # columns that older files lack
    columns = [
        rows[name].tolist() if name in rows.dtype.names else [later[name]] * len(rows) for name in PARAMETERS.names
    ]
    shape_of = functools.cache(shape_in)
    axes_of = functools.cache(lambda text: integers_in(text, _MOST_AXES + 1))
    found = [
        ParameterInfo(
            names_in(names), module, text_in(slot), shape_of(shape), dtype.decode(), bool(requires_grad), bool(is_buffer),
            axes_of(axes), text_in(canonical), bool(is_persistent),
        )
        for names, module, slot, shape, dtype, requires_grad, is_buffer, axes, canonical, is_persistent
        in zip(*columns, strict=True)
    ]  # fmt: skip
    for index, each in enumerate(found):
        if each.axes and sorted(each.axes) != list(range(len(each.shape))):
            raise Damaged(f"parameter {index} of shape {each.shape} has its axes in the order {each.axes}")
    return found


def optimizer(rows: np.ndarray, parameters: int) -> list[tuple[int, OptimizerGroup]]:
    """Return ``/optimizer``, each group with its step: all have parameters that there are."""
    return [
        (int(r["step"]),
         OptimizerGroup(int(r["optimizer"]), text_in(r["class_name"]), int(r["group"]), mapping_in(r["hyper"]),
                        integers_in(r["parameters"], parameters)))
        for r in rows
    ]  # fmt: skip


def run_info(attributes: Mapping[str, Any]) -> RunInfo:
    """Return what the attributes at the top of a file say of the run."""
    known = {name: attributes[name] for name in RunInfo.__dataclass_fields__ if name in attributes}
    for name in ("parallel", "config", "model_config"):
        known[name] = mapping_in(known.get(name, "{}"))
    for name in ("rank", "world_size"):
        known[name] = int(known[name])
    for name in ("closed", "tells_writes"):
        known[name] = bool(known.get(name, False))
    for name in ("run_id", "framework", "framework_version", "probe_version", "created"):
        if not isinstance(known[name], str):
            raise Damaged(f"{name} is no text")
    try:
        RecordConfig.from_recording(known["config"])
    except ConfigError as error:
        raise Damaged(f"config: {error}") from None
    return RunInfo(**known)


def count_of_steps(value: object) -> int:
    """Return how many steps a run made: as many as can have a number."""
    if not isinstance(value, (int, np.integer)) or not 0 <= value <= _MOST_STEPS:
        raise Damaged(f"expected a number of steps, got {value!r}")
    return int(value)


def behind_last_step(text: object) -> dict[str, Any]:
    """Return what was changed behind the last step: settings of groups by their numbers, and hashes of states by name."""
    found = mapping_in(text)
    for number, group, changed in list_in(found.get("settings", [])):
        if type(number) is not int or type(group) is not int or not isinstance(changed, dict):
            raise Damaged("expected settings as [optimizer, group, names and values]")
    if not all(isinstance(each, str) for each in mapping_in(found.get("states", {})).values()):
        raise Damaged("expected hashes of states")
    return found


def list_in(text: object) -> list[Any]:
    """Return a list out of JSON."""
    return _of_kind(text, list, "a list")


def mapping_in(text: object) -> dict[str, Any]:
    """Return an object out of JSON."""
    return _of_kind(text, dict, "names and values")


def _of_kind(text: object, kind: type[T], what: str) -> T:
    found = parsed(text) if isinstance(text, (str, bytes)) else text
    if not isinstance(found, kind):
        raise Damaged(f"expected {what}, got {type(found).__name__}")
    return found


def names_in(text: str | bytes) -> tuple[str, ...]:
    """Return names out of JSON, at least one."""
    found = parsed(text)
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise Damaged("expected a list of names")
    return tuple(found)


def integers_in(text: str | bytes, high: int = _MOST) -> tuple[int, ...]:
    """Return whole numbers below a limit out of JSON."""
    found = parsed(text)
    if not isinstance(found, list) or not all(type(each) is int and 0 <= each < high for each in found):
        raise Damaged(f"expected a list of whole numbers from 0 to {high - 1}")
    return tuple(found)


def shape_in(text: str | bytes) -> tuple[int, ...]:
    """Return a shape out of JSON."""
    found = integers_in(text)
    if len(found) > _MOST_AXES or math.prod(found) > _MOST:
        raise Damaged("a shape is larger than any tensor's")
    return found


def dtypes(names: Collection[bytes]) -> None:
    """Raise Damaged where a name is that of no numbers."""
    for name in names:
        if not _is_dtype(name):
            raise Damaged(f"{name!r} is the dtype of no numbers that probe knows")


@functools.lru_cache(maxsize=1024)
def _is_dtype(name: bytes) -> bool:
    """Return True if a name is that of numbers, as numpy or ml_dtypes call them."""
    try:
        text = name.decode("ascii")
        if hasattr(ml_dtypes, text) and not isinstance(getattr(ml_dtypes, text), type):
            return False
        found = dtype_of(text)
    except (TypeError, ValueError, SyntaxError, AttributeError):
        return False
    is_number = found.kind in _KINDS or found.type.__module__.startswith("ml_dtypes")
    return is_number and found.name == text


def tensor_index(rows: np.ndarray, shapes: Sequence[tuple[int, ...]], blob: int) -> np.ndarray:
    """Return ``/tensor_index``: every number once, and bytes that are those of the shape and lie in the blob of so many."""
    between(rows, "shape", 0, len(shapes))
    between(rows, "offset", -1, blob + 1)
    dtypes(set(rows["dtype"].tolist()))
    if len(np.unique(rows["id"])) < len(rows) or np.any(rows["id"] < 0):
        raise Damaged("it has a tensor twice")
    for number, dtype, shape, offset, nbytes in rows.tolist():
        if nbytes != math.prod(shapes[shape]) * dtype_of(dtype.decode()).itemsize:
            raise Damaged(f"tensor {number} has {nbytes} bytes, which its shape and dtype do not have")
        if offset >= 0 and offset + nbytes > blob:
            raise Damaged(f"tensor {number} ends behind /tensors/blob")
    return rows


def axis_sums(
    rows: np.ndarray, shapes: Sequence[tuple[int, ...]], sums: int
) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """Return the place and number of sums along each axis by step and parameter: all in ``/sums``, one for each index.

    ``shapes`` are of the parameters, in their canonical layout, without axes of size 1.
    """
    between(rows, "parameter", 0, len(shapes))
    between(rows, "start", 0, sums + 1)
    between(rows, "count", 0, sums + 1)
    if np.any(rows["start"] + rows["count"] > sums):
        raise Damaged("it ends behind /sums")
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for step, parameter, axis, start, count in rows[["step", "parameter", "axis", "start", "count"]].tolist():
        held = found.setdefault((step, parameter), [])
        if axis != len(held):
            raise Damaged(f"axis {axis} of parameter {parameter} does not stand in its place")
        held.append((start, count))
    for (_, parameter), held in found.items():
        shape = shapes[parameter]
        if [count for _, count in held] != [shape[axis] for axis in axes_with_sums(shape)]:
            raise Damaged(f"parameter {parameter} has sums of {held} indices, its shape is {shape}")
    return found


def text_in(value: bytes | str) -> str:
    """Return a text out of a row."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
