"""Recordings as TensorBoard's scalars: curves and norms of a run, and how far two runs are apart, module by module."""

from __future__ import annotations

import importlib.util
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np

from probe.answer.comparison import Comparison, Progress
from probe.answer.metrics import Metrics
from probe.answer.shift import Shift
from probe.comparing import compare
from probe.curve_comparison.parameters import counterparts, direction_named
from probe.curve_comparison.reading.recorded import read_recording
from probe.curve_comparison.reading.series import RunCurves
from probe.errors import ConfigError, StoreError
from probe.mapping import load_mapping
from probe.ranks.opening import open_reader
from probe.records import Phase, Role
from probe.report.again import Again, events_of
from probe.report.layout import plain
from probe.store.places import place_of
from probe.store.reading.reader import Reader
from probe.verdict.rows import metrics_of

ERRORS = {
    (Phase.INIT, Role.PARAM): "error of initial weights",
    (Phase.FORWARD, Role.OUTPUT): "error forward",
    (Phase.BACKWARD, Role.GRAD_INPUT): "error backward",
    (Phase.BACKWARD, Role.GRAD_TOTAL): "error backward",
    (Phase.GRADIENT, Role.PARAM_GRAD): "error of gradients",
    (Phase.UPDATE, Role.PARAM_GRAD): "error of gradients as used",
    (Phase.UPDATE, Role.DELTA): "error of updates",
}
"""sections of TensorBoard, by what the errors are of"""
CURVES, NORMS, DIFFERENCES = "curves", "gradient norms", "B − A"
LARGEST = "largest"
"""of all modules"""
_OF_WEIGHTS = (Role.PARAM, Role.PARAM_GRAD, Role.DELTA)
_PER_EVENT = 100
"""numbers that are written at once"""

