"""One step of all ranks, put together stage by stage of the pipeline: what one stage holds is in memory at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from probe.ranks.dims.language import Dims
from probe.ranks.gathering import KEY, Gathered, Names, Step, gathered_of, held_by
from probe.ranks.gathering import Held as HeldRows
from probe.ranks.joining import OF_MEMBER, Held, Joined, Joining, Lost, Tensors, Whole
from probe.ranks.replicas import Difference
from probe.records import Phase, Role

_AVERAGING = ("DistributedDataParallel", "FullyShardedDataParallel", "DataParallel", "FSDP")
"""how classes begin that average gradients within backward"""
_NEAR = 0.05
"""share by which the ratio of norms may miss that of an average"""


@dataclass(frozen=True)
class Block:
    """Tensors of one stage, or of several, put together."""

    joined: Joined
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
    for member in step.members:
        if member.stage == stage:
            held = held_by(member, step)
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
    tensors = Tensors(first=len(step.members) * OF_MEMBER)
    joined = Joining(gathered, step, tensors).joined(signatures)
    return Block(joined, tuple(tensors.wholes), tuple(step.names.slots), tuple(step.names.shapes), rest)


def merged(blocks: Sequence[Block], names: Names, tensors: Tensors) -> Joined:
    """Return the tensors of all blocks, in the order of their phases, roles, modules, micro-batches, calls and slots."""
    rows = np.concatenate([_numbered(_renamed(block.joined.rows, block, names), block, tensors) for block in blocks])
    by_name = np.argsort(np.argsort(np.array(names.slots, dtype=object), kind="stable"))
    # numbers of slots depend on who put which stage together, their names do not
    columns = {**{name: rows[name] for name in KEY}, "slot": by_name[rows["slot"]] if len(rows) else rows["slot"]}
    order = np.lexsort([columns[name] for name in reversed(KEY)])
    place = np.argsort(order)
    differences: list[Difference] = []
    lost: list[Lost] = []
    arranged: dict[int, Held] = {}
    firsts = np.cumsum([0, *(len(block.joined.rows) for block in blocks)]).tolist()
    for first, block in zip(firsts, blocks, strict=False):
        joined = block.joined
        differences += [replace(each, tensor=int(place[first + each.tensor])) for each in joined.differences]
        lost += joined.lost
        arranged.update((int(place[first + tensor]), held) for tensor, held in joined.arranged.items())
    members, starts, counts = zip(*(block.joined.owners for block in blocks), strict=True)
    begins = np.cumsum([0, *map(len, members)])
    starts = [start + begin for start, begin in zip(starts, begins, strict=False)]
    owners = np.concatenate(members), np.concatenate(starts)[order], np.concatenate(counts)[order]
    sketches, member, seq = (
        np.concatenate([getattr(block.joined, name) for block in blocks])[order]
        for name in ("sketches", "member", "seq")
    )
    ordered = tuple(sorted(differences, key=lambda each: each.tensor))
    return Joined(rows[order], sketches, member, seq, ordered, tuple(lost), arranged, {}, owners)


def _renamed(rows: np.ndarray, block: Block, names: Names) -> np.ndarray:
    """Return rows with the numbers that slots and shapes have among all."""
    slots, shapes = list(map(names.slots.number, block.slots)), list(map(names.shapes.number, block.shapes))
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


# What a share of the batch counts for


def share_of_gradients(step: Step) -> float:
    """Return what gradients of one share of the batch are multiplied by in those of the whole: 1, or one over the number of shares.

    Wrappers that average are known by their classes. Where ranks reduce gradients behind backward, those that the optimizer used
    are held against the sum of those that backward left, on ranks that differ in their share alone.
    """
    members, shares = step.members, step.shares
    if shares.count < 2:
        return 1.0
    if any(module.class_name.startswith(_AVERAGING) for module in members[0].reader.modules):
        return 1 / shares.count
    outside = [tuple(place for name, place in each.places.items() if name not in shares.groups) for each in members]
    chosen = [each for each, place in zip(members, outside, strict=True) if place == outside[0]]
    gathered = gathered_of([held_by(member, step, Role.PARAM_GRAD) for member in chosen])
    ratios = _ratios(gathered, len(chosen))
    is_average = bool(ratios) and abs(float(np.median(ratios)) * shares.count - 1) < _NEAR
    return 1 / shares.count if is_average else 1.0


def _ratios(gathered: Gathered, count: int) -> list[float]:
    """Return by parameter the length of the gradient that was used, over that of the sum of what backward left on so many ranks."""
    rows, member = gathered.rows, gathered.member
    left: dict[int, dict[int, tuple[int, int]]] = {}
    used: dict[int, int] = {}
    columns = (rows["order"], rows["micro"], rows["phase"], member)
    for k, (order, micro, phase, own) in enumerate(zip(*(column.tolist() for column in columns), strict=True)):
        if phase == Phase.UPDATE:
            used.setdefault(order, k)
        elif phase == Phase.GRADIENT:
            of_rank = left.setdefault(order, {})
            of_rank[own] = max(of_rank.get(own, (-1, k)), (micro, k))
    found = []
    for order, last in left.items():
        parts = [k for _, k in last.values()]
        total = np.linalg.norm(gathered.sketches[parts].sum(axis=0))
        if order in used and len(parts) == count and total > 0:
            found.append(float(np.linalg.norm(gathered.sketches[used[order]]) / total))
    return [each for each in found if np.isfinite(each)]
