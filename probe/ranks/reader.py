"""The files of all ranks, read as one recording: that of a process which does what they do together."""

from __future__ import annotations

import contextlib
import functools
import os
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from probe.errors import StoreError
from probe.notes import Note, note
from probe.numbers.axis_sums import squeezed
from probe.numbers.sketch import WIDTH
from probe.ranks import ordering
from probe.ranks.dims.arranging import Arrangement
from probe.ranks.dims.telling import Telling
from probe.ranks.gathering import Names, Step
from probe.ranks.joining import OF_MEMBER, Held, Lost, Owners, Tensors
from probe.ranks.layout.files import missing_ranks, require_one_run
from probe.ranks.layout.places import Layout
from probe.ranks.members import Member, Shares, members_of, models_of, shares_of
from probe.ranks.replicas import Difference
from probe.ranks.stages import Block, block_of_rest, block_of_stage, merged, share_of_gradients
from probe.ranks.tree import Union, united
from probe.ranks.weights import Weights, told_by, weights_of, with_parameters
from probe.records import ModuleInfo, OptimizerGroup, ParameterInfo, Role, RunInfo
from probe.store.places import place_of
from probe.store.reading.reader import Reader
from probe.store.reading.streams import Piece, split
from probe.store.schema import CALLS, RECORDS, STEPS

T = TypeVar("T")

_KNOWN_SIZES = {
    "heads": ("num_attention_heads", "n_heads", "num_heads", "n_head"),
    "kv_heads": ("num_key_value_heads", "num_query_groups", "multi_query_group_num", "kv_heads", "n_kv_heads", "num_kv_heads"),
    "groups": ("num_query_groups", "num_key_value_heads"),
}  # fmt: skip
"""factors of axes by name, and keys of the recorded configuration that have them"""

_EMPTY = {"records": np.zeros(0, RECORDS), "calls": np.zeros(0, CALLS), "sketches": np.zeros((0, WIDTH))}


