"""Micro-batches of one side that are one of the other side."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from probe.numbers.fused import Fusion
from probe.records import Role
from probe.verdict.side import Call, Side
from probe.verdict.tensors import Shape, Tensor, added, joined

GRADIENTS = (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.GRAD_TOTAL)
_SAME = 1e-6
"""relative error of norms up to which both sides were given the same samples"""


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


def batches_of(a: Side, b: Side) -> Batches:
    """Join consecutive micro-batches of the side that has more, if together they were given what the other side was."""
    micros = [sorted({call.micro for call in side.calls if call.micro >= 0}) for side in (a, b)]
    if len(micros[0]) == len(micros[1]):
        return Batches(are_same=micros[0] == micros[1])
    many, few = (a, b) if len(micros[0]) > len(micros[1]) else (b, a)
    mine, theirs = sorted(micros, key=len, reverse=True)
    share, rest = divmod(len(mine), max(len(theirs), 1))
    if not theirs or rest:
        return Batches(are_same=False)
    targets = {micro: theirs[at // share] for at, micro in enumerate(mine)}
    if not _are_given_the_same(many, few, targets):
        return Batches(are_same=False)
    return Batches(of_a=targets) if many is a else Batches(of_b=targets)


def _are_given_the_same(many: Side, few: Side, targets: Mapping[int, int]) -> bool:
    """Return True if some input of the models is, in norm and size, that of the parts together."""
    for whole in (call for call in few.calls if call.caller is None and call.micro >= 0):
        parts = [call for call in many.calls if call.caller is None and targets.get(call.micro) == whole.micro]
        for tensor in whole.of(Role.INPUT).values():
            for slot in parts[0].of(Role.INPUT) if parts else ():
                own = [call.of(Role.INPUT).get(slot) for call in parts]
                if any(each is None for each in own) or sum(each.size for each in own if each) != tensor.size:
                    continue
                norm = math.sqrt(sum(each.norm**2 for each in own if each))
                if math.isclose(norm, tensor.norm, rel_tol=_SAME):
                    return True
    return False


def join_batch(parts: Sequence[Tensor], wholes: Sequence[Tensor], role: Role) -> Tensor:
    """Return tensors of several micro-batches as the one of the other side; the first of them if they are none.

    They follow one another along the axis on which they add up. What is the same in all of them, such as a table, is
    one tensor, whose gradients are a sum.
    """
    first = parts[0]
    for whole in wholes:
        if first.form == whole.form:
            is_one = all(part.hash == first.hash for part in parts)
            return first if is_one else added(parts) if role in GRADIENTS else first
        axis = _batch_axis([part.laid for part in parts], whole.laid)
        if axis is not None:
            shape = list(first.laid)
            shape[axis] = sum(part.laid[axis] for part in parts)
            return joined([parts], Fusion(axis), tuple(shape))
    return first


def _batch_axis(parts: Sequence[Shape], whole: Shape) -> int | None:
    if any(len(shape) != len(parts[0]) or not shape for shape in parts) or len(parts[0]) != len(whole):
        return None
    sums = [sum(shape[axis] for shape in parts) for axis in range(len(parts[0]))]
    for axis, total in enumerate(sums):
        made = [(*shape[:axis], total, *shape[axis + 1 :]) for shape in parts]
        if all(sorted(each) == sorted(whole) for each in made) and (
            made[0] == tuple(whole) or len(set(whole)) == len(whole)
        ):
            return axis
    return None


def of_group(calls: Sequence[Call], role: Role, others: Sequence[Tensor]) -> dict[str, Tensor]:
    """Return the tensors that calls of several micro-batches are together, by slot."""
    found = [call.of(role) for call in calls]
    slots = [slot for slot in found[0] if all(slot in each for each in found)]
    return {slot: join_batch([each[slot] for each in found], others, role) for slot in slots}
