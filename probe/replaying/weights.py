"""A's weights, as a step began with them, in B."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from probe.adapters.base import Adapter, NamedTensor
from probe.checkpoints import Stored
from probe.conversion.plan import planned, sides_of
from probe.conversion.structure import structure_of
from probe.conversion.weights import made
from probe.errors import NotRecordedError
from probe.matching import Matching
from probe.numbers.statistics import dtype_of
from probe.replaying.recorded import Recorded

_ANY = ("*",)


def put(adapter: Adapter, model: Any, recorded: Recorded, matching: Matching) -> tuple[str, ...]:
    """Put the weights and buffers of A into a model; return the names of those of the model that have no counterpart.

    Buffers that no checkpoint has are code (the frequencies of a rotary embedding): they stay the model's own.

    Parameters
    ----------
    adapter, model
        B, which is changed
    recorded
        a step of A
    matching
        without the weights of its bundles: see `probe.replaying.partners.Pairing`

    Raises
    ------
    NotRecordedError
        A's weights are not in the recording
    ConversionError
        a weight has another size
    """
    ids = recorded.weights()
    if not ids:
        raise NotRecordedError(
            f"{recorded.reader.path.name} holds no values of the weights that step {recorded.step} began with: record A with "
            'task="tensor", its first step included, or leave B\'s own in place with weights="b"'
        )
    taken: set[int] = set()
    for named, values in converted(adapter, model, recorded, matching, ids):
        taken.add(id(named.tensor))
        if not named.is_persistent:
            continue
        with adapter.quiet():
            adapter.assign(named.tensor, values)
    return tuple(
        named.names[0] for named in adapter.parameters(model) if named.is_persistent and id(named.tensor) not in taken
    )


def converted(
    adapter: Adapter, model: Any, recorded: Recorded, matching: Matching, ids: Mapping[str, int]
) -> Iterator[tuple[NamedTensor, np.ndarray]]:
    """Yield the parameters and buffers of a model, each with what A recorded for it, laid as B has it.

    Parameters
    ----------
    ids
        stored tensors by the names of A's parameters: weights, or gradients of them, which lie alike
    """
    reader = recorded.reader
    known = {parameter.names[0]: parameter for parameter in reader.parameters}
    stored = {name: Stored(name, dtype_of(known[name].dtype), known[name].shape) for name in ids}
    sides = sides_of(matching, structure_of(reader.path), structure_of(model))
    plan = planned(stored, sides, allow_missing=_ANY, allow_extra=_ANY)
    tensors = {name: named for named in adapter.parameters(model) for name in named.names}
    for move in plan.moves:
        yield tensors[move.target.name], made(move, lambda name: reader.values(ids[name]))
