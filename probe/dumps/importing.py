"""A dump becomes a recording: `probe import`, and comparing a dump as if it were one."""

from __future__ import annotations

import functools
import itertools
import math
import os
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from probe._version import __version__
from probe.adapters.shared.memory import Measuring, place_of
from probe.damage import reading
from probe.dumps.arrays import as_declared
from probe.dumps.seen import DEEPEST, PHASES, Call, Dump, Seen, Step, Summary
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

_MOST_RANKS = 1 << 20
_QUEUE = 64 << 20
"""bytes that wait to be written"""
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
    """Write another tool's dump, a folder or a file, as a recording; return the files, of several ranks one each.

    Parameters
    ----------
    target
        the recording; of several ranks ``a.h5`` becomes ``a.rank00000.h5`` …
    pattern
        how names of tensors are read (`probe.dumps.naming`); for named tensors only

    Raises
    ------
    StoreError, FormatError, ConversionError
        the dump cannot be read, or holds more than tensors; the recording is already there
    ConfigError
        the pattern is none, or the dump is of a tool that needs none
    """
    kind, files = kind_of(Path(source), pattern)
    with reading(Path(source)):
        dumps = [dump for dump in kind.read(Path(source), files, pattern) if dump.steps]
    if not dumps:
        raise FormatError(f"{source} is a dump of {kind.tool} without a step")
    world = max(len(dumps), *(dump.rank + 1 for dump in dumps)) if len(dumps) > 1 else 1
    if world > _MOST_RANKS:
        raise FormatError(f"{source} has a rank {world - 1:,}: expected at most {_MOST_RANKS:,} ranks")
    paths = [target_of(target, dump.rank, world)[0] for dump in dumps]
    for path in paths:
        if path.exists() and not overwrite:
            raise already_there(path, "--overwrite")
    for path, dump in zip(paths, dumps, strict=True):
        with replaced(path):
            _Import(kind, dump, Path(source), path, world).write()
    return paths


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
    classes: dict[str, str] = field(default_factory=lambda: {"": ""})
    counts: Counter[Any] = field(default_factory=Counter)
    sizes: Counter[str] = field(default_factory=Counter)
    """elements of the parameters of a module and those inside it"""
    calls: int = 0
    """rows of the steps before"""

    def write(self) -> None:
        """Look at the names of all steps, then write step by step."""
        steps, read = self.dump.steps, functools.lru_cache(maxsize=2)(self._read)
        infos, counts = self._look(read), self.counts
        has = {PHASES[role] for role in Role if counts[role]}
        if counts[Role.PARAM] and not counts["bare"] and any(n + 1 in steps or read(n).left for n in steps):
            has.add(Phase.UPDATE)
            counts["updates"] = not read(steps[-1]).left
        task = "tensor" if counts["values"] else "statistics" if counts["summaries"] else "structure"
        config: dict[str, object] = {"task": task, "source": self.kind.tool}
        config |= {"summaries": True} if counts["summaries"] else {}
        config |= {"phases": [phase.label for phase in sorted(has)]} if has else {}
        who = uuid.uuid4().hex, self.dump.framework, "", __version__, now(), self.dump.rank, self.world
        writer = Writer(self.path, RunInfo(*who, config=config), _QUEUE)
        try:
            for number in steps:
                following = read(number + 1) if number + 1 in steps else None
                _StepWriter(self, writer, read(number)).write(number - 1 in steps, following, infos)
                infos = []
            writer.close()
        except BaseException as error:
            writer.abandon()
            discard(self.path, error)
            raise

    def _read(self, number: int) -> Step:
        with reading(self.source, f"step {number} of it"):
            return self.dump.read(number)

    def _look(self, read: Callable[[int], Step]) -> list[ModuleInfo]:
        """Return the modules of all steps, operations last; count what the dump holds."""
        operations: dict[str, tuple[str, Call]] = {}
        for number in self.dump.steps:
            step = read(number)
            for call, around in step.walk():
                if call.arguments:
                    operations.setdefault(call.path, (around, call))
                else:
                    self._enter(call.path, call.class_name)
                self._count(call.seen)
            for path, name in step.classes.items():
                self._enter(path, name)
            for path, seen in step.weights:
                self._enter(path, "")
                self._count([seen])
        self.modules = {path: index for index, path in enumerate([*self.classes, *operations])}
        parents = {path: self.modules[path.rpartition(".")[0]] if path else -1 for path in self.classes}
        named = {path: name or ("Module" if path else "Model") for path, name in self.classes.items()}
        return [ModuleInfo(path, name, parents[path]) for path, name in named.items()] + [
            ModuleInfo(path, call.class_name, self.modules[around], *call.place, arguments=call.arguments)
            for path, (around, call) in operations.items()
        ]

    def _enter(self, path: str, class_name: str) -> None:
        """Add a module, behind the modules around it."""
        parts = path.split(".")
        if len(parts) > DEEPEST:
            raise FormatError(f"{path[:200]} …: more than {DEEPEST} modules lie inside one another")
        for count in range(1, len(parts)):
            self.classes.setdefault(".".join(parts[:count]), "")
        self.classes[path] = class_name or self.classes.get(path, "")

    def _count(self, seen: Iterable[Seen]) -> None:
        for each in seen:
            self.counts[each.role] += 1
            self.counts["bare"] += each.role is Role.PARAM and each.load is None
            self.counts["values" if each.load is not None else "summaries"] += 1

    def notes(self) -> Iterator[str]:
        """Yield what the recording says of where it comes from, and of what it lacks."""
        yield f"imported from a dump of {self.kind.tool}: {self.source.name or self.source}"
        summaries, total = self.counts["summaries"], self.counts["summaries"] + self.counts["values"]
        if summaries:
            yield f"{summaries:,} of {total:,} tensors have no values in the dump: errors are bounded by min, max, mean and norm"
        lacking = [text for text, roles in _HELD.items() if not any(self.counts[role] for role in roles)]
        lacking += ["the update of the last step"] * self.counts["updates"]
        if lacking or self.dump.lacks:
            yield f"the dump does not hold: {'; '.join([*lacking, *self.dump.lacks])}"


