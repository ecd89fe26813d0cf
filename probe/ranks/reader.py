"""The files of all ranks, read as one recording: that of a process which does what they do together."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from probe.comparison.notes import Note, note
from probe.errors import StoreError
from probe.numbers.axis_sums import squeezed
from probe.ranks import ordering
from probe.ranks.averaging import share_of_gradients
from probe.ranks.common import common_steps, other_settings, recorded_layouts, sizes_in
from probe.ranks.dims.language import parsed
from probe.ranks.dims.resolving import Facts
from probe.ranks.dims.telling import Telling
from probe.ranks.gathering import OF_PARAMETERS, Names, held_by
from probe.ranks.joining import OF_MEMBER, Averaged, Held, Lost, Tensors
from probe.ranks.layout.files import missing_ranks, require_one_run
from probe.ranks.layout.places import Layout
from probe.ranks.members import Member, Shares, members_of, models_of, shares_of
from probe.ranks.replicas import Difference
from probe.ranks.stages import Block, Owners, Step, block_of_rest, block_of_stage, merged
from probe.ranks.tree import Union, united
from probe.ranks.weights import Weights, told_by, weights_of, with_parameters
from probe.records import ModuleInfo, OptimizerGroup, ParameterInfo, Role, RunInfo
from probe.store.places import place_of
from probe.store.reading.reader import Reader
from probe.store.reading.streams import Piece
from probe.store.schema import CALLS, RECORDS

T = TypeVar("T")


@dataclass(frozen=True)
class _Step:
    """One step, put together."""

    records: np.ndarray
    sketches: np.ndarray
    calls: np.ndarray
    differences: tuple[Difference, ...]
    lost: tuple[Lost, ...]
    tensors: np.ndarray
    """by row, the number that its tensor has in ``held`` and ``arranged``"""
    held: Owners
    arranged: Mapping[int, Held]
    ranks: tuple[int, ...]
    """by member"""

    def ranks_of(self, row: int) -> tuple[int, ...]:
        """Return the ranks that hold a tensor, or parts of it."""
        member, starts, counts = self.held
        start = int(starts[self.tensors[row]])
        return tuple(self.ranks[k] for k in member[start : start + int(counts[self.tensors[row]])].tolist())

    def labels(self, row: int, shape: tuple[int, ...]) -> tuple[np.ndarray, list[tuple[int, ...]]]:
        """Return for each element of a tensor the number of the part that it is in, and the ranks that hold each part."""
        made, ranks = self.arranged.get(int(self.tensors[row]), (None, ()))
        if made is None or made.is_sum:
            return np.zeros(shape, np.int64), [self.ranks_of(row)]
        return made.labels(), list(ranks)


def _nothing(path: str, role: Role, slot: str) -> Sequence[tuple[int, ...]]:
    return ()


@dataclass
class Hints:
    """What the user, and the other side, say of how tensors are divided."""

    layouts: Mapping[str, str] = field(default_factory=dict)
    whole: Callable[[str, Role, str], Sequence[tuple[int, ...]]] = _nothing
    """shapes that the other side's tensors have in the place of those of a module"""