@dataclass(frozen=True)
class _Step:
    """One step, put together."""

    records: np.ndarray
    sketches: np.ndarray
    calls: np.ndarray
    differences: tuple[Difference, ...]
    lost: tuple[Lost, ...]
    tensors: np.ndarray
    """by row, the number that its tensor has among those that were put together"""
    owners: Owners
    arranged: Mapping[int, Held]
    ranks: tuple[int, ...]
    """by member"""

    def ranks_of(self, row: int) -> tuple[int, ...]:
        """Return the ranks that hold a tensor, or parts of it."""
        member, starts, counts = self.owners
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
    """The recordings of all ranks of a run, read as one; they were found by ``given``, see `probe.ranks.layout.files`.

    It has the tables of `Reader`, made when they are first asked for; values are put together tensor by tensor.
    Raises StoreError or FormatError where a file cannot be read, or is of another run.
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
        self.hints = Hints({**_recorded_layouts(self.readers), **(layouts or {})})
        self.has_looked = False
        """whether the shapes of the other side were asked for while something was put together"""
        self.blocks_elsewhere: Callable[[int, np.ndarray, float], list[Block]] | None = None
        """puts the stages of a step together in other processes (`probe.ranks.elsewhere`)"""
        self.seen: object = None
        """what `probe.ranks.other_side` has shown"""
        self._steps = _common_steps(self.readers)
        self._kept: dict[int, _Step] = {}

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
        return weights_of(self.members, self.layout, self.union, told_by(self.hints.layouts), self._sizes)

    @functools.cached_property
    def _sizes(self) -> dict[str, int]:
        return _sizes_in(self.readers[0].info.model_config)

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
            return _EMPTY[table]
        return getattr(self.step(step), table)

    def step(self, step: int) -> _Step:
        """Return one step, put together; the last few are kept."""
        found = self._kept.get(step)
        if found is None:
            if len(self._kept) >= 3:
                self._kept.pop(next(iter(self._kept)))
            found = self._kept[step] = self._joined(step)
        return found

    def _joined(self, step: int) -> _Step:
        calls = ordering.calls_of(self.members, step, len(self.union.modules), self.shares.count)
        joined = merged(self._blocks(step, calls.spans), self.names, self._tensors)
        rows, stage = joined.rows, np.array([member.stage for member in self.members])[joined.member]
        table = ordering.in_order(rows, joined.seq, stage, calls)
        table["caller"] = np.where(table["caller"] >= 0, table["caller"] + self.calls_before(step), -1)
        order, when = np.argsort(rows["seq"], kind="stable"), rows["seq"]
        differences = tuple(replace(each, order=int(when[each.tensor])) for each in joined.differences)
        ranks = tuple(member.rank for member in self.members)
        held = joined.owners, joined.arranged
        return _Step(rows[order], joined.sketches[order], table, differences, joined.lost, order, *held, ranks)

    def _blocks(self, step: int, spans: np.ndarray) -> list[Block]:
        """Return what each stage of the pipeline holds of a step, and at last what several hold."""
        wanted = self._wanted(step, spans)
        wanted = replace(wanted, share=share_of_gradients(wanted))
        if self.blocks_elsewhere is None:
            blocks = [block_of_stage(wanted, stage) for stage in wanted.stages]
        else:
            blocks = self.blocks_elsewhere(step, spans, wanted.share)
            self.has_looked |= any(block.has_looked for block in blocks)
        return [*blocks, block_of_rest(wanted, blocks)] if any(block.rest for block in blocks) else blocks

    def of_stage(self, step: int, stage: int, spans: np.ndarray, share: float) -> Block:
        """Return what one stage of the pipeline holds of a step.

        ``spans`` are by module the first and the last stage that ran it, shape (modules, 2). The gradients of one
        share of the batch are multiplied by ``share``.
        """
        return block_of_stage(replace(self._wanted(step, spans), share=share), stage)

    def _wanted(self, step: int, spans: np.ndarray) -> Step:
        modules = self.union.modules
        said = self._telling, self._whole, models_of(modules), [module.parent for module in modules]
        return Step(step, self.members, self.layout, self.weights, self.shares, *said, self.names, spans, self._sizes)

    def _whole(self, module: int, role: Role, slot: str) -> Sequence[tuple[int, ...]]:
        self.has_looked = True
        return self.hints.whole(self.union.modules[module].path, role, slot)

    @functools.cached_property
    def _telling(self) -> Telling:
        return Telling(self.members, self.layout, self.union, self.weights, self.hints.layouts)

    def see(self, layouts: Mapping[str, str], whole: Callable[[str, Role, str], Sequence[tuple[int, ...]]]) -> None:
        """Take what the user, and the other side, say of how tensors are divided.

        What was put together is put together again. ``layouts`` are dims by globs of module paths; ``whole`` gives
        shapes that the other side's tensors have in the place of those of a module, by its path, role and slot.
        """
        merged = {**self.hints.layouts, **layouts}
        is_same = merged == self.hints.layouts
        self.hints = Hints(merged, whole)
        if is_same and not self.has_looked:
            return
        self.has_looked = False
        self._kept.clear()
        for name in (*_EMPTY, *(() if is_same else ("weights", "parameters", "modules", "_telling"))):
            self.__dict__.pop(name, None)

    @property
    def observations(self) -> int:
        """How many records the complete steps have, over all ranks."""
        return sum(reader.observations for reader in self.readers)

    def _each_step(self, table: str) -> list[np.ndarray]:
        return [_EMPTY[table], *(self.of_step(table, step) for step in self._steps["step"].tolist())]

    def _of_all_steps(self, table: str) -> np.ndarray:
        return np.concatenate(self._each_step(table))

    def _chosen(self, columns: list[str] | None, wanted: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        tables = self._each_step("records")
        return np.concatenate([(rows if columns is None else rows[columns])[wanted(rows)] for rows in tables])

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

    def _where(self, tensor: int) -> tuple[list[tuple[Reader, int]], Arrangement | None]:
        """Return the files that hold a stored tensor, with its number in each, and how it is put together: None where one holds it."""
        if tensor >= self._tensors.first:
            whole = self._tensors.wholes[tensor - self._tensors.first]
            return [(self.readers[member], own) for member, own in whole.sources], whole.arrangement
        member, own = divmod(tensor, OF_MEMBER) if tensor >= 0 else (0, tensor)
        return [(self.readers[member], own)], None

    def values(self, tensor: int) -> np.ndarray:
        """Return the stored values of a tensor, put together from those of the ranks, in their own dtype."""
        held, made = self._where(tensor)
        values = [functools.partial(reader.values, own) for reader, own in held]
        return values[0]() if made is None else made.values(lambda holder: values[holder]())

    def parts(self, tensor: int, chunk: int, into: np.ndarray | None = None) -> Iterator[np.ndarray]:
        """Yield the values of a tensor as `Reader.parts` does."""
        [(reader, own), *_], made = self._where(tensor)
        yield from reader.parts(own, chunk, into) if made is None else split(self.values(tensor), chunk)

    def piece(self, tensor: int) -> Piece | None:
        """Return where the values of a tensor lie as `Reader.piece` does; None for one that was put together."""
        [(reader, own), *_], made = self._where(tensor)
        return reader.piece(own) if made is None and tensor >= 0 else None

    def block(self, tensor: int, box: Sequence[slice]) -> np.ndarray:
        """Return a part of a stored tensor; axes of size 1 are left out, in ``box`` too."""
        [(reader, own), *_], made = self._where(tensor)
        return reader.block(own, box) if made is None else self.values(tensor).reshape(squeezed(made.shape))[tuple(box)]

    def shape_of(self, tensor: int) -> tuple[int, ...]:
        """Return the shape of a stored tensor."""
        [(reader, own), *_], made = self._where(tensor)
        return reader.shape_of(own) if made is None else made.shape

    def check_stored(self, tensors: Iterable[int]) -> None:
        """Raise FormatError where a stored tensor is not what a file says."""
        for tensor in dict.fromkeys(tensors):
            for reader, own in self._where(tensor)[0]:
                reader.check_stored([own])

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
        found = [*self.union.notes, *self.weights.notes, *_other_settings(self.members)]
        contradiction = self.layout.contradiction()
        if contradiction:
            found.append(note("groups-contradict", what=contradiction))
        return found


def _mean(values: Mapping[int, float]) -> float:
    numbers = list(values.values())
    return numbers[0] if len(set(numbers)) == 1 else float(np.mean(numbers))


# What ranks have in common


def _sizes_in(config: Mapping[str, object]) -> dict[str, int]:
    """Return the whole numbers of a model's configuration by name, and those that count heads and groups by the names of factors too."""
    found = {key: value for key, value in config.items() if type(value) is int}
    for name, keys in _KNOWN_SIZES.items():
        size = next((found[key] for key in keys if key in found), None)
        if size is not None:
            found.setdefault(name, size)
    return found


