"""Calls of several micro-batches as the one call of the other side, joined along the axis of the batch; of several passes without
gradients, such as those of decoding token by token, along the axis that they share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from probe.comparison.distance.combined import Piece, add_fused, add_picked
from probe.comparison.fusion.gathered_shares import join_gathered
from probe.comparison.fusion.joined_axes import alike, batch_axis, turned
from probe.comparison.notes import Note, note
from probe.comparison.steps.side import PARAMETER_ROLES, Side, kind_of
from probe.matching import Matching
from probe.numbers.fused import Fusion, reordered
from probe.ranks.opening import is_of_ranks
from probe.records import Role

_CLOSE = 1e-6
"""relative error of norms and means up to which what two runs are given is taken to be the same"""
_LARGEST = 1 << 22
"""elements of an input up to which its values are read to see in which order samples lie"""


@dataclass(frozen=True)
class Apart:
    """What stands in the place of tensors that are not to be joined; see `probe.comparison.steps.side.Combined`."""

    parts: tuple[int, ...]
    why: Note
    digest: None = None
    sketch: None = None

    def values(self, side: Side) -> np.ndarray:
        """Return the values of the last of them."""
        return side.values(self.parts[-1])


Place = tuple[int, int, Role, str, int]
"""of a tensor within a micro-batch: module, call, role, slot, and which of several it is"""


@dataclass(frozen=True)
class Plan:
    """How the micro-batches of one side make those of the other one."""

    groups: tuple[tuple[int, ...], ...]
    """micro-batches that are one of the other side's"""
    targets: tuple[int, ...]
    """those"""
    sizes: Mapping[int, int]
    """by micro-batch, its number of samples"""
    is_strided: bool = False
    """each of a group has every n-th sample"""
    order: tuple[int, ...] = ()
    """of parts of a sequence: which block of those that follow one another each one of the whole is; empty where they lie in order"""
    length: int = 0
    """size of the axis before that of the batch, where one stands there: [s, b, h]"""


def join_calls(a: Side, b: Side, matching: Matching, passes: Callable[[Side], list[int]]) -> int:
    """Let calls of several passes be one call, where the other side was given the same in fewer ones.

    Parameters
    ----------
    a, b
        a step of both sides; the one with more micro-batches is changed
    matching
        which module is which
    passes
        `micros_of` or `evaluations_of`

    Returns
    -------
    int
        how many passes became one; 0 where both sides have as many, where neither number divides the other, or where what
        they were given is not the same
    """
    micros = passes(a), passes(b)
    if not all(micros) or len(micros[0]) == len(micros[1]):
        return 0
    is_a = len(micros[0]) > len(micros[1])
    many, few = (a, b) if is_a else (b, a)
    mine, theirs = micros if is_a else micros[::-1]
    share, rest = divmod(len(mine), len(theirs))
    if rest:
        return 0
    partner = {pair.a: pair.b for pair in matching.pairs} if is_a else {pair.b: pair.a for pair in matching.pairs}
    groups = tuple(tuple(mine[k : k + share]) for k in range(0, len(mine), share))
    rows, others = _by_place(many, mine), _by_place(few, theirs)
    plan = _plan(many, rows, few, others, partner, groups, tuple(theirs))
    if plan is None:
        return 0
    _join_all(many, rows, few, others, partner, plan)
    _keep_first_calls(many, plan)
    return share


def micros_of(side: Side) -> list[int]:
    """Return the micro-batches that a side ran with gradients."""
    chosen = side.calls["micro"][side.counted]
    return sorted(set(chosen[chosen >= 0].tolist()))


def evaluations_of(side: Side) -> list[int]:
    """Return the passes that a side ran without gradients, in their order."""
    chosen = side.calls["micro"][side.counted]
    return sorted(set(chosen[chosen < 0].tolist()), reverse=True)


def _by_place(side: Side, micros: Iterable[int]) -> dict[Place, dict[int, int]]:
    """Return the rows of tensors of calls, by their place and micro-batch."""
    wanted = set(micros)
    found: dict[Place, dict[int, int]] = defaultdict(dict)
    nth: dict[object, int] = defaultdict(int)
    names = ("micro", "module", "call", "role", "phase")
    for row, (micro, module, call, role, phase) in enumerate(zip(*map(side.columns.get, names), strict=True)):
        if micro not in wanted or role in PARAMETER_ROLES or row in side.hidden:
            continue
        key = (micro, module, call, role, side.slots[row], phase)
        found[module, call, Role(role), side.slots[row], nth[key]][micro] = row
        nth[key] += 1
    return found