class RanksReader(Reader):
    """The recordings of all ranks of a run, read as one.

    It has the tables of `Reader`, made when they are first asked for; values are put together tensor by tensor.

    Parameters
    ----------
    given
        what the files were found by, see `probe.ranks.files.files_of`
    paths
        the files

    Raises
    ------
    StoreError, FormatError
        a file cannot be read, or is of another run
    """

    is_of_ranks = True

    def __init__(
        self, given: str | os.PathLike[str], paths: Sequence[Path], layouts: Mapping[str, str] | None = None
    ) -> None:
        self.path = place_of(given)
        self.paths = tuple(paths)
        self._opened = contextlib.ExitStack()
        try:
            known: dict[object, Any] = {}
            self.readers = tuple(self._opened.enter_context(Reader(path, known)) for path in paths)
            require_one_run(paths, [reader.info for reader in self.readers])
        except BaseException:
            self._opened.close()
            raise
        self.attributes = self.readers[0].attributes
        self.layout = Layout.of(reader.info for reader in self.readers)
        self.missing = missing_ranks([reader.info for reader in self.readers])
        self.names = Names()
        self._tensors = Tensors(first=len(self.readers) * OF_MEMBER)
        self.hints = Hints({**recorded_layouts(self.readers), **(layouts or {})})
        self.has_looked = False
        """whether the shapes of the other side were asked for while something was put together"""
        self.blocks_elsewhere: Callable[[int, np.ndarray, float], list[Block]] | None = None
        """puts the stages of a step together in other processes (`probe.ranks.elsewhere`)"""
        self.seen: object = None
        """what `probe.ranks.other_side` has shown"""
        self._steps = common_steps(self.readers)

    def _attempt(self, what: str, read: Callable[[], T]) -> T:
        return self.readers[0]._attempt(what, read)

    def close(self) -> None:
        """Close all files."""
        self._opened.close()

    def require_steps(self) -> None:
        """Raise StoreError where no step is complete on all ranks."""
        for reader in self.readers:
            reader.require_steps()
        if not len(self._steps) and any(len(reader.steps) for reader in self.readers):
            raise StoreError(f"{self.path}: no step is complete on all {len(self.readers)} ranks")

    # The run

    @functools.cached_property
    def info(self) -> RunInfo:
        """The attributes of the run, as those of one process."""
        first = self.readers[0].info
        closed = all(reader.info.closed for reader in self.readers)
        configs = [reader.info.config.get("task") for reader in self.readers]
        parallel = {
            "ranks": self.layout.world_size,
            "sizes": {name: self.layout.size(name) for name in self.layout.groups},
        }
        config = first.config if len(set(configs)) == 1 else {**first.config, "task": min(configs, key=str)}
        return replace(first, rank=0, world_size=1, closed=closed, parallel=parallel, config=config)

    @functools.cached_property
    def union(self) -> Union:
        """The modules of all ranks."""
        return united(self.readers, self.layout)

    @functools.cached_property
    def shares(self) -> Shares:
        """How the batch is divided over ranks."""
        return shares_of(self.readers, self.layout, self.union.stages)

    @functools.cached_property
    def members(self) -> list[Member]:
        """The ranks."""
        found = members_of(self.readers, self.layout, self.union, self.shares)
        for reader in self.readers:
            reader.let_go()
        return found

    @functools.cached_property
    def weights(self) -> Weights:
        """The parameters of all ranks."""
        told = told_by(self.hints.layouts, parsed)
        return weights_of(self.members, self.layout, self.union, told, self._sizes)

    @functools.cached_property
    def _sizes(self) -> dict[str, int]:
        return sizes_in(self.readers[0].info.model_config)

    @functools.cached_property
    def modules(self) -> list[ModuleInfo]:  # type: ignore[override]
        """All modules, in the order of the tree; each with the parameters of the whole."""
        return with_parameters(self.union.modules, self.weights.infos)

    @functools.cached_property
    def parameters(self) -> list[ParameterInfo]:  # type: ignore[override]
        """All parameters and buffers, with the shapes of the whole."""
        return list(self.weights.infos)

    @property
    def slots(self) -> list[str]:  # type: ignore[override]
        """Names of slots, by index."""
        return self.names.slots

    @property
    def shapes(self) -> list[tuple[int, ...]]:  # type: ignore[override]
        """Shapes, by index."""
        return self.names.shapes

    # Tables

    def of_step(self, table: str, step: int) -> np.ndarray:
        """Return the rows of ``records``, ``calls`` or ``sketches`` that belong to a complete step."""
        if not np.any(self._steps["step"] == step):
            return {"records": np.zeros(0, RECORDS), "calls": np.zeros(0, CALLS)}.get(table, np.zeros((0, 61)))
        return getattr(self.step(step), table)

    def step(self, step: int) -> _Step:
        """Return one step, put together; the last few are kept."""
        found = self._kept.get(step)
        if found is None:
            if len(self._kept) >= 3:
                self._kept.pop(next(iter(self._kept)))
            found = self._kept[step] = self._joined(step)
        return found

    @functools.cached_property
    def _kept(self) -> dict[int, _Step]:
        return {}

    def _joined(self, step: int) -> _Step:
        calls = ordering.calls_of(self.members, step, len(self.union.modules), self.shares.count)
        joined, held = merged(self._blocks(step, calls.spans), self.names, self._tensors)
        rows, of_parameter = joined.rows, OF_PARAMETERS[joined.rows["role"]]
        stage = np.array([member.stage for member in self.members])[joined.member]
        timeline = ordering.Timeline(len(set(self.union.stages)))
        ordering.see_records(rows, joined.seq, stage, of_parameter, timeline)
        ordering.see_calls(calls, timeline)
        timeline.settle()
        ordering.ordered_records(rows, joined.seq, stage, of_parameter, timeline)
        order = np.argsort(rows["seq"], kind="stable")
        table = ordering.ordered_calls(calls, timeline)
        first = self._first_call(step)
        table["caller"] = np.where(table["caller"] >= 0, table["caller"] + first, -1)
        when = rows["seq"]
        differences = tuple(replace(each, order=int(when[each.tensor])) for each in joined.differences)
        ranks = tuple(member.rank for member in self.members)
        return _Step(rows[order], joined.sketches[order], table, differences, joined.lost, order, held,
                     joined.arranged, ranks)  # fmt: skip

    def _blocks(self, step: int, spans: np.ndarray) -> list[Block]:
        """Return what each stage of the pipeline holds of a step, and at last what several hold."""
        shares, weights, names = self.shares, self.weights, self.names
        share = share_of_gradients(
            self.members, shares,
            lambda member, wanted: held_by(member, step, weights, shares.count, names, spans, wanted),
        )  # fmt: skip
        wanted = self._wanted(step, spans, share)
        if self.blocks_elsewhere is None:
            blocks = [block_of_stage(wanted, stage) for stage in wanted.stages]
        else:
            blocks = self.blocks_elsewhere(step, spans, share)
            self.has_looked |= any(block.has_looked for block in blocks)
        return [*blocks, block_of_rest(wanted, blocks)] if any(block.rest for block in blocks) else blocks

    def of_stage(self, step: int, stage: int, spans: np.ndarray, share: float) -> Block:
        """Return what one stage of the pipeline holds of a step.

        Parameters
        ----------
        spans
            by module, the first and the last stage that ran it, shape (modules, 2)
        share
            what the gradients of one share of the batch are multiplied by
        """
        return block_of_stage(self._wanted(step, spans, share), stage)

    def _wanted(self, step: int, spans: np.ndarray, share: float) -> Step:
        names = self.names
        modules = self.union.modules
        facts = Facts(self.members, self.layout, self.weights, self._telling, self._whole, models_of(modules),
                      [module.parent for module in modules], names.slots, names.shapes)  # fmt: skip
        averaged = Averaged(frozenset(self.shares.groups), share)
        return Step(step, facts, names, self.shares, spans, self._sizes, averaged)

    def _first_call(self, step: int) -> int:
        earlier = self._steps[self._steps["step"] < step]
        return int(earlier["n_calls"][-1]) if len(earlier) else 0

    def _whole(self, module: int, role: Role, slot: str) -> Sequence[tuple[int, ...]]:
        self.has_looked = True
        return self.hints.whole(self.union.modules[module].path, role, slot)

    @functools.cached_property
    def _telling(self) -> Telling:
        return Telling(self.members, self.layout, self.union, self.weights, self.hints.layouts)

    def see(self, layouts: Mapping[str, str], whole: Callable[[str, Role, str], Sequence[tuple[int, ...]]]) -> None:
        """Take what the user, and the other side, say of how tensors are divided; what was put together is put together again.

        Parameters
        ----------
        layouts
            dims by globs of module paths
        whole
            shapes that the other side's tensors have in the place of those of a module, by its path, role and slot
        """
        merged = {**self.hints.layouts, **layouts}
        is_same = merged == self.hints.layouts
        self.hints = Hints(merged, whole)
        if is_same and not self.has_looked:
            return
        self.has_looked = False
        self._kept.clear()
        for name in (
            "records",
            "calls",
            "sketches",
            *(() if is_same else ("weights", "parameters", "modules", "_telling")),
        ):
            self.__dict__.pop(name, None)

    @functools.cached_property
    def gathering(self) -> frozenset[int]:
        """Modules that a part of the ranks has, and that work on what others are given too: experts."""
        return frozenset(module for member in self.members for module in member.module_of[member.gathers].tolist())

    @property
    def observations(self) -> int:
        """How many records the complete steps have, over all ranks."""
        return sum(reader.observations for reader in self.readers)

    @functools.cached_property
    def records(self) -> np.ndarray:
        """Rows of `schema.RECORDS`, one per observation."""
        return self._of_all_steps("records", RECORDS)

    @functools.cached_property
    def calls(self) -> np.ndarray:
        """Rows of `schema.CALLS`, one per module call."""
        return self._of_all_steps("calls", CALLS)

    @functools.cached_property
    def sketches(self) -> np.ndarray:
        """float64, shape (records, 61)."""
        return np.concatenate([np.zeros((0, 61)), *(self.of_step("sketches", step) for step in self._numbers)])

    @property
    def _numbers(self) -> list[int]:
        return self._steps["step"].tolist()

    def _of_all_steps(self, table: str, dtype: np.dtype) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype), *(self.of_step(table, step) for step in self._numbers)])

    def _chosen(self, columns: list[str] | None, wanted: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        parts = []
        for step in self._numbers:
            rows = self.of_step("records", step)
            parts.append(rows[wanted(rows)] if columns is None else rows[columns][wanted(rows)])
        empty = np.zeros(0, RECORDS)
        return np.concatenate(parts) if parts else empty if columns is None else empty[columns]

    # What is logged

    @functools.cached_property
    def scalars(self) -> list[tuple[int, str, float]]:
        """(step, name, value) of everything that was logged as a number; the mean where ranks logged other ones."""
        found: dict[tuple[int, str], dict[int, float]] = {}
        for member in self.members:
            for step, name, value in member.reader.scalars:
                found.setdefault((step, name), {}).setdefault(member.part, value)
        return [(step, name, _mean(values)) for (step, name), values in found.items()]

    @functools.cached_property
    def notes(self) -> list[tuple[int, int, str]]:
        """(step, module or −1, text) of what could not be recorded, each once."""
        found: dict[tuple[int, int, str], None] = {}
        for member in self.members:
            for step, module, text in member.reader.notes:
                found[step, int(member.module_of[module]) if module >= 0 else -1, text] = None
        return list(found)

    @functools.cached_property
    def optimizer(self) -> list[tuple[int, OptimizerGroup]]:
        """(step, group) for every parameter group of every recorded step, with the parameters of all ranks."""
        found: dict[tuple[int, int, str, int], OptimizerGroup] = {}
        for member in self.members:
            own = self.weights.index_of[member.number]
            for step, group in member.reader.optimizer:
                parameters = tuple(own[index] for index in group.parameters)
                key = step, group.optimizer, group.class_name, group.group
                known = found.get(key)
                merged = parameters if known is None else tuple(dict.fromkeys((*known.parameters, *parameters)))
                found[key] = replace(known or group, parameters=merged)
        return [(key[0], group) for key, group in found.items()]

    @functools.cached_property
    def environment(self) -> dict[str, Any]:
        """What was recorded of the machine and its software, by the first rank."""
        return {name: value for name, value in self.readers[0].environment.items() if name != "behind_last_step"}

    @functools.cached_property
    def behind_last_step(self) -> dict[str, Any]:
        """Nothing: ranks tell it of their own parts alone."""
        return {}

    # Values

    def values(self, tensor: int) -> np.ndarray:
        """Return the stored values of a tensor, put together from those of the ranks, in their own dtype."""
        if tensor < self._tensors.first:
            member, own = divmod(tensor, OF_MEMBER)
            return self.readers[member].values(own) if tensor >= 0 else self.readers[0].values(tensor)
        whole = self._tensors.wholes[tensor - self._tensors.first]
        return whole.arrangement.values(
            lambda holder: self.readers[whole.sources[holder][0]].values(whole.sources[holder][1])
        )

    def parts(self, tensor: int, chunk: int, into: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield the values of a tensor as `Reader.parts` does."""
        if tensor < self._tensors.first:
            member, own = divmod(max(tensor, 0), OF_MEMBER)
            yield from self.readers[member].parts(own if tensor >= 0 else tensor, chunk, into)
            return
        values = self.values(tensor)
        flat = values.reshape(-1) if chunk else values
        for start in range(0, flat.size, chunk) if chunk else ():
            yield flat[start : start + chunk]
        if not chunk:
            yield flat

    def piece(self, tensor: int) -> Piece | None:
        """Return where the values of a tensor lie as `Reader.piece` does; None for one that was put together."""
        if not 0 <= tensor < self._tensors.first:
            return None
        member, own = divmod(tensor, OF_MEMBER)
        return self.readers[member].piece(own)

    def block(self, tensor: int, box: Sequence[slice]) -> np.ndarray:
        """Return a part of a stored tensor; axes of size 1 are left out, in ``box`` too."""
        if tensor < self._tensors.first:
            member, own = divmod(max(tensor, 0), OF_MEMBER)
            return self.readers[member].block(own if tensor >= 0 else tensor, box)
        values = self.values(tensor)
        return values.reshape(squeezed(values.shape))[tuple(box)]

    def shape_of(self, tensor: int) -> tuple[int, ...]:
        """Return the shape of a stored tensor."""
        if tensor < self._tensors.first:
            member, own = divmod(max(tensor, 0), OF_MEMBER)
            return self.readers[member].shape_of(own if tensor >= 0 else tensor)
        return self._tensors.wholes[tensor - self._tensors.first].arrangement.shape

    def check_stored(self, tensors: Iterable[int]) -> None:
        """Raise FormatError where a stored tensor is not what a file says."""
        for tensor in dict.fromkeys(tensors):
            whole = None if tensor < self._tensors.first else self._tensors.wholes[tensor - self._tensors.first]
            for member, own in [divmod(tensor, OF_MEMBER)] if whole is None else whole.sources:
                self.readers[member].check_stored([own])

    def axis_sums(self, step: int, parameter: int, axes: Sequence[int]) -> tuple[np.ndarray, ...]:
        """Return the sums along each axis of a parameter that every rank has whole; nothing of one that is divided."""
        dims = self.weights.dims[parameter]
        if dims is not None and dims.groups:
            return ()
        for member, own in zip(self.readers, self.weights.index_of, strict=True):
            if parameter in own and member.parameters[own.index(parameter)].shape == self.parameters[parameter].shape:
                return member.axis_sums(step, own.index(parameter), axes)
        return ()

    # What is said of the set

    def ranks_with(self, paths: Collection[str]) -> tuple[int, ...]:
        """Return the ranks that have one of some modules; all where none has."""
        own = [
            reader.info.rank
            for reader, each in zip(self.readers, self.union.paths, strict=True)
            if not set(paths).isdisjoint(each)
        ]
        return tuple(sorted(own)) or self.layout.ranks

    def remarks(self) -> list[Note]:
        """Return what is missing or cannot be right in the set of files."""
        if self.missing:
            return [note("ranks-missing", ranks=self.missing, world=self.layout.world_size), *self.union.notes]
        found = [*self.union.notes, *self.weights.notes, *other_settings(self.members)]
        contradiction = self.layout.contradiction()
        if contradiction:
            found.append(note("groups-contradict", what=contradiction))
        return found


def _mean(values: Mapping[int, float]) -> float:
    numbers = list(values.values())
    return numbers[0] if len(set(numbers)) == 1 else float(np.mean(numbers))
