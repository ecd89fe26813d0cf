"""Recorded tensors as objects of xarray, which is imported when it is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from probe.errors import ConfigError
from probe.records import Role, listed

if TYPE_CHECKING:
    from probe.answer.result import SlotResult, SlotResults
    from probe.recording import ModuleRecords, Observed
    from probe.store.reading.reader import Reader

_OF_PARAMETERS = {Role.PARAM, Role.PARAM_GRAD, Role.STATE, Role.DELTA}
_SPACE = ("depth", "height", "width")


def axis_names(class_name: str, slot: str, shape: Sequence[int], axes: Sequence[int] = ()) -> tuple[str, ...]:
    """Return the names of a tensor's axes: of a weight by the layout of its class, else ``dim_0``, ``dim_1`` …

    Parameters
    ----------
    class_name, slot
        of the module, and of the parameter in the canonical layout
    axes
        order of the stored axes in the canonical layout; empty if it is the stored one
    """
    rank = len(shape)
    names = _canonical(class_name, rank) if slot == "weight" else ()
    found = [f"dim_{axis}" for axis in range(rank)]
    order = tuple(axes) or tuple(range(rank))
    if len(names) == len(order) == rank:
        for name, axis in zip(names, order, strict=True):
            found[axis] = name
    return tuple(found)


def _canonical(class_name: str, rank: int) -> tuple[str, ...]:
    """Return the names of a weight's axes in the canonical layout, which is PyTorch's; nothing of a class that is not known."""
    if rank == 2 and ("Linear" in class_name or class_name == "Conv1D"):
        return "out", "in"
    if rank == 2 and "Embedding" in class_name:
        return "index", "feature"
    if 3 <= rank <= 5 and class_name.startswith("Conv"):
        return *(("in", "out") if "Transpose" in class_name else ("out", "in")), *_SPACE[5 - rank :]
    return ()


def axes_of(tensor: Observed, reader: Reader) -> tuple[str, ...]:
    """Return the names of a recorded tensor's axes."""
    module = next(i for i, each in enumerate(reader.modules) if each.path == tensor.path)
    for each in reader.parameters if tensor.role in _OF_PARAMETERS else ():
        if each.module == module and each.shape == tensor.shape and each.slot == tensor.slot.partition(".")[0]:
            return axis_names(reader.modules[module].class_name, each.canonical_slot, each.shape, each.axes)
    return axis_names("", "", tensor.shape)


def data_array(tensor: Observed, reader: Reader) -> Any:
    """Return a recorded tensor as an xarray.DataArray; its attributes say where it was seen."""
    facts = {"path": tensor.path, "role": tensor.role.label, "slot": tensor.slot, "phase": tensor.phase.label,
             "step": tensor.step, "micro": tensor.micro, "call": tensor.call}  # fmt: skip
    return _xarray().DataArray(
        tensor.values(), {"step": tensor.step}, axes_of(tensor, reader), _name(tensor.path, facts), facts
    )


def data_set(pair: SlotResult) -> Any:
    """Return both sides of a pair as an xarray.Dataset with the variables ``a`` and ``b``."""
    a, b = pair.values()
    dims = [f"dim_{axis}" for axis in range(np.ndim(a))]
    facts = {"path_a": pair.path_a, "path_b": pair.path_b, "role": pair.role.label, "slot_a": pair.slot_a,
             "slot_b": pair.slot_b, "phase": pair.phase.label, "step": pair.step, "micro": pair.micro, "call": pair.call,
             "verdict": pair.verdict}  # fmt: skip
    return _xarray().Dataset({"a": (dims, a), "b": (dims, b)}, {"step": pair.step}, facts)


def over_steps(tensors: ModuleRecords | SlotResults) -> Any:
    """Return one tensor, or pair of tensors, over the steps: what `data_array` or `data_set` has of each, along ``step``.

    Raises
    ------
    ConfigError
        there is none, there are several in a step, or the shapes differ
    """
    kinds = dict.fromkeys(map(_kind, tensors))
    if len(kinds) != 1 or len({each.step for each in tensors}) < len(tensors):
        raise ConfigError(
            f"to_xarray() needs one tensor of one shape in each step, got {len(tensors)} tensors: {listed(kinds) or 'none'}; "
            'choose one, as in run[path].output.sel(slot="0", micro=0).to_xarray()'
        )
    return _xarray().concat([each.to_xarray() for each in tensors], "step", combine_attrs="drop_conflicts")


def _kind(each: Observed | SlotResult) -> str:
    path, slot = (each.path_a, each.slot_a) if hasattr(each, "path_a") else (each.path, each.slot)
    shape = each.shape_a if hasattr(each, "shape_a") else each.shape
    return f"{path} {each.phase.label} {each.role.label} {slot} {list(shape)}"


def _name(path: str, facts: Mapping[str, object]) -> str:
    return ".".join(str(part) for part in (path, facts["role"], facts["slot"]) if part != "")


def _xarray() -> Any:
    try:
        import xarray
    except ImportError:
        raise ImportError("to_xarray needs xarray: pip install 'probe-align[xarray]'") from None
    return xarray
