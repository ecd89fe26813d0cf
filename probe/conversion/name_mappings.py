"""The name mappings that models of PaddleNLP carry: ``SomeModel._get_name_mappings(config)``."""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from probe.checkpoints import Stored
from probe.conversion.plan import Move, Part, Plan, complain, is_allowed
from probe.errors import ConversionError
from probe.numbers.statistics import dtype_of, is_float


def has_name_mappings(mapping: Any) -> bool:
    """Return True if a mapping is a class of PaddleNLP, or the list that it returns."""
    return hasattr(mapping, "_get_name_mappings") or (
        isinstance(mapping, (list, tuple)) and bool(mapping) and all(hasattr(m, "source_name") for m in mapping)
    )


def imported(name: str, source: Path) -> tuple[Any, Any]:
    """Return a class of PaddleNLP, given as ``package.module:Class``, and its configuration of a checkpoint.

    Raises ConversionError where there is no such class, or it has no ``_get_name_mappings``.
    """
    module, _, class_name = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), class_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConversionError(
            f"cannot import {name}: {error}; expected a class as in paddlenlp.transformers:LlamaForCausalLM"
        ) from None
    if not has_name_mappings(found):
        raise ConversionError(f"{name} has no _get_name_mappings: expected a model of PaddleNLP")
    folder = source if source.is_dir() else source.parent
    return found, found.config_class.from_pretrained(str(folder))


def planned_by_names(
    state: Mapping[str, Stored], mapping: Any, config: Any, *, dtype: str | None, allow_missing: Iterable[str],
    allow_extra: Iterable[str],
) -> Plan:  # fmt: skip
    """Work out how weights are made by a list of names with what is to be done to each."""
    rows = mapping._get_name_mappings(config) if hasattr(mapping, "_get_name_mappings") else mapping
    wanted = None if dtype is None else dtype_of(dtype)
    moves, missing, misshapen = [], [], []
    for row in rows:
        stored = state.get(row.source_name)
        if stored is None:
            if not is_allowed((row.source_name, row.target_name), allow_missing):
                missing.append(row.target_name)
            continue
        kind = wanted if wanted is not None and is_float(stored.dtype) else stored.dtype
        axes, shape = _done_to(row, stored)
        if shape is None:
            misshapen.append(f"{stored.name} {list(stored.shape)} is to be transposed")
            continue
        canonical = tuple(stored.shape[axis] for axis in axes) if axes else shape
        moves.append(Move(Stored(row.target_name, kind, shape), (Part(stored, axes),), canonical))
    sources = {row.source_name for row in rows}
    left = [stored for name, stored in state.items() if name not in sources]
    extra = [stored.name for stored in left if not is_allowed((stored.name,), allow_extra)]
    complain(missing, extra, misshapen, "paddle")
    return Plan(tuple(moves), tuple(left))


def _done_to(row: Any, stored: Stored) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the order of the axes that a row asks for, and the shape that comes of it, None when it cannot."""
    action = getattr(row, "action", None)
    if action is None:
        return (), stored.shape
    if action == "transpose":
        return (1, 0), stored.shape[::-1] if len(stored.shape) == 2 else None
    if action == "merge_last_two_dim":
        return (), (stored.shape[0], stored.shape[1] * stored.shape[2]) if len(stored.shape) == 3 else None
    raise ConversionError(
        f"{row.source_name}: probe does not know the action {action!r} of its name mapping; expected transpose or "
        "merge_last_two_dim"
    )
