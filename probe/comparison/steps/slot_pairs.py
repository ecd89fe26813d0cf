"""Which argument, or result, of a call of A is which of B's."""

from __future__ import annotations

import math

from probe.comparison.distance.masks import hidden_counts
from probe.comparison.distance.metrics import Side, kind_of, squeezed

Slots = dict[str, list[int]]
"""rows by slot"""


def pair_slots(side_a: Side, a: Slots, side_b: Side, b: Slots) -> list[tuple[str, str]]:
    """Pair slots by key, then by equal bytes, masks by what they hide, then by a shape that only one is left of on both sides.

    What one side returns by position and the other by name, a tuple and a dataclass, is paired in its order last.
    """
    left_a, left_b = list(a), list(b)
    pairs = []

    def take(slot_a: str, slot_b: str) -> None:
        pairs.append((slot_a, slot_b))
        left_a.remove(slot_a)
        left_b.remove(slot_b)

    for slot in [slot for slot in left_a if slot in b]:
        if _fits(side_a, a[slot][0], side_b, b[slot][0]):
            take(slot, slot)
    for slot_a in list(left_a):
        same = [slot_b for slot_b in left_b if _equal(side_a, a[slot_a][0], side_b, b[slot_b][0])]
        if same:
            take(slot_a, same[0])
    for slot_a, slot_b in _masks(
        side_a, {slot: a[slot] for slot in left_a}, side_b, {slot: b[slot] for slot in left_b}
    ):
        take(slot_a, slot_b)
    forms_a = {slot: _form(side_a, a[slot][0]) for slot in left_a}
    forms_b = {slot: _form(side_b, b[slot][0]) for slot in left_b}
    for slot_a, form in forms_a.items():
        alone = list(forms_a.values()).count(form) == 1
        same = [slot_b for slot_b in left_b if forms_b[slot_b] == form]
        if alone and len(same) == 1:
            take(slot_a, same[0])
    for form in dict.fromkeys(forms_a[slot] for slot in left_a):
        mine, theirs = ([s for s in left if forms[s] == form] for left, forms in ((left_a, forms_a), (left_b, forms_b)))
        if len(mine) == len(theirs) and {_is_position(slot) for slot in mine} ^ {
            _is_position(slot) for slot in theirs
        } == {True, False}:
            for slot_a, slot_b in zip(mine, theirs, strict=True):
                take(slot_a, slot_b)
    for slot in [slot for slot in left_a if slot in left_b]:  # not comparable, which is to be said
        take(slot, slot)
    return pairs


def _masks(side_a: Side, a: Slots, side_b: Side, b: Slots) -> list[tuple[str, str]]:
    """Pair masks of one size, whatever they are written in: those that may hide as much as only one other does, or the only ones.

    Zeros that are added to scores, and truth values that are all alike, are no masks: what they hide tells nothing.
    """
    hidden_a = {slot: hidden_counts(side_a, rows[0]) for slot, rows in a.items()}
    hidden_b = {slot: hidden_counts(side_b, rows[0]) for slot, rows in b.items()}
    masks_a, masks_b = [slot for slot in a if hidden_a[slot]], [slot for slot in b if hidden_b[slot]]
    sizes = {slot: math.prod(side_a.shapes[a[slot][0]]) for slot in masks_a}
    found = []
    for slot_a in masks_a:
        fitting = [slot for slot in masks_b if math.prod(side_b.shapes[b[slot][0]]) == sizes[slot_a]]
        alike = [slot for slot in fitting if hidden_a[slot_a] & hidden_b[slot]]
        rivals = [slot for slot in masks_a if sizes[slot] == sizes[slot_a]]
        chosen = alike if len(alike) == 1 else fitting
        if len(chosen) == 1 and (
            len(rivals) == 1 or sum(bool(hidden_a[each] & hidden_b[chosen[0]]) for each in rivals) == 1
        ):
            found.append((slot_a, chosen[0]))
    ends = [slot for _, slot in found]
    return [(slot_a, slot_b) for slot_a, slot_b in found if ends.count(slot_b) == 1]


def _is_position(slot: str) -> bool:
    return slot.partition(".")[0].isdigit()


def _fits(a: Side, i: int, b: Side, j: int) -> bool:
    same_kind = kind_of(a.dtypes[i]) == kind_of(b.dtypes[j])
    return same_kind and math.prod(a.shapes[i]) == math.prod(b.shapes[j])


def _equal(a: Side, i: int, b: Side, j: int) -> bool:
    digest = a.digest(i)
    return digest is not None and digest == b.digest(j) and _fits(a, i, b, j)


def _form(side: Side, row: int) -> tuple[str, tuple[int, ...]]:
    return kind_of(side.dtypes[row]), tuple(sorted(squeezed(side.shapes[row])))
