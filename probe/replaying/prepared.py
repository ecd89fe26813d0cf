"""What every use of A's recording in B begins with: which step, which module is which, what A recorded of it."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import numpy as np

from probe import session
from probe.adapters.replaying import Replaying, replaying_for
from probe.answer.comparison import Comparison
from probe.defaults import MIN_CONFIDENCE
from probe.errors import ConfigError, NotRecordedError, RecordingError
from probe.mapping import load_mapping
from probe.records import DirectionName, Phase, SideName, Task
from probe.replaying.partners import Pairing, Partner, matched, partners_of
from probe.replaying.passing.writing import Written
from probe.replaying.recorded import Recorded
from probe.store.reading.reader import Reader


@dataclass(frozen=True)
class PairingOptions:
    """How modules are paired, as for `probe.compare`."""

    mapping: str | Path | Mapping[str, Any] | None = None
    direction: DirectionName | None = None
    strict: bool = False
    min_confidence: float = MIN_CONFIDENCE


Changed = Callable[[np.ndarray, str], np.ndarray]
"""what becomes of A's values, given the dtype that operations are cast to, before B is handed them"""


@dataclass(frozen=True)
class Prepared:
    """B, a step of A, which module is which, and what a pass through B is to do."""

    replaying: Replaying
    model: Any
    recorded: Recorded
    pairing: Pairing
    partners: Mapping[int, Partner]
    """by module of B"""
    paths: tuple[str, ...]
    """of B's modules"""
    casts: bool
    """operations run under autocast where A's did: B's own weights are no narrower"""
    inputs: Mapping[str, Any] = field(default_factory=dict)
    """what the model is called with beside A's tensors"""
    changed: Changed | None = None
    substitutes: bool = True
    """A's tensors take the place of B's; else B runs by itself, given what A's model was"""


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


def require_side(weights: SideName) -> None:
    """Raise ConfigError where an option names no side."""
    if weights not in get_args(SideName):
        raise ConfigError(f"weights={weights!r} is not known; expected 'a' (as recorded in A) or 'b' (B's own)")


def in_folder(prefix: str, answered: Callable[[Path], Comparison]) -> Comparison:
    """Return an answer that is made in a folder of its own, which is there as long as the answer lives."""
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    try:
        answer = answered(folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(answer, shutil.rmtree, folder, ignore_errors=True)
    return answer


def _step_of(a: Reader, step: int | None) -> int:
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


@contextlib.contextmanager
def prepared(
    replaying: Replaying,
    model: Any,
    recording: str | os.PathLike[str],
    step: int | None,
    folder: Path,
    options: PairingOptions,
) -> Iterator[Prepared]:
    """Open A's recording, and find out which module is which.

    Raises
    ------
    MappingError, ConfigError
        the mapping, or an option, cannot be used
    StoreError, FormatError
        the recording cannot be read
    """
    adapter, mapping = replaying.adapter, load_mapping(options.mapping)
    with Reader(recording) as a:
        a.require_steps()
        if tokens := a.info.config.get("tokens"):
            raise NotRecordedError(f"{a.path.name} holds tokens {tokens} alone: record A without tokens=")
        chosen = _step_of(a, step)
        begun = Written(adapter, model, folder / "b.begun.h5", chosen, Task.STATISTICS)
        begun.weights(Phase.INIT)
        begun.close()
        with Reader(begun.path) as b:
            pairing = matched(a, b, mapping, options.direction, options.strict, options.min_confidence)
            partners = partners_of(pairing.complete, b)
            paths = tuple(module.path for module in b.modules)
        dtypes = {adapter.facts(each.tensor).dtype for each in adapter.parameters(model) if not each.is_buffer}
        casts = "float32" in dtypes or "float64" in dtypes
        recorded = Recorded(a, chosen, pairing.complete)
        yield Prepared(replaying, model, recorded, pairing, partners, paths, casts)
