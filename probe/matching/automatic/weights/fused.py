"""Layers of one side that are one layer of the other: fused along their rows, or stacked along a first axis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from probe.matching.automatic import values
from probe.matching.automatic.likeness import role_of
from probe.matching.automatic.outline import Outline, Weight
from probe.matching.automatic.state import Found
from probe.matching.automatic.weights.lying import CAST, fits
from probe.matching.initial_weights import first_step
from probe.matching.known import ALIASES
from probe.matching.lists import grouped
from probe.matching.result import Bundle, Reason, View, WeightBundle
from probe.notes import Note, note
from probe.numbers.axis_sums import axis_sums
from probe.numbers.fused import Fusion, fuse

FUSED_ROLES = (["q", "k", "v"], ["k", "v"], ["gate", "up"])
"""what layers that are one on the other side are for, in the order in which they lie there"""
_PROVEN, _SHAPES, _STACKED = 0.98, 0.8, 0.8
_PER_GROUP = ("num_query_groups", "multi_query_group_num")
"""what code bases call it that lay q, k and v out group by group"""
_LARGEST = 1 << 26


def keep_fused(found: Found, fused: Bundle, confidence: float) -> None:
    """Keep modules that are one module of the other side, or whose weights lie in one of its weights."""
    half, other = found.ends(fused.side)
    mine, theirs = half.outline, other.outline
    pieces = [piece for part in fused.parts if (piece := mine.matrix(part)) is not None]
    total, proven, groups, is_known = theirs.matrix(fused.whole), None, 1, False
    if total is not None and len(pieces) == len(fused.parts):
        proven = values.add_up(pieces, total)
        groups, is_known = groups_of(mine, theirs, fused, pieces, total)
    sure = min(_PROVEN if proven else _SHAPES, confidence + (0.1 if proven else 0.0), 1.0)
    reason = Reason.SAME_VALUES if proven else Reason.SAME_STRUCTURE
    if theirs.tree.children[fused.whole]:
        found.weight_bundles += _weight_bundles(mine, theirs, fused, groups, is_known)
        parts = fused.parts
    else:
        found.bundles.append(replace(fused, groups=groups, is_known=is_known or len(fused.parts) < 2))
        first = fused.parts[0]
        pair = (first, fused.whole) if fused.side == "A" else (fused.whole, first)
        found.pair(*pair, reason, sure)
        parts = fused.parts[1:]
    half.parts.update(dict.fromkeys(parts, fused.whole))


def keep_inside(found: Found, i: int, j: int, held_a: int, held_b: int) -> None:
    """Keep a pair of which one side has its weights in a module inside it."""
    found.pair(i, j, Reason.SAME_VALUES, _PROVEN)
    side, part, whole = ("A", held_a, j) if held_a != i else ("B", held_b, i)
    mine, theirs = found.ends(side)
    left = list(mine.outline.weights[part])
    for weight in theirs.outline.weights[whole]:
        fitting = [w for w in left if w.shape == weight.shape]
        if fitting:
            left.remove(fitting[0])
            found.weight_bundles.append(WeightBundle(side, (whole, weight.slot), (((part, fitting[0].slot),),)))
    mine.parts[part] = whole


def _weight_bundles(mine: Outline, theirs: Outline, fused: Bundle, groups: int, is_known: bool) -> list[WeightBundle]:
    bundles = []
    for weight in theirs.weights[fused.whole]:
        form = len(weight.shape), weight.shape[1:]
        fitting = ([w for w in mine.weights[part] if (len(w.shape), w.shape[1:]) == form][:1] for part in fused.parts)
        parts = [(part, each) for part, found in zip(fused.parts, fitting, strict=True) for each in found]
        if sum(each.shape[0] for _, each in parts) == weight.shape[0]:
            places, is_told = tuple((part, each.slot) for part, each in parts), is_known or len(parts) < 2
            whole = fused.whole, weight.slot
            bundles.append(WeightBundle(fused.side, whole, (places,), 0, groups, is_known=is_told))
    return bundles


# In how many groups parts lie


def groups_of(
    mine: Outline, theirs: Outline, fused: Bundle, pieces: Sequence[Weight], total: Weight
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
    found = [side.config.get(name) for side in sides for names in ALIASES for name in names]
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
    return next((count for count in possible if fits(fuse([parts], Fusion(groups=count)), whole, CAST)), 0)


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
        sums = reader.axis_sums(first_step(reader), weight.parameter, weight.axes or range(len(weight.shape)))
    return sums[0] if sums else None


# Stacked


def stacked(found: Found, chain_a: Sequence[int], chain_b: Sequence[int], confidence: float) -> None:
    """Keep a module that holds the weights of like parts stacked, against the module that holds these parts.

    Each module of a chain holds the next one and hardly anything else.
    """
    side = "B" if found.a.stack(chain_a[-1]) else "A"
    half, other = found.ends(side)
    mine, theirs = half.outline, other.outline
    (*_, whole), (*above, holder) = (chain_a, chain_b) if side == "B" else (chain_b, chain_a)
    around = next((k for k in (holder, *above[::-1]) if not mine.is_list(k)), holder)
    i, j = (whole, around) if side == "B" else (around, whole)
    members = _members(mine, holder, theirs.stack(whole))
    if not members:
        return
    left = [k for k in mine.inside(members[0]) if mine.matrices(k)]
    bundles = []
    for weight in theirs.weights[whole]:
        if len(weight.shape) != 3:
            continue
        chosen, is_turned = _chosen(mine, left, weight)
        if not chosen:
            return
        left = [k for k in left if k not in chosen]
        rows = [
            tuple(
                (k, each.slot) for k in _same_below(mine, members[0], member, chosen) for each in mine.matrices(k)[:1]
            )
            for member in members
        ]
        if any(len(row) != len(chosen) for row in rows):
            return
        bundles.append(WeightBundle(side, (whole, weight.slot), tuple(rows), 0, 1, stacked=True))
        if is_turned:
            other.views[whole, weight.slot] = View(weight.slot, (0, 2, 1))
    found.weight_bundles += bundles
    found.pair(i, j, Reason.SAME_STRUCTURE, min(_STACKED, confidence))
    below = [k for bundle in bundles for k in bundle.ends[1]]
    below += [member for member in members if mine.tree.children[member]]  # they hold nothing else
    half.parts.update(dict.fromkeys(below, whole))


def _members(side: Outline, holder: int, count: int) -> list[int]:
    found = [child for child in side.children(holder) if side.carriers[child]]
    return found if len(found) == count else []


def _chosen(side: Outline, left: Sequence[int], weight: Weight) -> tuple[list[int], bool]:
    """Return the modules whose rows are one slice of a stacked weight, and whether it lies turned."""
    _, rows, columns = weight.shape
    shapes = {k: side.matrices(k)[0].shape for k in left}
    for is_turned, (high, wide) in ((False, (rows, columns)), (True, (columns, rows))):
        fitting = [k for k, shape in shapes.items() if shape[1:] == (wide,)]
        for count in range(1, len(fitting) + 1):
            for at in range(len(fitting) - count + 1):
                window = fitting[at : at + count]
                if sum(shapes[k][0] for k in window) == high:
                    return window, is_turned
    return [], False


def _same_below(side: Outline, first: int, member: int, modules: Sequence[int]) -> list[int]:
    """Return what stands below a member where the given modules stand below the first one."""
    base = len(side.tree.steps_to(first))
    found = (side.tree.resolve(member, side.tree.steps_to(k)[base:]) for k in modules)
    return [k for k in found if k is not None]


# How parts lie in one is the same in all layers of a class: the odd one is a fault, not another layout

_Bundles = list[Bundle] | list[WeightBundle]
T = TypeVar("T")


def agree_on_groups(found: Found) -> list[Note]:
    """Let parts of one kind lie in one number of groups, that of most whose values say it; return what to say of others."""
    return [*agreed(found.a, found.b, found.bundles), *agreed(found.a, found.b, found.weight_bundles)]


def agreed(a: Outline, b: Outline, bundles: _Bundles) -> Iterator[Note]:
    """Do so for a list of bundles of two models."""
    for places in grouped(range(len(bundles)), lambda place: kind_of_bundle(a, b, bundles[place])).values():
        votes = Counter(bundles[place].groups for place in places if bundles[place].is_known)
        if not votes or len(places) == 1:
            continue
        groups = most_of(votes, votes.total())
        for place in places:
            bundle = bundles[place]
            if groups is None:
                bundles[place] = replace(bundle, is_known=False)  # type: ignore[call-overload]
            elif bundle.groups != groups or not bundle.is_known:
                bundles[place] = replace(bundle, groups=groups, is_known=True)  # type: ignore[call-overload]
                if bundle.is_known:
                    yield _said(a, b, bundle, groups, votes[groups])


def most_of(votes: Counter[T], count: int) -> T | None:
    """Return what has most votes, more than half of a number; None where nothing has."""
    return next((each for each, n in votes.most_common(1) if 2 * n > count), None)


def kind_of_bundle(a: Outline, b: Outline, bundle: Bundle | WeightBundle) -> Hashable:
    """Return what tells the modules of a bundle from those of other kinds: their classes, their names, and what is around them."""
    mine, theirs = (a, b) if bundle.side == "A" else (b, a)
    whole, slot = bundle.whole if isinstance(bundle, WeightBundle) else (bundle.whole, "")
    parent = theirs.tree.modules[whole].parent
    around = theirs.tree.class_name(parent) if parent >= 0 else ""
    parts = [k for k, _ in bundle.parts[0]] if isinstance(bundle, WeightBundle) else bundle.parts
    names = tuple(mine.tree.name(part) for part in parts)
    return bundle.side, theirs.tree.class_name(whole), around, theirs.tree.name(whole), slot, names


def _said(a: Outline, b: Outline, bundle: Bundle | WeightBundle, groups: int, count: int) -> Note:
    theirs, letter = (b, "B") if bundle.side == "A" else (a, "A")
    whole, slot = bundle.whole if isinstance(bundle, WeightBundle) else (bundle.whole, "weight")
    name = f"{theirs.tree.path(whole)}.{slot}"
    return note("parts-lie-otherwise", side=letter, name=name, groups=bundle.groups, others=count, of_others=groups)
