"""`replay_gradients`: B's optimizer makes one update of A's gradients."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from probe.answer.comparison import Comparison
from probe.answer.left_out import What
from probe.answer.result import Verdict
from probe.comparing import compare
from probe.config import RecordConfig
from probe.defaults import MIN_CONFIDENCE
from probe.errors import NotRecordedError, RecordingError
from probe.recorder import Recorder
from probe.records import DirectionName, Role, SideName, Task
from probe.replaying.keeping import kept
from probe.replaying.passing.writing import run_info
from probe.replaying.prepared import PairingOptions, Prepared, in_folder, prepared, require_side, verbs_for
from probe.replaying.weights import converted, put
from probe.store.writing.writer import Writer

_CALL = "probe.replay_gradients()"


def replay_gradients(
    model: Any,
    optimizer: Any,
    recording: str | os.PathLike[str],
    mapping: str | Path | Mapping[str, Any] | None = None,
    *,
    step: int | None = 0,
    weights: SideName = "a",
    direction: DirectionName | None = None,
    strict: bool = False,
    min_confidence: float = MIN_CONFIDENCE,
    keep: str | Path | None = None,
) -> Comparison:
    """Let B's optimizer make one update of A's gradients, and compare what it makes of the weights.

    What differs is the optimizer's alone: its settings, its arithmetic, the groups of parameters. The model and the optimizer are left as they
    were. Its state is its own: replay the first step that A's optimizer made, with a new one.

    Parameters
    ----------
    model, optimizer
        B, and an optimizer of its parameters
    recording
        of A, made with ``task="tensor"``, with the gradients as the optimizer used them
    mapping, direction, strict, min_confidence
        as for `probe.compare`
    step
        which of A's steps; the first that was recorded when None
    weights
        ``"a"``: B's weights are A's, as the step began with them; ``"b"``: its own
    keep
        where to keep what was computed, as a recording

    Returns
    -------
    Comparison
        of the update; its findings say what of the optimizers differs

    Raises
    ------
    RecordingError
        a recording is under way, or the optimizer is none that probe knows, or is not of this model
    NotRecordedError
        the recording holds no values of weights or gradients
    MappingError, ConversionError, ConfigError, StoreError, FormatError
        the mapping, a weight, an option or the file cannot be used
    """
    require_side(weights)
    options = PairingOptions(mapping, direction, strict, min_confidence)
    replaying = verbs_for(model, _CALL)
    if not replaying.adapter.is_optimizer(optimizer):
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise RecordingError(
            f"{_CALL} was given optimizer={kind}; expected an optimizer of {replaying.adapter.framework}"
        )

    def answered(folder: Path) -> Comparison:
        path = Path(keep) if keep is not None else folder / "b.update.h5"
        with prepared(replaying, model, recording, step, folder, options) as ready:
            _updated(ready, optimizer, path, is_given_weights=weights == "a")
        found = compare(recording, path, mapping, steps=(ready.recorded.step, 0), direction=direction, strict=strict,
                        min_confidence=min_confidence)  # fmt: skip
        return _of_update_alone(found)

    return in_folder("probe-replay-", answered)


_OF_RUNS = {
    "note-of-the-recording", "steps-not-compared", "no-call-recorded", "no-micro-batch-on-one-side", "parameter-gradients-not-compared",
    "logged-on-one-side",
}  # fmt: skip
"""codes of notes on what a run has and an update alone has not"""


def _of_update_alone(found: Comparison) -> Comparison:
    """Return a comparison without what it says of B for not being a run."""
    reasons, notes = (
        tuple(each for each in some if each.code not in _OF_RUNS) for some in (found.reasons, found.notes)
    )
    compared = any(slot.role is Role.DELTA and slot.metrics.is_known for slot in found.slots)
    without = Verdict.ALIGNED if compared and not reasons else Verdict.UNDECIDED
    verdict = Verdict.DIVERGED if found.divergences else without
    left_out = tuple(each for each in found.left_out if each.what not in (What.STEPS, What.LOSS))
    return replace(found, verdict=verdict, reasons=reasons, notes=notes, left_out=left_out)


def _updated(ready: Prepared, optimizer: Any, path: Path, *, is_given_weights: bool) -> None:
    """Record one update of A's gradients; put everything back."""
    replaying, model = ready.replaying, ready.model
    adapter = replaying.adapter
    ids = ready.recorded.gradients()
    if not ids:
        raise NotRecordedError(
            f"{ready.recorded.reader.path.name} holds no gradients of parameters in step {ready.recorded.step}: record A with "
            'task="tensor" and an optimizer\'s step'
        )
    with kept(replaying, model, optimizer):
        if is_given_weights:
            put(adapter, model, ready.recorded, ready.pairing.modules)
        given = [
            (each.tensor, replaying.tensor(values, each.tensor, model))
            for each, values in converted(adapter, model, ready.recorded, ready.pairing.modules, ids)
            if not each.is_buffer
        ]
        trained = {id(parameter) for group in adapter.groups_of(optimizer) for parameter in group.parameters}
        given = [(parameter, gradient) for parameter, gradient in given if id(parameter) in trained]
        if not given:
            raise RecordingError(f"{_CALL}: the optimizer trains no parameter of this model that A has a gradient of")
        for named in adapter.parameters(model):
            if not named.is_buffer:
                replaying.set_gradient(named.tensor, None)
        _record(ready, optimizer, path, given)


def _record(ready: Prepared, optimizer: Any, path: Path, given: list[tuple[Any, Any]]) -> None:
    adapter, config = ready.replaying.adapter, RecordConfig.from_options(None, task=Task.TENSOR)
    info = run_info(adapter, ready.model, config, tells_writes=adapter.counts_writes)
    recorder = Recorder(adapter, [("", ready.model)], Writer(path, info), config, optimizer)
    try:
        recorder.record_weights()
        ready.replaying.stepped(optimizer, given)
        recorder.step({})
    finally:
        recorder.stop()
