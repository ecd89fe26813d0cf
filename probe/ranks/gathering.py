"""The records of one step of all ranks: those of one tensor stand together."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from probe.numbers.sketch import WIDTH
from probe.ranks.dims.language import Dims
from probe.ranks.layout.places import Layout
from probe.ranks.members import Member, Shares
from probe.ranks.weights import Weights
from probe.records import Role
from probe.store.schema import RECORDS

V = TypeVar("V", str, tuple[int, ...])
Told = Callable[[int, Role, str, int], Dims | None]
"""how a tensor of a module is divided, by module, role, slot and number of axes; None where nothing says it"""
Whole = Callable[[int, Role, str], Sequence[tuple[int, ...]]]
"""the shapes that the other side's tensors have in the place of one of these"""
SEVERAL = -1
"""in the place of a stage: modules that several stages have"""

OF_PARAMETERS = np.array([role in (Role.PARAM, Role.BUFFER, Role.PARAM_GRAD, Role.STATE, Role.DELTA) for role in Role])
_AT_THE_FIRST = np.array([role in (Role.INPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL) for role in Role])
"""roles of which a module that several stages have is given what its first stage is given"""
_AT_THE_LAST = np.array([role in (Role.OUTPUT, Role.GRAD_OUTPUT) for role in Role])
KEY = ("phase", "role", "module", "micro", "call", "slot")


@dataclass(frozen=True)
class Gathered:
    """Records of all ranks, sorted so that those of one tensor follow one another."""

    rows: np.ndarray
    """with the modules, slots, shapes, micro-batches and parameters of the whole"""
    sketches: np.ndarray
    member: np.ndarray
    """by row, whose it is"""
    seq: np.ndarray
    """by row, the number that it has there"""
    starts: np.ndarray
    """by tensor, its first row"""
    counts: np.ndarray
    """by tensor, its number of rows"""

    def of(self, tensor: int) -> range:
        """Return the rows of a tensor."""
        start = int(self.starts[tensor])
        return range(start, start + int(self.counts[tensor]))


class Numbered(list[V]):
    """Slots, or shapes, of all ranks, each once and in the order of their numbers."""

    def __init__(self) -> None:
        super().__init__()
        self._known: dict[V, int] = {}

    def number(self, value: V) -> int:
        """Return the number of a value, the next one for a new value."""
        found = self._known.setdefault(value, len(self))
        if found == len(self):
            self.append(value)
        return found


@dataclass(frozen=True)
class Names:
    """The slots and shapes of all ranks."""

    slots: Numbered[str] = field(default_factory=Numbered)
    shapes: Numbered[tuple[int, ...]] = field(default_factory=Numbered)


def micro_of(micro: np.ndarray, share: np.ndarray, shares: int) -> np.ndarray:
    """Return the micro-batches of the whole that those of rows of a rank are: each share of the batch is one of its own."""
    return np.where(micro >= 0, micro * shares + share, -1 - ((-1 - micro) * shares + share))


@dataclass(frozen=True)
class Step:
    """What is needed of a run to put a step of it together."""

    number: int
    members: Sequence[Member]
    layout: Layout
    weights: Weights
    shares: Shares
    told: Told
    whole: Whole
    models: Sequence[int]
    """modules that nothing calls but the program"""
    parents: Sequence[int]
    """by module, the one around it; −1 where there is none"""
    names: Names
    spans: np.ndarray
    """by module, the first and the last stage that ran it, shape (modules, 2)"""
    sizes: Mapping[str, int]
    """of factors of axes, by name"""
    share: float = 1.0
    """what the gradients of one share of the batch are multiplied by"""

    @property
    def stages(self) -> list[int]:
        """The stages of the pipeline."""
        return sorted({member.stage for member in self.members})

    @functools.cached_property
    def home(self) -> np.ndarray:
        """Return by module the stage that alone has it, or `SEVERAL`."""
        found = np.full(len(self.spans), SEVERAL - 1)
        for member in self.members:
            own_weights = (self.weights.infos[k].module for k in self.weights.index_of[member.number])
            own = np.array(sorted({*member.module_of.tolist(), *own_weights}), np.int64)
            found[own] = np.where((found[own] == member.stage) | (found[own] < SEVERAL), member.stage, SEVERAL)
        return found


@dataclass(frozen=True)
class Held:
    """Records of one step of one rank."""

    rows: np.ndarray
    """with the modules, slots, shapes, micro-batches and parameters of the whole"""
    sketches: np.ndarray
    member: int
    """whose they are"""
    seq: np.ndarray
    """by row, the number that it has there"""

    def where(self, chosen: np.ndarray) -> Held:
        """Return some of them."""
        return Held(self.rows[chosen], self.sketches[chosen], self.member, self.seq[chosen])


