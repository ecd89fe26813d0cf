"""A dump becomes a recording: `probe import`, and comparing a dump as if it were one."""

from __future__ import annotations

import functools
import math
import os
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probe._version import __version__
from probe.adapters.shared.memory import Measuring, place_of
from probe.dumps.arrays import as_declared
from probe.dumps.seen import PHASES, Call, Dump, Seen, Step, Summary
from probe.dumps.table import Kind, kind_of
from probe.errors import FormatError
from probe.numbers.layouts import layout_of
from probe.numbers.packed import HASH_KIND, pack
from probe.numbers.sketch import WIDTH
from probe.records import HashKind, ModuleInfo, ParameterInfo, Phase, Role, RunInfo, StepState, TensorStats
from probe.store.writing.creation import discard
from probe.store.writing.replacing import replaced
from probe.store.writing.writer import Writer, now
from probe.targets import already_there, target_of

_QUEUE = 64 << 20
"""bytes that wait to be written"""
_ROOT = "Model"
"""class of a model of which the dump does not tell it"""
_GIVEN = (Role.INPUT, Role.VALUE)
_HELD = {
    "what modules were given": {Role.INPUT}, "what modules returned": {Role.OUTPUT}, "weights": {Role.PARAM},
    "gradients of modules": {Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL},
    "gradients of weights": {Role.PARAM_GRAD},
}  # fmt: skip
"""what is said where a dump holds none of these roles"""
_MEASURING = Measuring(place_of, lambda array: array)
_NO_UPDATES = "weights of later steps are left out: without values of both steps no update can be computed"


def import_dump(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, pattern: str | None = None, overwrite: bool = False,
) -> list[Path]:  # fmt: skip
    """Write another tool's dump as a recording; of several ranks, one file each.

    Parameters
    ----------
    source
        a folder or a file
    target
        the recording; of several ranks ``a.h5`` becomes ``a.rank00000.h5`` …
    pattern
        how names of tensors are read (`probe.dumps.naming`); for named tensors only
    overwrite
        replace a file that is already there

    Returns
    -------
    list of Path
        the files

    Raises
    ------
    StoreError, FormatError, ConversionError
        the dump cannot be read, or holds more than tensors
    ConfigError
        the pattern is none, or the dump is of a tool that needs none
    ExistsError
        the recording is already there
    """
    kind, dumps = opened(Path(source), pattern)
    world = max(len(dumps), *(dump.rank + 1 for dump in dumps)) if len(dumps) > 1 else 1
    paths = [target_of(target, dump.rank, world)[0] for dump in dumps]
    for path in paths:
        if path.exists() and not overwrite:
            raise already_there(path, "--overwrite")
    for path, dump in zip(paths, dumps, strict=True):
        with replaced(path):
            _Import(kind, dump, Path(source), path, world).write()
    return paths


def opened(source: Path, pattern: str | None = None) -> tuple[Kind, list[Dump]]:
    """Return which tool wrote a dump, and the dump of each rank."""
    kind, files = kind_of(source, pattern)
    dumps = list(kind.read(source, files, pattern))
    if not any(dump.steps for dump in dumps):
        raise FormatError(f"{source} is a dump of {kind.tool} without a step")
    return kind, dumps