Scalars = dict[str, dict[int, float]]
"""tag → step → value"""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written."""

    folders: tuple[Path, ...]
    scalars: int
    steps: int
    notes: tuple[str, ...] = ()
    """what is not in it"""


def export_run(path: str | Path, folder: str | Path) -> Exported:
    """Write the curves and the gradient norms of one recording, as a run that has the file's name.

    Parameters
    ----------
    path
        the recording
    folder
        TensorBoard's ``--logdir``

    Raises
    ------
    StoreError, FormatError
        the recording cannot be read, or the events cannot be written
    ConfigError
        nothing to export was recorded, events are there already, or tensorboardX is not installed
    """
    place = Path(folder) / Path(path).stem
    _check([place])
    with open_reader(path) as reader:
        times = _times(reader)
    scalars = _of_run(read_recording(place_of(path)))
    if not scalars:
        raise ConfigError(f"{path} holds no number of its steps to export: neither a logged one nor a gradient")
    return _written({place: (scalars, times)})


def export_comparison(
    a: str | Path,
    b: str | Path,
    folder: str | Path,
    mapping: str | Path | Mapping[str, Any] | None = None,
    *,
    steps: str | tuple[int, int] | None = None,
    direction: str | None = None,
    progress: Progress | None = None,
) -> Exported:
    """Write three runs: A, B (its parameters by A's names, its steps by A's numbers), and how far they are apart.

    Errors are the largest of a module in a step. Behind the first step that diverges they are measured, and not judged.

    Parameters
    ----------
    a, b, mapping, steps, direction, progress
        as `compare` has them
    folder
        TensorBoard's ``--logdir``

    Raises
    ------
    StoreError, FormatError, MappingError, ConfigError
        as `compare` and `export_run`
    """
    places = [Path(folder) / name for name in ("A", "B", "comparison")]
    _check(places)
    comparison = compare(a, b, mapping, steps=steps, direction=direction, progress=progress)
    runs = [read_recording(place_of(path)) for path in (a, b)]
    to_b = Shift.of(steps).to_b
    names = _names_in_a(runs[0], runs[1], mapping, direction)
    of_a, of_b = _of_run(runs[0]), _of_run(runs[1], names, -to_b)
    with open_reader(a) as first, open_reader(b) as second:
        times = _times(first)
        theirs = {step - to_b: time for step, time in _times(second).items()}
        apart, unknown = _errors(comparison, first, second, to_b)
    for tag in of_a.keys() & of_b.keys():
        if tag.startswith(f"{CURVES}/"):
            both = of_a[tag].keys() & of_b[tag].keys()
            apart[f"{DIFFERENCES}/{tag.partition('/')[2]}"] = {step: of_b[tag][step] - of_a[tag][step] for step in both}
    notes = [f"{unknown} pairs of tensors could not be compared"] if unknown else []
    lonely = [f"{len(only)} in {side}" for side, only in (("A", comparison.only_a), ("B", comparison.only_b)) if only]
    if lonely:
        notes.append(f"modules without a counterpart have no error: {', '.join(lonely)}")
    contents = zip(places, (of_a, of_b, apart), (times, theirs, times), strict=True)
    return _written({place: (found, when) for place, found, when in contents if found}, tuple(notes))


def _of_run(run: RunCurves, names: Mapping[str, str] | None = None, shift: int = 0) -> Scalars:
    """Return curves and norms by their tags; parameters by the names that they are given."""
    known = names or {}
    series = {f"{CURVES}/{name}": each for name, each in run.series.items()}
    series |= {f"{NORMS}/{known.get(name, name)}": each for name, each in run.norms.items()}
    return {
        tag: dict(zip((each.steps + shift).tolist(), each.values.tolist(), strict=True)) for tag, each in series.items()
    }


def _names_in_a(
    a: RunCurves, b: RunCurves, mapping: str | Path | Mapping[str, Any] | None, direction: str | None
) -> dict[str, str]:
    """Return A's names of B's parameters, of those that are one on both sides."""
    assert a.model is not None and b.model is not None
    found, _ = counterparts(a.model, b.model, load_mapping(mapping), direction_named(direction))
    return {each.b[0]: each.a[0] for each in found if len(each.a) == len(each.b) == 1}


def _times(reader: Reader) -> dict[int, float]:
    """Return when each step ended, in seconds since 1970, had nothing been between them."""
    try:
        begun = datetime.fromisoformat(reader.info.created).timestamp()
    except ValueError:
        begun = 0.0
    ends = begun + np.cumsum(np.nan_to_num(reader.steps["wall_time"]))
    return dict(zip(reader.steps["step"].tolist(), ends.tolist(), strict=True))


# Errors by module


def _errors(comparison: Comparison, a: Reader, b: Reader, to_b: int) -> tuple[Scalars, int]:
    """Return the largest error of every module, or weight, in each step, and how many pairs of tensors have none."""
    found: Scalars = defaultdict(dict)
    unknown = 0
    judged = {step for step, _ in comparison.steps}
    for step, phase, role, path, slot, metrics in (*_judged(comparison), *_measured(comparison, judged, a, b, to_b)):
        section = ERRORS.get((phase, role))
        if section is None:
            continue
        if not metrics.is_known:
            unknown += 1
            continue
        error = math.inf if math.isnan(metrics.rel_l2) else metrics.rel_l2  # NaN or Inf on one side
        name = f"{path}.{slot}" if path and role in _OF_WEIGHTS else slot if role in _OF_WEIGHTS else path or "(root)"
        for tag in (f"{section}/{name}", f"{LARGEST}/{section}"):
            found[tag][step] = max(found[tag].get(step, 0.0), error)
    return dict(found), unknown


Seen = tuple[int, Phase, Role, str, str, Metrics]
"""step, phase, role, path and slot in A, error"""


def _judged(comparison: Comparison) -> Iterator[Seen]:
    for slot in comparison.slots:
        yield slot.step, slot.phase, slot.role, slot.path_a, slot.slot_a, slot.metrics


def _measured(comparison: Comparison, judged: set[int], a: Reader, b: Reader, to_b: int) -> Iterator[Seen]:
    """Yield what stands in the steps behind the first that diverges."""
    of_b = set(b.steps["step"].tolist())
    common = {step: step + to_b for step in a.steps["step"].tolist() if step + to_b in of_b}
    for number in sorted(common.keys() - judged):
        step = Again(a, b, comparison.matching, common).step(number)  # one at a time
        for event in events_of(step) if step.batches.are_same else ():
            module = event.node.a.module if event.node is not None else event.place[0] if event.place is not None else 0
            metrics = metrics_of(event, step.error(event))
            yield number, event.phase, event.role, step.path(module), event.slot_a, metrics


# Event files


def _check(folders: Sequence[Path]) -> None:
    """Find out before the work whether its result can be written."""
    if importlib.util.find_spec("tensorboardX") is None:
        raise ConfigError("TensorBoard's events need tensorboardX: pip install 'probe-align[tensorboard]'")
    for folder in folders:
        if any(folder.glob("*tfevents*")):
            raise ConfigError(
                f"{folder} holds events already, which TensorBoard would mix: delete it, or name another folder"
            )


def _written(runs: Mapping[Path, tuple[Scalars, Mapping[int, float]]], notes: tuple[str, ...] = ()) -> Exported:
    for folder, (scalars, times) in runs.items():
        try:
            _write(folder, scalars, times)
        except OSError as error:
            raise StoreError(f"cannot write {folder}: {error.strerror or error}") from None
    steps = {step for scalars, _ in runs.values() for values in scalars.values() for step in values}
    count = sum(len(values) for scalars, _ in runs.values() for values in scalars.values())
    return Exported(tuple(runs), count, len(steps), notes)


def _write(folder: Path, scalars: Scalars, times: Mapping[int, float]) -> None:
    """Write an event file: for each step its numbers, in 32 bits, as TensorBoard keeps them."""
    from tensorboardX import RecordWriter
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.proto.summary_pb2 import Summary

    by_step: dict[int, list[Any]] = defaultdict(list)
    for tag, values in zip(_tags(scalars), scalars.values(), strict=True):
        for step, value in values.items():
            by_step[step].append(Summary.Value(tag=tag, simple_value=value))
    folder.mkdir(parents=True, exist_ok=True)
    begun = min(times.values(), default=0.0)
    writer = RecordWriter(str(folder / f"events.out.tfevents.{int(begun)}.probe"))
    try:
        writer.write(Event(wall_time=begun, file_version="brain.Event:2").SerializeToString())
        for step, values in sorted(by_step.items()):
            for at in range(0, len(values), _PER_EVENT):
                summary = Summary(value=values[at : at + _PER_EVENT])
                event = Event(wall_time=times.get(step, begun), step=step, summary=summary)
                writer.write(event.SerializeToString())
    finally:
        writer.close()


def _tags(scalars: Scalars) -> list[str]:
    """Return what TensorBoard is to show for each tag: without control characters, not endlessly long, each its own."""
    shown: dict[str, None] = {}
    for tag in scalars:
        name, number = plain(tag), 1
        while name in shown:
            number += 1
            name = f"{plain(tag)} ({number})"
        shown[name] = None
    return list(shown)
