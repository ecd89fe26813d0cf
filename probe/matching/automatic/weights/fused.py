"""Layers of one side that are one layer of the other: fused along their rows, or stacked along a first axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from probe.matching.automatic import values
from probe.matching.automatic.likeness import role_of
from probe.matching.automatic.outline import Outline, Weight
from probe.matching.automatic.state import Found
from probe.matching.automatic.weights.lying import CAST
from probe.matching.result import Bundle, Place, Reason, View, WeightBundle
from probe.numbers.axis_sums import axis_sums

FUSED_ROLES = (["q", "k", "v"], ["k", "v"], ["gate", "up"])
"""what layers that are one on the other side are for, in the order in which they lie there"""
_PROVEN, _SHAPES, _STACKED = 0.98, 0.8, 0.8
_GROUPS = ("num_query_groups", "num_key_value_heads", "multi_query_group_num", "kv_heads", "n_kv_heads", "num_kv_heads")
_HEADS = ("num_attention_heads", "n_head", "num_heads", "n_heads")
_PER_GROUP = ("num_query_groups", "multi_query_group_num")
"""what code bases call it that lay q, k and v out group by group"""
_LARGEST = 1 << 26


@dataclass(frozen=True, slots=True)
class Fused:
    """Modules of one side that are one module of the other."""

    side: str
    whole: int
    parts: tuple[int, ...]


def keep_fused(found: Found, fused: Fused, confidence: float) -> None:
    """Keep modules that are one module of the other side, or whose weights lie in one of its weights."""
    mine, theirs = (found.a, found.b) if fused.side == "A" else (found.b, found.a)
    is_known = all(any(len(w.shape) > 1 for w in mine.weights[i]) for i in fused.parts) and any(
        len(w.shape) > 1 for w in theirs.weights[fused.whole]
    )
    pieces = [_matrix(mine, i) for i in fused.parts] if is_known else []
    total = _matrix(theirs, fused.whole) if is_known else None
    proven = values.add_up(pieces, total) if total is not None else None
    sure = min(_PROVEN if proven else _SHAPES, confidence + (0.1 if proven else 0.0), 1.0)
    reason = Reason.SAME_VALUES if proven else Reason.SAME_STRUCTURE
    groups, is_known = groups_of(mine, theirs, fused, pieces, total) if total is not None else (1, False)
    if theirs.tree.children[fused.whole]:
        found.weight_bundles += _weight_bundles(mine, theirs, fused, groups, is_known)
        parts = fused.parts
    else:
        found.bundles.append(
            Bundle(fused.side, fused.whole, fused.parts, groups, is_known=is_known or len(fused.parts) < 2)
        )
        first = fused.parts[0]
        pair = (first, fused.whole) if fused.side == "A" else (fused.whole, first)
        found.pair(*pair, reason, sure)
        parts = fused.parts[1:]
    (found.parts if fused.side == "A" else found.parts_b).update(dict.fromkeys(parts, fused.whole))


def keep_inside(found: Found, i: int, j: int, held_a: int, held_b: int) -> None:
    """Keep a pair of which one side has its weights in a module inside it."""
    found.pair(i, j, Reason.SAME_VALUES, _PROVEN)
    side = "A" if held_a != i else "B"
    mine, theirs, part, whole = (found.a, found.b, held_a, j) if side == "A" else (found.b, found.a, held_b, i)
    left = list(mine.weights[part])
    for weight in theirs.weights[whole]:
        fitting = [w for w in left if w.shape == weight.shape]
        if fitting:
            left.remove(fitting[0])
            found.weight_bundles.append(WeightBundle(side, (whole, weight.slot), (((part, fitting[0].slot),),)))
    (found.parts if side == "A" else found.parts_b)[part] = whole


def _matrix(side: Outline, index: int) -> Weight:
    return next(w for w in side.weights[index] if len(w.shape) > 1)


def _weight_bundles(mine: Outline, theirs: Outline, fused: Fused, groups: int, is_known: bool) -> list[WeightBundle]:
    bundles = []
    for weight in theirs.weights[fused.whole]:
        parts: list[Place] = []
        rows = 0
        for part in fused.parts:
            fitting = [
                w for w in mine.weights[part] if len(w.shape) == len(weight.shape) and w.shape[1:] == weight.shape[1:]
            ]
            parts += [(part, fitting[0].slot)] if fitting else []
            rows += fitting[0].shape[0] if fitting else 0
        if rows == weight.shape[0]:
            is_told = is_known or len(parts) < 2
            bundles.append(
                WeightBundle(fused.side, (fused.whole, weight.slot), (tuple(parts),), 0, groups, is_known=is_told)
            )
    return bundles


# In how many groups parts lie


def groups_of(
    mine: Outline, theirs: Outline, fused: Fused, pieces: Sequence[Weight], total: Weight
) -> tuple[int, bool]:
    """Return in how many groups parts lie, and whether the values say so."""
    rows = [piece.shape[0] for piece in pieces]
    possible = [n for n in _candidates(mine, theirs) if all(size % n == 0 for size in rows)]
    proven = fitting_groups(mine, theirs, pieces, total, [1, *possible, *divisors(math.gcd(*rows))])
    if proven:
        return proven, True
    names = [role_of(mine.tree.name(part)) for part in fused.parts]
    is_attention = len(fused.parts) == 3 and (set(names) == {"q", "k", "v"} or not any(names))
    per_group = next((theirs.config[name] for name in _PER_GROUP if isinstance(theirs.config.get(name), int)), 0)
    return (per_group if is_attention and per_group in possible else 1), False


def _candidates(*sides: Outline) -> list[int]:
    found = [side.config.get(name) for side in sides for name in (*_GROUPS, *_HEADS)]
    return list(dict.fromkeys(n for n in found if isinstance(n, int) and n > 1))


def fitting_groups(
    mine: Outline, theirs: Outline, pieces: Sequence[Weight], total: Weight, possible: Sequence[int]
) -> int:
    """Return in how many groups the parts lie, by the sums of their rows; 0 where these are not known or do not tell."""
    if len(pieces) < 2:
        return 0
    parts = [known for known in (sums_of_rows(mine, piece) for piece in pieces) if known is not None]
    whole = sums_of_rows(theirs, total)
    if whole is None or len(parts) < len(pieces):
        return 0
    for count in possible:
        made = np.concatenate([part.reshape(count, -1) for part in parts], axis=1).reshape(-1)
        if len(made) == len(whole) and np.linalg.norm(made - whole) <= CAST * np.linalg.norm(whole):
            return count
    return 0


def divisors(number: int) -> list[int]:
    """Return the numbers that divide another one, the smallest first."""
    return [divisor for divisor in range(1, number + 1) if number % divisor == 0]


def sums_of_rows(side: Outline, weight: Weight) -> np.ndarray | None:
    """Return one number for each row: of the stored values, or as they were recorded."""
    reader = side.reader
    if reader is None or 1 in weight.shape or (weight.tensor >= 0 and weight.size > _LARGEST):
        return None
    if weight.tensor >= 0:
        sums = axis_sums(reader.values(weight.tensor), weight.axes)
    else:
        step = int(reader.steps["step"][0]) if len(reader.steps) else -1
        sums = reader.axis_sums(step, weight.parameter, weight.axes or range(len(weight.shape)))
    return sums[0] if sums else None


# Stacked


def stacked(found: Found, chain_a: Sequence[int], chain_b: Sequence[int], confidence: float) -> None:
    """Keep a module that holds the weights of like parts stacked, against the module that holds these parts.

    Parameters
    ----------
    chain_a, chain_b
        modules of A and of B, each of which holds the next one and hardly anything else
    """
    side = "B" if found.a.stack(chain_a[-1]) else "A"
    mine, theirs = (found.b, found.a) if side == "B" else (found.a, found.b)
    (*_, whole), (*above, holder) = (chain_a, chain_b) if side == "B" else (chain_b, chain_a)
    around = next((k for k in (holder, *above[::-1]) if not mine.is_list(k)), holder)
    i, j = (whole, around) if side == "B" else (around, whole)
    members = _members(mine, holder, theirs.stack(whole))
    if not members:
        return
    left = [k for k in _carriers(mine, members[0])]
    views = found.views_a if side == "B" else found.views_b
    bundles = []
    for weight in theirs.weights[whole]:
        if len(weight.shape) != 3:
            continue
        chosen, is_turned = _chosen(mine, left, weight)
        if not chosen:
            return
        left = [k for k in left if k not in chosen]
        rows = [
            tuple((part, _matrix(mine, part).slot) for part in _same_below(mine, members[0], member, chosen))
            for member in members
        ]
        if any(len(row) != len(chosen) for row in rows):
            return
        bundles.append(WeightBundle(side, (whole, weight.slot), tuple(rows), 0, 1, stacked=True))
        if is_turned:
            views[whole, weight.slot] = View(weight.slot, (0, 2, 1))
    found.weight_bundles += bundles
    found.pair(i, j, Reason.SAME_STRUCTURE, min(_STACKED, confidence))
    below = [k for bundle in bundles for row in bundle.parts for k, _ in row]
    below += [member for member in members if mine.tree.children[member]]  # they hold nothing else
    (found.parts if side == "A" else found.parts_b).update(dict.fromkeys(below, whole))


def _members(side: Outline, holder: int, count: int) -> list[int]:
    found = [child for child in side.children(holder) if side.carriers[child]]
    return found if len(found) == count else []


def _carriers(side: Outline, top: int) -> list[int]:
    inside = (side.preorder[place] for place in range(side.begin[top], side.end[top] + 1))
    return [k for k in inside if any(len(w.shape) > 1 for w in side.weights[k])]


def _chosen(side: Outline, left: Sequence[int], weight: Weight) -> tuple[list[int], bool]:
    """Return the modules whose rows are one slice of a stacked weight, and whether it lies turned."""
    _, rows, columns = weight.shape
    for is_turned, (high, wide) in ((False, (rows, columns)), (True, (columns, rows))):
        fitting = [k for k in left if _matrix(side, k).shape[1:] == (wide,)]
        for count in range(1, len(fitting) + 1):
            for at in range(len(fitting) - count + 1):
                window = fitting[at : at + count]
                if sum(_matrix(side, k).shape[0] for k in window) == high:
                    return window, is_turned
    return [], False


def _same_below(side: Outline, first: int, member: int, modules: Sequence[int]) -> list[int]:
    """Return what stands below a member where the given modules stand below the first one."""
    base = len(side.tree.steps_to(first))
    found = (side.tree.resolve(member, side.tree.steps_to(k)[base:]) for k in modules)
    return [k for k in found if k is not None]