# ---- what was given


def _plan(
    many: Side, rows: Mapping[Place, Mapping[int, int]], few: Side, others: Mapping[Place, Mapping[int, int]],
    partner: Mapping[int, int], groups: tuple[tuple[int, ...], ...], targets: tuple[int, ...],
) -> Plan | None:  # fmt: skip
    """Return how micro-batches are joined, by the first input that both sides have; None where that is not the same on both.

    Where no inputs were recorded, as with ``task="norms"``, by the first output whose sizes add up.
    """
    has_inputs = all(any(place[2] is Role.INPUT for place in each) for each in (rows, others))
    wanted = Role.INPUT if has_inputs else Role.OUTPUT
    there = {(module, role): by_micro for (module, _, role, _, nth), by_micro in reversed(others.items()) if nth == 0}
    for (module, _, role, _, _), by_micro in rows.items():
        whole = there.get((partner.get(module, -1), role)) if role is wanted else None
        if whole is None or not all(micro in by_micro for group in groups for micro in group):
            continue
        if not all(target in whole for target in targets):
            continue
        parts = [[many.shapes[by_micro[micro]] for micro in group] for group in groups]
        axes = {batch_axis(own, few.shapes[whole[target]]) for own, target in zip(parts, targets, strict=True)}
        axis = axes.pop() if len(axes) == 1 else None
        if axis is None:
            if has_inputs:
                return None
            continue
        micros = [micro for group in groups for micro in group]
        shapes, shape = alike([many.shapes[by_micro[micro]] for micro in micros], few.shapes[whole[targets[0]]])
        sizes = {micro: own[axis] for micro, own in zip(micros, shapes, strict=True)}
        if not has_inputs:
            return Plan(groups, targets, sizes, length=shape[0] if axis == 1 else 0)
        return _as_given(many, by_micro, few, whole, axis, Plan(groups, targets, sizes))
    return None


def _as_given(
    many: Side, by_micro: Mapping[int, int], few: Side, whole: Mapping[int, int], axis: int, plan: Plan
) -> Plan | None:
    """Return a plan with the order in which samples lie; None where other samples were given."""
    strided, order = False, ()
    for group, target in zip(plan.groups, plan.targets, strict=True):
        rows, other = [by_micro[micro] for micro in group], whole[target]
        if not _statistics_agree(many, rows, few, other):
            if not _some_agree(many, rows, few, other, axis):
                return None
            continue
        size = int(np.prod(few.shapes[other]))
        if size > _LARGEST or not few.has_values(other) or not all(map(many.has_values, rows)):
            continue
        parts, given = _given(many, rows, few, other)
        if kind_of(few.dtypes[other]) != "integer" or np.array_equal(np.concatenate(parts, axis), given):
            continue
        if len({part.shape for part in parts}) > 1:
            return None
        order = _zigzag(parts, given, axis)
        if not order and not np.array_equal(np.stack(parts, axis + 1).reshape(given.shape), given):
            return None
        strided = not order
    first = plan.targets[0]
    _, shape = alike([many.shapes[by_micro[plan.groups[0][0]]]], few.shapes[whole[first]])
    length = shape[0] if axis == 1 else 0
    return Plan(plan.groups, plan.targets, plan.sizes, strided, order, length)


def _some_agree(many: Side, rows: Sequence[int], few: Side, other: int, axis: int) -> bool:
    """Tell whether some parts are what lies in their place, and others are not: they were given something else."""
    if not few.has_values(other) or not all(map(many.has_values, rows)) or np.prod(few.shapes[other]) > _LARGEST:
        return False
    parts, given = _given(many, rows, few, other)
    ends = np.cumsum([part.shape[axis] for part in parts])[:-1]
    return any(np.array_equal(part, own) for part, own in zip(parts, np.split(given, ends, axis), strict=True))