def held_by(member: Member, step: Step, role: Role | None = None) -> Held:
    """Return the records of a step that a rank holds and that count; of one role, where it is given."""
    recorded = member.reader.of_step("records", step.number)
    chosen = np.flatnonzero(recorded["role"] == role) if role is not None else np.arange(len(recorded))
    rows = recorded[chosen]
    _renumber(rows, member, step)
    kept = _kept(rows, step.spans, member.stage)
    if not kept.all():
        rows, chosen = rows[kept], chosen[kept]
    sketches = member.reader.of_step("sketches", step.number) if len(chosen) else np.zeros((0, WIDTH))
    if len(chosen) != len(sketches):
        sketches = sketches[chosen]
    member.reader.let_go()
    return Held(rows, sketches, member.number, rows["seq"].copy())


def gathered_of(parts: list[Held]) -> Gathered:
    """Return the records of several ranks, those of one tensor together; the list is emptied, so that nothing is there twice."""
    rows = np.concatenate([np.zeros(0, RECORDS), *(part.rows for part in parts)])
    member_of = np.repeat([part.member for part in parts], [len(part.rows) for part in parts]).astype(np.int32)
    seq = np.concatenate([np.zeros(0, np.int32), *(part.seq for part in parts)])
    order, starts, counts = _grouped(rows, member_of)
    place = np.argsort(order)
    sketches, last = np.empty((len(rows), WIDTH)), len(rows)
    while parts:
        part = parts.pop()
        sketches[place[last - len(part.rows) : last]] = part.sketches
        last -= len(part.rows)
    return Gathered(rows[order], sketches, member_of[order], seq[order], starts, counts)


def _renumber(rows: np.ndarray, member: Member, step: Step) -> None:
    """Let rows refer to the modules, slots, shapes, micro-batches and parameters of the whole."""
    weights, names = step.weights, step.names
    of_parameter = OF_PARAMETERS[rows["role"]]
    slots = member.reader.slots
    own = np.array(weights.index_of[member.number] or [0], np.int32)
    is_known = of_parameter & (rows["order"] >= 0) & (rows["order"] < len(own))
    local = np.where(is_known, rows["order"], -1)
    slot_of = np.array([names.slots.number(name) for name in slots] or [0], np.int32)
    shape_of = np.array([names.shapes.number(shape) for shape in member.reader.shapes] or [0], np.int32)
    recorded, share = rows["slot"].copy(), member.parts[rows["module"]]
    rows["module"] = member.module_of[rows["module"]]
    rows["slot"] = slot_of[recorded]
    rows["shape"] = shape_of[rows["shape"]]
    rows["micro"] = np.where(of_parameter, rows["micro"], micro_of(rows["micro"], share, step.shares.count))
    rows["order"] = np.where(is_known, own[np.maximum(local, 0)], rows["order"])
    for index, info in enumerate(member.reader.parameters):
        whole = weights.infos[int(own[index])]
        if (whole.module, whole.slot) != (int(member.module_of[info.module]), info.slot):  # another stage calls it so
            for row in np.flatnonzero(local == index).tolist():
                rows["module"][row] = whole.module
                rows["slot"][row] = names.slots.number(f"{whole.slot}{slots[recorded[row]][len(info.slot) :]}")


def _kept(rows: np.ndarray, spans: np.ndarray, stage: int) -> np.ndarray:
    """Tell which rows count: of a module that runs on several stages, what the first one is given and the last one returns."""
    first, last = spans[rows["module"], 0], spans[rows["module"], 1]
    is_elsewhere = (_AT_THE_FIRST[rows["role"]] & (first < stage)) | (_AT_THE_LAST[rows["role"]] & (last > stage))
    return ~is_elsewhere


def _grouped(rows: np.ndarray, member: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the order in which the rows of one tensor follow one another, and where each begins and how many it has."""
    if not len(rows):
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing
    columns = [rows[name].astype(np.int64) for name in KEY]
    within = np.lexsort((rows["seq"], *reversed(columns), member))
    is_new = _changes([column[within] for column in columns], member[within])
    at = np.arange(len(rows))
    nth = np.empty(len(rows), np.int64)
    nth[within] = at - np.maximum.accumulate(np.where(is_new, at, 0))
    order = np.lexsort((member, nth, *reversed(columns)))
    starts = np.flatnonzero(_changes([column[order] for column in columns], nth[order]))
    counts = np.diff(np.append(starts, len(rows)))
    return order, starts, counts


def _changes(columns: Sequence[np.ndarray], more: np.ndarray) -> np.ndarray:
    """Tell where any of several sorted columns changes; the first row is new."""
    is_new = np.ones(len(more), bool)
    is_new[1:] = more[1:] != more[:-1]
    for column in columns:
        is_new[1:] |= column[1:] != column[:-1]
    return is_new