@dataclass
class _Import:
    """One rank's dump on its way into a file."""

    kind: Kind
    dump: Dump
    source: Path
    path: Path
    world: int
    modules: dict[str, int] = field(default_factory=dict)
    parameters: dict[tuple[str, str], int] = field(default_factory=dict)
    classes: dict[str, str] = field(default_factory=dict)
    counts: Counter[Any] = field(default_factory=Counter)
    calls: int = 0
    """rows of the steps before"""

    def write(self) -> None:
        """Look at the names of all steps, then write step by step."""
        read = functools.lru_cache(maxsize=2)(self.dump.read)
        infos = self._look(read)
        has = {PHASES[role] for role in self.counts if isinstance(role, Role)} | self._has_updates(read)
        config = {
            "task": "tensor" if self.counts["values"] else "statistics" if self.counts["summaries"] else "structure",
            "phases": [phase.label for phase in sorted(has)] or None, "source": self.kind.tool,
            "summaries": self.counts["summaries"] > 0,
        }  # fmt: skip
        info = RunInfo(
            uuid.uuid4().hex, self.dump.framework, self.dump.version, __version__, now(), self.dump.rank, self.world,
            config={name: value for name, value in config.items() if value},
        )  # fmt: skip
        writer = Writer(self.path, info, _QUEUE)
        try:
            writer.add_modules(infos)
            for number in self.dump.steps:
                following = read(number + 1) if number + 1 in self.dump.steps else None
                _StepWriter(self, writer, read(number)).write(number - 1 in self.dump.steps, following)
            writer.close()
        except BaseException as error:
            writer.abandon()
            discard(self.path, error)
            raise

    def _has_updates(self, read: Any) -> set[Phase]:
        """Return the phase of updates, if values tell what the weights of a step became."""
        steps = self.dump.steps
        tells = any(number + 1 in steps or read(number).left for number in steps)
        return {Phase.UPDATE} if tells and self.counts["values"] and self.counts[Role.PARAM] else set()

    def _look(self, read: Any) -> list[ModuleInfo]:
        """Return the modules of all steps, operations last; count what the dump holds."""
        classes: dict[str, str] = {"": ""}
        operations: dict[str, tuple[str, Call]] = {}
        for number in self.dump.steps:
            step = read(number)
            for call, around in _with_callers(step):
                if call.arguments:
                    operations.setdefault(call.path, (around, call))
                else:
                    _enter(classes, call.path, call.class_name)
                self._count(call.seen)
            for path, seen in step.weights:
                _enter(classes, path, "")
                self._count([seen])
            for path, name in step.classes.items():
                _enter(classes, path, name)
        self.classes = {**classes, "": classes[""] or _ROOT}
        self.modules = {path: index for index, path in enumerate([*classes, *operations])}
        infos = [ModuleInfo(path, self.classes[path] or "Module", self._parent(path)) for path in classes]
        return infos + [
            ModuleInfo(path, call.class_name, self.modules[around], *call.place, arguments=call.arguments)
            for path, (around, call) in operations.items()
        ]

    def _parent(self, path: str) -> int:
        return self.modules[path.rpartition(".")[0]] if path else -1

    def _count(self, seen: list[Seen]) -> None:
        for each in seen:
            self.counts[each.role] += 1
            self.counts["values" if each.load is not None else "summaries"] += 1

    def notes(self) -> Iterator[str]:
        """Yield what the recording says of where it comes from, and of what it lacks."""
        yield f"imported from a dump of {self.kind.tool}: {self.source.name or self.source}"
        summaries, total = self.counts["summaries"], self.counts["summaries"] + self.counts["values"]
        if summaries:
            yield (
                f"of {summaries:,} of {total:,} tensors the dump has min, max, mean and norm, no values: what leaves these "
                "as they are is not seen"
            )
        lacking = [text for text, roles in _HELD.items() if not any(self.counts[role] for role in roles)]
        if lacking or self.dump.lacks:
            yield f"the dump does not hold: {'; '.join([*lacking, *self.dump.lacks])}"


def _with_callers(step: Step) -> Iterator[tuple[Call, str]]:
    around = {id(inner): call.path for call in step.walk() for inner in call.inner}
    return ((call, around.get(id(call), "")) for call in step.walk())


def _enter(classes: dict[str, str], path: str, class_name: str) -> None:
    """Add a module, behind the modules around it."""
    if path not in classes:
        parts = path.split(".")
        for count in range(1, len(parts)):
            classes.setdefault(".".join(parts[:count]), "")
    classes[path] = class_name or classes.get(path, "")


