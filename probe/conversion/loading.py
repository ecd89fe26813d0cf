"""Putting the weights that one run began with into another model: `probe.load_matching`."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from probe.adapters.base import adapter_for
from probe.checkpoints import Stored
from probe.conversion.plan import Plan, matched, planned
from probe.conversion.structure import structure_of
from probe.conversion.weights import made
from probe.errors import NotRecordedError, warn
from probe.mapping import load_mapping
from probe.matching import Direction
from probe.numbers.statistics import dtype_of
from probe.ranks.opening import open_reader
from probe.records import DirectionName, Phase, Role
from probe.store.reading.reader import Reader


def load_matching(
    model: Any, recording: str | os.PathLike[str], mapping: Any = None, *, allow_missing: Iterable[str] = (),
    allow_extra: Iterable[str] = (), direction: DirectionName | None = None,
) -> Plan:  # fmt: skip
    """Put the weights that a recorded run began with into a model, of whatever framework.

    Parameters
    ----------
    model
        its parameters and buffers are overwritten, in their own dtypes
    recording
        of the other model, made with ``task="tensor"``
    mapping, allow_missing, allow_extra, direction
        as for `probe.convert_weights`

    Returns
    -------
    Plan
        what was put where: ``moves``, each with ``parts``, ``action`` and ``target``

    Raises
    ------
    NotRecordedError
        the recording holds no values of weights
    ConversionError
        a weight is missing, extra or misshapen; the model is left as it was
    """
    adapter = adapter_for(model)
    with open_reader(recording) as reader:
        ids = _initial(reader)
        stored = {name: Stored(name, dtype_of(dtype), shape) for name, (_, dtype, shape) in ids.items()}
        source, target = structure_of(recording), structure_of(model)
        chosen = Direction(direction) if direction else None
        sides = matched(source, target, load_mapping(mapping), chosen)
        plan = planned(stored, sides, allow_missing=tuple(allow_missing), allow_extra=tuple(allow_extra))
        for text in plan.said:
            warn(text)
        tensors = {name: named.tensor for named in adapter.parameters(model) for name in named.names}

        def read(name: str) -> np.ndarray:
            return reader.values(ids[name][0])

        for move in plan.moves:
            with adapter.quiet():
                adapter.assign(tensors[move.target.name], made(move, read))
    return plan


def _initial(reader: Reader) -> dict[str, tuple[int, str, tuple[int, ...]]]:
    """Return (id, dtype, shape) of the values of each parameter and buffer as the first step began."""
    names = {(p.module, p.slot): p.names[0] for p in reader.parameters}
    found: dict[str, tuple[int, str, tuple[int, ...]]] = {}
    for row in reader.records:
        if row["phase"] == Phase.INIT and row["role"] in (Role.PARAM, Role.BUFFER) and row["tensor"] >= 0:
            name = names[int(row["module"]), reader.slots[row["slot"]]]
            found.setdefault(name, (int(row["tensor"]), row["dtype"].decode(), reader.shapes[row["shape"]]))
    if not found:
        raise NotRecordedError(
            f'{reader.path.name} holds no values of weights: record the run with task="tensor", its first step included'
        )
    return found
