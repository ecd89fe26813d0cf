"""Micro-batches of one side that are one of the other side."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from probe.numbers.fused import Fusion, reordered
from probe.records import Role
from probe.verdict.distance.estimates import SAME
from probe.verdict.side import GRADIENTS, Call, Side
from probe.verdict.tensors import Shape, Tensor, added, joined


@dataclass(frozen=True)
class Order:
    """How the samples of several micro-batches lie in the one that they are."""

    is_strided: bool = False
    """each has every n-th sample"""
    blocks: tuple[int, ...] = ()
    """of parts of sequences: which block of those that follow one another each one of the whole is"""
    is_of_others: bool = False
    """some parts were given other samples"""
    length: int = 1
    """size of the axis that stands before that of the batch, [s, b, h]: rows of [s·b, h] lie so"""


@dataclass(frozen=True)
class Batches:
    """Which micro-batch of each side belongs to which common one; empty where both have the same."""

    of_a: Mapping[int, int] = field(default_factory=dict)
    of_b: Mapping[int, int] = field(default_factory=dict)
    are_same: bool = True
    """False if the sides ran other micro-batches that cannot be joined"""
    joined: int = 0
    """how many micro-batches of one side are one of the other"""
    joined_evaluations: int = 0
    differing: str = ""
    """an input that is not the same over all micro-batches together"""
    part: str = ""
    """the side that is one rank of several and was given a part of the batch"""
    order: Order = Order()


def batches_of(a: Side, b: Side) -> Batches:
    """Join passes of the side that has more, if together they were given what the other side was."""
    if part := _part_of_batch(a, b):
        return Batches(are_same=False, part=part)
    trained, evaluated = (_joined_passes(a, b, micros_of) for micros_of in (_training, _evaluations))
    if trained is None:
        return Batches(are_same=False, differing=_differing(a, b))
    of_a, of_b, order = trained
    if evaluated is not None:
        of_a, of_b = {**of_a, **evaluated[0]}, {**of_b, **evaluated[1]}
    counts = [_most(list(targets)) for targets in (trained[:2], evaluated[:2] if evaluated is not None else ())]
    return Batches(of_a, of_b, True, *counts, order=order)


def _most(targets: Sequence[Mapping[int, int]]) -> int:
    """Return how many passes are one, at most."""
    return max((n for each in targets for n in Counter(each.values()).values()), default=0)


def _training(side: Side) -> list[int]:
    return sorted({call.micro for call in side.calls if call.micro >= 0})


def _evaluations(side: Side) -> list[int]:
    return sorted({call.micro for call in side.calls if call.micro < 0}, reverse=True)


Joined = tuple[Mapping[int, int], Mapping[int, int], Order]


def _joined_passes(a: Side, b: Side, micros_of: Callable[[Side], list[int]]) -> Joined | None:
    """Return the common pass of each of either side, and how samples lie; None if they were given other ones."""
    micros = [micros_of(side) for side in (a, b)]
    if len(micros[0]) == len(micros[1]):
        return ({}, {}, Order()) if micros[0] == micros[1] else None
    many, few = (a, b) if len(micros[0]) > len(micros[1]) else (b, a)
    mine, theirs = sorted(micros, key=len, reverse=True)
    share, rest = divmod(len(mine), max(len(theirs), 1))
    if not theirs or rest:
        return None
    targets = {micro: theirs[at // share] for at, micro in enumerate(mine)}
    order = _order_of(many, few, targets)
    both = (targets, {}) if many is a else ({}, targets)
    return None if order is None else (*both, order)


def _order_of(many: Side, few: Side, targets: Mapping[int, int]) -> Order | None:
    """Return how samples lie, by inputs that are, in norm and size, those of the parts together; else None."""
    found: Order | None = None
    for own, tensor in _given_together(many, few, targets):
        norm = math.sqrt(sum(each.norm**2 for each in own))
        if math.isclose(norm, tensor.norm, rel_tol=SAME):
            order = _order_in(own, tensor)
            found = order if order is not None else found or Order()
            if order is not None and order != Order():
                return order
        elif _some_agree(own, tensor):
            return Order(is_of_others=True)
    return found


def _given_together(many: Side, few: Side, targets: Mapping[int, int]) -> Iterator[tuple[list[Tensor], Tensor]]:
    """Yield the inputs of the models of which parts of several passes have as many elements, and these parts."""
    for whole in (call for micro, call in _firsts(few).items() if micro in targets.values()):
        parts = [call for micro, call in _firsts(many).items() if targets.get(micro) == whole.micro]
        for tensor in whole.of(Role.INPUT).values():
            for slot in parts[0].of(Role.INPUT) if parts else ():
                own = [call.of(Role.INPUT)[slot] for call in parts if slot in call.of(Role.INPUT)]
                if len(own) == len(parts) and sum(each.size for each in own) == tensor.size:
                    yield own, tensor


def _some_agree(parts: Sequence[Tensor], whole: Tensor) -> bool:
    """Return True if some parts are what lies in their place: the others were given something else."""
    axis = batch_axis([part.laid for part in parts], whole.laid)
    if axis is None or not (whole.has_values and all(part.has_values for part in parts)):
        return False
    ends = np.cumsum([part.laid[axis] for part in parts])[:-1]
    given = np.split(whole.values().reshape(whole.laid), ends, axis)
    return any(np.array_equal(x.values().reshape(x.laid), y) for x, y in zip(parts, given, strict=True))


def _firsts(side: Side) -> dict[int, Call]:
    """Return, by pass, the first call that the program made itself: of a model, unless it calls only parts of one."""
    found: dict[int, Call] = {}
    own = (call for call in side.calls if call.caller is None)
    for call in sorted(own, key=lambda call: side.reader.modules[call.module].parent >= 0):
        found.setdefault(call.micro, call)
    return found


def _order_in(parts: Sequence[Tensor], whole: Tensor) -> Order | None:
    """Return how values lie: one part behind the other, strided, or one block from each end; else None."""
    if not (whole.has_values and all(part.has_values for part in parts)) or whole.kind != "integer":
        return None
    axis = batch_axis([part.laid for part in parts], whole.laid)
    if axis is None or len({part.laid for part in parts}) > 1:
        return None
    values, given = [part.values().reshape(part.laid) for part in parts], whole.values().reshape(whole.laid)
    if np.array_equal(np.concatenate(values, axis), given):
        return Order()
    if np.array_equal(np.stack(values, axis + 1).reshape(given.shape), given):
        return Order(is_strided=True)
    held = [block for place in range(len(parts)) for block in (place, 2 * len(parts) - 1 - place)]
    blocks = tuple(int(block) for block in np.argsort(held))
    together = np.concatenate(values, axis)
    fits = together.shape[axis] % len(blocks) == 0
    return Order(blocks=blocks) if fits and np.array_equal(reordered(together, blocks, axis), given) else None


def _differing(a: Side, b: Side) -> str:
    """Return the name of an input of the models that is not the same over all micro-batches together, or nothing."""
    for slot, (mine, theirs) in _sums(a, b).items():
        scale = SAME * math.sqrt(mine[0] * mine[2])
        if not np.allclose(mine, theirs, rtol=SAME, atol=scale):
            return slot
    return ""


def _part_of_batch(a: Side, b: Side) -> str:
    """Return the side that is one rank of several and was given a part of what the other one was, or nothing."""
    ranks = [side.reader.info.world_size for side in (a, b)]
    few = "A" if ranks[0] > ranks[1] else "B"
    sizes = [(mine[0], theirs[0]) if few == "A" else (theirs[0], mine[0]) for mine, theirs in _sums(a, b).values()]
    is_part = any(part < whole and not whole % part for part, whole in sizes if part)
    return few if ranks[0] != ranks[1] and is_part else ""


def _sums(a: Side, b: Side) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return size, sum and sum of squares of the models' inputs over all micro-batches, of both sides."""
    sums: list[dict[str, np.ndarray]] = []
    for side in (a, b):
        found: dict[str, np.ndarray] = {}
        for call in (each for micro, each in _firsts(side).items() if micro >= 0):
            for slot, tensor in call.of(Role.INPUT).items():
                own = np.array([tensor.size, tensor.size * tensor.mean, tensor.norm**2])
                found[slot] = found.get(slot, 0) + own
        sums.append(found)
    return {slot: (sums[0][slot], sums[1][slot]) for slot in sums[0] if slot in sums[1]}