class _StepWriter:
    """Writes one step: weights, calls with what they were given and returned, gradients."""

    def __init__(self, run: _Import, writer: Writer, step: Step) -> None:
        self.run, self.writer, self.step = run, writer, step
        self._seq = 0
        self._calls: list[tuple[Any, ...]] = []
        self._waiting: list[tuple[Call, Seen, int, int]] = []  # each with its place in the step, and its order
        self._gradients: list[tuple[Call, int, int, Seen]] = []

    def write(self, goes_on: bool, following: Step | None, modules: list[ModuleInfo]) -> None:
        """Write the step, and modules whose parameters it begins with; what goes on begins with what the step before left."""
        step = self.step
        for path, seen in step.weights:
            if PHASES[seen.role] is Phase.INIT and not (goes_on and (path, seen.slot) in self.run.parameters):
                self._weight(path, seen)
        sizes = self.run.sizes
        self.writer.add_modules(replace(each, n_params=sizes[each.path]) for each in modules)
        for micro in sorted({call.micro for call in step.calls}):
            inner = [call for call in step.calls if call.micro == micro]
            is_whole = len(inner) == 1 and not inner[0].path
            self._call(inner[0] if is_whole else Call("", micro=micro, inner=inner), -1)
        for call, begin, end, seen in self._gradients:
            self._waiting.append((call, seen, self._next(), -(end if seen.role is Role.GRAD_OUTPUT else begin)))
        tensors = _ahead([each[1] for each in self._waiting])
        for (call, seen, seq, order), tensor in zip(self._waiting, tensors, strict=True):
            self._put(call, seen, tensor, order, seq=seq)
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
            if seen.role in (Role.INPUT, Role.VALUE):
                self._waiting.append((call, seen, self._seq, self._next()))
        for inner in call.inner:
            self._call(inner, self.run.calls + row)
        for seen in call.seen:
            if seen.role is Role.OUTPUT:
                self._waiting.append((call, seen, self._seq, self._next()))
        end, module = self._next(), self.run.modules[call.path]
        self._calls[row] = (self.step.number, call.micro, begin, end, module, call.number, caller, 1, 1, 0, 0, b"")
        self._gradients += [(call, begin, end, seen) for seen in call.seen if PHASES[seen.role] is Phase.BACKWARD]

    def _axes(self, path: str, slot: str, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
        """Return how the canonical layout calls a parameter, and the order of its axes there."""
        layout = layout_of(self.run.dump.framework, (self.run.classes[path],), slot)
        return layout.name if layout.name != slot else "", layout.axes if len(layout.axes) == len(shape) else ()

    def _weight(self, path: str, seen: Seen) -> None:
        """Write a parameter, or what belongs to one."""
        known, is_buffer, tensor = self.run.parameters, seen.role is Role.BUFFER, _loaded(seen)
        name = seen.slot.partition(".")[0] if seen.role is Role.STATE else seen.slot
        canonical, axes = self._axes(path, name, tensor.shape)
        if seen.role is not Role.STATE and (path, name) not in known:
            known[path, name] = len(known)
            full, form = f"{path}.{name}".lstrip("."), (name, tensor.shape, str(tensor.dtype))
            info = ParameterInfo((full,), self.run.modules[path], *form, not is_buffer, is_buffer, axes, canonical)
            self.writer.add_parameters([info])
            for around in (path, *itertools.accumulate(path.split(".")[:-1], "{}.{}".format), "")[not path :]:
                self.run.sizes[around] += 0 if is_buffer else math.prod(tensor.shape)
        self._put(Call(path), seen, tensor, known.get((path, name), 0), axes)

    def _update(self, path: str, begun: Seen | None, left: Seen) -> None:
        """Write what a weight became, and by how much it changed, which values alone tell."""
        if begun is None or begun.load is None or left.load is None:
            self.step.notes += [_NO_UPDATES] if _NO_UPDATES not in self.step.notes else []
            return
        before, after, number = _loaded(begun), _loaded(left), self.run.parameters[path, left.slot]
        assert isinstance(before, np.ndarray) and isinstance(after, np.ndarray)
        _, axes = self._axes(path, left.slot, after.shape)
        self._put(Call(path), left, after, number, axes, Phase.UPDATE)
        if before.shape == after.shape:
            dtype, stats, _ = _MEASURING.measure_update(after, before, axes)
            delta = Seen(Role.DELTA, left.slot, None)
            self._put(Call(path), delta, Summary(dtype, after.shape), number, axes, Phase.UPDATE, stats)

    def _put(
        self, call: Call, seen: Seen, tensor: np.ndarray | Summary, order: int, axes: tuple[int, ...] = (),
        phase: Phase | None = None, stats: bytes = b"", seq: int | None = None,
    ) -> None:  # fmt: skip
        """Write one tensor, its values if the dump has them; ``stats`` are given of an update, which is not stored."""
        writer, dtype, stored = self.writer, str(tensor.dtype), -1
        if isinstance(tensor, Summary):
            stats = stats or _packed(tensor)
        else:
            stats = _MEASURING.measure(tensor, axes)
            stored = writer.tensor(stats, dtype, tensor.shape, lambda: tensor)
        head = (
            self.step.number, call.micro, self._next() if seq is None else seq, order,
            int(PHASES[seen.role] if phase is None else phase),
            self.run.modules[call.path], call.number, int(seen.role), writer.slot(seen.slot), dtype.encode(),
            writer.shape(tensor.shape), seen.learns,
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


def _ahead(seen: Sequence[Seen]) -> Iterator[np.ndarray | Summary]:
    """Yield the tensors; while one is measured, a thread reads the next."""
    with ThreadPoolExecutor(1, "probe-import") as pool:
        waiting = [pool.submit(_loaded, each) for each in seen[:1]]
        for number in range(1, len(seen) + 1):
            waiting += [pool.submit(_loaded, each) for each in seen[number : number + 1]]
            yield waiting.pop(0).result()


def _packed(summary: Summary) -> bytes:
    """Return a summary as a record has it; of what is not finite, which no tool counts, one element."""
    told = [math.nan if each is None else each for each in (summary.low, summary.high, summary.mean, summary.norm)]
    is_nan = any(each is not None and math.isnan(each) for each in (summary.low, summary.high))
    bad = (is_nan, math.inf in told[:2], -math.inf in told[:2])
    count = math.prod(summary.shape) * (2 if summary.dtype.startswith("complex") else 1) - sum(bad)
    low, high, mean, norm = (each if math.isfinite(each) and count > 0 else math.nan for each in told)
    rms = norm / math.sqrt(max(count, 1))
    return pack(TensorStats(low, high, mean, rms, norm, *bad, 0, 0, 0, HashKind.NONE, np.zeros(WIDTH)))
