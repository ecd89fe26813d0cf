"""One step of all ranks, put together stage by stage of the pipeline: what one stage holds is in memory at a time."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.ranks.dims.language import Dims
from probe.ranks.dims.resolving import Facts
from probe.ranks.gathering import Held as HeldRows
from probe.ranks.gathering import Names, gathered_of, held_by
from probe.ranks.joining import OF_MEMBER, Averaged, Held, Joined, Joining, Lost, Tensors, Whole
from probe.ranks.members import Shares
from probe.ranks.replicas import Difference

SEVERAL = -1
"""in the place of a stage: modules that several stages have"""
_KEY = ("phase", "role", "module", "micro", "call", "slot")


@dataclass(frozen=True)
class Step:
    """What is needed to put a step together."""

    number: int
    facts: Facts
    names: Names
    shares: Shares
    spans: np.ndarray
    """by module, the first and the last stage that ran it"""
    sizes: Mapping[str, int]
    """of factors of axes, by name"""
    averaged: Averaged

    @property
    def stages(self) -> list[int]:
        """The stages of the pipeline."""
        return sorted({member.stage for member in self.facts.members})

    @functools.cached_property
    def home(self) -> np.ndarray:
        """Return by module the stage that alone has it, or `SEVERAL`."""
        found = np.full(len(self.spans), SEVERAL - 1)
        weights = self.facts.weights
        for member in self.facts.members:
            modules = {*member.module_of.tolist(), *(weights.infos[k].module for k in weights.index_of[member.number])}
            own = np.array(sorted(modules), np.int64)
            found[own] = np.where((found[own] == member.stage) | (found[own] < SEVERAL), member.stage, SEVERAL)
        return found


@dataclass(frozen=True)
class Block:
    """Tensors of one stage, or of several, put together."""

    joined: Joined
    member: np.ndarray
    """by row that was gathered, whose it is"""
    starts: np.ndarray
    """by tensor, its first row"""
    counts: np.ndarray
    """by tensor, its number of rows"""
    wholes: tuple[Whole, ...]
    """what the numbers of tensors refer to that several ranks hold"""
    slots: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    rest: tuple[HeldRows, ...] = ()
    """records of modules that several stages have"""
    has_looked: bool = False
    """whether the shapes of the other side were asked for"""


def block_of_stage(step: Step, stage: int) -> Block:
    """Return what the ranks of one stage hold, put together."""
    home, own, rest = step.home, [], []
    for member in step.facts.members:
        if member.stage == stage:
            held = held_by(member, step.number, step.facts.weights, step.shares.count, step.names, step.spans)
            is_own = home[held.rows["module"]] == stage
            own.append(held if is_own.all() else held.where(is_own))
            if not is_own.all():
                rest.append(held.where(~is_own))
    return _block(step, own, {}, tuple(rest))


def block_of_rest(step: Step, blocks: Sequence[Block]) -> Block:
    """Return what the ranks of several stages hold together, put together."""
    parts = [
        replace(held, rows=_renamed(held.rows, block, step.names))
        for block in blocks
        for held in sorted(block.rest, key=lambda each: each.member)
    ]
    signatures: dict[int, Dims] = {}
    for block in blocks:
        signatures |= block.joined.signatures
    return _block(step, sorted(parts, key=lambda each: each.member), signatures, ())


def _block(step: Step, parts: list[HeldRows], signatures: Mapping[int, Dims], rest: tuple[HeldRows, ...]) -> Block:
    gathered = gathered_of(parts)
    tensors = Tensors(first=len(step.facts.members) * OF_MEMBER)
    joining = Joining(gathered, step.facts, step.names, tensors, step.sizes, step.number, step.averaged)
    joined = joining.joined(signatures)
    return Block(joined, gathered.member, gathered.starts, gathered.counts, tuple(tensors.wholes),
                 tuple(step.names.slots), tuple(step.names.shapes), rest)  # fmt: skip


Owners = tuple[np.ndarray, np.ndarray, np.ndarray]
"""whose each gathered row is; by tensor, its first row and their number"""


def merged(blocks: Sequence[Block], names: Names, tensors: Tensors) -> tuple[Joined, Owners]:
    """Return the tensors of all blocks, in the order of their phases, roles, modules, micro-batches, calls and slots."""
    rows = np.concatenate([_numbered(_renamed(block.joined.rows, block, names), block, tensors) for block in blocks])
    by_name = np.argsort(np.argsort(np.array(names.slots, dtype=object), kind="stable"))
    # numbers of slots depend on who put which stage together, their names do not
    columns = {**{name: rows[name] for name in _KEY}, "slot": by_name[rows["slot"]] if len(rows) else rows["slot"]}
    order = np.lexsort([columns[name] for name in reversed(_KEY)])
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    differences: list[Difference] = []
    lost: list[Lost] = []
    arranged: dict[int, Held] = {}
    firsts = np.cumsum([0, *(len(block.joined.rows) for block in blocks)]).tolist()
    for first, block in zip(firsts, blocks, strict=False):
        joined = block.joined
        differences += [replace(each, tensor=int(place[first + each.tensor])) for each in joined.differences]
        lost += joined.lost
        arranged.update((int(place[first + tensor]), held) for tensor, held in joined.arranged.items())
    starts = np.cumsum([0, *(len(block.member) for block in blocks)])
    held = (
        np.concatenate([block.member for block in blocks]),
        np.concatenate([block.starts + start for block, start in zip(blocks, starts, strict=False)])[order],
        np.concatenate([block.counts for block in blocks])[order],
    )
    sketches, member, seq = (
        np.concatenate([getattr(block.joined, name) for block in blocks])[order]
        for name in ("sketches", "member", "seq")
    )
    ordered = tuple(sorted(differences, key=lambda each: each.tensor))
    return Joined(rows[order], sketches, member, seq, ordered, tuple(lost), arranged, {}), held


def _renamed(rows: np.ndarray, block: Block, names: Names) -> np.ndarray:
    """Return rows with the numbers that slots and shapes have among all."""
    slots, shapes = [names.slot(name) for name in block.slots], [names.shape(shape) for shape in block.shapes]
    if slots == list(range(len(slots))) and shapes == list(range(len(shapes))):
        return rows
    rows = rows.copy()
    for name, numbers in (("slot", slots), ("shape", shapes)):
        rows[name] = np.array(numbers, np.int32)[rows[name]]
    return rows


def _numbered(rows: np.ndarray, block: Block, tensors: Tensors) -> np.ndarray:
    """Return rows with the numbers that tensors which several ranks hold have among all."""
    if not block.wholes:
        return rows
    numbers = np.array([tensors.add(whole) for whole in block.wholes], np.int64)
    is_whole = rows["tensor"] >= tensors.first
    rows = rows.copy()
    rows["tensor"][is_whole] = numbers[rows["tensor"][is_whole] - tensors.first]
    return rows