def _common_steps(readers: Sequence[Reader]) -> np.ndarray:
    """Return the steps that are complete on every rank; their counters are over all ranks."""
    common = sorted(set.intersection(*(set(reader.steps["step"].tolist()) for reader in readers)))
    tables = [reader.steps[np.isin(reader.steps["step"], common)] for reader in readers]
    found = tables[0].copy()
    for name in STEPS.names or ():
        if name.startswith("n_"):
            found[name] = sum(table[name] for table in tables)
    found["state"] = np.max([table["state"] for table in tables], axis=0)
    return found


def _recorded_layouts(readers: Sequence[Reader]) -> dict[str, str]:
    """Return what ranks recorded of how tensors are divided, by globs of module paths."""
    found: dict[str, str] = {}
    for reader in readers:
        said = reader.info.config.get("layout")
        if isinstance(said, dict):
            found |= {str(key): str(value) for key, value in said.items()}
    return found


def _other_settings(members: Sequence[Member]) -> list[Note]:
    """Return what ranks of one stage set their optimizers to otherwise in the first step, each setting once."""
    seen: dict[tuple[object, ...], dict[object, list[int]]] = defaultdict(lambda: defaultdict(list))
    for member in members:
        for step in member.reader.steps["step"][:1].tolist():
            for group in member.reader.groups_of(step):
                for name, value in group.hyper.items():
                    if isinstance(value, (bool, int, float, str)):
                        seen[member.stage, group.optimizer, group.group, name][value].append(member.rank)
    found: dict[str, Note] = {}
    for (_, _, _, name), by_value in seen.items():
        if len(by_value) > 1:
            (value, ranks), (other, others) = sorted(by_value.items(), key=lambda each: -len(each[1]))[:2]
            found.setdefault(str(name), note("optimizer-of-ranks", setting=str(name), value=value, ranks=tuple(ranks),
                                             other=other, others=tuple(others)))  # fmt: skip
    return list(found.values())