def join_batch(parts: Sequence[Tensor], wholes: Sequence[Tensor], role: Role, order: Order = Order()) -> Tensor:
    """Return tensors of several micro-batches as the one of the other side; the first of them if they are none.

    They follow one another along the axis on which they add up. What is the same in all of them, such as a table, is
    one tensor, whose gradients are a sum.
    """
    first = parts[0]
    for whole in wholes:
        if first.form == whole.form:
            is_one = all(part.hash == first.hash for part in parts)
            return first if is_one else added(parts) if role in GRADIENTS else first
        lead = len(first.laid) - len(whole.laid)  # one side may have an axis of size 1 before that of the batch
        laid = (1, *whole.laid) if lead == 1 else whole.laid[1:] if lead == -1 and whole.laid[0] == 1 else whole.laid
        axis = batch_axis([part.laid for part in parts], laid)
        if axis is not None:
            shape = list(first.laid)
            shape[axis] = sum(part.laid[axis] for part in parts)
            rows, count = shape[axis], len(parts)
            is_flat = axis == 0 and len(shape) < 3 and all(part.laid[0] % order.length == 0 for part in parts)
            groups = order.length if is_flat else rows // count if order.is_strided and rows % count == 0 else 1
            made = joined([parts], Fusion(axis, groups), tuple(shape))
            if order.blocks and shape[axis] % len(order.blocks) == 0:
                return joined([[made]], Fusion(axis, order=order.blocks), tuple(shape))
            return made
    return first


