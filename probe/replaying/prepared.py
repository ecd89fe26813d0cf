"""What every use of A's recording in B begins with: which step, which module is which, what A recorded of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from probe import session
from probe.adapters.replaying import Replaying, replaying_for
from probe.commands.defaults import MIN_CONFIDENCE
from probe.errors import ConfigError, RecordingError
from probe.mapping import LayerMapping
from probe.records import DirectionName, Phase, Task
from probe.replaying.partners import Pairing, Partner, matched, partners_of
from probe.replaying.passing.writing import Written
from probe.replaying.recorded import Recorded
from probe.store.reading.reader import Reader


@dataclass(frozen=True)
class PairingOptions:
    """How modules are paired, as for `probe.compare`."""

    mapping: LayerMapping
    direction: DirectionName | None = None
    strict: bool = False
    min_confidence: float = MIN_CONFIDENCE


@dataclass(frozen=True)
class Prepared:
    """B, a step of A, and which module is which."""

    replaying: Replaying
    model: Any
    recorded: Recorded
    pairing: Pairing
    partners: Mapping[int, Partner]
    """by module of B"""
    paths: tuple[str, ...]
    """of B's modules"""
    casts: bool
    """B computes in the dtype that autocast gives it where A did: its own weights are no narrower"""


def verbs_for(model: Any, call: str) -> Replaying:
    """Return the verbs of a model's framework.

    Raises
    ------
    RecordingError
        a recording is under way, or nothing of the model can be run
    """
    if session.is_under_way():
        raise RecordingError(f"{call}: a recording is under way, which would record this too; call probe.stop() first")
    if isinstance(model, (list, tuple)):
        raise RecordingError(f"{call} was given a {type(model).__name__}; expected one model")
    found = replaying_for(model)
    refusal = found.adapter.refusal(model)
    if refusal:
        raise RecordingError(f"{call}: {refusal}")
    return found


def as_tensors(replaying: Replaying, model: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model's arguments, with arrays as the framework's tensors."""
    return {
        name: replaying.tensor(value, None, model) if isinstance(value, np.ndarray) else value
        for name, value in arguments.items()
    }


def step_of(a: Reader, step: int | None) -> int:
    """Return the step that is meant, the first where none is named.

    Raises
    ------
    ConfigError
        there is no such step
    """
    known = a.steps["step"].tolist()
    if step is None and known:
        return int(known[0])
    if step not in known:
        listed = ", ".join(map(str, known[:8])) + (" …" if len(known) > 8 else "")
        raise ConfigError(f"step {step} is not in {a.path.name}; it has {listed or 'none'}")
    return int(step)


def prepared(replaying: Replaying, model: Any, a: Reader, step: int, folder: Path, options: PairingOptions) -> Prepared:
    """Find out which module is which.

    Raises
    ------
    MappingError, ConfigError
        the mapping, or an option, cannot be used
    """
    adapter = replaying.adapter
    begun = Written(adapter, model, folder / "b.begun.h5", step, Task.STATISTICS)
    begun.weights(Phase.INIT)
    begun.close()
    with Reader(begun.path) as b:
        pairing = matched(a, b, options.mapping, options.direction, options.strict, options.min_confidence)
        partners = partners_of(pairing.complete, b)
        paths = tuple(module.path for module in b.modules)
    dtypes = {adapter.facts(each.tensor).dtype for each in adapter.parameters(model) if not each.is_buffer}
    casts = "float32" in dtypes or "float64" in dtypes
    return Prepared(replaying, model, Recorded(a, step, pairing.complete), pairing, partners, paths, casts)