class _StepWriter:
    """Writes one step: weights, calls with what they were given and returned, gradients."""

    def __init__(self, run: _Import, writer: Writer, step: Step) -> None:
        self.run, self.writer, self.step = run, writer, step
        self._seq = 0
        self._calls: list[tuple[Any, ...]] = []
        self._gradients: list[tuple[Call, int, int, Seen]] = []

    def write(self, goes_on: bool, following: Step | None) -> None:
        """Write the step; one that goes on from the step before begins with the weights that that one left."""
        step = self.step
        for path, seen in step.weights:
            if PHASES[seen.role] is Phase.INIT and not (goes_on and (path, seen.slot) in self.run.parameters):
                self._weight(path, seen)
        for micro in sorted({call.micro for call in step.calls}):
            inner = [call for call in step.calls if call.micro == micro]
            is_whole = len(inner) == 1 and not inner[0].path
            self._call(inner[0] if is_whole else Call("", micro=micro, inner=inner), -1)
        for call, begin, end, seen in self._gradients:
            self._record(call, seen, order=-(end if seen.role is Role.GRAD_OUTPUT else begin))
        for path, seen in step.weights:
            if PHASES[seen.role] is not Phase.INIT:
                self._weight(path, seen)
        left = step.left or [each for each in (following.weights if following else ()) if each[1].role is Role.PARAM]
        begun = {(path, seen.slot): seen for path, seen in step.weights if seen.role is Role.PARAM}
        for path, seen in left:
            self._update(path, begun.get((path, seen.slot)), seen)
        notes = [*(self.run.notes() if step.number == self.run.dump.steps[0] else ()), *step.notes]
        self.writer.end_step(
            step.number, calls=self._calls, scalars=[], notes=[(step.number, -1, text) for text in notes], groups=[],
            wall_time=0.0, state=StepState.CLOSED,
        )  # fmt: skip
        self.writer.wait_for_room()
        self.run.calls += len(self._calls)

    def _next(self) -> int:
        self._seq += 1
        return self._seq - 1

    def _call(self, call: Call, caller: int) -> None:
        """Write a call, and those inside it; ``caller`` is the row of the call around it."""
        row, begin = len(self._calls), self._next()
        self._calls.append(())
        for seen in call.seen:
            if seen.role in _GIVEN:
                self._record(call, seen)
        for inner in call.inner:
            self._call(inner, self.run.calls + row)
        for seen in call.seen:
            if seen.role is Role.OUTPUT:
                self._record(call, seen)
        end, module = self._next(), self.run.modules[call.path]
        self._calls[row] = (self.step.number, call.micro, begin, end, module, call.number, caller, 1, 1, 0, 0, b"")
        self._gradients += [
            (call, begin, end, seen) for seen in call.seen if PHASES[seen.role] is Phase.BACKWARD
        ]  # fmt: skip

    def _weight(self, path: str, seen: Seen) -> None:
        """Write a parameter, or what belongs to one."""
        run, name = self.run, seen.slot.partition(".")[0]
        tensor = _loaded(seen)
        layout = layout_of(run.dump.framework, (run.classes[path],), name)
        axes = layout.axes if len(layout.axes) == len(tensor.shape) else ()
        if seen.role is not Role.STATE and (path, name) not in run.parameters:
            run.parameters[path, name] = len(run.parameters)
            is_buffer = seen.role is Role.BUFFER
            info = ParameterInfo(
                (f"{path}.{name}" if path else name,), run.modules[path], name, tensor.shape, str(tensor.dtype),
                not is_buffer, is_buffer, axes, layout.name if layout.name != name else "",
            )  # fmt: skip
            self.writer.add_parameters([info])
        self._put(Call(path), seen, tensor, run.parameters.get((path, name), 0), axes)

    def _update(self, path: str, begun: Seen | None, left: Seen) -> None:
        """Write what a weight became, and by how much it changed, which values alone tell."""
        if begun is None or begun.load is None or left.load is None:
            self.step.notes += [_NO_UPDATES] if _NO_UPDATES not in self.step.notes else []
            return
        before, after = _loaded(begun), _loaded(left)
        number = self.run.parameters[path, left.slot]
        layout = layout_of(self.run.dump.framework, (self.run.classes[path],), left.slot)
        axes = layout.axes if len(layout.axes) == after.ndim else ()
        self._put(Call(path), left, after, number, axes, Phase.UPDATE)
        if before.shape == after.shape:
            dtype, stats, _ = _MEASURING.measure_update(after, before, axes)
            self._row(
                Call(path), Seen(Role.DELTA, left.slot, None), stats, dtype, after.shape, -1, number, Phase.UPDATE
            )

    def _record(self, call: Call, seen: Seen, order: int | None = None) -> None:
        self._put(call, seen, _loaded(seen), self._seq if order is None else order)

    def _put(
        self, call: Call, seen: Seen, tensor: np.ndarray | Summary, order: int, axes: tuple[int, ...] = (),
        phase: Phase | None = None,
    ) -> None:  # fmt: skip
        """Write one tensor, its values if the dump has them."""
        dtype, stored = str(tensor.dtype), -1
        if isinstance(tensor, np.ndarray):
            stats = _MEASURING.measure(tensor, axes)
            stored = self.writer.tensor(stats, dtype, tensor.shape, lambda: tensor)
        else:
            stats = _packed(tensor)
        self._row(call, seen, stats, dtype, tensor.shape, stored, order, PHASES[seen.role] if phase is None else phase)

    def _row(
        self, call: Call, seen: Seen, stats: bytes, dtype: str, shape: tuple[int, ...], stored: int, order: int, phase: Phase
    ) -> None:  # fmt: skip
        writer = self.writer
        head = (
            self.step.number, call.micro, self._next(), order, int(phase), self.run.modules[call.path], call.number,
            int(seen.role), writer.slot(seen.slot), dtype.encode(), writer.shape(shape), seen.learns,
        )  # fmt: skip
        writer.add_record(head, stats, stored, is_sketched=bool(stats[HASH_KIND]))


def _loaded(seen: Seen) -> np.ndarray | Summary:
    """Return a tensor's values in the dtype that it had, contiguous; without values what the tool wrote of it."""
    if seen.load is None:
        assert seen.summary is not None
        return seen.summary
    array = seen.load()
    array = array if seen.summary is None else as_declared(array, seen.summary.dtype)
    return np.ascontiguousarray(array).reshape(array.shape)


def _packed(summary: Summary) -> bytes:
    """Return a summary as a record has it; of what is not finite, which no tool counts, one element."""
    ends = [math.nan if each is None else each for each in (summary.low, summary.high)]
    is_nan = any(each is not None and math.isnan(each) for each in (summary.low, summary.high))
    bad = (is_nan, math.inf in ends, -math.inf in ends)
    numbers = [
        each if each is not None and math.isfinite(each) else math.nan
        for each in (summary.low, summary.high, summary.mean, summary.norm)
    ]
    count = math.prod(summary.shape) * (2 if summary.dtype.startswith("complex") else 1) - sum(bad)
    rms = numbers[3] / math.sqrt(count) if count > 0 else math.nan
    numbers[3] = numbers[3] if count > 0 else math.nan
    none = TensorStats(*numbers[:3], rms, numbers[3], *bad, 0, 0, 0, HashKind.NONE, np.zeros(WIDTH))
    return pack(none)