def batch_axis(parts: Sequence[Shape], whole: Shape) -> int | None:
    """Return the axis along which the sizes of parts add up to those of a whole; None if there is none."""
    if any(len(shape) != len(parts[0]) or not shape for shape in parts) or len(parts[0]) != len(whole):
        return None
    turned = []
    for axis in range(len(parts[0])):
        total = sum(shape[axis] for shape in parts)
        made = [(*shape[:axis], total, *shape[axis + 1 :]) for shape in parts]
        if all(each == tuple(whole) for each in made):
            return axis
        if all(sorted(each) == sorted(whole) for each in made) and len(set(whole)) == len(whole):
            turned.append(axis)
    return turned[0] if turned else None


def length_before_batch(groups: Iterable[tuple[Sequence[Call], Call]]) -> int:
    """Return the size of the axis before the batch in most tensors of three axes; 1 if the batch stands first."""
    seen: Counter[int] = Counter()
    for parts, whole in groups:
        for slot, tensor in whole.of(Role.OUTPUT).items():
            own = [call.of(Role.OUTPUT)[slot].laid for call in parts if slot in call.of(Role.OUTPUT)]
            if len(own) == len(parts) and len(tensor.laid) == 3:
                seen[own[0][0] if batch_axis(own, tensor.laid) == 1 else 1] += 1
    return max(seen, key=lambda size: seen[size], default=1)


def of_group(calls: Sequence[Call], role: Role, others: Sequence[Tensor], order: Order) -> dict[str, Tensor]:
    """Return the tensors that calls of several micro-batches are together, by slot."""
    found = [call.of(role) for call in calls]
    slots = [slot for slot in found[0] if all(slot in each for each in found)]
    return {slot: join_batch([each[slot] for each in found], others, role, order) for slot in slots}