def _given(many: Side, rows: Sequence[int], few: Side, other: int) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the values of parts, and of the whole with as many axes."""
    parts, given = [many.values(row) for row in rows], few.values(other)
    shapes, shape = alike([part.shape for part in parts], given.shape)
    return [part.reshape(each) for part, each in zip(parts, shapes, strict=True)], given.reshape(shape)


def _zigzag(parts: Sequence[np.ndarray], given: np.ndarray, axis: int) -> tuple[int, ...]:
    """Return the order of blocks where each part has one from each end of what was given; empty where that is not so."""
    count = len(parts)
    held = [block for place in range(count) for block in (place, 2 * count - 1 - place)]
    order = tuple(int(block) for block in np.argsort(held))
    whole = np.concatenate(parts, axis)
    return order if whole.shape[axis] % len(order) == 0 and np.array_equal(reordered(whole, order, axis), given) else ()


def _statistics_agree(many: Side, rows: Sequence[int], few: Side, other: int) -> bool:
    sizes = [int(np.prod(many.shapes[row])) for row in rows]
    norm = float(np.sqrt(sum(many.columns["norm"][row] ** 2 for row in rows)))
    mean = sum(many.columns["mean"][row] * size for row, size in zip(rows, sizes, strict=True)) / max(1, sum(sizes))
    scale = abs(few.columns["norm"][other]) / max(1, sum(sizes)) ** 0.5
    near = np.isclose(norm, few.columns["norm"][other], rtol=_CLOSE, atol=0, equal_nan=True)
    return bool(
        near and (not np.isfinite(mean) or abs(mean - few.columns["mean"][other]) <= _CLOSE * max(scale, 1e-30))
    )


# ---- the tensors of calls


def _join_all(
    many: Side, rows: Mapping[Place, Mapping[int, int]], few: Side, others: Mapping[Place, Mapping[int, int]],
    partner: Mapping[int, int], plan: Plan,
) -> None:  # fmt: skip
    there: dict[tuple[int, Role, int], list[int]] = defaultdict(list)
    for (module, _, role, _, _), by_micro in others.items():
        for micro, row in by_micro.items():
            there[module, role, micro].append(row)
    length = plan.length or _length(many, rows, few, there, partner, plan)
    for place, by_micro in rows.items():
        module, _, role, slot, _ = place
        is_told = role is not Role.INPUT  # what is given was returned by something, or is a mask of the pass
        for group, target in zip(plan.groups, plan.targets, strict=True):
            own = {by_micro[micro]: plan.sizes[micro] for micro in group if micro in by_micro}
            whole = there.get((partner.get(module, -1), role, target), [])
            named = [row for row in whole if few.slots[row] == slot]
            if len(own) == len(group) and any(
                _join(many, place, own, few, each, plan, target, length)
                for each in ((named, whole) if named else (whole,))
            ):
                continue
            same = named or (whole if len(whole) == 1 else [])
            if not own or _join_some(many, place, list(own), few, same, target):
                continue
            many.hidden.update(own)
            if target >= 0 or not is_told:  # with gradients, those of the batch are compared all the same
                few.hidden.update(same)
            elif same:
                _add_apart(many, list(own)[-1], few, same[0], target)


def _join_some(many: Side, place: Place, own: Sequence[int], few: Side, same: Sequence[int], target: int) -> bool:
    """Let rows of a module that ran in some micro-batches, or was handed some of the tokens, be one; tell whether that can be done."""
    shapes = [many.shapes[row] for row in own]
    is_expert = is_of_ranks(many.reader) and place[0] in many.reader.gathering
    if len(own) == 1:
        is_one = is_expert or any(few.shapes[row] == shapes[0] for row in same)
        if is_one:
            many.columns["micro"][own[0]] = target  # it ran in one of them, and once there
        return is_one
    is_one = is_expert and all(shape and shape[1:] == shapes[0][1:] for shape in shapes)
    if not is_one and not any(batch_axis(shapes, few.shapes[row]) == 0 for row in same):
        return False
    pieces = tuple(Piece(row, shape) for row, shape in zip(own, shapes, strict=True))
    add_fused(many, (pieces,), Fusion(), (place[0], place[3]), micro=target)
    many.hidden.update(own)
    return True


def _add_apart(many: Side, row: int, few: Side, other: int, target: int) -> None:
    """Add a row that is compared with nothing, in the place of those that cannot be joined: so that it is said."""
    why = note("calls-do-not-join", part=tuple(many.shapes[row]), whole=tuple(few.shapes[other]))
    many.add(row, few.slots[other], few.shapes[other], {"micro": target, "tensor": -1}, Apart((row,), why))


def _length(
    many: Side, rows: Mapping[Place, Mapping[int, int]], few: Side, there: Mapping[tuple[int, Role, int], Sequence[int]],
    partner: Mapping[int, int], plan: Plan,
) -> int:  # fmt: skip
    """Return the size of the axis that stands before that of the batch, in most tensors of three axes; 0 where none does."""
    seen: dict[int, int] = defaultdict(int)
    group, target = plan.groups[0], plan.targets[0]
    for (module, _, role, _, _), by_micro in rows.items():
        shapes = [many.shapes[by_micro[micro]] for micro in group if micro in by_micro]
        if len(shapes) == len(group) and len(shapes[0]) == 3:
            for row in there.get((partner.get(module, -1), role, target), ())[:1]:
                sizes = [plan.sizes[micro] for micro in group]
                axes = [batch_axis(shapes, shape, sizes) for shape in (few.shapes[row], turned(few.shapes[row]))]
                axis = next((each for each in axes if each is not None), None)
                seen[shapes[0][0] if axis == 1 else 0] += 1
    return max(seen, key=lambda size: seen[size], default=0)


def _join(
    many: Side,
    place: Place,
    own: Mapping[int, int],
    few: Side,
    whole: Sequence[int],
    plan: Plan,
    target: int,
    length: int,
) -> bool:
    """Let rows, each with its number of samples, be one; tell whether that can be done."""
    module, _, _, slot, _ = place
    sizes, rows = list(own.values()), list(own)
    forms = [alike([many.shapes[row] for row in rows], few.shapes[other]) for other in whole]
    is_same = len({many.digest(row) for row in own}) == 1 and many.digest(rows[0]) is not None and any(
        shapes[0] == shape for shapes, shape in forms
    )  # fmt: skip
    tried = [*forms, *((shapes, turned(shape)) for shapes, shape in forms)]
    fitting = [(shapes, shape, batch_axis(shapes, shape, sizes)) for shapes, shape in tried]
    found = next(((shapes, shape, axis) for shapes, shape, axis in fitting if axis is not None), None)
    if is_same or found is None:
        if not plan.is_strided and join_gathered(many, own, few, whole, length, (module, slot), target):
            return True
        if is_same:
            many.columns["micro"][rows[0]] = target  # a table, a mask: the same for all
            many.hidden.update(rows[1:])
        return is_same or (target < 0 and _join_ends(many, place, rows, few, whole, sizes, target))
    shapes, shape, axis = found
    is_flat = axis == 0 and length > 1 and all(
        part[0] == size * length for part, size in zip(shapes, sizes, strict=True)
    )  # fmt: skip
    groups = length if is_flat else max(1, shape[axis] // len(own)) if plan.is_strided else 1
    if plan.order and (is_flat or shape[axis] % len(plan.order)):
        return False
    if plan.is_strided and (is_flat or shape[axis] != sum(sizes)):
        return False
    pieces = tuple(Piece(row, each) for row, each in zip(own, shapes, strict=True))
    made = add_fused(many, (pieces,), Fusion(axis, groups), (module, slot), micro=target)
    if plan.order:
        many.hidden.add(made)
        add_fused(many, ((Piece(made, shape),),), Fusion(axis, order=plan.order), (module, slot), micro=target)
    many.hidden.update(own)
    return True


def _join_ends(
    many: Side, place: Place, own: Sequence[int], few: Side, whole: Sequence[int], sizes: Sequence[int], target: int
) -> bool:
    """Let rows be one of what the whole has at the end of each pass, such as the logits that are sampled from; tell whether they are that."""
    module, _, _, slot, _ = place
    for row in whole if len({many.shapes[each] for each in own}) == 1 else ():
        (shape,), other = alike([many.shapes[own[0]]], few.shapes[row])
        axes = [
            axis for axis, size in enumerate(other)
            if shape[axis : axis + 1] == (1,) and size == sum(sizes) and (*shape[:axis], size, *shape[axis + 1 :]) == other
        ]  # fmt: skip
        if len(axes) != 1 or not few.has_values(row) or not all(map(many.has_values, own)):
            continue
        ends = np.cumsum(sizes) - 1
        add_picked(few, row, axes[0] + len(few.shapes[row]) - len(other), ends.tolist())
        pieces = tuple(Piece(each, shape) for each in own)
        add_fused(many, (pieces,), Fusion(axes[0], 1), (module, slot), micro=target)
        few.hidden.add(row)
        many.hidden.update(own)
        return True
    return False


def _keep_first_calls(side: Side, plan: Plan) -> None:
    """Let the calls of the first micro-batch of each group, in which a module ran, stand for all of them."""
    side.calls, side.counted = side.calls.copy(), side.counted.copy()
    micro, module = side.calls["micro"].copy(), side.calls["module"]
    for group, target in zip(plan.groups, plan.targets, strict=True):
        seen: set[int] = set()
        for each in group:
            is_first = (micro == each) & ~np.isin(module, list(seen))
            side.calls["micro"][is_first] = target
            side.counted &= (micro != each) | is_first
            seen.update(module[is_first].tolist())
