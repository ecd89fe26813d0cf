"""`replay_gradients`: B's optimizer makes one update of A's gradients."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import uuid
import weakref
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from probe._version import __version__
from probe.commands.defaults import MIN_CONFIDENCE
from probe.comparison.answer import Comparison
from probe.comparison.coverage.left_out import What
from probe.comparison.result import Verdict
from probe.comparison.run import compare
from probe.config import RecordConfig
from probe.errors import ConfigError, NotRecordedError, RecordingError
from probe.mapping import load_mapping
from probe.recorder import Recorder
from probe.records import DirectionName, Role, RunInfo, SideName, Task
from probe.replaying.keeping import kept
from probe.replaying.prepared import PairingOptions, Prepared, prepared, step_of, verbs_for
from probe.replaying.weights import converted, put
from probe.store.reading.reader import Reader
from probe.store.writing.writer import Writer, now

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
    if weights not in get_args(SideName):
        raise ConfigError(f"weights={weights!r} is not known; expected 'a' (as recorded in A) or 'b' (B's own)")
    parsed, replaying = load_mapping(mapping), verbs_for(model, _CALL)
    if not replaying.adapter.is_optimizer(optimizer):
        kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
        raise RecordingError(
            f"{_CALL} was given optimizer={kind}; expected an optimizer of {replaying.adapter.framework}"
        )
    folder = Path(tempfile.mkdtemp(prefix="probe-replay-"))
    try:
        with Reader(recording) as a:
            a.require_steps()
            options = PairingOptions(parsed, direction, strict, min_confidence)
            ready = prepared(replaying, model, a, step_of(a, step), folder, options)
            path = Path(keep) if keep is not None else folder / "b.update.h5"
            _updated(ready, optimizer, path, is_given_weights=weights == "a")
        found = compare(recording, path, mapping, steps=(ready.recorded.step, 0), direction=direction, strict=strict,
                        min_confidence=min_confidence)  # fmt: skip
        answer = _of_update_alone(found)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    weakref.finalize(answer, shutil.rmtree, folder, ignore_errors=True)
    return answer


_OF_RUNS = {
    "note-of-the-recording", "steps-not-compared", "no-call-recorded", "no-micro-batch-on-one-side", "parameter-gradients-not-compared",
    "logged-on-one-side",
}  # fmt: skip
"""codes of notes on what a run has and an update alone has not"""


def _of_update_alone(found: Comparison) -> Comparison:
    """Return a comparison without what it says of B for not being a run."""
    reasons = tuple(each for each in found.reasons if each.code not in _OF_RUNS)
    notes = tuple(each for each in found.notes if each.code not in _OF_RUNS)
    compared = any(slot.role is Role.DELTA and slot.metrics.is_known for slot in found.slots)
    verdict = (
        Verdict.DIVERGED if found.divergences else Verdict.ALIGNED if compared and not reasons else Verdict.UNDECIDED
    )
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
    with kept(replaying, model), contextlib.ExitStack() as undone:
        undo = adapter.keep_optimizer(optimizer)
        if undo is not None:
            undone.callback(undo)
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
    info = RunInfo(
        run_id=uuid.uuid4().hex, framework=adapter.framework, framework_version=adapter.version, probe_version=__version__,
        created=now(), rank=0, world_size=1, tells_writes=adapter.counts_writes, config=config.as_json(),
        model_config=adapter.model_config(ready.model),
    )  # fmt: skip
    recorder = Recorder(adapter, [("", ready.model)], Writer(path, info), config, optimizer)
    try:
        recorder.record_weights()
        ready.replaying.stepped(optimizer, given)
        recorder.step({})
    finally:
        recorder.stop()
